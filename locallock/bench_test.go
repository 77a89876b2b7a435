package locallock_test

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/locallock"
)

// floor is what a careful programmer would write by hand: a sharded map of
// mutexes whose entries vanish when nobody uses them.
type floor struct {
	seed   maphash.Seed
	shards [64]struct {
		mu sync.Mutex
		m  map[string]*floorEntry
	}
}

type floorEntry struct {
	mu   sync.Mutex
	refs int
}

func newFloor() *floor {
	f := &floor{seed: maphash.MakeSeed()}
	for i := range f.shards {
		f.shards[i].m = make(map[string]*floorEntry)
	}
	return f
}

func (f *floor) lock(name string) *floorEntry {
	s := &f.shards[maphash.String(f.seed, name)%64]
	s.mu.Lock()
	e := s.m[name]
	if e == nil {
		e = &floorEntry{}
		s.m[name] = e
	}
	e.refs++
	s.mu.Unlock()
	e.mu.Lock()
	return e
}

func (f *floor) unlock(name string, e *floorEntry) {
	e.mu.Unlock()
	s := &f.shards[maphash.String(f.seed, name)%64]
	s.mu.Lock()
	if e.refs--; e.refs == 0 {
		delete(s.m, name)
	}
	s.mu.Unlock()
}

func newLocker(b *testing.B) *distlock.Locker {
	l := distlock.New(locallock.New(), nil)
	b.Cleanup(func() { l.Close() })
	return l
}

func acquireRelease(b testing.TB, ctx context.Context, l *distlock.Locker, name string) {
	lock, err := l.Acquire(ctx, name, distlock.Timeout(time.Minute))
	if err != nil {
		b.Fatal(err)
	}
	if err := lock.Release(); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkUncontended(b *testing.B) {
	b.Run("floor", func(b *testing.B) {
		b.ReportAllocs()
		f := newFloor()
		for b.Loop() {
			f.unlock("inventory:42", f.lock("inventory:42"))
		}
	})
	b.Run("locker", func(b *testing.B) {
		b.ReportAllocs()
		l := newLocker(b)
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		for b.Loop() {
			acquireRelease(b, ctx, l, "inventory:42")
		}
	})
}

// BenchmarkUncontendedRatio measures both in turn, so that a change of the
// machine's speed hits both.
func BenchmarkUncontendedRatio(b *testing.B) {
	f, l := newFloor(), newLocker(b)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var tFloor, tLocker time.Duration
	for b.Loop() {
		const batch = 1000
		t0 := time.Now()
		for range batch {
			f.unlock("inventory:42", f.lock("inventory:42"))
		}
		t1 := time.Now()
		for range batch {
			acquireRelease(b, ctx, l, "inventory:42")
		}
		tFloor += t1.Sub(t0)
		tLocker += time.Since(t1)
	}
	b.ReportMetric(float64(tLocker)/float64(tFloor), "x-floor")
}

func BenchmarkHotName(b *testing.B) {
	for _, n := range []int{2, 8, 64, 512} {
		b.Run(fmt.Sprintf("%d/floor", n), func(b *testing.B) {
			f := newFloor()
			contend(b, n, func() { f.unlock("hot", f.lock("hot")) })
		})
		b.Run(fmt.Sprintf("%d/locker", n), func(b *testing.B) {
			l := newLocker(b)
			contend(b, n, func() { acquireRelease(b, b.Context(), l, "hot") })
		})
	}
}

// contend runs f b.N times in n goroutines.
func contend(b *testing.B, n int, f func()) {
	b.ReportAllocs()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			for range (b.N + n - 1 - i) / n {
				f()
			}
		})
	}
	all.Wait()
}

func BenchmarkMillionNames(b *testing.B) {
	names := make([]string, 1_000_000)
	for i := range names {
		names[i] = fmt.Sprintf("product:%d", i)
	}
	b.Run("floor", func(b *testing.B) {
		f := newFloor()
		for i := 0; b.Loop(); i++ {
			name := names[i%len(names)]
			f.unlock(name, f.lock(name))
		}
	})
	b.Run("locker", func(b *testing.B) {
		l := newLocker(b)
		for i := 0; b.Loop(); i++ {
			acquireRelease(b, b.Context(), l, names[i%len(names)])
		}
	})
}
