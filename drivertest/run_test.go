package drivertest

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock-go/distlock/driver"
)

// Run, in real time and for everything that the reference has.
func TestRun(t *testing.T) {
	s := newStore("", false)
	h := s.harness()
	address := s.listen(t)
	h.Process = func(testing.TB) []string { return []string{addressVariable + "=" + address} }
	delete(h.Omit, "Process")
	Run(t, *h)
}

func TestHarnessMustGiveReasons(t *testing.T) {
	h := newStore("", false).harness()
	h.Restart, h.Omit = nil, map[string]string{"Sever": "no reason", "Reboot": "a slip of the pen"}
	got := strings.Join(h.check(cases()), "\n")
	for _, want := range []string{
		`Harness.Process is nil, and Harness.Omit["Process"] doesn't say why`,
		`Harness.Restart is nil, and Harness.Omit["Restart"] doesn't say why`,
		`Harness.Sever is set, and Harness.Omit["Sever"] says why not`,
		`Harness.Omit["Reboot"]: there is no such function or case`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("missing: %s\nin:\n%s", want, got)
		}
	}
}

func TestMissing(t *testing.T) {
	h := &Harness{Omit: map[string]string{"Sever": "can't be lost", "left_out": "known to fail"}}
	exclusive := driver.Info{Modes: driver.ModesOf(driver.Exclusive)}
	for _, test := range []struct {
		c    clause
		want string
	}{
		{clause{name: "any"}, ""},
		{clause{name: "left_out"}, "known to fail"},
		{clause{name: "any", needs: "tokens"}, "Harness.Tokens is false"},
		{clause{name: "any", needs: "leases"}, "the backend has no leases"},
		{clause{name: "any", needs: "Sever leases"}, "can't be lost"},
		{clause{name: "any", modes: withShared}, "the backend has no mode shared"},
	} {
		if got := test.c.missing(h, exclusive); got != test.want {
			t.Errorf("%+v: %q, want %q", test.c, got, test.want)
		}
	}
}

func TestSummary(t *testing.T) {
	got := summary(map[string][]string{"rare": {"c"}, "frequent": {"b", "a"}})
	want := "left out:\n   2  frequent: a, b\n   1  rare: c"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// executed runs f as a case.
func executed(t *testing.T, limit time.Duration, f func(t *trial)) outcome {
	c := clause{name: "case", run: f}
	return c.execute(t, newStore("", false).harness(), limit, func() {}, func() {})
}

func TestHangingCase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		cleaned := make(chan struct{})
		o := executed(t, time.Minute, func(t *trial) {
			t.Cleanup(func() { close(cleaned) })
			stuckInTheBackend(release)
		})
		if !o.failed || !strings.Contains(text(o), "it hangs") || !strings.Contains(text(o), "stuckInTheBackend") {
			t.Errorf("a hanging case must fail and show where, but: %+v", o)
		}
		close(release)
		<-cleaned
	})
}

func stuckInTheBackend(until <-chan struct{}) { <-until }

func TestPanickingCase(t *testing.T) {
	cleaned := false
	o := executed(t, time.Minute, func(t *trial) {
		t.Cleanup(func() { cleaned = true })
		t.Cleanup(func() { panic("in a cleanup") })
		panic("in the case")
	})
	if !o.failed || !cleaned || !strings.Contains(text(o), "in the case") || !strings.Contains(text(o), "in a cleanup") {
		t.Errorf("cleaned up: %t, %s", cleaned, text(o))
	}
}

func TestSkippedCase(t *testing.T) {
	o := executed(t, time.Minute, func(t *trial) { t.Skip("a reason") })
	if o.failed || o.skipped != "a reason" {
		t.Errorf("%+v", o)
	}
	o = executed(t, time.Minute, func(t *trial) {
		t.Errorf("a failure")
		t.Skip("a reason")
	})
	if !o.failed || o.skipped != "" {
		t.Errorf("a failure that is skipped is one still, but: %+v", o)
	}
}

func TestFailureIsAtTheCallerOfHelpers(t *testing.T) {
	o := executed(t, time.Minute, func(t *trial) {
		b := t.open()
		name := t.resource()
		t.held(b, name, "though nobody has it")
	})
	if !strings.Contains(text(o), "run_test.go:") {
		t.Errorf("the failure is not where the case is, but: %s", text(o))
	}
}

// A goroutine that all backends share is no leak while others use it.
func TestSharedGoroutine(t *testing.T) {
	for _, ends := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			stop := make(chan struct{})
			c := clause{name: "case", run: func(*trial) { go stuckInTheBackend(stop) }}
			o := c.execute(t, newStore("", false).harness(), time.Minute, func() {}, func() {
				if ends {
					close(stop)
				}
			})
			if o.failed == ends {
				t.Errorf("it ends with the last backend: %t, but the case failed: %t: %s", ends, o.failed, text(o))
			}
			if !ends {
				close(stop)
			}
		})
	}
}
