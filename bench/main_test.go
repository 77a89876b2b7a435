//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write testdata anew")

func TestMain(m *testing.M) {
	backends = append(backends, &broken)
	if os.Getenv(workerVariable) != "" {
		if err := serve(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// broken has contenders that don't do what they should.
var broken = backend{
	name: "broken", title: "Broken",
	start: func(context.Context) (store, error) { return noStore{}, nil },
	contenders: []*contender{
		{name: "lets all in", role: ours, tests: []string{"hot", "handover"}, open: func(context.Context, place) (locker, error) { return new(open), nil }},
		{name: "counts down", role: ours, tests: []string{"hot"}, open: func(context.Context, place) (locker, error) {
			return &countsDown{mutexes{m: make(map[string]*sync.Mutex)}}, nil
		}},
		{name: "fails", role: peer, tests: []string{"uncontended", "names", "hot", "hold"}, open: func(context.Context, place) (locker, error) { return failing{}, nil }},
		{name: "dies", role: peer, tests: []string{"uncontended"}, open: func(context.Context, place) (locker, error) { panic("it hurts") }},
		{name: "sound", role: floor, tests: []string{"uncontended"}, open: local.contenders[0].open},
		asking, cancelable(asking, "hot"),
	},
}

// asking is a contender that asks for the kind of its context.
var asking = &contender{name: "asking", role: floor, tests: []string{"hot"}, open: func(ctx context.Context, _ place) (locker, error) {
	return told(ctx.Done() != nil), nil
}}

// told knows the context that it was opened in.
type told bool

func (t told) client(ctx context.Context, _ string) (client, error) {
	if t != told(ctx.Done() != nil) {
		return nil, errors.New("opened in another context")
	}
	if t {
		return nil, errors.New("it can be canceled")
	}
	return nil, errors.New("it never ends")
}

func (told) close() error { return nil }

// open excludes nobody.
type open struct{ n atomic.Uint64 }

func (l *open) client(context.Context, string) (client, error) { return l, nil }
func (l *open) acquire() error                                 { return nil }
func (l *open) release() error                                 { return nil }
func (l *open) close() error                                   { return nil }

// token is called by who believes to be alone, and lets others run.
func (l *open) token() (uint64, bool) {
	runtime.Gosched()
	return l.n.Add(1), true
}

// countsDown excludes, but has tokens that fall.
type countsDown struct{ mutexes }

func (l *countsDown) client(ctx context.Context, name string) (client, error) {
	c, err := l.mutexes.client(ctx, name)
	return &falling{client: c, n: 1 << 40}, err
}

type falling struct {
	client

	n uint64
}

func (c *falling) token() (uint64, bool) { c.n--; return c.n, true }

type failing struct{ noTokens }

var errFailing = errors.New("the store is on fire")

func (l failing) client(context.Context, string) (client, error) { return l, nil }
func (failing) acquire() error                                   { return errFailing }
func (failing) release() error                                   { return nil }
func (failing) close() error                                     { return nil }

// runBench runs the program and returns what it prints.
func runBench(t *testing.T, args string) (text string, err error) {
	t.Helper()
	var out, progress bytes.Buffer
	err = bench(t.Context(), strings.Fields("-targets -repeats 1 -turns 1 -duration 20ms -hot 50ms -handover 30ms -hold 50 "+args), &out, &progress)
	t.Log(progress.String())
	return out.String(), err
}

func TestLocalAndFiles(t *testing.T) {
	text, err := runBench(t, "-backends local,file")
	if err != nil {
		t.Fatal(err)
	}
	t.Log(text)
	for _, b := range []*backend{&local, &file} {
		_, part, _ := strings.Cut(text, "### "+b.title+"\n")
		for _, c := range b.contenders {
			// Once in each of the two tables of each test.
			if n := strings.Count(part[:strings.Index(part+"\n### ", "\n### ")], "\n| "+c.name+" "); n != 2*len(c.tests) {
				t.Errorf("%s, %s: %d rows for %d tests", b.name, c.name, n, len(c.tests))
			}
		}
	}
	for _, g := range targets {
		if g.backend != &local && g.backend != &file || g.backend.contender(g.contender) == nil {
			continue
		}
		if line := g.backend.name + ", " + g.test.name + ", " + g.test.figure(g.figure).title; !strings.Contains(text, line) {
			t.Errorf("no target %q", line)
		}
	}
}

// The servers start, and all can lock there. Long runs are for make bench.
func TestServers(t *testing.T) {
	for args, want := range map[string]string{
		"-backends mariadb -tests uncontended": "innodb_flush_log_at_trx_commit=1;",
		"-backends azurite -tests handover":    "Azurite 3.",
	} {
		text, err := runBench(t, args)
		if err != nil {
			t.Error(err)
		}
		if _, why, missing := strings.Cut(text, "\nLeft out: "); missing {
			why, _, _ = strings.Cut(why, "\n")
			if os.Getenv("CI") != "" {
				t.Error(why)
			}
			t.Log("WARNING: not tested: ", why)
		} else if !strings.Contains(text, want) {
			t.Errorf("%s: no %q in\n%s", args, want, text)
		}
	}
}

// isSeen measures for longer and longer, as a busy machine lets nobody do much in a
// short time, until what is wrong with the contender is seen.
func isSeen(t *testing.T, b *backend, test *test, contender string, wrong func(values map[string]float64, err error) bool) {
	t.Helper()
	s, _, err := parse(nil, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	s.dir = t.TempDir()
	for _, d := range []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second} {
		s.hot, s.handOver = d, d
		values, err := measure(t.Context(), s, noStore{}, b, test, b.contender(contender))
		if wrong(values, err) {
			return
		}
		t.Logf("in %v: %v, %v", d, values, err)
	}
	t.Errorf("%s, %s: what is wrong is not seen", test.name, contender)
}

// Who isn't alone is noticed, over goroutines and over processes.
func TestViolationsAreSeen(t *testing.T) {
	for _, one := range []bool{true, false} {
		b := broken
		b.alone = one
		isSeen(t, &b, &hot, "lets all in", func(values map[string]float64, err error) bool {
			return err != nil && strings.Contains(err.Error(), "wasn't alone") && values["violations"] > 0
		})
	}
	isSeen(t, &broken, &handOver, "lets all in", func(_ map[string]float64, err error) bool {
		return err != nil && strings.Contains(err.Error(), "wasn't alone")
	})
}

// All are called with a context that never ends, but those who say otherwise: it
// costs less.
func TestContexts(t *testing.T) {
	s, _, err := parse(nil, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	s.dir = t.TempDir()
	for name, want := range map[string]string{"asking": "it never ends", "asking, cancelable": "it can be canceled"} {
		if _, err := measure(t.Context(), s, noStore{}, &broken, &hot, broken.contender(name)); err == nil || err.Error() != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Each test compares us with somebody, on each backend. To hand over takes another
// process.
func TestAllTestsEverywhere(t *testing.T) {
	for _, b := range []*backend{&local, &file, &mariaDB, &azurite} {
		for _, test := range tests {
			if b.alone && test == &handOver {
				continue
			}
			n := make(map[role]int)
			for _, c := range contendersOf(b, test) {
				n[c.role]++
			}
			if n[ours] == 0 || n[floor]+n[peer] == 0 {
				t.Errorf("%s, %s: %d of ours, %d floors, %d peers", b.name, test.name, n[ours], n[floor], n[peer])
			}
		}
	}
}

func TestConnections(t *testing.T) {
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for want := range 3 {
		n, err := connections(l.Addr().(*net.TCPAddr).AddrPort().Port())
		if n != want || err != nil {
			t.Errorf("%d of %d, %v", n, want, err)
		}
		var d net.Dialer
		c, err := d.DialContext(t.Context(), "tcp4", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
}

func TestTokensOutOfOrderAreSeen(t *testing.T) {
	b := broken
	b.alone = true
	isSeen(t, &b, &hot, "counts down", func(values map[string]float64, err error) bool {
		return err != nil && values["unordered"] > 0 && values["violations"] == 0
	})
}

func TestWatch(t *testing.T) {
	var w watch
	w.enter(1, failing{})
	w.leave(1)
	w.enter(2, failing{})
	if n := w.violations.Load(); n != 0 {
		t.Fatal("violations of two in turn: ", n)
	}
	w.enter(3, failing{})
	if n := w.violations.Load(); n != 1 {
		t.Fatal("violations of two at once: ", n)
	}
	c := &falling{n: 8}
	var fresh watch
	fresh.enter(1, &falling{n: 7}) // 6
	fresh.leave(1)
	fresh.enter(1, c) // 7
	fresh.leave(1)
	if n := fresh.unordered.Load(); n != 0 {
		t.Fatal("rising tokens out of order: ", n)
	}
	fresh.enter(1, &falling{n: 8}) // 7 again
	if n := fresh.unordered.Load(); n != 1 {
		t.Fatal("the same token twice: ", n)
	}
}

// What fails is told, and the others go on.
func TestFailures(t *testing.T) {
	text, err := runBench(t, "-backends broken -tests uncontended,names,hold")
	if err == nil || !strings.Contains(err.Error(), "4 runs failed") {
		t.Error(err)
	}
	for _, want := range []string{
		"broken, uncontended, fails (1): the store is on fire", "broken, names, fails (1): the store is on fire", "broken, hold, fails (1): the store is on fire",
		"broken, uncontended, dies (1): a process said nothing more", "it hurts",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("not told: %s", want)
		}
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "| sound ") && !strings.Contains(line, "s |") && !strings.Contains(line, "1.00") {
			t.Errorf("who is sound wasn't measured: %s", line)
		}
	}
}

func TestMissingStore(t *testing.T) {
	defer func(old []*backend) { backends = old }(backends)
	backends = append(backends, &backend{
		name: "nowhere", title: "Nowhere",
		start: func(context.Context) (store, error) { return nil, errors.New("no server") },
	})
	text, err := runBench(t, "-backends nowhere,local -tests uncontended -turns 3")
	if err != nil || !strings.Contains(text, "Left out: Nowhere: no server.") || !strings.Contains(text, "| moby/locker ") {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestArguments(t *testing.T) {
	for args, want := range map[string]string{
		"-backends nix":     `no backend "nix": there are local,file,mariadb,azurite,broken`,
		"-tests hot,,":      `no test ""`,
		"-repeats 0":        "more than 0",
		"-hot -1s":          "more than 0",
		"-turns 0":          "more than 0",
		"docs":              `unknown arguments ["docs"]`,
		"-backends hot,hot": `no backend "hot"`,
	} {
		if _, err := runBench(t, args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
	s, docs, err := parse(strings.Fields("-tests hold,hot -o docs -backends file"), os.Stderr)
	if err != nil || docs != "docs" || !slices.Equal(s.tests, []*test{&hot, &hold}) || !slices.Equal(s.backends, []*backend{&file}) {
		t.Errorf("%+v, %q, %v", s, docs, err)
	}
}

// madeUp is a backend without a store.
var madeUp = backend{
	name: "paper", title: "Paper & ink",
	contenders: []*contender{
		{name: "pencil", role: floor, note: "a mark", tests: []string{"uncontended", "hot"}},
		{name: "pen", role: peer, note: "a mark that stays", module: "example.com/pen", tests: []string{"uncontended", "hot"}},
		{name: "quill", role: peer, note: "one of a bird", tests: []string{"uncontended"}},
		{name: "distlock", role: ours, note: "paperlock", tests: []string{"uncontended", "hot", "hold"}},
		{name: "pencil, cancelable", role: floor, note: "a mark, with a rubber", tests: []string{"uncontended"}, cancelable: true},
		{name: "distlock, cancelable", role: ours, note: "paperlock, with a rubber", tests: []string{"uncontended"}, cancelable: true},
	},
	names: 40,
}

// aReport has made-up figures.
func aReport() *report {
	s := &settings{tests: []*test{&uncontended, &hot, &hold}, repeats: 3, duration: time.Second, short: 5, hot: 5 * time.Second, handOver: 3 * time.Second, names: 5000}
	r := newReport(s)
	r.machine = "Abacus, 2 cores; Linux 6.1 x86_64; go1.26"
	r.date = time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	r.missing = []string{"Azure: no node"}
	b := &madeUp
	r.backends = []*backend{b}
	r.versions[b] = "A4"
	pencil, pen, quill, lock, pencil2, lock2 := b.contenders[0], b.contenders[1], b.contenders[2], b.contenders[3], b.contenders[4], b.contenders[5]
	for i := range 3 {
		f := float64(i)
		r.add(b, &uncontended, pencil, map[string]float64{"time": 2000 + 10*f, "allocations": 1}, nil)
		r.add(b, &uncontended, pen, map[string]float64{"time": 4000 - 500*f, "allocations": 3}, nil)
		r.add(b, &uncontended, quill, map[string]float64{"time": 9000, "allocations": 2}, nil)
		r.add(b, &uncontended, lock, map[string]float64{"time": 5025, "allocations": 3.5}, nil)
		r.add(b, &uncontended, pencil2, map[string]float64{"time": 3000, "allocations": 2}, nil)
		r.add(b, &uncontended, lock2, map[string]float64{"time": 6000, "allocations": 4}, nil)
		r.add(b, &hold, lock, map[string]float64{"take": 1e9, "release": 1e9, "memory": 1e6, "live": 1234}, nil)
		r.add(b, &hot, pencil, map[string]float64{"rate": 400_000 + 1000*f, "p50": 700, "p99": 3e6, "max": 5e7, "fairness": 0.1, "share": 0.4, "violations": 0}, nil)
		r.add(b, &hot, pen, nil, errors.New("no ink left"))
		r.add(b, &hot, lock, map[string]float64{"rate": 200_000 + 1000*f, "p50": 2e5, "p99": 6e6, "max": 9e6, "fairness": 0.9, "share": 0.5, "violations": 0, "unordered": 0}, nil)
	}
	return r
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (go test -update writes it anew):\n%s", path, got)
	}
}

func TestReport(t *testing.T) {
	r := aReport()
	var text bytes.Buffer
	r.write(&text, "benchmarks")
	r.writeTargets(&text, []target{
		{&madeUp, &uncontended, "distlock", "time", 1.5, "pen"},
		{&madeUp, &uncontended, "distlock", "allocations", 3.4, ""},
		{&madeUp, &uncontended, "distlock", "time", 1.4, "pen"},
		{&madeUp, &hot, "distlock", "rate", 0.5, "floor"},
		{&madeUp, &hot, "distlock", "fairness", 0.91, ""},
		{&madeUp, &hot, "distlock", "rate", 0.5, "pen"}, // who has no figure
		{&madeUp, &uncontended, "distlock, cancelable", "time", 2, "floor"},
		{&madeUp, &uncontended, "distlock", "time", 1, "peer"},
		{&madeUp, &hot, "pen", "rate", 100, ""},             // who failed
		{&madeUp, &names, "distlock", "rate", 100, ""},      // which wasn't run
		{&madeUp, &hot, "distlock, bound", "rate", 100, ""}, // which isn't there
	})
	golden(t, "report.md", text.Bytes())
	var chart bytes.Buffer
	writeChart(&chart, madeUp.title, r.panels(&madeUp))
	golden(t, "chart.svg", chart.Bytes())
}

func TestSave(t *testing.T) {
	docs := t.TempDir()
	page := filepath.Join(docs, "benchmarks.md")
	if err := aReport().save(docs, []byte("new\n")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	for _, text := range []string{"no place", "before\n" + beginMark + "old\n"} {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := aReport().save(docs, []byte("new\n")); err == nil || !strings.Contains(err.Error(), "missing") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := os.WriteFile(page, []byte("before\n"+beginMark+"old\n"+endMark+"after\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it can be done again
		if err := aReport().save(docs, []byte("new\n")); err != nil {
			t.Fatal(err)
		}
	}
	got, _ := os.ReadFile(page)
	if want := "before\n" + beginMark + "\nnew\n\n" + endMark + "after\n"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if chart, _ := os.ReadFile(filepath.Join(docs, "benchmarks/paper.svg")); !bytes.Contains(chart, []byte("</svg>")) {
		t.Error("no chart")
	}
}
