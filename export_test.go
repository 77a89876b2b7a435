package distlock

import (
	"sync/atomic"
	"time"
)

var skew atomic.Int64

func init() {
	booted := time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC)
	clocks = func(boot bool) reading {
		now := time.Now()
		r := readingOf(now)
		// The real clock would go on while that of a test stands still.
		if boot {
			r.boot = now.Sub(booted) + time.Duration(skew.Load())
		}
		return r
	}
}

// SkewClocks makes the clock that goes on during sleep jump ahead of the
// monotonic one.
func SkewClocks(by time.Duration) (restore func()) {
	skew.Add(int64(by))
	return func() { skew.Add(-int64(by)) }
}

// Keepers returns how many keepers there are.
func Keepers(l *Locker) int {
	l.keepersMu.Lock()
	defer l.keepersMu.Unlock()
	return len(l.keepers) + len(l.schedule.keepers)
}

// Paces returns for how many resources it is remembered how long they were held.
func (l *Locker) Paces() int {
	l.pace.mu.Lock()
	defer l.pace.mu.Unlock()
	return len(l.pace.first)
}
