//go:build unix

package mysqllock

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

// bare is what a lock costs at least: two statements, prepared, on a connection
// that is kept.
type bare struct{ get, release *sql.Stmt }

func newBare(b *testing.B, db *sql.DB) *bare {
	c, err := db.Conn(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	get, err := c.PrepareContext(b.Context(), "SELECT GET_LOCK(?, 0)")
	if err != nil {
		b.Fatal(err)
	}
	release, err := c.PrepareContext(b.Context(), "SELECT RELEASE_LOCK(?)")
	if err != nil {
		b.Fatal(err)
	}
	return &bare{get, release}
}

func (p *bare) pair(name string) error {
	var got, released int
	if err := p.get.QueryRowContext(context.Background(), name).Scan(&got); err != nil {
		return err
	}
	if err := p.release.QueryRowContext(context.Background(), name).Scan(&released); err != nil {
		return err
	}
	if got+released != 2 {
		return fmt.Errorf("got %d, released %d", got, released)
	}
	return nil
}

func lockPair(l *distlock.Locker, name string) error {
	k, err := l.Acquire(context.Background(), name)
	if err != nil {
		return err
	}
	return k.Release()
}

func onServersB(b *testing.B, run func(b *testing.B, s *testServer)) {
	for _, s := range servers {
		b.Run(s.name, func(b *testing.B) {
			s.need(b)
			run(b, s)
		})
	}
}

// BenchmarkUncontended is one goroutine and one free lock.
func BenchmarkUncontended(b *testing.B) {
	onServersB(b, func(b *testing.B, s *testServer) {
		db := s.pool(b, s.addr)
		b.Run("floor", func(b *testing.B) {
			p := newBare(b, db)
			for b.Loop() {
				if err := p.pair("bench"); err != nil {
					b.Fatal(err)
				}
			}
		})
		for name, o := range map[string]*Options{"lock": nil, "lock-without-readers": {Readers: -1}} {
			b.Run(name, func(b *testing.B) {
				l := distlock.New(New(db, o), nil)
				defer l.Close()
				for b.Loop() {
					if err := lockPair(l, "bench"); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		b.Run("backend-alone", func(b *testing.B) {
			backend := New(db, &Options{Readers: -1})
			defer backend.Close()
			for b.Loop() {
				g, err := backend.Acquire(context.Background(), driver.Request{Resource: "bench"})
				if err == nil {
					err = g.Hold.Release(context.Background())
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("lock-by-URL", func(b *testing.B) {
			l, err := distlock.Open(b.Context(), s.url(s.addr, ""), nil)
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			for b.Loop() {
				if err := lockPair(l, "bench"); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
}

// BenchmarkMany is 64 goroutines with a name each. Besides the time of a pair it
// tells how many times as many pairs are done as bare statements do in one
// goroutine, and in 64 with a connection each, measured in turns with it.
func BenchmarkMany(b *testing.B) {
	onServersB(b, func(b *testing.B, s *testServer) {
		db := s.pool(b, s.addr)
		db.SetMaxIdleConns(100)
		one := newBare(b, db)
		many := make([]*bare, 64)
		for i := range many {
			many[i] = newBare(b, db)
		}
		for name, o := range map[string]*Options{"lock": nil, "lock-without-readers": {Readers: -1}} {
			b.Run(name, func(b *testing.B) {
				locks := s.pool(b, s.addr)
				l := distlock.New(New(locks, o), nil)
				defer l.Close()
				inOne := func(int) func() error { return func() error { return one.pair("bench") } }
				inMany := func(i int) func() error {
					return func() error { return many[i].pair(fmt.Sprint("bench", i)) }
				}
				locked := func(i int) func() error {
					name := fmt.Sprint("bench", i)
					return func() error { return lockPair(l, name) }
				}
				rate(b, 64, 100*time.Millisecond, locked) // prepares its statements
				var best [3]float64
				for range 5 {
					best[0] = max(best[0], rate(b, 1, 300*time.Millisecond, inOne))
					best[1] = max(best[1], rate(b, 64, 300*time.Millisecond, inMany))
					best[2] = max(best[2], rate(b, 64, 300*time.Millisecond, locked))
				}
				for b.Loop() {
					if err := lockPair(l, "bench"); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(best[2], "pairs/s")
				b.ReportMetric(best[2]/best[0], "×one-connection")
				b.ReportMetric(best[2]/best[1], "×64-connections")
				b.ReportMetric(float64(locks.Stats().OpenConnections), "connections")
			})
		}
	})
}

// rate returns how often a second the goroutines do it, together.
func rate(b *testing.B, goroutines int, d time.Duration, what func(i int) func() error) float64 {
	b.Helper()
	var done atomic.Int64
	var all sync.WaitGroup
	start := time.Now()
	for i := range goroutines {
		pair := what(i)
		all.Go(func() {
			n := int64(0)
			for ; time.Since(start) < d; n++ {
				if err := pair(); err != nil {
					b.Error(err)
					break
				}
			}
			done.Add(n)
		})
	}
	all.Wait()
	return float64(done.Load()) / time.Since(start).Seconds()
}
