package distlock

import (
	"sync/atomic"
	"time"
)

var skew atomic.Int64

func init() {
	unskewed := now
	now = func() reading {
		r := unskewed()
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
