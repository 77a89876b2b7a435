package distlock

import (
	"runtime"
	"testing"
	"time"

	"github.com/distlock-go/distlock/driver"
)

func TestP11_ThePessimisticClockCounts(t *testing.T) {
	now := time.Now()
	start := readingOf(now)
	start.boot = time.Hour
	for _, c := range []struct {
		name             string
		mono, wall, boot time.Duration // that have passed
		want             time.Duration
	}{
		{"in step", 3 * time.Second, 3 * time.Second, 3 * time.Second, 3 * time.Second},
		{"the machine slept", 3 * time.Second, 3 * time.Second, time.Minute, time.Minute},
		{"the wall clock was set on", 3 * time.Second, time.Minute, 3 * time.Second, time.Minute},
		{"the wall clock was set back", 3 * time.Second, -time.Minute, 3 * time.Second, 3 * time.Second},
		{"no boot clock", 3 * time.Second, 3 * time.Second, -time.Hour, 3 * time.Second},
	} {
		to := reading{start.mono + c.mono, start.wall + c.wall, start.boot + c.boot}
		if got := to.since(start); got != c.want {
			t.Errorf("%s: %v passed, want %v", c.name, got, c.want)
		}
	}
	if got := time.Duration(now.UnixNano() - epoch.UnixNano()); start.wall != got {
		t.Errorf("%v on the wall clock since the epoch, want %v", start.wall, got)
	}
	if got := readingOf(now.Add(time.Second)); got.mono-start.mono != time.Second || got.wall-start.wall != time.Second {
		t.Errorf("a second after %+v is %+v", start, got)
	}
	if got := start.at(now.Add(-time.Second)); start.since(got) != time.Second || got.boot != time.Hour-time.Second {
		t.Errorf("a second before is %v before", start.since(got))
	}
}

// A backend may say without a monotonic reading when its request went out. What the wall
// clock was set by before that has nothing to do with it.
func TestP11_ATimeWithoutAMonotonicReading(t *testing.T) {
	for _, set := range []time.Duration{0, time.Hour, -time.Hour} { // since the process began
		now := reading{mono: time.Minute, wall: time.Minute + set, boot: time.Hour}
		sent := now.at(epoch.Round(0).Add(now.wall - time.Second))
		want := reading{now.mono - time.Second, now.wall - time.Second, now.boot - time.Second}
		if sent != want {
			t.Errorf("the clock was set by %v: a second before %+v is %+v", set, now, sent)
		}
		// And if it was set back since then, the moment isn't one to come.
		now.wall -= time.Minute
		if sent := now.at(epoch.Round(0).Add(want.wall)); sent.mono != now.mono || sent.boot != now.boot {
			t.Errorf("the clock was set by %v, and back since: before %+v is %+v", set, now, sent)
		}
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

// A renewal goes out after the clocks were read: that isn't a time before, when it
// is asked what is to be done next.
func TestNothingIsDueDuringARenewal(t *testing.T) {
	n := readingOf(time.Now().Add(time.Hour))
	sent := reading{n.mono + time.Microsecond, n.wall + time.Microsecond, n.boot + time.Microsecond}
	for ttl, want := range map[time.Duration]time.Duration{30 * time.Second: 27 * time.Second, 0: never} {
		k := &keeper{ttl: ttl, valid: n, dueFrom: sent, pause: driver.Forever}
		if got := k.next(n) - n.mono; got != want {
			t.Errorf("with a lease of %v it wakes in %v, want %v", ttl, got, want)
		}
	}
}
