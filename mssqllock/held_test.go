package mssqllock

import (
	"testing"

	"github.com/distlock-go/distlock/internal/heldtest"
)

// A lock that is held is a few words here, less than a KiB with those of package
// distlock, and neither a goroutine nor a timer.
func TestHeldLocksAreSmall(t *testing.T) {
	const n = 10_000
	s := benchServer(t)
	for _, o := range []Options{{}, {Sequence: "small", CreateSequence: true}} {
		l, db := s.locker(t, s.addr(), &o)
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
}
