package distlock

import (
	"sync/atomic"
	"time"
)

var skew atomic.Int64

func init() {
	unskewed := clocks
	clocks = func(boot bool) reading {
		r := unskewed(boot)
		r.boot += time.Duration(skew.Load())
		return r
	}
}

// SkewClocks makes the clock that goes on during sleep jump ahead of the
// monotonic one.
func SkewClocks(by time.Duration) (restore func()) {
	skew.Add(int64(by))
	return func() { skew.Add(-int64(by)) }
}
