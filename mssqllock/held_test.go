package mssqllock

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/distlock-go/distlock"
)

// A lock that is held is a few words here, less than a KiB with those of package
// distlock, and neither a goroutine nor a timer.
func TestHeldLocksAreSmall(t *testing.T) {
	const n = 10_000
	s := benchServer(t)
	for _, o := range []Options{{}, {Sequence: "small", CreateSequence: true}} {
		l, db := s.locker(t, s.addr(), &o)
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprintf("product:%d", i)
		}
		locks := make([]*distlock.Lock, n)
		heap := func() uint64 {
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		mustRelease(t, mustAcquire(t, l, t.Name())) // opens the connection
		before, goroutines := heap(), runtime.NumGoroutine()
		each := func(do func(i int) error) {
			var next atomic.Int64
			var all sync.WaitGroup
			for range 64 {
				all.Go(func() {
					for i := next.Add(1) - 1; i < n; i = next.Add(1) - 1 {
						if err := do(int(i)); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
		}
		each(func(i int) (err error) {
			locks[i], err = l.TryAcquire(t.Context(), names[i])
			return err
		})
		if t.Failed() {
			return
		}
		size := (int64(heap()) - int64(before)) / n
		if size >= 1024 {
			t.Errorf("a lock that is held takes %d bytes", size)
		}
		// A connection has a few.
		more, open := runtime.NumGoroutine()-goroutines, db.Stats().OpenConnections
		if more > 100 || open > 8 {
			t.Errorf("%d goroutines and %d connections for %d locks", more, open, n)
		}
		t.Logf("%d bytes each, %d goroutines, %d connections", size, more, open)
		each(func(i int) error { return locks[i].Release() })
		if err := l.Close(); err != nil { // or the next would find its garbage
			t.Error(err)
		}
	}
}
