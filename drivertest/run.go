package drivertest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// abreast is how many cases run at once. Most of them wait most of the time.
const abreast = 8

// cases returns the whole suite.
func cases() []clause {
	return slices.Concat(exclusion, waiting, releasing, sessions, tokens, names, modes, undoing, silence, inspecting, lockers, processes)
}

// Run runs the suite against the backend that h opens: a subtest for each
// case. Cases that this backend can't be put to are left out, and Run logs
// which, and why; a case is never left out for any other reason than what the
// harness or the backend's Info declares.
func Run(t *testing.T, h Harness) {
	t.Helper()
	if h.Open == nil {
		t.Fatal("Harness.Open is nil")
	}
	all := cases()
	for _, problem := range h.check(all) {
		t.Error(problem)
	}
	if t.Failed() {
		return
	}
	b := h.Open(t)
	info := b.Info()
	if err := b.Close(); err != nil {
		t.Fatalf("Close of a backend that wasn't used: %v", err)
	}

	r := &running{t: t, h: &h, limit: watchdogAfter(h.ttl(info)), leftOut: make(map[string][]string)}
	var atDriver, throughDistlock []clause
	for _, c := range all {
		switch reason := c.missing(&h, info); {
		case reason != "":
			r.leaveOut(reason, c.name)
		case c.distlock:
			throughDistlock = append(throughDistlock, c)
		default:
			atDriver = append(atDriver, c)
		}
	}
	r.run(atDriver)
	if r.foundationFailed {
		t.Errorf("without %s there is no use in going on", foundation)
	} else {
		r.run(throughDistlock)
	}
	if len(r.leftOut) > 0 {
		t.Log(summary(r.leftOut))
	}
}

// running is the suite in progress.
type running struct {
	t     *testing.T
	h     *Harness
	limit time.Duration

	mu               sync.Mutex
	leftOut          map[string][]string // reason to cases
	foundationFailed bool
}

func (r *running) leaveOut(reason, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leftOut[reason] = append(r.leftOut[reason], name)
}

// run runs the cases as subtests: first those that may run side by side.
func (r *running) run(cases []clause) {
	var together, executing sync.WaitGroup
	slots := make(chan struct{}, abreast)
	for _, c := range cases {
		if c.alone {
			continue
		}
		executing.Add(1)
		together.Go(func() {
			slots <- struct{}{}
			done := sync.OnceFunc(func() { <-slots; executing.Done() })
			defer done()
			r.runOne(c, done, executing.Wait)
		})
	}
	together.Wait()
	for _, c := range cases {
		if c.alone {
			r.runOne(c, func() {}, func() {})
		}
	}
}

func (r *running) runOne(c clause, done, alone func()) {
	r.t.Run(c.name, func(t *testing.T) {
		o := c.execute(t, r.h, r.limit, done, alone)
		if o.skipped != "" {
			r.leaveOut(o.skipped, c.name)
		}
		if o.failed && c.name == foundation {
			r.mu.Lock()
			r.foundationFailed = true
			r.mu.Unlock()
		}
		o.report(t)
	})
}

// summary says what was left out, the largest part first.
func summary(leftOut map[string][]string) string {
	reasons := slices.SortedFunc(maps.Keys(leftOut), func(a, b string) int {
		return cmp.Or(len(leftOut[b])-len(leftOut[a]), strings.Compare(a, b))
	})
	var b strings.Builder
	b.WriteString("left out:")
	for _, reason := range reasons {
		slices.Sort(leftOut[reason])
		fmt.Fprintf(&b, "\n%4d  %s: %s", len(leftOut[reason]), reason, strings.Join(leftOut[reason], ", "))
	}
	return b.String()
}
