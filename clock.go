package distlock

import "time"

// reading is a moment on all the clocks at hand. No single one will do: the
// monotonic clock stands still while the machine sleeps, the wall clock can be
// set back, and the boot clock, where there is one, stands still while a
// virtual machine is paused.
type reading struct {
	mono, wall time.Duration // since epoch
	boot       time.Duration // since boot, sleep included; always 0 where unknown, or not read
}

var epoch = time.Now()

// monotonic reads the monotonic clock alone.
func monotonic() time.Duration { return time.Since(epoch) }

// readingOf returns what a time.Time with a monotonic reading knows of a moment.
func readingOf(t time.Time) reading {
	return reading{mono: t.Sub(epoch), wall: t.Round(0).Sub(epoch)} // Round(0) strips the monotonic reading
}

// clocks reads the clocks, that of boot only if asked to. A variable, so that tests
// can set them.
var clocks = func(boot bool) reading {
	r := readingOf(time.Now())
	if boot {
		r.boot = sinceBoot()
	}
	return r
}

// now reads the clocks that matter. That of boot takes a system call, and a lease
// at the store is what needs all the pessimism there is: what hangs on a connection
// ends with it. The wall clock counts for that, too: it alone tells that the machine
// slept, and that the server may have dropped the connection meanwhile.
func (l *Locker) now() reading { return clocks(l.leases) }

// since returns the time from a to r by the clock that says most passed.
func (r reading) since(a reading) time.Duration {
	return max(r.mono-a.mono, r.wall-a.wall, r.boot-a.boot)
}

// at returns the reading for a moment before r that is known only as a
// time.Time. One without a monotonic reading, by the wall clock, can't be compared
// with epoch: the clock may have been set since.
func (r reading) at(t time.Time) reading {
	a := readingOf(t)
	if t == t.Round(0) { //nolint:staticcheck // Equal takes no notice of the monotonic reading
		a.mono = r.mono - max(r.wall-a.wall, 0)
	}
	a.boot = r.boot
	a.boot -= r.since(a)
	return a
}
