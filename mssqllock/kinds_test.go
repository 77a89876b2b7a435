package mssqllock

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

func TestReadersAndWriters(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	var lockers []*distlock.Locker
	for range 3 {
		l, _ := s.locker(t, s.addr(), nil)
		lockers = append(lockers, l)
	}
	// Readers that overlap don't keep a writer out, nor an upgrade.
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var reading, reads, writing atomic.Int64
	for _, l := range lockers[:2] {
		for range 3 {
			all.Go(func() {
				for ctx.Err() == nil {
					k, err := l.Acquire(ctx, t.Name(), distlock.Shared())
					if err != nil {
						continue
					}
					reading.Add(1)
					reads.Add(1)
					if writing.Load() > 0 {
						t.Error("a reader beside a writer")
					}
					time.Sleep(5 * time.Millisecond)
					reading.Add(-1)
					k.Release()
				}
			})
		}
	}
	eventually(t, "readers", func() bool { return reading.Load() > 1 })
	// When the writer is in the server's queue, each of the other processes lets in as
	// many as HandoffCount says, and a few; twice, if the writer has to ask anew.
	const most = 500
	for i := range 10 {
		var before atomic.Int64
		before.Store(-1) // it isn't in the queue
		written := make(chan struct{})
		go func() {
			defer close(written)
			var err error
			k := mustAcquire(t, lockers[2], t.Name(), []distlock.AcquireOption{distlock.Timeout(patience), distlock.Upgradeable()}[i%2])
			if i%2 == 1 {
				err = k.Upgrade(t.Context(), distlock.Timeout(patience))
			}
			if err != nil {
				t.Error(err)
				return
			}
			writing.Add(1)
			if reading.Load() > 0 {
				t.Error("a writer beside readers")
			}
			if n := before.Load(); n >= 0 && reads.Load()-n > most {
				t.Errorf("%d readers were let in while a writer waited", reads.Load()-n)
			}
			writing.Add(-1)
			mustRelease(t, k)
		}()
		for ended := false; !ended; {
			select {
			case <-written:
				ended = true
			case <-time.After(time.Millisecond):
				if before.Load() < 0 && s.number(t, "SELECT COUNT(*) "+waitingFor+" AND request_mode = 'X'", shown(t.Name())) > 0 {
					before.Store(reads.Load())
				}
			}
		}
	}
	cancel()
	all.Wait()
}

// A writer that waits at the server isn't passed by readers, not even by those of
// a process, or a session, that reads already.
func TestNewReadersQueueBehindWriter(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	reader := New(s.pool(t, s.addr()), &Options{MaxSessions: 2, Heartbeat: patience})
	defer reader.Close()
	writer, _ := s.locker(t, s.addr(), nil)
	r := driver.Request{Resource: t.Name(), Mode: driver.Shared}
	first, err := reader.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	second, err := reader.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan *distlock.Lock)
	go func() { got <- mustAcquire(t, writer, t.Name()) }()
	eventually(t, "the writer waits", func() bool { return s.waiters(t, t.Name()) == 1 })
	if g, err := reader.Acquire(t.Context(), r); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("a third reader: %v, %v", g, err)
	}
	r.Wait = patience
	waiting := make(chan error)
	go func() {
		g, err := reader.Acquire(t.Context(), r)
		if err == nil {
			err = g.Hold.Release(t.Context())
		}
		waiting <- err
	}()
	eventually(t, "the reader waits behind", func() bool { return s.waiters(t, t.Name()) == 2 })
	for _, g := range []driver.Grant{first, second} {
		if err := g.Hold.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	k := <-got
	select {
	case err := <-waiting:
		t.Fatalf("the reader beside the writer: %v", err)
	default:
	}
	mustRelease(t, k)
	if err := <-waiting; err != nil {
		t.Fatal(err)
	}
}

// The modes that one process has are on sessions of their own, as a session has
// but one mode for all.
func TestModesOfOneProcess(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	a, _ := s.locker(t, s.addr(), nil)
	b, _ := s.locker(t, s.addr(), nil)
	reader := mustAcquire(t, a, t.Name(), distlock.Shared())
	upgradeable := mustAcquire(t, a, t.Name(), distlock.Upgradeable())
	reader2 := mustAcquire(t, a, t.Name(), distlock.Shared())
	for _, l := range []*distlock.Locker{a, b} {
		mustBeHeld(t, l, t.Name())
		mustBeHeld(t, l, t.Name(), distlock.Upgradeable())
	}
	if err := upgradeable.Upgrade(t.Context(), distlock.Timeout(30*time.Millisecond)); !errors.Is(err, distlock.ErrNotAcquired) {
		t.Fatalf("upgraded beside readers of its own process: %v", err)
	}
	mustRelease(t, reader)
	mustRelease(t, upgradeable)
	other := mustAcquire(t, b, t.Name(), distlock.Upgradeable()) // nothing of it is left
	mustBeHeld(t, b, t.Name())
	mustRelease(t, other)
	mustRelease(t, reader2)
	mustRelease(t, mustAcquire(t, b, t.Name()))
	upgradeable = mustAcquire(t, a, t.Name(), distlock.Upgradeable())
	if err := upgradeable.Upgrade(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustBeHeld(t, a, t.Name(), distlock.Shared())
	mustRelease(t, upgradeable)
	mustRelease(t, mustAcquire(t, b, t.Name()))
}

// An upgrade that is canceled while it waits keeps what it had, lets readers in
// again, and leaves nothing in the queue.
func TestCanceledUpgrade(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	a, _ := s.locker(t, s.addr(), nil)
	b, _ := s.locker(t, s.addr(), nil)
	c, _ := s.locker(t, s.addr(), nil) // a reader of b's could join the one that is in
	reader := mustAcquire(t, b, t.Name(), distlock.Shared())
	k := mustAcquire(t, a, t.Name(), distlock.Upgradeable())
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		upgraded := make(chan error)
		go func() { upgraded <- k.Upgrade(ctx) }()
		eventually(t, "it keeps its place", func() bool { return s.waiters(t, t.Name()) == 1 })
		mustBeHeld(t, c, t.Name(), distlock.Shared())
		cancel()
		if err := <-upgraded; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		eventually(t, "readers are let in again", func() bool {
			k, err := c.TryAcquire(t.Context(), t.Name(), distlock.Shared())
			return err == nil && k.Release() == nil
		})
		mustBeHeld(t, b, t.Name(), distlock.Upgradeable())
		if err := k.Err(); err != nil {
			t.Fatal(err)
		}
	}
	mustRelease(t, reader)
	if err := k.Upgrade(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustBeHeld(t, b, t.Name(), distlock.Shared())
	mustRelease(t, k)
	mustRelease(t, mustAcquire(t, b, t.Name()))
}

// Locks of .NET services, which are no more than sp_getapplock, exclude and are
// excluded.
func TestPlainApplock(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	l, _ := s.locker(t, s.addr(), nil)
	plain, err := s.admin.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	get := func(name, mode string) int {
		var code int
		err := plain.QueryRowContext(t.Context(), "DECLARE @r int; EXEC @r = sp_getapplock @Resource = @n, @LockMode = @m, @LockOwner = 'Session', @LockTimeout = 0; SELECT @r",
			sql.Named("n", name), sql.Named("m", mode)).Scan(&code)
		if err != nil {
			t.Fatal(err)
		}
		return code
	}
	release := func(name string) {
		if _, err := plain.ExecContext(t.Context(), "EXEC sp_releaseapplock @Resource = @n, @LockOwner = 'Session'", sql.Named("n", name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, base := range []string{"plain", "Mixed Case", strings.Repeat("long", 100), "漢字", " blank ", strings.Repeat("x", 255)} {
		name := base
		if len(base) < 200 {
			name = t.Name() + base
		}
		k := mustAcquire(t, l, name)
		if code := get(LockName(name), "Shared"); code != -1 {
			t.Errorf("%q was granted to another: %d", name, code)
		}
		mustRelease(t, k)
		k = mustAcquire(t, l, name, distlock.Shared())
		if code := get(LockName(name), "Exclusive"); code != -1 {
			t.Errorf("%q was granted to another: %d", name, code)
		}
		if code := get(LockName(name), "Update"); code != 0 {
			t.Errorf("%q, upgradeable beside a reader: %d", name, code)
		}
		mustBeHeld(t, l, name, distlock.Upgradeable())
		mustRelease(t, k)
		release(LockName(name))
		if code := get(LockName(name), "Exclusive"); code != 0 {
			t.Errorf("%q isn't free: %d", name, code)
		}
		mustBeHeld(t, l, name, distlock.Shared())
		release(LockName(name))
	}
	// Names that SQL Server's collations would hold for one aren't.
	for _, pair := range [][2]string{{"case", "CASE"}, {"a", "a "}, {"ss", "ß"}, {"é", "e\u0301"}} {
		one, two := mustAcquire(t, l, t.Name()+pair[0]), mustAcquire(t, l, t.Name()+pair[1])
		mustRelease(t, one)
		mustRelease(t, two)
	}
}

// Two that upgrade each other's lock, and the like, are for timeouts: the server
// sees no deadlock, as no session that waits holds anything.
func TestCrossedLocks(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	a, _ := s.locker(t, s.addr(), nil)
	b, _ := s.locker(t, s.addr(), nil)
	one, two := mustAcquire(t, a, t.Name()+"1"), mustAcquire(t, b, t.Name()+"2")
	got := make(chan error, 1)
	go func() {
		_, err := a.Acquire(t.Context(), t.Name()+"2", distlock.Timeout(200*time.Millisecond))
		got <- err
	}()
	if _, err := b.Acquire(t.Context(), t.Name()+"1", distlock.Timeout(200*time.Millisecond)); !errors.Is(err, distlock.ErrNotAcquired) {
		t.Error(err)
	}
	if err := <-got; !errors.Is(err, distlock.ErrNotAcquired) {
		t.Error(err)
	}
	mustRelease(t, one)
	mustRelease(t, two)
}
