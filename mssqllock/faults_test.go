package mssqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/faultproxy"
	"github.com/distlock-go/distlock/mssqllock/internal/tdstest"
)

// What ends the session of a waiter costs him nothing.
func TestKilledWaiter(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	a, _ := s.locker(t, s.addr(), nil)
	b, _ := s.locker(t, s.addr(), nil)
	held := mustAcquire(t, a, t.Name())
	got := make(chan error, 1)
	go func() {
		k, err := b.Acquire(context.Background(), t.Name(), distlock.Timeout(patience))
		if err == nil {
			err = k.Release()
		}
		got <- err
	}()
	for range 3 {
		spid := 0
		eventually(t, "a session waits at the server", func() bool {
			spid = s.number(t, "SELECT MAX(request_session_id) "+waitingFor, shown(t.Name()))
			return spid != 0
		})
		s.exec(t, fmt.Sprintf("KILL %d", spid))
	}
	eventually(t, "another waits at the server", func() bool { return s.waiters(t, t.Name()) == 1 })
	select {
	case err := <-got:
		t.Fatalf("the waiter ended: %v", err)
	default:
	}
	mustRelease(t, held)
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

// Holders are told when the server is stopped, nobody holds beside another, and
// all goes on when it is back.
func TestRestartUnderLoad(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	if s.tds == nil {
		t.Skip("the server isn't the tests' own")
	}
	s = ownServer(t, tdstest.Config{})
	var holders [4]atomic.Pointer[distlock.Lock]
	var grants, losses, failures atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for w := range 3 {
		l, _ := s.locker(t, s.addr(), &Options{Heartbeat: 500 * time.Millisecond})
		for range 8 {
			all.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					n := (i + w) % len(holders)
					k, err := l.Acquire(ctx, fmt.Sprint(t.Name(), n), distlock.Timeout(time.Second))
					if err != nil {
						if !errors.Is(err, distlock.ErrNotAcquired) {
							failures.Add(1)
							time.Sleep(10 * time.Millisecond)
						}
						continue
					}
					grants.Add(1)
					holders[n].Store(k)
					runtime.Gosched()
					if !holders[n].CompareAndSwap(k, nil) {
						// Another was granted it: this one has lost it, which it may not know yet.
						select {
						case <-k.Done():
						case <-time.After(patience):
							t.Error("two hold one lock")
						}
					}
					if err := k.Release(); errors.Is(err, distlock.ErrLost) {
						losses.Add(1)
					}
				}
			})
		}
	}
	eventually(t, "grants", func() bool { return grants.Load() > 100 })
	if err := s.restart(); err != nil {
		t.Fatal(err)
	}
	before := grants.Load()
	eventually(t, "grants after the restart", func() bool { return grants.Load() > before+100 })
	cancel()
	all.Wait()
	t.Logf("%d grants, %d losses, %d failed acquires", grants.Load(), losses.Load(), failures.Load())
}

// Whatever the network does, the holder is told within two heartbeats, and all
// goes on when it is healed. Others get the lock as soon as the server learns that
// the connection has ended.
func TestNetworkFaults(t *testing.T) {
	t.Parallel()
	const heartbeat = 500 * time.Millisecond
	for name, fault := range map[string]struct {
		do      func(p *faultproxy.Proxy)
		noticed bool // by the server, at once
	}{
		"hold":      {func(p *faultproxy.Proxy) { p.Set(true, true) }, false},
		"drop":      {func(p *faultproxy.Proxy) { p.Set(true, false) }, false},
		"cut":       {func(p *faultproxy.Proxy) { p.Cut() }, true},
		"half-open": {func(p *faultproxy.Proxy) { p.HalfOpen() }, true},
	} {
		for _, own := range []string{"url", "pool"} {
			t.Run(name+"/"+own, func(t *testing.T) {
				t.Parallel()
				s := theServer(t)
				p := newProxy(t, s.addr())
				var l *distlock.Locker
				if own == "url" {
					l = opened(t, s.url(p.Addr(), "heartbeat="+heartbeat.String()))
				} else {
					l, _ = s.locker(t, p.Addr(), &Options{Heartbeat: heartbeat})
				}
				witness, _ := s.locker(t, s.addr(), nil)
				busy, stop := context.WithCancel(t.Context())
				var all sync.WaitGroup
				var done atomic.Int64
				for i := range 8 {
					all.Go(func() {
						for busy.Err() == nil {
							if k, err := l.TryAcquire(busy, fmt.Sprint(t.Name(), i)); err == nil {
								k.Release()
								done.Add(1)
							}
						}
					})
				}
				eventually(t, "it is busy", func() bool { return done.Load() > 20 })
				k := granted(t, l, t.Name())
				start := time.Now()
				fault.do(p)
				select {
				case <-k.Done():
				case <-time.After(patience):
					t.Fatal("no loss was announced")
				}
				if took := time.Since(start); took > 2*heartbeat+10*time.Second {
					t.Errorf("the loss was announced after %v", took)
				}
				if fault.noticed {
					mustRelease(t, mustAcquire(t, witness, t.Name()))
				}
				p.Set(false, false)
				mustRelease(t, mustAcquire(t, witness, t.Name()))
				eventually(t, "it works again", func() bool {
					k, err := l.Acquire(t.Context(), t.Name(), distlock.Timeout(time.Second))
					return err == nil && k.Release() == nil
				})
				stop()
				all.Wait()
			})
		}
	}
}

// opened returns a Locker on the URL, and granted a lock: where heartbeats are short,
// a machine that stalls is taken for a server that is dead, and both take more than
// one try.
func opened(t *testing.T, u string) (l *distlock.Locker) {
	t.Helper()
	eventually(t, "it is opened", func() bool {
		b, err := Open(t.Context(), u)
		if err != nil {
			t.Log(err)
			return false
		}
		l = distlock.New(b, nil)
		t.Cleanup(func() { l.Close() })
		return true
	})
	return l
}

func granted(t *testing.T, l *distlock.Locker, resource string) (k *distlock.Lock) {
	t.Helper()
	eventually(t, "it is granted", func() bool {
		var err error
		if k, err = l.Acquire(t.Context(), resource); err != nil {
			t.Log(err)
		}
		return err == nil
	})
	return k
}

func TestTenThousand(t *testing.T) {
	s := theServer(t)
	const n = 10_000
	l, db := s.locker(t, s.addr(), nil)
	locks := make([]*distlock.Lock, n)
	var next atomic.Int64
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for i := next.Add(1) - 1; i < n; i = next.Add(1) - 1 {
				var err error
				if locks[i], err = l.TryAcquire(t.Context(), fmt.Sprintf("%s-%d", t.Name(), i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	if open := db.Stats().OpenConnections; open > 8 {
		t.Errorf("%d connections", open)
	}
	t.Logf("%d connections", db.Stats().OpenConnections)
	other, _ := s.locker(t, s.addr(), nil)
	for i := 0; i < n; i += 997 {
		mustBeHeld(t, other, fmt.Sprintf("%s-%d", t.Name(), i))
	}
	for part := range 64 {
		all.Go(func() {
			for i := part; i < n; i += 64 {
				if err := locks[i].Release(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

func TestThousandWaiters(t *testing.T) {
	s := theServer(t)
	const n = 1000
	a, _ := s.locker(t, s.addr(), nil)
	b, db := s.locker(t, s.addr(), nil)
	var held []*distlock.Lock
	for i := range n {
		held = append(held, mustAcquire(t, a, fmt.Sprintf("%s-%d", t.Name(), i)))
	}
	var asking sync.WaitGroup
	var all sync.WaitGroup
	few := make(chan struct{}, 16) // a single try has no more than five seconds
	for i := range n {
		asking.Add(1)
		all.Go(func() {
			name := fmt.Sprintf("%s-%d", t.Name(), i)
			few <- struct{}{}
			k, err := b.TryAcquire(t.Context(), name)
			<-few
			asking.Done()
			if !errors.Is(err, distlock.ErrNotAcquired) {
				t.Errorf("%v, %v", k, err)
				return
			}
			if k, err = b.Acquire(t.Context(), name); err != nil {
				t.Error(err)
				return
			}
			if err := k.Release(); err != nil {
				t.Error(err)
			}
		})
	}
	asking.Wait()
	eventually(t, "some wait at the server", func() bool {
		return s.number(t, "SELECT COUNT(*) "+waitingFor, "0:["+t.Name()) > 0
	})
	if open := db.Stats().OpenConnections; open > 8 {
		t.Errorf("%d connections", open)
	}
	for _, k := range held {
		if err := k.Release(); err != nil {
			t.Error(err)
		}
	}
	all.Wait()
}

// With a pool of one connection, all of it works, and an application that asks
// for the connection gets it as soon as nothing is held.
func TestPoolOfOne(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	l, db := s.locker(t, s.addr(), nil)
	db.SetMaxOpenConns(1)
	other, _ := s.locker(t, s.addr(), nil)
	held := mustAcquire(t, other, t.Name())
	start := time.Now()
	if _, err := l.Acquire(t.Context(), t.Name(), distlock.Timeout(300*time.Millisecond)); !errors.Is(err, distlock.ErrNotAcquired) {
		t.Fatalf("after %v: %v", time.Since(start), err)
	}
	got := make(chan *distlock.Lock)
	go func() { got <- mustAcquire(t, l, t.Name()) }()
	mustRelease(t, held)
	k := <-got
	k2 := mustAcquire(t, l, t.Name()+"-2")
	mustRelease(t, k)
	mustRelease(t, k2)

	// All kinds share the session, and none of them is mixed up with another.
	reader := mustAcquire(t, l, t.Name(), distlock.Shared())
	reader2 := mustAcquire(t, l, t.Name(), distlock.Shared())
	mustBeHeld(t, l, t.Name())
	mustBeHeld(t, other, t.Name())
	mustBeHeld(t, l, t.Name(), distlock.Upgradeable()) // there is no second session for it
	mustRelease(t, reader)
	mustBeHeld(t, other, t.Name())
	mustRelease(t, reader2)
	upgradeable := mustAcquire(t, l, t.Name(), distlock.Upgradeable())
	mustBeHeld(t, l, t.Name(), distlock.Shared())
	remote := mustAcquire(t, other, t.Name(), distlock.Shared())
	if err := upgradeable.Upgrade(t.Context(), distlock.Timeout(50*time.Millisecond)); !errors.Is(err, distlock.ErrNotAcquired) {
		t.Errorf("upgraded beside a reader: %v", err)
	}
	mustRelease(t, remote)
	if err := upgradeable.Upgrade(t.Context()); err != nil {
		t.Error(err)
	}
	mustBeHeld(t, l, t.Name(), distlock.Shared())
	mustBeHeld(t, other, t.Name(), distlock.Shared())
	mustRelease(t, upgradeable)
	mustRelease(t, mustAcquire(t, other, t.Name()))

	ctx, cancel := context.WithTimeout(t.Context(), patience/2) // it isn't given back for being idle by then
	defer cancel()
	c, err := db.Conn(ctx)
	if err != nil {
		t.Fatalf("the application gets no connection: %v", err)
	}
	if _, err = l.Acquire(t.Context(), t.Name(), distlock.Timeout(300*time.Millisecond)); err == nil {
		t.Fatal("granted without a connection")
	}
	c.Close()
	mustRelease(t, mustAcquire(t, l, t.Name()))
}

// Failed, canceled and timed-out tries leave nothing at the server.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	holder, _ := s.locker(t, s.addr(), nil)
	held := mustAcquire(t, holder, t.Name())
	db, err := sql.Open("sqlserver", s.url(s.addr(), "app+name="+t.Name()))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxIdleConns(-1) // one that was opened too late for its waiter is given back unused
	left := func() (connections, locks int) {
		const of = " FROM sys.dm_exec_sessions s "
		connections = s.number(t, "SELECT COUNT(*)"+of+"WHERE s.program_name = @p1", t.Name())
		locks = s.number(t, "SELECT COUNT(*)"+of+"JOIN sys.dm_tran_locks l ON l.request_session_id = s.session_id WHERE l.resource_type = 'APPLICATION' AND s.program_name = @p1", t.Name())
		return connections, locks
	}
	if c, l := left(); c != 0 || l != 0 {
		t.Fatalf("%d connections, %d locks beforehand", c, l)
	}
	// What a stall has left hanging is ended after a heartbeat.
	l := distlock.New(New(db, &Options{IdleTimeout: 100 * time.Millisecond}), nil)
	var all sync.WaitGroup
	for w := range 10 {
		all.Go(func() {
			for i := range 100 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%7)*300*time.Microsecond)
				opts := []distlock.AcquireOption{distlock.Timeout(time.Duration(i%5) * time.Millisecond)}
				switch i % 3 {
				case 0:
					opts = append(opts, distlock.Shared())
				case 1:
					opts = append(opts, distlock.Upgradeable())
				}
				if w%2 == 0 {
					ctx = t.Context()
				}
				if _, err := l.Acquire(ctx, t.Name(), opts...); err == nil {
					t.Error("granted")
				}
				cancel()
			}
		})
	}
	all.Wait()
	asBefore := func() bool {
		c, l := left()
		return db.Stats().OpenConnections == 0 && c == 0 && l == 0
	}
	eventually(t, "all sessions are closed when idle", asBefore)
	k := mustAcquire(t, l, t.Name()+"-free")
	if c, l := left(); c == 0 || l < 2 {
		t.Errorf("%d connections, %d locks are seen", c, l) // a session's mark is one
	}
	mustRelease(t, k)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "all sessions are closed after Close", asBefore)
	if n := s.locks(t, t.Name()); n != 1 {
		t.Errorf("%d locks of the name", n)
	}
	mustRelease(t, held)
}

// A balancer between that spreads connections over servers is found out.
func TestTwoServersBehindOneAddress(t *testing.T) {
	t.Parallel()
	if theServer(t).tds == nil {
		t.Skip("there are no two servers")
	}
	a, b := ownServer(t, tdstest.Config{}), ownServer(t, tdstest.Config{})
	p := newProxy(t, a.addr())
	l, _ := a.locker(t, p.Addr(), nil)
	k := mustAcquire(t, l, t.Name())
	defer k.Release()
	p.Redirect(b.addr())
	// A wait takes a connection more.
	other, _ := a.locker(t, a.addr(), nil)
	held := mustAcquire(t, other, t.Name()+"-held")
	defer held.Release()
	_, err := l.Acquire(t.Context(), t.Name()+"-held", distlock.Timeout(patience))
	if err == nil || errors.Is(err, distlock.ErrNotAcquired) || !strings.Contains(err.Error(), "same server") {
		t.Errorf("%v", err)
	}
}

// A session that is killed takes its locks with it, of all kinds, and no others.
func TestKilledHolder(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	witness, _ := s.locker(t, s.addr(), nil)
	for _, c := range []struct {
		mode   driver.Mode
		limit  int
		option distlock.AcquireOption
	}{
		{driver.Exclusive, 0, distlock.Timeout(0)},
		{driver.Shared, 0, distlock.Timeout(0)},
		{driver.Upgradeable, 0, distlock.Upgradeable()},
		{driver.Permit, 2, distlock.Semaphore(2)},
	} {
		name := t.Name() + c.mode.String()
		b := New(s.pool(t, s.addr()), &Options{Heartbeat: patience})
		var last driver.Grant
		for range max(c.limit, 1) {
			g, err := b.Acquire(t.Context(), driver.Request{Resource: name, Mode: c.mode, Limit: c.limit})
			if err != nil {
				t.Fatal(err)
			}
			last = g
		}
		mustBeHeld(t, witness, name, c.option)
		waited := make(chan error, 1)
		go func() {
			k, err := witness.Acquire(t.Context(), name, c.option, distlock.Timeout(patience))
			if err == nil {
				err = k.Release()
			}
			waited <- err
		}()
		s.kill(t, last)
		if err := <-waited; err != nil {
			t.Errorf("%v: %v", c.mode, err)
		}
		if err := last.Session.Renew(t.Context()); err == nil {
			t.Errorf("%v: the session lives on", c.mode)
		}
		<-last.Session.Lost()
		if err := last.Hold.Release(t.Context()); !errors.Is(err, driver.ErrLost) {
			t.Errorf("%v: %v", c.mode, err)
		}
		b.Close()
	}
}

// An account that may nothing but connect can do all but look at others.
func TestNoPermissions(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	if s.tds == nil {
		t.Skip("the accounts are the test server's")
	}
	s = ownServer(t, tdstest.Config{})
	s.user = "limited"
	a, _ := s.locker(t, s.addr(), nil)
	b, _ := s.locker(t, s.addr(), nil)
	k := mustAcquire(t, a, t.Name())
	if _, err := b.Acquire(t.Context(), t.Name(), distlock.Timeout(50*time.Millisecond)); !errors.Is(err, distlock.ErrNotAcquired) {
		t.Error(err)
	}
	if _, err := b.Holders(t.Context(), t.Name()); err == nil || !strings.Contains(err.Error(), "VIEW SERVER STATE") {
		t.Errorf("%v", err)
	}
	if holders, err := b.Holders(t.Context(), t.Name()+"-free"); err != nil || len(holders) != 0 {
		t.Errorf("%v, %v", holders, err)
	}
	mustRelease(t, k)

	// They may have to wait: what b gave up a moment ago may still be granted, and is
	// given back.
	fenced, _ := s.locker(t, s.addr(), &Options{Sequence: "fences", CreateSequence: true})
	if _, err := fenced.Acquire(t.Context(), t.Name()); err == nil || !strings.Contains(err.Error(), "may not make it") {
		t.Errorf("%v", err)
	}
	fenced, _ = s.locker(t, s.addr(), &Options{Sequence: "fences"})
	if _, err := fenced.Acquire(t.Context(), t.Name()); err == nil || !strings.Contains(err.Error(), "SequenceDDL") {
		t.Errorf("%v", err)
	}
	mustRelease(t, mustAcquire(t, b, t.Name())) // the failed ones left nothing

	// A hung session can't be killed, and is cut off.
	p := newProxy(t, s.addr())
	k = granted(t, opened(t, s.url(p.Addr(), "heartbeat=300ms")), t.Name())
	p.Set(true, false)
	<-k.Done()
	p.Set(false, false)
	mustRelease(t, mustAcquire(t, b, t.Name()))
}

// On Azure SQL Database it is another permission.
func TestNoPermissionsOnAzure(t *testing.T) {
	t.Parallel()
	if theServer(t).tds == nil {
		t.Skip("the accounts are the test server's")
	}
	s := ownServer(t, tdstest.Config{EngineEdition: 5, Version: "12.0.2000.8"})
	s.user = "limited"
	l, _ := s.locker(t, s.addr(), nil)
	defer mustAcquire(t, l, t.Name()).Release()
	other, _ := s.locker(t, s.addr(), nil)
	if _, err := other.Holders(t.Context(), t.Name()); err == nil || !strings.Contains(err.Error(), "VIEW DATABASE STATE to see") {
		t.Errorf("%v", err)
	}
}

func TestSequence(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	seq := fmt.Sprintf("fences_%d", time.Now().UnixNano())
	defer s.exec(t, "DROP SEQUENCE "+seq)
	var last atomic.Uint64
	var all sync.WaitGroup
	for range 4 {
		l, _ := s.locker(t, s.addr(), &Options{Sequence: "dbo." + seq, CreateSequence: true})
		all.Go(func() {
			for range 25 {
				k := mustAcquire(t, l, t.Name())
				token, ok := k.Token()
				if before := last.Swap(token); !ok || token <= before {
					t.Errorf("token %d (%v) after %d", token, ok, before)
				}
				mustRelease(t, k)
			}
		})
	}
	all.Wait()
	none, _ := s.locker(t, s.addr(), nil)
	k := mustAcquire(t, none, t.Name())
	if token, ok := k.Token(); ok {
		t.Errorf("token %d without a sequence", token)
	}
	mustRelease(t, k)
	for i, clause := range []string{"START WITH 1 INCREMENT BY -1", "START WITH 1 INCREMENT BY 1 MAXVALUE 3 CYCLE", "START WITH -5 INCREMENT BY 1"} {
		bad := fmt.Sprintf("%s_bad%d", seq, i)
		s.exec(t, "CREATE SEQUENCE "+bad+" AS bigint "+clause)
		l, _ := s.locker(t, s.addr(), &Options{Sequence: bad})
		if _, err := l.TryAcquire(t.Context(), t.Name()); err == nil || errors.Is(err, distlock.ErrNotAcquired) || !strings.Contains(err.Error(), bad) {
			t.Errorf("%s: %v", clause, err)
		}
		s.exec(t, "DROP SEQUENCE "+bad)
	}
	mustRelease(t, mustAcquire(t, none, t.Name()))
}

func TestHolders(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	a, _ := s.locker(t, s.addr(), nil)
	b, _ := s.locker(t, s.addr(), nil)
	c, _ := s.locker(t, s.addr(), nil)
	// The server shows the first 32 characters of a name only.
	alike := strings.Repeat("y", 40) + t.Name()
	defer mustAcquire(t, a, alike+"1").Release()
	defer mustAcquire(t, a, alike+"2", distlock.Shared()).Release()
	defer mustAcquire(t, b, alike+"2", distlock.Shared()).Release()
	defer mustAcquire(t, b, alike+"2", distlock.Upgradeable()).Release()
	defer mustAcquire(t, a, alike, distlock.Semaphore(3)).Release()
	defer mustAcquire(t, b, alike, distlock.Semaphore(3)).Release()
	for _, q := range []struct {
		name    string
		options []distlock.AcquireOption
		modes   string
	}{
		{alike + "1", nil, "exclusive"},
		{alike + "2", nil, "shared shared upgradeable"},
		{alike + "3", nil, ""},
		{alike, []distlock.AcquireOption{distlock.Semaphore(3)}, "permit permit"},
		{alike + "1", []distlock.AcquireOption{distlock.Semaphore(3)}, ""},
	} {
		for _, l := range []*distlock.Locker{a, c} {
			holders, err := l.Holders(t.Context(), q.name, q.options...)
			if err != nil {
				t.Fatal(err)
			}
			counts := make(map[driver.Mode]int)
			var modes []string
			for _, h := range holders {
				counts[h.Mode]++
				if h.Owner.Host == "" || h.Owner.PID == 0 || h.Owner.Program == "" {
					t.Errorf("%s: %+v", q.name, h.Owner)
				}
			}
			for _, m := range []driver.Mode{driver.Exclusive, driver.Permit, driver.Shared, driver.Upgradeable} {
				for range counts[m] {
					modes = append(modes, m.String())
				}
			}
			if got := strings.Join(modes, " "); got != q.modes {
				t.Errorf("%s: %q, want %q", q.name, got, q.modes)
			}
		}
	}
	if n := s.number(t, "SELECT COUNT(*) FROM sys.dm_tran_locks WHERE resource_type = 'APPLICATION' AND request_mode = 'IS' AND CHARINDEX(@p1, resource_description) > 1", ":["+alike[:32]); n != 0 {
		t.Errorf("%d locks are left of looking", n)
	}
}

// Names are told apart as the server does it, whatever collation the database has.
func TestHoldersCase(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	a, _ := s.locker(t, s.addr(), nil)
	looker := New(s.pool(t, s.addr()), &Options{Heartbeat: patience})
	b := distlock.New(looker, nil)
	defer b.Close()
	for _, name := range []string{t.Name(), strings.Repeat("case", 10)} {
		upper := mustAcquire(t, a, strings.ToUpper(name), distlock.Shared())
		lower := mustAcquire(t, a, name)
		for asked, want := range map[string]driver.Mode{name: driver.Exclusive, strings.ToUpper(name): driver.Shared} {
			holders, err := b.Holders(t.Context(), asked)
			if err != nil || len(holders) != 1 || holders[0].Mode != want || holders[0].Owner.Note != "" {
				t.Errorf("%s: %+v, %v", asked, holders, err)
			}
			locks, err := looker.locks(t.Context(), "", beginsWith(shown(asked)), "")
			if err != nil || len(locks) != 1 || !strings.HasPrefix(locks[0].description, shown(asked)) {
				t.Errorf("%s: %+v, %v", asked, locks, err)
			}
		}
		mustRelease(t, upper)
		mustRelease(t, lower)
	}
	defer mustAcquire(t, a, t.Name(), distlock.Semaphore(2)).Release()
	if holders, err := b.Holders(t.Context(), strings.ToUpper(t.Name()), distlock.Semaphore(2)); err != nil || len(holders) != 0 {
		t.Errorf("%+v, %v", holders, err)
	}
}

// Who may not take a name as his own user's sees all whose names begin alike,
// and is told so.
func TestHoldersUnsure(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	if s.tds == nil {
		t.Skip("the accounts are the test server's")
	}
	a, _ := s.locker(t, s.addr(), nil)
	outsider := *s
	outsider.user = "outsider"
	b, _ := outsider.locker(t, s.addr(), nil)
	alike := strings.Repeat("unsure", 10)
	defer mustAcquire(t, a, alike+"1").Release()
	defer mustAcquire(t, a, alike+"2", distlock.Shared()).Release()
	holders, err := b.Holders(t.Context(), alike+"1")
	if err != nil || len(holders) != 2 || holders[0].Owner.Note == "" || holders[1].Owner.Note == "" {
		t.Errorf("%+v, %v", holders, err)
	}
}

// Looking who holds a lock takes none that could be in somebody's way.
func TestHoldersDisturbNobody(t *testing.T) {
	t.Parallel()
	if theServer(t).tds == nil {
		t.Skip("only the test server tells what it is asked")
	}
	s := ownServer(t, tdstest.Config{})
	a, _ := s.locker(t, s.addr(), nil)
	b, _ := s.locker(t, s.addr(), nil)
	alike := strings.Repeat("x", 40)
	defer mustAcquire(t, a, alike+"1").Release()
	defer mustAcquire(t, a, alike+"2", distlock.Shared()).Release()
	if _, err := b.Holders(t.Context(), "warm-up"); err != nil {
		t.Fatal(err)
	}
	var asked []string
	s.tds.OnLock(func(principal, name string) { asked = append(asked, principal+" "+name) })
	for _, name := range []string{alike + "1", alike + "2"} {
		if holders, err := b.Holders(t.Context(), name); err != nil || len(holders) != 1 {
			t.Errorf("%s: %+v, %v", name, holders, err)
		}
	}
	s.tds.OnLock(nil)
	if want := []string{s.user + " " + alike + "1", s.user + " " + alike + "2"}; !slices.Equal(asked, want) {
		t.Errorf("locks were taken: %q, want %q", asked, want)
	}
}

// No error tells the password.
func TestSecrets(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	wrong := *s
	wrong.password = "wrong-secret-7"
	_, err := Open(t.Context(), wrong.url(s.addr(), ""))
	if err == nil || strings.Contains(err.Error(), "wrong-secret") || errors.Is(err, distlock.ErrNotAcquired) {
		t.Errorf("%v", err)
	}
	if _, err := Open(t.Context(), wrong.url("127.0.0.1:1", "dial+timeout=1")); err == nil || strings.Contains(err.Error(), "wrong-secret") {
		t.Errorf("%v", err)
	}
}
