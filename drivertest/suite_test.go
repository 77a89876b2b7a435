package drivertest

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var flavours = map[string]bool{"leases": true, "connections": false}

// The reference passes the suite.
func TestReference(t *testing.T) {
	for name, leases := range flavours {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for c, o := range runOn(t, cases(), "", leases) {
				if o.failed {
					t.Errorf("%s:\n%s", c, text(o))
				}
			}
		})
	}
}

var _ = flag.Bool

// runOn runs the cases on the reference with a defect, on a clock that doesn't
// make anybody wait.
func runOn(t *testing.T, cases []clause, defect string, leases bool) map[string]outcome {
	outcomes := make(map[string]outcome)
	for _, c := range cases {
		bubble := func(t *testing.T) {
			s := newStore(defect, leases)
			if !c.real {
				s.latency = 100 * time.Microsecond
			}
			h := s.harness()
			defer func() {
				close(s.end)
				if !c.real {
					time.Sleep(time.Hour) // the clock stops when this goroutine ends
				}
			}()
			if reason := c.missing(h, (&memory{store: s}).Info()); reason != "" {
				outcomes[c.name] = outcome{skipped: reason}
				return
			}
			outcomes[c.name] = c.execute(t, h, time.Minute)
		}
		if c.real {
			bubble(t)
		} else {
			synctest.Test(t, bubble)
		}
	}
	return outcomes
}

func text(o outcome) string {
	var b strings.Builder
	for _, n := range o.notes {
		fmt.Fprintln(&b, n.text)
	}
	return b.String()
}
