// Package heldtest measures, for the tests of the backends, what locks take while they
// are held.
package heldtest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/distlock-go/distlock"
)

// Locks are held.
type Locks struct {
	Each       int64 // bytes of the heap for one
	Goroutines int   // more than before

	locks  []*distlock.Lock
	atOnce int
	before int64
}

// Take takes n locks of n names, with so many goroutines at once. What many locks have
// in common, as a connection, is there before that, and isn't counted.
func Take(ctx context.Context, l *distlock.Locker, n, atOnce int) (*Locks, error) {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("product:%d", i)
	}
	first, err := l.TryAcquire(ctx, "before")
	if err == nil {
		err = first.Release()
	}
	if err != nil {
		return nil, err
	}
	h := &Locks{locks: make([]*distlock.Lock, n), atOnce: atOnce}
	goroutines := runtime.NumGoroutine()
	h.before = heap()
	err = h.each(func(i int) (err error) {
		h.locks[i], err = l.TryAcquire(ctx, names[i])
		return err
	})
	h.Each = (heap() - h.before) / int64(n)
	h.Goroutines = runtime.NumGoroutine() - goroutines
	runtime.KeepAlive(h.locks)
	runtime.KeepAlive(names)
	return h, err
}

// Release gives all back, and returns how many bytes are left of them.
func (h *Locks) Release() (left int64, err error) {
	err = h.each(func(i int) error { return h.locks[i].Release() })
	h.locks = nil // which know where they were held
	return heap() - h.before, err
}

// each calls do for each of the locks, until one fails in each goroutine.
func (h *Locks) each(do func(i int) error) error {
	var next atomic.Int64
	var all sync.WaitGroup
	failed := make([]error, h.atOnce)
	for g := range failed {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(h.locks)) && failed[g] == nil; i = next.Add(1) - 1 {
				failed[g] = do(int(i))
			}
		})
	}
	all.Wait()
	return errors.Join(failed...)
}

// heap returns how many bytes are in use.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
