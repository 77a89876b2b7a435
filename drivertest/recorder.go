package drivertest

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
)

// A recorder is the testing.TB of one case. It keeps what the case says until
// the case is over, so that one that hangs can be left behind, and so that the
// tests of the suite can look at the failures instead of having them.
type recorder struct {
	testing.TB // for what isn't overridden here
	name       string
	ctx        context.Context
	cancel     context.CancelFunc

	mu       sync.Mutex
	closed   bool // nothing is recorded any more
	failed   bool
	skipped  bool
	reason   string // for being skipped
	notes    []note
	cleanups []func()
	helpers  map[string]bool
}

type note struct {
	failure bool
	text    string
}

func newRecorder(tb testing.TB, name string) *recorder {
	r := &recorder{TB: tb, name: name, helpers: make(map[string]bool)}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

func (r *recorder) Name() string             { return r.name }
func (r *recorder) Context() context.Context { return r.ctx }

func (r *recorder) Helper() {
	pc, _, _, _ := runtime.Caller(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.helpers[runtime.FuncForPC(pc).Name()] = true
}

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

// cleanUp calls what was given to Cleanup, last first, all of it even if some
// panics or ends the goroutine.
func (r *recorder) cleanUp() {
	r.mu.Lock()
	n := len(r.cleanups)
	if n == 0 {
		r.mu.Unlock()
		return
	}
	f := r.cleanups[n-1]
	r.cleanups = r.cleanups[:n-1]
	r.mu.Unlock()
	defer r.cleanUp()
	defer r.catch()
	f()
}

// catch makes a panic a failure. It is to be deferred.
func (r *recorder) catch() {
	if p := recover(); p != nil {
		r.record(true, fmt.Sprintf("panic: %v\n%s", p, debug.Stack()))
	}
}

func (r *recorder) record(failure bool, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.failed = r.failed || failure
	r.notes = append(r.notes, note{failure, r.site() + text})
}

// site returns file and line of the caller that is no helper. The caller holds
// r.mu.
func (r *recorder) site() string {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(4, pcs[:])])
	for {
		f, more := frames.Next()
		if f.File == "" || strings.HasPrefix(f.Function, "runtime.") {
			return ""
		}
		if !r.helpers[f.Function] {
			return fmt.Sprintf("%s:%d: ", filepath.Base(f.File), f.Line)
		}
		if !more {
			return ""
		}
	}
}

func (r *recorder) Log(args ...any)                 { r.record(false, fmt.Sprint(args...)) }
func (r *recorder) Logf(format string, args ...any) { r.record(false, fmt.Sprintf(format, args...)) }
func (r *recorder) Error(args ...any)               { r.record(true, fmt.Sprint(args...)) }
func (r *recorder) Errorf(format string, args ...any) {
	r.record(true, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatal(args ...any) {
	r.record(true, fmt.Sprint(args...))
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.record(true, fmt.Sprintf(format, args...))
	runtime.Goexit()
}

func (r *recorder) Skip(args ...any)                 { r.skip(fmt.Sprint(args...)) }
func (r *recorder) Skipf(format string, args ...any) { r.skip(fmt.Sprintf(format, args...)) }
func (r *recorder) SkipNow()                         { r.skip("no reason given") }

func (r *recorder) skip(reason string) {
	r.mu.Lock()
	r.skipped, r.reason = true, reason
	r.mu.Unlock()
	runtime.Goexit()
}

func (r *recorder) FailNow() {
	r.Fail()
	runtime.Goexit()
}

func (r *recorder) Fail() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) Skipped() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.skipped
}

// close returns what was recorded. What comes later is dropped.
func (r *recorder) close() outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	o := outcome{failed: r.failed, notes: r.notes}
	if r.skipped && !r.failed {
		o.skipped = r.reason
	}
	return o
}

// outcome is what came of a case.
type outcome struct {
	failed  bool
	skipped string // why; "" if it wasn't
	notes   []note
}

// report tells t the outcome.
func (o outcome) report(t *testing.T) {
	t.Helper()
	for _, n := range o.notes {
		if n.failure {
			t.Error(n.text)
		} else {
			t.Log(n.text)
		}
	}
	switch {
	case o.skipped != "":
		t.Skip(o.skipped)
	case o.failed:
		t.Fail()
	}
}
