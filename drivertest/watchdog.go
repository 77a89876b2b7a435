package drivertest

import (
	"bytes"
	"context"
	"fmt"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// label marks the goroutines of a case. They pass it on to those that they
// start, and so do the backend's.
const label = "drivertest"

// grace is how long goroutines may take to end after the backends were closed,
// before it matters whether other cases run.
const grace = 2 * time.Second

// watchdogAfter is how long a case may take. The slowest take a few leases, and on
// a slow machine a minute more.
func watchdogAfter(ttl time.Duration) time.Duration { return 5*time.Minute + 6*ttl }

var runs atomic.Uint64

// execute runs the case in a goroutine of its own, for limit at most, and
// returns what came of it. When the case is over it calls done, and if there
// are goroutines left, alone, which returns when no other case runs any more.
func (c *clause) execute(tb testing.TB, h *Harness, limit time.Duration, done, alone func()) outcome {
	r := newRecorder(tb, c.name)
	t := newTrial(r, h, runs.Add(1))
	id := fmt.Sprintf("%s-%d", c.name, t.number)
	ended := make(chan struct{})
	go func() {
		pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(label, id)))
		defer close(ended)
		defer r.cleanUp()
		defer r.cancel()
		defer r.catch()
		c.run(t)
	}()
	watchdog := time.NewTimer(limit)
	defer watchdog.Stop()
	select {
	case <-ended:
		done()
		if r.Failed() || len(t.leftGoroutines(id, grace)) == 0 {
			break
		}
		// What all backends share may live on while other cases have some.
		alone()
		if left := t.leftGoroutines(id, slack); len(left) > 0 {
			r.record(true, fmt.Sprintf("goroutines are left %v after the backends were closed:\n\n%s", slack, strings.Join(left, "\n\n")))
		}
	case <-watchdog.C:
		r.record(true, fmt.Sprintf("it hangs: no end after %v. Its goroutines:\n\n%s", limit, strings.Join(goroutines(id), "\n\n")))
		r.cancel()
		select {
		case <-ended:
		case <-time.After(grace):
		}
		done()
	}
	return r.close()
}

// leftGoroutines returns the goroutines of the case that are inside this
// module, or inside the backend's package, and don't end within the bound.
func (t *trial) leftGoroutines(id string, bound time.Duration) []string {
	pause := time.Millisecond
	for deadline := time.Now().Add(bound); ; time.Sleep(pause) {
		pause = min(2*pause, time.Second)
		var left []string
		for _, stack := range goroutines(id) {
			if t.isOurs(stack) {
				left = append(left, stack)
			}
		}
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
	}
}

// goroutines returns the stacks of the goroutines labelled with id. Those that
// are at the same place come as one.
func goroutines(id string) (stacks []string) {
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return []string{"no goroutine profile: " + err.Error()}
	}
	mark := fmt.Sprintf("{%q:%q}", label, id)
	for stack := range strings.SplitSeq(profile.String(), "\n\n") {
		if strings.Contains(stack, mark) {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}
