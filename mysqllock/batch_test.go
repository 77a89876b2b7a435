//go:build unix

package mysqllock

import (
	"fmt"
	"sync"
	"testing"

	"github.com/distlock-go/distlock/internal/heldtest"
)

// prepared is how many statements the server has been told to prepare.
func (s *testServer) prepared(t testing.TB) (n int) {
	t.Helper()
	var name string
	if err := s.admin.QueryRow("SHOW GLOBAL STATUS LIKE 'Com_stmt_prepare'").Scan(&name, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Who asks alone has two statements for a lock, and they are prepared once.
func TestStatementsArePreparedOnce(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		s.alone.Lock() // statements are counted
		defer s.alone.Unlock()
		l, _ := s.locker(t, s.addr, nil)
		mustAcquire(t, l, t.Name()).Release()
		prepared, executed := s.prepared(t), s.executed(t)
		const pairs = 100
		for range pairs {
			mustAcquire(t, l, t.Name()).Release()
		}
		if n := s.executed(t) - executed; n != 2*pairs {
			t.Errorf("%d statements for %d locks", n, pairs)
		}
		if n := s.prepared(t) - prepared; n != 0 {
			t.Errorf("%d statements were prepared anew", n)
		}
	})
}

// What many goroutines ask for travels in common statements, whether they take or give
// back.
func TestP20_LocksTravelTogether(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		s.alone.Lock() // statements are counted
		defer s.alone.Unlock()
		l, _ := s.locker(t, s.addr, nil)
		mustAcquire(t, l, t.Name()).Release()
		before := s.executed(t)
		const goroutines, rounds = 64, 20
		var all sync.WaitGroup
		for i := range goroutines {
			all.Go(func() {
				for range rounds {
					mustAcquire(t, l, fmt.Sprint(t.Name(), i)).Release()
				}
			})
		}
		all.Wait()
		n := s.executed(t) - before
		t.Logf("%d statements for %d locks", n, goroutines*rounds)
		if n > goroutines*rounds/2 {
			t.Errorf("%d statements for %d locks", n, goroutines*rounds)
		}
	})
}

// A lock that is held is a few words here, less than a KiB with those of package
// distlock, and neither a goroutine nor a timer.
func TestHeldLocksAreSmall(t *testing.T) {
	for _, s := range servers { // one after the other, as they would measure each other
		t.Run(s.name, func(t *testing.T) {
			s.need(t)
			for _, o := range []Options{{}, {FenceTable: "small", CreateFenceTable: true}} {
				heldLocksAreSmall(t, s, o)
			}
		})
	}
}

func heldLocksAreSmall(t *testing.T, s *testServer, o Options) {
	const n = 10_000
	l, db := s.locker(t, s.addr, &o)
	held, err := heldtest.Take(t.Context(), l, n, 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes each, %d goroutines more", held.Each, held.Goroutines)
	if held.Each >= 1024 {
		t.Errorf("a lock that is held takes %d bytes", held.Each)
	}
	// A connection has a few goroutines.
	if open := db.Stats().OpenConnections; held.Goroutines > 100 || open > 8 {
		t.Errorf("%d goroutines and %d connections for %d locks", held.Goroutines, open, n)
	}
	if _, err := held.Release(); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil { // or the next would find its garbage
		t.Error(err)
	}
}
