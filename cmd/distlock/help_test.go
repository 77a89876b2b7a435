package main

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/distlock-go/distlock/driver"
)

func TestHelp(t *testing.T) {
	code, out, errs := outcome(t, []string{"run", "--help"})
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d, stderr %q", code, errs)
	}
	for _, want := range []string{
		"RESOURCE -- COMMAND", "--timeout", "-n, --no-wait", "--shared", "--semaphore", "--url", "--ttl", "--kill-after", "-v, --verbose",
		envURL, envResource, envToken, "file:", "azblob:", "mysql:", "sqlserver:", "local:",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in the help", want)
		}
	}
	for _, code := range []int{exitUsage, exitStore, exitNotAcquired, exitLost, exitCannotExecute, exitNotFound} {
		if !strings.Contains(out, "\n  "+strconv.Itoa(code)+" ") {
			t.Errorf("exit code %d isn't in the help", code)
		}
	}
	for line := range strings.Lines(out) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 110 {
			t.Errorf("a line of %d characters: %s", n, line)
		}
	}
	if t.Failed() {
		t.Log(out)
	}

	code, out, errs = outcome(t, []string{"--help"})
	if code != 0 || errs != "" || !strings.Contains(out, "run ") || !strings.Contains(out, "completion ") {
		t.Errorf("--help: exit code %d, stdout %q, stderr %q", code, out, errs)
	}
}

func TestNoArguments(t *testing.T) {
	code, out, errs := outcome(t, nil)
	if code != exitUsage || out != "" || !strings.Contains(errs, "completion ") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, out, errs)
	}
}

func TestVersion(t *testing.T) {
	for _, arg := range []string{"version", "--version"} {
		code, out, errs := outcome(t, []string{arg})
		if code != 0 || errs != "" || !strings.HasPrefix(out, "distlock ") || !strings.Contains(out, "go1.") {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", arg, code, out, errs)
		}
	}
}

// The backends in the help are those that are linked in.
func TestBackends(t *testing.T) {
	_, _, errs := outcome(t, []string{"run", "--url", "nosuch://x", "r", "--", "go"})
	_, list, _ := strings.Cut(errs, "linked in: ")
	documented := map[string]bool{}
	for _, b := range backends {
		scheme, _, _ := strings.Cut(b.url, ":")
		documented[scheme] = true
	}
	for scheme := range strings.SplitSeq(strings.TrimSpace(list), ", ") {
		if !documented[scheme] {
			t.Errorf("backend %q is linked in but not documented; stderr: %s", scheme, errs)
		}
		delete(documented, scheme)
	}
	if len(documented) > 0 {
		t.Errorf("documented but not linked in: %v", documented)
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		code, out, errs := outcome(t, []string{"completion", shell})
		if code != 0 || errs != "" || len(out) < 1000 {
			t.Errorf("%s: exit code %d, %d characters, stderr %q", shell, code, len(out), errs)
		}
		if _, err := exec.LookPath(shell); err == nil && shell != "powershell" {
			check := exec.Command(shell, "-n")
			check.Stdin = strings.NewReader(out)
			if out, err := check.CombinedOutput(); err != nil {
				t.Errorf("%s -n: %v\n%s", shell, err, out)
			}
		}
	}
	const none, files, noSpace = ":4\n", ":0\n", ":6\n"
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{"run", "--"}, []string{"--timeout\t", "--no-wait\t", "--semaphore\t", "--url\t"}},
		{[]string{"run", ""}, []string{none}},
		{[]string{"run", "--timeout", ""}, []string{none}},
		{[]string{"run", "--url", ""}, []string{"file:", "azblob:", "mysql:", "sqlserver:", "local:", noSpace}},
		{[]string{"run", "r", "--", ""}, []string{files}},
		{[]string{"run", "r", "--", "cp", "-v", ""}, []string{files}},
	} {
		_, out, _ := outcome(t, append([]string{"__complete"}, test.args...))
		for _, want := range test.want {
			if !strings.Contains(out, want) {
				t.Errorf("%q: no %q in %q", test.args, want, out)
			}
		}
	}
}

func TestUsageErrors(t *testing.T) {
	for _, test := range []struct {
		want string
		args []string
	}{
		{"unknown command", []string{"runn"}},
		{"no resource", []string{"run"}},
		{"no resource", []string{"run", "--"}},
		{"no command", []string{"run", "r"}},
		{"no command", []string{"run", "r", "--"}},
		{"resource is empty", []string{"run", "", "--", "go"}},
		{"URL is empty", []string{"run", "--url", "", "r", "--", "go"}},
		{"unknown flag: --frobnicate", []string{"run", "--frobnicate", "r", "--", "go"}},
		{"flags go before", []string{"run", "r", "--timeout", "1s", "--", "go"}},
		{"exclude each other", []string{"run", "-n", "--timeout", "1s", "r", "--", "go"}},
		{"exclude each other", []string{"run", "--shared", "--semaphore", "2", "r", "--", "go"}},
		{"negative", []string{"run", "--timeout", "-1s", "r", "--", "go"}},
		{"is it 5s?", []string{"run", "--timeout", "5", "r", "--", "go"}},
		{"not a duration", []string{"run", "--timeout", "soon", "r", "--", "go"}},
		{"at least one", []string{"run", "--semaphore", "0", "r", "--", "go"}},
		{"at least one", []string{"run", "--semaphore", "-3", "r", "--", "go"}},
		{"--semaphore", []string{"run", "--semaphore", "many", "r", "--", "go"}},
		{"must last", []string{"run", "--ttl", "0s", "r", "--", "go"}},
		{"negative", []string{"run", "--ttl", "-1s", "r", "--", "go"}},
		{"tenth", []string{"run", "--kill-after", "3001ms", "r", "--", "go"}},
		{"tenth", []string{"run", "--kill-after", "1001ms", "--ttl", "10s", "r", "--", "go"}},
		{"azblob, file, local", []string{"run", "--url", "nosuch:", "r", "--", "go"}},
		{"scheme", []string{"run", "--url", "/var/locks", "r", "--", "go"}},
		{"nosuch", []string{"run", "--url", "file:///tmp/x?nosuch=1", "r", "--", "go"}},
		{"local:", []string{"run", "--url", "local:x", "r", "--", "go"}},
		{"max_poll", []string{"run", "--url", "azblob://locks?nosuch=1", "r", "--", "go"}},
		{"15s", []string{"run", "--url", "azblob://locks?account=some", "--ttl", "5s", "r", "--", "go"}},
	} {
		code, out, errs := outcome(t, test.args)
		if code != exitUsage || out != "" {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q", test.args, code, out, errs)
		}
		if !strings.Contains(errs, test.want) || !strings.HasPrefix(errs, "distlock: ") || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: stderr %q, want a line with %q", test.args, errs, test.want)
		}
	}
}

func TestNoSecrets(t *testing.T) {
	for _, url := range []string{
		"nosuch://user:hunter2@host/db",
		"file://user:hunter2@host/locks",
		"file:///locks?password=hunter2",
		"file:///%zz?password=hunter2",
		"local://user:hunter2@host",
		"azblob://user:hunter2@locks",
		"azblob://locks?sig=hunter2",
		"mysql://user:hunter2%@host:port/db",
		"sqlserver://user:hunter2%@host:port?database=db",
		"//user:hunter2@host",
		"hunter2",
	} {
		for _, verbose := range []string{"-v=false", "-v"} {
			code, out, errs := outcome(t, []string{"run", verbose, "r", "--", "go"}, env(envURL+"="+url))
			if code != exitUsage || strings.Contains(out+errs, "hunter2") {
				t.Errorf("%s: exit code %d, stdout %q, stderr %q", url, code, out, errs)
			}
			if _, _, errs := outcome(t, []string{"run", verbose, "--url", url, "r", "--", "go"}); strings.Contains(errs, "hunter2") {
				t.Errorf("%s: stderr %q", url, errs)
			}
		}
	}
}

func TestDescribe(t *testing.T) {
	now := time.Date(2026, 11, 5, 12, 6, 16, 0, time.Local)
	full := driver.Holder{
		Owner: driver.Owner{Host: "web-1", PID: 4711, Program: "distlock", Note: "run backup.sh"},
		Since: now.Add(-3*time.Minute - 12*time.Second),
	}
	old := full
	old.Since = now.Add(-49 * time.Hour)
	early := full
	early.Since = now.Add(time.Minute) // another host's clock
	for _, test := range []struct {
		holders []driver.Holder
		want    string
	}{
		{nil, "held by somebody else"},
		{[]driver.Holder{{}}, "held by somebody else, exclusive"},
		{[]driver.Holder{full}, "held by host web-1, pid 4711 (distlock run backup.sh), exclusive, since 12:03:04 (3m12s ago)"},
		{[]driver.Holder{old}, "held by host web-1, pid 4711 (distlock run backup.sh), exclusive, since 2026-11-03 11:06:16 (49h0m0s ago)"},
		{[]driver.Holder{early}, "held by host web-1, pid 4711 (distlock run backup.sh), exclusive, since 12:07:16 (0s ago)"},
		{
			[]driver.Holder{{Owner: driver.Owner{PID: 1}, Mode: driver.Shared}, {Owner: driver.Owner{Program: "a"}, Mode: driver.Shared}},
			"held by pid 1, shared; by a, shared",
		},
		{make([]driver.Holder, 5), "held by somebody else, exclusive; by somebody else, exclusive; by somebody else, exclusive; by 2 more"},
	} {
		if got := describe(test.holders, now); got != test.want {
			t.Errorf("got  %s\nwant %s", got, test.want)
		}
	}
}

// -v names the store, and nothing of its URL that may be secret.
func TestStoreIsNamed(t *testing.T) {
	for _, c := range []struct{ url, from, want string }{
		{"mysql://u:hunter2@db.example:3306/app?tls=true", "", "mysql://db.example:3306/app (--url)"},
		{"azblob://locks?sig=hunter2", "$" + envURL, "azblob://locks ($" + envURL + ")"},
		{"file:", "the default", "file: (the default)"},
		{"file:///var/locks?mode=0660", "", "file:///var/locks (--url)"},
		{"mysql://u:hunter2%@db", "", "that of --url"},
	} {
		if got := (&runner{url: c.url, urlFrom: c.from}).store(); got != c.want {
			t.Errorf("%s: %q, want %q", c.url, got, c.want)
		}
	}
}
