package mssqllock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/dbsession"
	"github.com/distlock-go/distlock/mssqllock/internal/tdstest"
)

// The session on which the first waiter of a semaphore holds the place is used
// often enough not to be cut for idleness; and if it ends all the same, he stands
// in line again.
func TestFirstWaiterKeepsItsPlace(t *testing.T) {
	t.Parallel()
	if theServer(t).tds == nil {
		t.Skip("only the test server tells what it is asked")
	}
	s := ownServer(t, tdstest.Config{})
	gate := namesOf(t.Name()).gate()
	place := func() int {
		return s.number(t, "SELECT MAX(request_session_id) FROM sys.dm_tran_locks WHERE resource_type = 'APPLICATION' AND request_status = 'GRANT' AND CHARINDEX(@p1, resource_description) = 1", shown(gate))
	}
	var mu sync.Mutex
	pings := make(map[int]int)
	s.tds.OnStatement(func(spid int, sql string) {
		if strings.HasSuffix(sql, ";SET @r1=0;SELECT @r1") {
			mu.Lock()
			defer mu.Unlock()
			pings[spid]++
		}
	})
	pinged := func(spid int) int {
		mu.Lock()
		defer mu.Unlock()
		return pings[spid]
	}

	a, _ := s.locker(t, s.addr(), nil)
	held := mustAcquire(t, a, t.Name(), distlock.Semaphore(1))
	b, _ := s.locker(t, s.addr(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	before := make(chan struct{})
	go func() {
		defer close(before)
		_, _ = b.Acquire(ctx, t.Name(), distlock.Semaphore(1))
	}()
	eventually(t, "one is the first", func() bool { return place() != 0 })
	c, _ := s.locker(t, s.addr(), &Options{Heartbeat: 300 * time.Millisecond})
	got := make(chan *distlock.Lock, 1)
	go func() {
		for {
			k, err := c.Acquire(t.Context(), t.Name(), distlock.Semaphore(1))
			if err == nil || t.Context().Err() != nil {
				got <- k
				return
			}
			t.Log(err) // a busy machine may not answer within a heartbeat
		}
	}()
	eventually(t, "another stands behind him", func() bool { return s.waiters(t, gate) == 1 })
	cancel()
	<-before
	// It has waited for the place, on a session of its own. The permit it looks for
	// over another.
	eventually(t, "that one is the first", func() bool { return place() != 0 && s.waiters(t, gate) == 0 })
	spid := 0
	first := make(map[int]int)
	eventually(t, "its session is used", func() bool {
		spid = place()
		n, ok := first[spid]
		if !ok {
			first[spid] = pinged(spid)
		}
		return ok && spid != 0 && pinged(spid) >= n+2
	})
	s.exec(t, fmt.Sprintf("KILL %d", spid))
	eventually(t, "it has the place again", func() bool { return place() != 0 })
	mustRelease(t, held)
	mustRelease(t, <-got)
}

// A permitServer counts what is asked of it.
type permitServer struct {
	*testServer

	mu         sync.Mutex
	statements []string // but those of the tests themselves, once they are ignored
	waits      int      // for any permit, begun
	tries      int      // for a permit
	opened     int      // connections
}

func countingServer(t *testing.T) *permitServer {
	t.Helper()
	if theServer(t).tds == nil {
		t.Skip("only the test server tells what it is asked")
	}
	s := &permitServer{testServer: ownServer(t, tdstest.Config{})}
	s.tds.OnStatement(func(_ int, sql string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.statements = append(s.statements, sql)
		switch sql {
		case waitAny.text:
			s.waits++
		case about:
			s.opened++
		}
	})
	s.tds.OnLock(func(_, name string) {
		if strings.HasPrefix(name, ownPermit) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.tries++
		}
	})
	return s
}

// get returns one of the counts.
func (s *permitServer) get(count *int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *count
}

// all counts the locks whose names begin so.
func (s *permitServer) all(t *testing.T, start string) int {
	t.Helper()
	return s.number(t, "SELECT COUNT(*) FROM sys.dm_tran_locks WHERE resource_type = 'APPLICATION' AND CHARINDEX(@p1, resource_description) = 1", "0:["+start)
}

// turns waits until the waiter has tried so often since that it goes in circles.
func (s *permitServer) turns(t *testing.T, limit int) {
	t.Helper()
	before := s.get(&s.tries)
	eventually(t, "it looks for a permit again and again", func() bool { return s.get(&s.tries) > before+3*(limit+1) })
}

// backend returns a new backend, on a pool of its own.
func (s *testServer) backend(t *testing.T, o *Options) *Backend {
	t.Helper()
	b := New(s.pool(t, s.addr()), o)
	t.Cleanup(func() { b.Close() })
	return b
}

func permitOf(name string, limit int, wait time.Duration) driver.Request {
	return driver.Request{Resource: name, Mode: driver.Permit, Limit: limit, Wait: wait}
}

func mustGrant(t *testing.T, b *Backend, r driver.Request) driver.Grant {
	t.Helper()
	g, err := b.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func mustGive(t *testing.T, g driver.Grant) {
	t.Helper()
	if err := g.Hold.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Who waits for a permit is granted whichever comes free first, by a single
// statement, also one of his own process; and within a round of the server's.
func TestP19_WaitForAnyPermitIsOneStatement(t *testing.T) {
	t.Parallel()
	const limit = 3
	s := countingServer(t)
	o := &Options{Heartbeat: patience}
	waiter := s.backend(t, o)
	holders := []*Backend{s.backend(t, o), s.backend(t, o), waiter}
	var held []driver.Grant
	for _, b := range holders {
		held = append(held, mustGrant(t, b, permitOf(t.Name(), limit, 0)))
	}
	for i := range held {
		waits := s.get(&s.waits)
		got := make(chan driver.Grant, 1)
		go func() {
			g, err := waiter.Acquire(t.Context(), permitOf(t.Name(), limit, patience))
			if err != nil {
				t.Error(err)
			}
			got <- g
		}()
		eventually(t, "it waits at the server", func() bool { return s.get(&s.waits) > waits })
		s.mu.Lock()
		asked := len(s.statements)
		s.mu.Unlock()
		s.turns(t, limit)
		s.mu.Lock()
		if more := s.statements[asked:]; len(more) > 0 {
			t.Errorf("%d: it is one statement, and %d more are sent: %q", i, len(more), more)
		}
		s.mu.Unlock()

		freed, granted := -1, -1 // the number of tries
		s.tds.OnReply(func(_ int, sql string, _ <-chan struct{}) {
			s.mu.Lock()
			defer s.mu.Unlock()
			switch {
			case freed < 0 && strings.Contains(sql, "sp_releaseapplock"):
				freed = s.tries
			case granted < 0 && sql == waitAny.text:
				granted = s.tries
			}
		})
		mustGive(t, held[i])
		held[i] = <-got
		s.tds.OnReply(nil)
		if s.mu.Lock(); granted-freed > limit+1 || freed < 0 || granted < 0 {
			t.Errorf("%d: it came free after %d tries, and was granted after %d", i, freed, granted)
		}
		s.mu.Unlock()
	}
	for _, g := range held {
		mustGive(t, g)
	}
	if n := s.all(t, ownPermit) + s.all(t, ownGate); n > 0 {
		t.Errorf("%d locks are left", n)
	}
}

// More permits than a statement may have parameters.
func TestManyPermits(t *testing.T) {
	t.Parallel()
	const limit = 2500
	s := countingServer(t)
	o := &Options{Heartbeat: patience}
	holder, waiter := s.backend(t, o), s.backend(t, o)
	var held []driver.Grant
	for range limit {
		held = append(held, mustGrant(t, holder, permitOf(t.Name(), limit, 0)))
	}
	got := make(chan driver.Grant, 1)
	go func() {
		g, err := waiter.Acquire(t.Context(), permitOf(t.Name(), limit, patience))
		if err != nil {
			t.Error(err)
		}
		got <- g
	}()
	eventually(t, "it waits at the server", func() bool { return s.get(&s.waits) > 0 })
	s.turns(t, limit)
	mustGive(t, held[limit/2])
	mustGive(t, <-got)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		eventually(t, "another waits", func() bool { return s.get(&s.waits) > 1 })
		cancel()
	}()
	held[limit/2] = mustGrant(t, holder, permitOf(t.Name(), limit, 0))
	if _, err := waiter.Acquire(ctx, permitOf(t.Name(), limit, patience)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	holder.Close()
	eventually(t, "nothing is left", func() bool { return s.all(t, ownPermit)+s.all(t, ownGate) == 0 })
}

// The server has ended the session of a holder, and nobody has told the process,
// which waits for his permit itself.
func TestP15_PermitOfTheDeadIsGrantedToItsOwnProcess(t *testing.T) {
	t.Parallel()
	s := countingServer(t)
	for _, limit := range []int{1, 2} {
		name := fmt.Sprint(t.Name(), limit)
		b := s.backend(t, &Options{Heartbeat: patience})
		for range limit - 1 {
			mustGrant(t, s.backend(t, nil), permitOf(name, limit, 0))
		}
		g := mustGrant(t, b, permitOf(name, limit, 0))
		got := make(chan *distlock.Lock, 1)
		l := distlock.New(b, nil)
		t.Cleanup(func() { l.Close() })
		go func() { got <- mustAcquire(t, l, name, distlock.Semaphore(limit), distlock.Timeout(patience)) }()
		eventually(t, "it waits at the server", func() bool {
			return s.get(&s.waits) > 0 || s.waiters(t, namesOf(name).permits()(0)) > 0
		})
		s.kill(t, g)
		k := <-got
		<-g.Session.Lost()
		if err := g.Hold.Release(t.Context()); !errors.Is(err, driver.ErrLost) {
			t.Errorf("%v", err)
		}
		mustRelease(t, k)
	}
}

// A wait that is canceled leaves nothing at the server, granted at the last moment
// or not, and the connection is used again.
func TestP07_CanceledWaitForAPermitLeavesNothing(t *testing.T) {
	t.Parallel()
	s := countingServer(t)
	for _, limit := range []int{1, 3} {
		name := fmt.Sprint(t.Name(), limit)
		o := &Options{Heartbeat: patience}
		holder, waiter := s.backend(t, o), s.backend(t, o)
		var held []driver.Grant
		for range limit {
			held = append(held, mustGrant(t, holder, permitOf(name, limit, 0)))
		}
		opened := 0
		for i := range 20 {
			tries := s.get(&s.tries)
			ctx, cancel := context.WithCancel(t.Context())
			over := make(chan struct{})
			go func() {
				defer close(over)
				g, err := waiter.Acquire(ctx, permitOf(name, limit, patience))
				switch {
				case err == nil:
					mustGive(t, g)
				case !errors.Is(err, context.Canceled):
					t.Error(err)
				}
			}()
			eventually(t, "it waits", func() bool { return s.get(&s.tries) >= tries+2*limit && s.all(t, ownGate) == 1 })
			if i%2 == 1 {
				go cancel()
				mustGive(t, held[i%limit])
			} else {
				cancel()
			}
			<-over
			eventually(t, "the permit can be had", func() bool {
				if i%2 == 0 {
					return true
				}
				g, err := holder.Acquire(t.Context(), permitOf(name, limit, 0))
				held[i%limit] = g
				return err == nil
			})
			eventually(t, "nothing is left", func() bool {
				return s.all(t, ownGate) == 0 && s.all(t, ownPermit) == limit &&
					s.number(t, "SELECT COUNT(*) FROM sys.dm_exec_requests WHERE session_id <> @@SPID") == 0
			})
			if i == 1 {
				opened = s.get(&s.opened)
			}
		}
		if n := s.get(&s.opened) - opened; n > 2 {
			t.Errorf("%d connections were opened in place of canceled ones", n)
		}
		if limit == 1 && s.get(&s.waits) > 0 {
			t.Error("a wait for the only permit is none for that alone")
		}
		for _, g := range held {
			mustGive(t, g)
		}
	}
}

// A wait takes the time that it was given, and leaves nothing.
func TestP04_WaitForAPermitEndsInTime(t *testing.T) {
	t.Parallel()
	s := countingServer(t)
	for _, limit := range []int{1, 3} {
		name := fmt.Sprint(t.Name(), limit)
		holder, _ := s.locker(t, s.addr(), nil)
		waiter, _ := s.locker(t, s.addr(), nil)
		option := distlock.Semaphore(limit)
		for range limit {
			defer mustAcquire(t, holder, name, option).Release()
		}
		for _, timeout := range []time.Duration{time.Millisecond, 17 * time.Millisecond, 333333 * time.Microsecond} {
			start := time.Now()
			_, err := waiter.Acquire(t.Context(), name, option, distlock.Timeout(timeout))
			if took := time.Since(start); !errors.Is(err, distlock.ErrNotAcquired) || took < timeout {
				t.Errorf("%d permits: after %v of %v: %v", limit, took, timeout, err)
			}
			eventually(t, "nothing is left", func() bool {
				return s.all(t, ownGate) == 0 && s.number(t, "SELECT COUNT(*) FROM sys.dm_exec_requests WHERE session_id <> @@SPID") == 0
			})
		}
	}
}

// The server tells the end of a wait by itself, neither early nor late.
func TestP04_ServerEndsTheWait(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	holder := s.backend(t, nil)
	const limit = 2
	for range limit {
		mustGrant(t, holder, permitOf(t.Name(), limit, 0))
	}
	conn, err := s.pool(t, s.addr()).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	err = conn.Raw(func(dc any) error {
		c, err := dbsession.Wrap(dc)
		if err != nil {
			return err
		}
		for _, wait := range []time.Duration{0, time.Microsecond, 50 * time.Millisecond, 333333 * time.Microsecond} {
			st := &dbsession.Step{Verb: doWaitAny, Key: namesOf(t.Name()).permitsEnd(), N: limit}
			start := time.Now()
			if err := newDialect().Wait(t.Context(), c, st, wait); err != nil || st.Result != 0 {
				t.Errorf("%v: %d, %v", wait, st.Result, err)
			}
			if took := time.Since(start); took < wait || took > wait+patience/2 {
				t.Errorf("%v took %v", wait, took)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Waiters of two processes all have their turns, and never more than there are
// permits.
func TestP18_NoWaiterForAPermitStarves(t *testing.T) {
	t.Parallel()
	const limit, waiters, turns = 3, 20, 400
	s := theServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var lockers []*distlock.Locker
	for range 2 {
		l, _ := s.locker(t, s.addr(), nil)
		lockers = append(lockers, l)
	}
	var all sync.WaitGroup
	var holding, total atomic.Int64
	var had [waiters]atomic.Int64
	for i := range waiters {
		all.Go(func() {
			for ctx.Err() == nil {
				k, err := lockers[i%2].Acquire(ctx, t.Name(), distlock.Semaphore(limit))
				if err != nil {
					if ctx.Err() == nil {
						t.Error(err)
					}
					continue
				}
				if n := holding.Add(1); n > limit {
					t.Errorf("%d hold a permit", n)
				}
				had[i].Add(1)
				runtime.Gosched()
				holding.Add(-1)
				mustRelease(t, k)
				least := had[0].Load()
				for j := range had {
					least = min(least, had[j].Load())
				}
				if n := total.Add(1); n >= turns && least > 0 {
					cancel()
				} else if n == 100*turns {
					t.Errorf("after %d turns one has had none", n)
					cancel()
				}
			}
		})
	}
	all.Wait()
	eventually(t, "nothing is left", func() bool {
		for i := range limit {
			if s.locks(t, namesOf(t.Name()).permits()(i)) > 0 {
				return false
			}
		}
		return s.locks(t, namesOf(t.Name()).gate()) == 0
	})
}

// Close ends a wait for a permit, and what it had at the server.
func TestP25_CloseEndsTheWaitForAPermit(t *testing.T) {
	t.Parallel()
	s := countingServer(t)
	const limit = 2
	holder, _ := s.locker(t, s.addr(), nil)
	for range limit {
		defer mustAcquire(t, holder, t.Name(), distlock.Semaphore(limit)).Release()
	}
	before := s.connections(t)
	waiter, db := s.locker(t, s.addr(), nil)
	ended := make(chan error, 1)
	go func() {
		_, err := waiter.Acquire(t.Context(), t.Name(), distlock.Semaphore(limit))
		ended <- err
	}()
	eventually(t, "it waits at the server", func() bool { return s.get(&s.waits) > 0 })
	s.turns(t, limit)
	if err := waiter.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, distlock.ErrClosed) {
		t.Error(err)
	}
	eventually(t, "nothing is left", func() bool {
		return s.all(t, ownGate) == 0 && s.all(t, ownPermit) == limit && s.connections(t) == before && db.Stats().OpenConnections == 0
	})
}

// Where there is no connection to wait on, the first waiter polls, and gets a
// permit all the same.
func TestPermitWithoutAConnectionToWaitOn(t *testing.T) {
	t.Parallel()
	s := countingServer(t)
	const limit = 2
	holder := s.backend(t, nil)
	var held []driver.Grant
	for range limit {
		held = append(held, mustGrant(t, holder, permitOf(t.Name(), limit, 0)))
	}
	waiter := s.backend(t, &Options{Heartbeat: patience, MaxSessions: 1})
	got := make(chan driver.Grant, 1)
	go func() {
		g, err := waiter.Acquire(t.Context(), permitOf(t.Name(), limit, patience))
		if err != nil {
			t.Error(err)
		}
		got <- g
	}()
	s.turns(t, limit)
	mustGive(t, held[1])
	mustGive(t, <-got)
	if n := s.get(&s.waits); n > 0 {
		t.Errorf("%d waits at the server", n)
	}
}
