package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
)

// patience is how long a test waits for what should happen at once.
const patience = time.Minute

var (
	buildFlags []string
	program    string // the built command

	unignoreSignals = func() {} // on systems that have some
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "distlock")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		program = filepath.Join(dir, "distlock")
		if runtime.GOOS == "windows" {
			program += ".exe"
		}
		args := append([]string{"build", "-o", program}, buildFlags...)
		if out, err := exec.Command("go", append(args, ".")...).CombinedOutput(); err != nil {
			panic(fmt.Sprintf("go build: %v\n%s", err, out))
		}
		for _, name := range []string{envURL, envResource, envToken} {
			os.Unsetenv(name)
		}
		unignoreSignals()
		return m.Run()
	}())
}

// skip skips a test for want of something, but not where everything has to be
// there.
func skip(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// newURL returns the URL of an empty store.
func newURL(t *testing.T) string {
	return "file://" + filepath.ToSlash(t.TempDir())
}

// lines are what came out of a file, line by line; closed at its end.
type lines <-chan string

func linesOf(r io.Reader) lines {
	ch := make(chan string, 1000)
	go func() {
		defer close(ch)
		for s := bufio.NewScanner(r); s.Scan(); {
			ch <- s.Text()
		}
	}()
	return ch
}

// until returns the first line that contains text.
func (l lines) until(t *testing.T, text string) string {
	t.Helper()
	timeout := time.After(patience)
	var before []string
	for {
		select {
		case line, ok := <-l:
			if !ok {
				t.Fatalf("no line with %q, just %q", text, before)
			}
			if strings.Contains(line, text) {
				return line
			}
			before = append(before, line)
		case <-timeout:
			t.Fatalf("no line with %q, just %q so far", text, before)
		}
	}
}

// all returns what is still to come, when all that could write have ended or
// closed the file.
func (l lines) all(t *testing.T) string {
	t.Helper()
	timeout := time.After(patience)
	var b strings.Builder
	for {
		select {
		case line, ok := <-l:
			if !ok {
				return b.String()
			}
			b.WriteString(line + "\n")
		case <-timeout:
			t.Fatalf("the file is still open; from it came %q", b.String())
		}
	}
}

// process is a distlock, or another program, at work.
type process struct {
	*exec.Cmd
	stdin          io.WriteCloser // unless a modifier gave it one
	stdout, stderr lines
	exited         chan struct{}
}

// start starts distlock. The modifiers change how.
func start(t *testing.T, args []string, modifiers ...func(*exec.Cmd)) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(program, args...), exited: make(chan struct{})}
	pipe := func() (lines, *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		return linesOf(r), w
	}
	var stdout, stderr *os.File
	p.stdout, stdout = pipe()
	p.stderr, stderr = pipe()
	defer stdout.Close()
	defer stderr.Close()
	p.Stdout, p.Stderr = stdout, stderr
	for _, m := range modifiers {
		m(p.Cmd)
	}
	if p.Stdin == nil {
		var err error
		if p.stdin, err = p.StdinPipe(); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		_ = p.Wait() // its ProcessState says it
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.exited
	})
	return p
}

// code waits for the exit and returns its code, -1 for death by a signal.
func (p *process) code(t *testing.T) int {
	t.Helper()
	select {
	case <-p.exited:
		return p.ProcessState.ExitCode()
	case <-time.After(patience):
		t.Fatalf("still running: %v", p.Args)
		return 0
	}
}

// wantCode waits for the exit with a code.
func (p *process) wantCode(t *testing.T, want int) {
	t.Helper()
	if got := p.code(t); got != want {
		t.Fatalf("exit code %d, want %d; stderr: %s", got, want, p.stderr.all(t))
	}
}

// outcome runs distlock to its end.
func outcome(t *testing.T, args []string, modifiers ...func(*exec.Cmd)) (code int, stdout, stderr string) {
	t.Helper()
	p := start(t, args, modifiers...)
	code = p.code(t)
	return code, p.stdout.all(t), p.stderr.all(t)
}

// env adds to the environment.
func env(kv ...string) func(*exec.Cmd) {
	return func(c *exec.Cmd) { c.Env = append(c.Environ(), kv...) }
}

// wantFree checks that nobody holds or waits for the resource "r".
func wantFree(t *testing.T, url string) {
	t.Helper()
	ctx := context.Background()
	locker, err := distlock.Open(ctx, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close()
	if holders, err := locker.Holders(ctx, "r"); err != nil || len(holders) > 0 {
		t.Errorf("Holders: %v, %v, want none", holders, err)
	}
	lock, err := locker.TryAcquire(ctx, "r")
	if err != nil {
		t.Errorf("the resource isn't free: %v", err)
		return
	}
	if err := lock.Release(); err != nil {
		t.Error(err)
	}
}

// hold holds the resource "r" in this process until the test ends or release
// is called.
func hold(t *testing.T, url string, options ...distlock.AcquireOption) (release func()) {
	t.Helper()
	locker, err := distlock.Open(t.Context(), url, &distlock.Options{Note: "of the test"})
	if err != nil {
		t.Fatal(err)
	}
	lock, err := locker.Acquire(t.Context(), "r", options...)
	if err != nil {
		t.Fatal(err)
	}
	release = func() {
		if err := errors.Join(lock.Release(), locker.Close()); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(release)
	return release
}

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not in %v: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond) // between two looks
	}
}
