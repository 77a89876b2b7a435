package distlock

import (
	"sync/atomic"
	"time"
)

var skew atomic.Int64

func init() {
	epoch := time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC)
	clocks = func(boot bool) reading {
		r := reading{t: time.Now()}
		// The real clock would go on while that of a test stands still.
		r.boot = r.t.Sub(epoch) + time.Duration(skew.Load())
		return r
	}
}

// SkewClocks makes the clock that goes on during sleep jump ahead of the
// monotonic one.
func SkewClocks(by time.Duration) (restore func()) {
	skew.Add(int64(by))
	return func() { skew.Add(-int64(by)) }
}
