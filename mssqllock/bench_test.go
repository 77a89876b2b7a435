package mssqllock

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/mssqllock/internal/tdstest"
)

// bare is what a lock costs at least: two calls on a connection that is kept.
type bare struct{ conn *sql.Conn }

func newBare(b *testing.B, db *sql.DB) *bare {
	c, err := db.Conn(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return &bare{c}
}

func (p *bare) pair(name string) error {
	var got, released mssql.ReturnStatus
	ctx := context.Background()
	if _, err := p.conn.ExecContext(ctx, "sp_getapplock", sql.Named("Resource", name), sql.Named("LockMode", "Exclusive"),
		sql.Named("LockOwner", "Session"), sql.Named("LockTimeout", 0), &got); err != nil {
		return err
	}
	if _, err := p.conn.ExecContext(ctx, "sp_releaseapplock", sql.Named("Resource", name), sql.Named("LockOwner", "Session"), &released); err != nil {
		return err
	}
	if got != 0 || released != 0 {
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

// benchServer returns the server that is measured, which is another process.
func benchServer(b testing.TB) *testServer {
	b.Helper()
	if s := theServer(b); s.tds == nil {
		return s
	}
	u, err := url.Parse(otherServer(b))
	if err != nil {
		b.Fatal(err)
	}
	s := &testServer{base: u, user: u.User.Username()}
	s.password, _ = u.User.Password()
	return s
}

// BenchmarkUncontended is one goroutine and one free lock.
func BenchmarkUncontended(b *testing.B) {
	s := benchServer(b)
	db := s.pool(b, s.addr())
	b.Run("floor", func(b *testing.B) {
		p := newBare(b, db)
		for b.Loop() {
			if err := p.pair("bench"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("lock", func(b *testing.B) {
		l := distlock.New(New(db, nil), nil)
		defer l.Close()
		for b.Loop() {
			if err := lockPair(l, "bench"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("backend-alone", func(b *testing.B) {
		backend := New(db, nil)
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
		l, err := distlock.Open(b.Context(), s.url(s.addr(), ""), nil)
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
}

// BenchmarkMany is 64 goroutines with a name each. Besides the time of a pair it
// tells how many times as many pairs are done as bare calls do in one goroutine,
// and in 64 with a connection each, measured in turns with it. The test server
// shares the processors with the client; so it is measured once more with half a
// millisecond for each request to get there.
func BenchmarkMany(b *testing.B) {
	b.Run("no-distance", func(b *testing.B) { benchmarkMany(b, benchServer(b)) })
	b.Run("half-a-millisecond", func(b *testing.B) {
		if theServer(b).tds == nil {
			b.Skip("the server is where it is")
		}
		s := ownServer(b, tdstest.Config{})
		s.tds.OnRequest(func(int, string) tdstest.Fault {
			time.Sleep(500 * time.Microsecond)
			return tdstest.Continue
		})
		benchmarkMany(b, s)
	})
}

func benchmarkMany(b *testing.B, s *testServer) {
	db := s.pool(b, s.addr())
	db.SetMaxIdleConns(100)
	one := newBare(b, db)
	many := make([]*bare, 64)
	for i := range many {
		many[i] = newBare(b, db)
	}
	locks := s.pool(b, s.addr())
	l := distlock.New(New(locks, nil), nil)
	defer l.Close()
	inOne := func(int) func() error { return func() error { return one.pair("bench") } }
	inMany := func(i int) func() error {
		return func() error { return many[i].pair(fmt.Sprint("bench", i)) }
	}
	locked := func(i int) func() error {
		name := fmt.Sprint("bench", i)
		return func() error { return lockPair(l, name) }
	}
	rate(b, 64, 100*time.Millisecond, locked) // opens its sessions
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
