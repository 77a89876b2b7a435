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
	return slices.Concat(exclusion, waiting, releasing, sessions, tokens, names, modes, undoing, silence, inspecting)
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
	limit := time.Minute + 6*h.ttl(info)

	var mu sync.Mutex
	leftOut := make(map[string][]string)
	leaveOut := func(reason, name string) {
		mu.Lock()
		defer mu.Unlock()
		leftOut[reason] = append(leftOut[reason], name)
	}
	run := func(c clause) {
		t.Run(c.name, func(t *testing.T) {
			o := c.execute(t, &h, limit)
			if o.skipped != "" {
				leaveOut(o.skipped, c.name)
			}
			o.report(t)
		})
	}
	var together sync.WaitGroup
	slots := make(chan struct{}, abreast)
	for _, c := range all {
		reason := c.missing(&h, info)
		switch {
		case reason != "":
			leaveOut(reason, c.name)
		case !c.alone:
			together.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				run(c)
			})
		}
	}
	together.Wait()
	for _, c := range all {
		if c.alone && c.missing(&h, info) == "" {
			run(c)
		}
	}
	if len(leftOut) > 0 {
		t.Log(summary(leftOut))
	}
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
