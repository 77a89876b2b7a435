//go:build unix

package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
)

// onConn returns a Locker on a connection of its own.
func (s *testServer) onConn(t testing.TB) (*sql.Conn, *ConnBackend, *distlock.Locker) {
	t.Helper()
	c, err := s.pool(t, s.addr).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := OnConn(c)
	l := distlock.New(b, nil)
	t.Cleanup(func() {
		l.Close()
		c.Close()
	})
	return c, b, l
}

// has reports whether the backend has taken the lock.
func (b *ConnBackend) has(lock string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mine[lock]
}

func (s *testServer) free(t testing.TB, lock string) bool {
	t.Helper()
	return s.number(t, "SELECT IS_FREE_LOCK(?)", lock) == 1
}

// Readers of this package exclude a lock on the caller's connection.
func TestP23_OnConnBesideReaders(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		name := strings.ToLower(t.Name())
		readers, _ := s.locker(t, s.addr, &Options{Readers: maxReaders})
		others, _ := s.locker(t, s.addr, &Options{Readers: maxReaders})
		c, b, l := s.onConn(t)
		read := mustAcquire(t, readers, name, distlock.Shared())

		if _, err := l.TryAcquire(t.Context(), name); !errors.Is(err, distlock.ErrNotAcquired) {
			t.Fatalf("a try beside a reader: %v", err)
		}
		if !s.free(t, name) {
			t.Error("a try that was refused left something")
		}

		const timeout = 300 * time.Millisecond
		start := time.Now()
		if _, err := l.Acquire(t.Context(), name, distlock.Timeout(timeout)); !errors.Is(err, distlock.ErrNotAcquired) || time.Since(start) < timeout {
			t.Fatalf("a wait beside a reader, after %v: %v", time.Since(start), err)
		}
		eventually(t, "a wait that is over left nothing", func() bool { return s.free(t, name) })

		wait := func(ctx context.Context, b *ConnBackend, l *distlock.Locker) <-chan error {
			got := make(chan error, 1)
			go func() {
				k, err := l.Acquire(ctx, name)
				if err == nil {
					err = k.Release()
				}
				got <- err
			}()
			eventually(t, "it has the lock and waits for the reader", func() bool { return b.has(name) })
			return got
		}
		ctx, cancel := context.WithCancel(t.Context())
		got := wait(ctx, b, l)
		if _, err := others.TryAcquire(t.Context(), name, distlock.Shared()); !errors.Is(err, distlock.ErrNotAcquired) {
			t.Errorf("a new reader beside a writer that waits: %v", err)
		}
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Errorf("a canceled wait: %v", err)
		}
		eventually(t, "a canceled wait left nothing", func() bool { return s.free(t, name) })
		mustAcquire(t, others, name, distlock.Shared()).Release()

		_, itsBackend, closing := s.onConn(t)
		got = wait(t.Context(), itsBackend, closing)
		if err := closing.Close(); err != nil {
			t.Error(err)
		}
		if err := <-got; !errors.Is(err, distlock.ErrClosed) {
			t.Errorf("a wait until Close: %v", err)
		}
		eventually(t, "Close left nothing", func() bool { return s.free(t, name) })

		// Rows of the caller's are open when it is to be given back.
		got = wait(t.Context(), b, l)
		rows, err := c.QueryContext(t.Context(), "SELECT 1 UNION SELECT 2")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		if err := <-got; !errors.Is(err, errRows) {
			t.Errorf("a wait beside open rows: %v", err)
		}
		if !b.has(name) {
			t.Error("it was given back beside the rows")
		}
		for rows.Next() {
			continue
		}
		if err := rows.Err(); err != nil {
			t.Error(err)
		}
		eventually(t, "it is given back after the rows", func() bool { return s.free(t, name) })

		var left atomic.Bool
		granted := make(chan error, 1)
		go func() {
			k, err := l.Acquire(context.Background(), name)
			if err == nil && !left.Load() {
				err = errors.New("a writer beside a reader")
			}
			if err == nil {
				err = k.Release()
			}
			granted <- err
		}()
		eventually(t, "it has the lock and waits for the reader", func() bool { return b.has(name) })
		left.Store(true)
		if err := read.Release(); err != nil {
			t.Error(err)
		}
		if err := <-granted; err != nil {
			t.Error(err)
		}
	})
}

// Each of the places that [Options.Readers] may give is looked at.
func TestOnConnSeesAllPlacesOfReaders(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		name := strings.ToLower(t.Name())
		_, _, l := s.onConn(t)
		reader, err := s.pool(t, s.addr).Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { reader.Close() })
		for _, slot := range namesOf(name).slots(maxReaders) {
			for _, query := range []string{"SELECT GET_LOCK(?,0)", "SELECT RELEASE_LOCK(?)"} {
				var one int
				if err := reader.QueryRowContext(t.Context(), query, slot).Scan(&one); err != nil || one != 1 {
					t.Fatal(query, one, err)
				}
				k, err := l.TryAcquire(t.Context(), name)
				if err == nil {
					err = k.Release()
				}
				if held := strings.Contains(query, "GET"); held != errors.Is(err, distlock.ErrNotAcquired) || err != nil && !held {
					t.Errorf("%s of %s: %v", query, slot, err)
				}
			}
		}
	})
}
