package drivertest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// The reference passes the suite, in both flavours.
func TestReference(t *testing.T) {
	t.Parallel()
	for name, leases := range map[string]bool{"leases": true, "connections": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			expect(t, run(t, unfaked(false), "", leases, true))
		})
		t.Run(name+" in a bubble", func(t *testing.T) {
			t.Parallel()
			expect(t, run(t, faked(), "", leases, true))
		})
	}
}

// So it does where nothing may be beside it.
func TestReferenceAlone(t *testing.T) {
	for _, leases := range []bool{true, false} {
		expect(t, run(t, unfaked(true), "", leases, true))
	}
}

// expect fails the test for each case that failed.
func expect(t *testing.T, outcomes map[string]outcome) {
	t.Helper()
	for c, o := range outcomes {
		if o.failed {
			t.Errorf("%s:\n%s", c, text(o))
		}
	}
}

// faked returns the cases that can run on a clock that makes nobody wait.
func faked() []clause {
	return slices.DeleteFunc(cases(), func(c clause) bool { return c.real })
}

// unfaked returns those that can't, and must be alone or needn't.
func unfaked(alone bool) []clause {
	return slices.DeleteFunc(cases(), func(c clause) bool { return !c.real || c.alone != alone })
}

// run runs the cases on the reference with a defect. Those that need the real
// clock run at once.
func run(t *testing.T, cases []clause, defect string, leases, fully bool) map[string]outcome {
	var mu sync.Mutex
	outcomes := make(map[string]outcome)
	var together sync.WaitGroup
	for _, c := range cases {
		mu.Lock()
		hopeless := c.distlock && outcomes[foundation].failed
		mu.Unlock()
		if hopeless {
			continue
		}
		try := func(t *testing.T) {
			s := newStore(defect, leases)
			h := s.harness()
			h.brief = !fully
			if c.real {
				h.TTL = 6 * time.Second // a machine that stands still for a while loses no lease
				address := s.listen(t)
				h.Process = func(testing.TB) []string { return []string{addressVariable + "=" + address} }
				delete(h.Omit, "Process")
			} else {
				s.latency = 100 * time.Microsecond
			}
			o := outcome{skipped: c.missing(h, (&memory{store: s}).Info())}
			if o.skipped == "" {
				o = c.execute(t, h, watchdogAfter(h.TTL), func() {}, func() {})
			}
			close(s.end)
			if !c.real {
				time.Sleep(time.Hour) // the clock stops when this goroutine ends
			}
			mu.Lock()
			defer mu.Unlock()
			outcomes[c.name] = o
		}
		switch {
		case !c.real:
			synctest.Test(t, try)
		case c.alone:
			try(t)
		default:
			together.Go(func() { try(t) })
		}
	}
	together.Wait()
	return outcomes
}

func text(o outcome) string {
	var b strings.Builder
	for _, n := range o.notes {
		fmt.Fprintln(&b, n.text)
	}
	return b.String()
}

func failures(outcomes map[string]outcome) []string {
	maps.DeleteFunc(outcomes, func(_ string, o outcome) bool { return !o.failed })
	return slices.Sorted(maps.Keys(outcomes))
}
