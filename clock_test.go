package distlock

import (
	"runtime"
	"testing"
	"time"
)

// wallAt returns t on a wall clock that was set by d.
func wallAt(t time.Time, d time.Duration) time.Time { return t.Round(0).Add(d) }

func TestP11_ThePessimisticClockCounts(t *testing.T) {
	start := reading{time.Now(), time.Hour}
	later := start.t.Add(3 * time.Second)
	for _, c := range []struct {
		name string
		to   reading
		want time.Duration
	}{
		{"in step", reading{later, time.Hour + 3*time.Second}, 3 * time.Second},
		{"the machine slept", reading{later, time.Hour + time.Minute}, time.Minute},
		{"the wall clock was set on", reading{wallAt(later, time.Minute), time.Hour + 3*time.Second}, time.Minute + 3*time.Second},
		{"the wall clock was set back", reading{wallAt(later, -time.Minute), time.Hour + 3*time.Second}, 3 * time.Second},
		{"no boot clock", reading{later, 0}, 3 * time.Second},
	} {
		if got := c.to.since(start); got != c.want {
			t.Errorf("%s: %v passed, want %v", c.name, got, c.want)
		}
	}
	if got := start.at(start.t.Add(-time.Second)); start.since(got) != time.Second || got.boot != time.Hour-time.Second {
		t.Errorf("a second before is %v before", start.since(got))
	}
}

func TestP11_BootClockIsRead(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("there is none elsewhere")
	}
	a := sinceBoot()
	b := sinceBoot()
	if a <= 0 || b < a {
		t.Errorf("%v, then %v since boot", a, b)
	}
}
