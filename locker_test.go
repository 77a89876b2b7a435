package distlock_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/locallock"
)

// chain lets n goroutines take the resource one after the other, each for d,
// and returns their tokens in that order.
func chain(t *testing.T, l *distlock.Locker, n int, d time.Duration, opts ...distlock.AcquireOption) (tokens []uint64) {
	t.Helper()
	first := mustAcquire(t, l, "a", opts...)
	var all sync.WaitGroup
	note := func(lock *distlock.Lock) {
		token, _ := lock.Token()
		tokens = append(tokens, token)
		time.Sleep(d)
		mustRelease(t, lock)
	}
	for range n - 1 {
		all.Go(func() { note(mustAcquire(t, l, "a", opts...)) })
		synctest.Wait()
	}
	note(first)
	all.Wait()
	return tokens
}

func TestP14_TokensGrowOverHandOffs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.tokens = true
		s.token = 1<<53 - 10
		l := newLocker(t, s, &distlock.Options{HandoffCount: 16})
		tokens := chain(t, l, 40, 0)
		for i := 1; i < len(tokens); i++ {
			if tokens[i] <= tokens[i-1] {
				t.Fatalf("tokens %v", tokens)
			}
		}
		// Sixteen are passed on in a row, then the store has its turn.
		if n := s.count("acquire"); n != 3 {
			t.Errorf("%d grants of the store", n)
		}
		if tokens[39] > math.MaxInt64 {
			t.Errorf("token %d doesn't fit into what databases have", tokens[39])
		}
	})
}

// All the hand-offs of a grant stay below the next one.
func TestP14_TokensOfTheLongestChain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.tokens = true
		tokens := chain(t, newLocker(t, s, &distlock.Options{HandoffCount: 1023, HandoffTime: time.Hour}), 1030, 0)
		for i := 1; i < len(tokens); i++ {
			if tokens[i] <= tokens[i-1] {
				t.Fatalf("token %d after %d, the %dth", tokens[i], tokens[i-1], i)
			}
		}
		if n := s.count("acquire"); n != 2 {
			t.Errorf("%d grants", n)
		}
	})
}

func TestP14_TokenTooLargeIsNoLock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.tokens = true
		s.token = 1<<53 - 1
		l := newLocker(t, s, nil)
		if _, err := l.Acquire(t.Context(), "a"); err == nil || errors.Is(err, distlock.ErrNotAcquired) {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		if s.held("a") != 0 {
			t.Error("it is still held")
		}
		s.token = 1<<53 - 2
		lock := mustAcquire(t, l, "a", distlock.Upgradeable())
		if err := lock.Upgrade(t.Context()); err == nil {
			t.Error("upgraded to a token that is too large")
		}
		mustRelease(t, lock)
	})
}

func TestP14_NoTokenIsNone(t *testing.T) {
	l := newLocker(t, newStore(), nil)
	lock := mustAcquire(t, l, "a")
	if token, ok := lock.Token(); ok || token != 0 {
		t.Errorf("got %d, %v", token, ok)
	}
	mustRelease(t, lock)
}

func TestHandOffIsBounded(t *testing.T) {
	for _, c := range []struct {
		o      *distlock.Options
		held   time.Duration
		grants int
	}{
		{nil, 0, 1},
		{&distlock.Options{HandoffCount: -1}, 0, 32},
		{&distlock.Options{HandoffCount: 3}, 0, 8},
		{nil, 5 * time.Millisecond, 8},
		{&distlock.Options{HandoffTime: 100 * time.Millisecond}, 30 * time.Millisecond, 8},
		{&distlock.Options{HandoffTime: time.Hour}, time.Minute / 2, 1},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStore()
				chain(t, newLocker(t, s, c.o), 32, c.held)
				if n := s.count("acquire"); n != c.grants || s.count("release") != n {
					t.Errorf("%d grants for 32 holders, and %d releases, want %d", n, s.count("release"), c.grants)
				}
			})
		})
	}
}

// wantLater reports a lock whose token isn't larger than that of the one before.
func wantLater(t *testing.T, lock, before *distlock.Lock) {
	t.Helper()
	last, _ := before.Token()
	if token, _ := lock.Token(); token <= last {
		t.Errorf("token %d after %d", token, last)
	}
}

// stalls returns a Trace that keeps a waiter whose context has a channel under
// this key from going on until that is closed: what it is handed meanwhile is on
// its way.
type stallKey struct{}

func stalls() *distlock.Trace {
	return &distlock.Trace{Waiting: func(ctx context.Context, _ distlock.Event) {
		if stall, ok := ctx.Value(stallKey{}).(chan struct{}); ok {
			<-stall
		}
	}}
}

// The session ends while the holding is on its way from one to the next: the
// next one gets a new grant, and nobody a dead one.
func TestHandOffOfALostHolding(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dying := newLease(ttl)
		s := leased(dying)
		s.tokens = true
		var lost atomic.Int32
		trace := stalls()
		trace.Lost = func(distlock.Event) { lost.Add(1) }
		l := newLocker(t, s, &distlock.Options{Trace: trace})
		first := mustAcquire(t, l, "a")
		stall := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() {
			lock, err := l.Acquire(context.WithValue(t.Context(), stallKey{}, stall), "a")
			if err != nil || lock.Err() != nil || s.count("acquire") != 2 {
				t.Fatalf("%v after %d grants", err, s.count("acquire"))
			}
			wantLater(t, lock, first)
			mustRelease(t, lock)
		})
		synctest.Wait()
		mustRelease(t, first)
		s.mu.Lock()
		s.session = func() driver.Session { return newLease(ttl) }
		s.mu.Unlock()
		close(dying.lost)
		<-dying.abandoned
		s.free("a", func(*hold) bool { return true })
		close(stall)
		all.Wait()
		if lost.Load() > 0 {
			t.Error("a loss was told of what nobody held")
		}
	})
}

// Whoever doesn't want what it is handed any more hands it on.
func TestP18_HandOffToACancelledWaiterGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.tokens = true
		l := newLocker(t, s, &distlock.Options{Trace: stalls()})
		first := mustAcquire(t, l, "a")
		ctx, cancel := context.WithCancel(t.Context())
		stall := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() {
			_, err := l.Acquire(context.WithValue(ctx, stallKey{}, stall), "a")
			wantErr(t, err, []error{context.Canceled, distlock.ErrNotAcquired})
		})
		synctest.Wait()
		all.Go(func() {
			lock := mustAcquire(t, l, "a")
			wantLater(t, lock, first)
			mustRelease(t, lock)
		})
		synctest.Wait()
		mustRelease(t, first)
		cancel()
		close(stall)
		all.Wait()
		if s.count("acquire") != 1 || s.count("release") != 1 || s.held("a") != 0 {
			t.Errorf("%d grants, %d releases", s.count("acquire"), s.count("release"))
		}
	})
}

// What is handed to a waiter whose Trace panics isn't held for ever.
func TestHandOffToAWaiterThatPanics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		stall := make(chan struct{})
		l := newLocker(t, s, &distlock.Options{Trace: &distlock.Trace{Waiting: func(ctx context.Context, _ distlock.Event) {
			if ctx.Value(stallKey{}) != nil {
				<-stall
				panic("ouch")
			}
		}}})
		first := mustAcquire(t, l, "a")
		var all sync.WaitGroup
		all.Go(func() {
			defer func() { _ = recover() }()
			_, _ = l.Acquire(context.WithValue(t.Context(), stallKey{}, true), "a")
			t.Error("it didn't panic")
		})
		synctest.Wait()
		all.Go(func() { mustRelease(t, mustAcquire(t, l, "a")) })
		synctest.Wait()
		mustRelease(t, first)
		close(stall)
		all.Wait()
		synctest.Wait()
		if s.count("acquire") != 1 || s.held("a") != 0 {
			t.Errorf("%d grants, %d held", s.count("acquire"), s.held("a"))
		}
	})
}

func TestSharedHoldingsShareAGrant(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, &distlock.Options{HandoffCount: 3})
		var locks []*distlock.Lock
		for i := range 9 {
			lock := mustAcquire(t, l, "a", distlock.Shared())
			// One from the store, three that join it.
			if n, want := s.count("acquire"), i/4+1; n != want {
				t.Errorf("%d readers: %d grants, want %d", i+1, n, want)
			}
			locks = append(locks, lock)
		}
		// Whoever came first needn't be who leaves last.
		for i, lock := range locks {
			wantErr(t, tryErr(t, l), []error{distlock.ErrNotAcquired})
			mustRelease(t, lock)
			if n, want := s.held("a"), 3-min((i+1)/4+(i+1)/9, 3); n != want {
				t.Errorf("%d readers have left: the store has %d, want %d", i+1, n, want)
			}
		}
		time.Sleep(time.Second)
		a := mustAcquire(t, l, "a", distlock.Shared())
		time.Sleep(21 * time.Millisecond)
		b := mustAcquire(t, l, "a", distlock.Shared())
		if s.held("a") != 2 {
			t.Error("a reader joined an old grant: a writer of another process might wait for ever")
		}
		mustRelease(t, a)
		mustRelease(t, b)
	})
}

// Readers, permits and upgradeable locks of several processes are granted beside
// each other, and the later one has the larger token.
func TestP14_TokensGrowOverProcessesBesideEachOther(t *testing.T) {
	for _, c := range []struct {
		name        string
		here, there distlock.AcquireOption
		passed      bool // what is held here could be
		full        bool // all there is is held here at last
	}{
		{"readers", distlock.Shared(), distlock.Shared(), false, false},
		{"permits", distlock.Semaphore(2), distlock.Semaphore(2), true, true},
		{"upgradeable beside a reader", distlock.Upgradeable(), distlock.Shared(), true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStore()
				s.tokens = true
				here, there := newLocker(t, s, nil), newLocker(t, s, nil)
				first := mustAcquire(t, here, "a", c.here)
				other := mustAcquire(t, there, "a", c.there)
				if c.full {
					mustRelease(t, other)
					defer mustRelease(t, mustAcquire(t, here, "a", c.here))
				}
				var all sync.WaitGroup
				if c.passed {
					time.AfterFunc(time.Millisecond, func() { mustRelease(t, first) })
				}
				all.Go(func() {
					second := mustAcquire(t, here, "a", c.here)
					before, _ := other.Token()
					if token, _ := second.Token(); token <= before {
						t.Errorf("token %d, after %d of another process", token, before)
					}
					mustRelease(t, second)
				})
				all.Wait()
				if !c.full {
					mustRelease(t, other)
				}
				if !c.passed {
					mustRelease(t, first)
				}
			})
		})
	}
}

// Of what can't be beside anything, whatever it began as, all is passed on.
func TestP14_WhatIsAloneIsPassedOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.tokens = true
		l := newLocker(t, s, nil)
		chain(t, l, 10, 0, distlock.Semaphore(1))
		if n := s.count("acquire"); n != 1 {
			t.Errorf("%d grants of the only permit", n)
		}
		lock := mustAcquire(t, l, "b", distlock.Upgradeable())
		if err := lock.Upgrade(t.Context()); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		all.Go(func() {
			next := mustAcquire(t, l, "b")
			wantLater(t, next, lock)
			mustRelease(t, next)
		})
		synctest.Wait()
		mustRelease(t, lock)
		all.Wait()
		if n := s.count("acquire"); n != 2 {
			t.Errorf("%d grants", n)
		}
	})
}

// Where there are no tokens, what others may have at the same time is passed on, too.
func TestHandOffOfWhatIsNotAlone(t *testing.T) {
	for name, c := range map[string]struct {
		kind distlock.AcquireOption
		all  int // that can be held at once
	}{
		"permits":     {distlock.Semaphore(2), 2},
		"upgradeable": {distlock.Upgradeable(), 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStore()
				l := newLocker(t, s, nil)
				var held []*distlock.Lock
				for range c.all {
					held = append(held, mustAcquire(t, l, "a", c.kind))
				}
				var all sync.WaitGroup
				for range 10 {
					all.Go(func() { mustRelease(t, mustAcquire(t, l, "a", c.kind)) })
					synctest.Wait()
				}
				mustRelease(t, held[0])
				all.Wait()
				for _, lock := range held[1:] {
					mustRelease(t, lock)
				}
				if n := s.count("acquire"); n != c.all || s.held("a") != 0 {
					t.Errorf("%d grants, want %d; %d are left", n, c.all, s.held("a"))
				}
			})
		})
	}
}

// tryErr returns the error of a try for the lock, which must not succeed.
func tryErr(t *testing.T, l *distlock.Locker) error {
	t.Helper()
	lock, err := l.TryAcquire(t.Context(), "a")
	if err == nil {
		mustRelease(t, lock)
		t.Fatal("got it")
	}
	return err
}

// Readers that share a grant are lost together, each once, and a new one asks
// the store.
func TestP13_SharedHoldingsAreLostTogether(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dying := newLease(ttl)
		s := leased(dying)
		var lost atomic.Int32
		l := newLocker(t, s, &distlock.Options{Trace: &distlock.Trace{Lost: func(distlock.Event) { lost.Add(1) }}})
		var locks []*distlock.Lock
		for range 3 {
			locks = append(locks, mustAcquire(t, l, "a", distlock.Shared()))
		}
		if s.count("acquire") != 1 {
			t.Fatalf("%d grants", s.count("acquire"))
		}
		mustRelease(t, locks[0])
		s.mu.Lock()
		s.session = func() driver.Session { return newLease(ttl) }
		s.mu.Unlock()
		close(dying.lost)
		<-dying.abandoned
		synctest.Wait()
		s.free("a", func(*hold) bool { return true })
		next := mustAcquire(t, l, "a", distlock.Shared())
		if next.Err() != nil || s.count("acquire") != 2 {
			t.Errorf("%v after %d grants", next.Err(), s.count("acquire"))
		}
		for _, lock := range locks[1:] {
			wantErr(t, lock.Err(), []error{distlock.ErrLost})
			wantErr(t, lock.Release(), []error{distlock.ErrLost})
		}
		if err := locks[0].Err(); !errors.Is(err, distlock.ErrReleased) {
			t.Errorf("released before: %v", err)
		}
		mustRelease(t, next)
		if lost.Load() != 2 || s.count("release") != 1 {
			t.Errorf("%d losses told, %d releases", lost.Load(), s.count("release"))
		}
	})
}

// Readers come and go all the time, and a writer of another process gets in.
func TestP23_SharedGrantsDoNotStarveAWriterElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.info.PollMin, s.info.PollMax = time.Millisecond, time.Millisecond
		var writing atomic.Bool
		s.answer = func(_ context.Context, r driver.Request) (driver.Grant, bool, error) {
			if r.Mode == driver.Exclusive {
				writing.Store(true) // the store lets no new readers in
			} else if writing.Load() {
				return driver.Grant{}, true, driver.ErrHeld
			}
			return driver.Grant{}, false, nil
		}
		here, there := newLocker(t, s, nil), newLocker(t, s, nil)
		stop := make(chan struct{})
		var all sync.WaitGroup
		for i := range 5 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				for {
					select {
					case <-stop:
						return
					default:
					}
					lock, err := here.Acquire(t.Context(), "a", distlock.Shared(), distlock.Timeout(time.Second))
					if err != nil {
						continue
					}
					time.Sleep(5 * time.Millisecond)
					mustRelease(t, lock)
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		within(t, 50*time.Millisecond, "Acquire", func() {
			mustRelease(t, mustAcquire(t, there, "a", distlock.Timeout(time.Second)))
		})
		writing.Store(false)
		close(stop)
		all.Wait()
	})
}

func TestP21_DoJoinsWhatHappened(t *testing.T) {
	bubble(t, func(t *testing.T) {
		mine := errors.New("mine")
		lease := newLease(ttl)
		s := leased(lease)
		l := newLocker(t, s, nil)
		if err := l.Do(t.Context(), "a", func(ctx context.Context) error { return ctx.Err() }); err != nil {
			t.Errorf("nothing happened: %v", err)
		}
		if err := l.Do(t.Context(), "a", func(context.Context) error { return mine }); !errors.Is(err, mine) || err.Error() != "mine" {
			t.Errorf("fn's error alone: %v", err)
		}
		failing := newStore()
		failing.release = func(context.Context, *hold) error { return &storeError{1} }
		err := newLocker(t, failing, nil).Do(t.Context(), "a", func(context.Context) error { return mine })
		if se := (*storeError)(nil); !errors.Is(err, mine) || !errors.As(err, &se) {
			t.Errorf("fn's and Release's error: %v", err)
		}
		err = l.Do(t.Context(), "a", func(ctx context.Context) error {
			close(lease.lost)
			<-ctx.Done()
			return context.Cause(ctx)
		})
		wantErr(t, err, []error{distlock.ErrLost})
	})
}

func TestP21_DoReleasesHoweverItEnds(t *testing.T) {
	s := newStore()
	l := newLocker(t, s, nil)
	func() {
		defer func() {
			if recover() != "ouch" {
				t.Error("the panic got lost")
			}
		}()
		l.Do(t.Context(), "a", func(context.Context) error { panic("ouch") })
	}()
	if s.held("a") != 0 {
		t.Error("held after a panic")
	}
	var all sync.WaitGroup
	all.Go(func() { l.Do(t.Context(), "a", func(context.Context) error { runtime.Goexit(); return nil }) })
	all.Wait()
	if s.held("a") != 0 {
		t.Error("held after Goexit")
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := l.Do(ctx, "a", func(held context.Context) error {
		cancel()
		<-held.Done()
		return nil
	})
	if err != nil || s.held("a") != 0 {
		t.Errorf("after the caller's context ended: %v, %d held", err, s.held("a"))
	}
}

func TestP22_AllOrNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, nil)
		names := []string{"c", "a", "b", "a"}
		lock, err := l.AcquireAll(t.Context(), names)
		if err != nil {
			t.Fatal(err)
		}
		var order []string
		for _, c := range s.calls {
			order = append(order, c.req.Resource)
		}
		if !slices.Equal(order, []string{"a", "b", "c"}) || lock.Resource() != "a,b,c" || names[0] != "c" {
			t.Errorf("acquired %v as %q", order, lock.Resource())
		}
		if _, ok := lock.Token(); ok {
			t.Error("a token for several")
		}
		s.calls = nil
		mustRelease(t, lock)
		order = nil
		for _, c := range s.calls {
			order = append(order, c.req.Resource)
		}
		if !slices.Equal(order, []string{"c", "b", "a"}) || !errors.Is(lock.Err(), distlock.ErrReleased) || !isClosed(lock.Done()) {
			t.Errorf("released %v", order)
		}

		// The last one is held: nothing stays, within one budget.
		busy := mustAcquire(t, l, "c")
		start := time.Now()
		_, err = l.AcquireAll(t.Context(), names, distlock.Timeout(time.Second))
		wantErr(t, err, []error{distlock.ErrNotAcquired})
		if e := (*distlock.Error)(nil); !errors.As(err, &e) || e.Resource != "c" {
			t.Errorf("the error names another: %v", err)
		}
		if took := time.Since(start); took != time.Second || s.held("a")+s.held("b") > 0 {
			t.Errorf("it took %v, and %d are left", took, s.held("a")+s.held("b"))
		}
		mustRelease(t, busy)
	})
}

func TestP22_OneBudgetForAll(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLocker(t, newStore(), nil)
		for i, name := range []string{"a", "b", "c"} {
			lock := mustAcquire(t, l, name)
			time.AfterFunc(time.Duration(i+1)*400*time.Millisecond, func() { lock.Release() })
		}
		start := time.Now()
		_, err := l.AcquireAll(t.Context(), []string{"a", "b", "c"}, distlock.Timeout(time.Second))
		wantErr(t, err, []error{distlock.ErrNotAcquired})
		if took := time.Since(start); took != time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestP22_LostAsSoonAsOneIs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		leases := map[string]*lease{"a": newLease(ttl), "b": newLease(ttl)}
		s := newStore()
		s.answer = func(_ context.Context, r driver.Request) (driver.Grant, bool, error) {
			g, err := s.grant(r)
			g.Session = leases[r.Resource]
			return g, true, err
		}
		l := newLocker(t, s, nil)
		lock, err := l.AcquireAll(t.Context(), []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		close(leases["b"].lost)
		<-lock.Done()
		wantErr(t, lock.Err(), []error{distlock.ErrLost})
		if !strings.Contains(lock.Err().Error(), `"b"`) {
			t.Errorf("it doesn't say which: %v", lock.Err())
		}
		wantErr(t, lock.Release(), []error{distlock.ErrLost})
		if s.held("a") != 0 {
			t.Error("the other one is still held")
		}
	})
}

func TestP23_WriterIsNotStarvedByNewReaders(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var readers sync.WaitGroup
		for i := range 10 {
			readers.Go(func() {
				time.Sleep(time.Duration(i) * 10 * time.Millisecond)
				for {
					lock, err := l.Acquire(ctx, "a", distlock.Shared())
					if err != nil {
						return
					}
					time.Sleep(100 * time.Millisecond)
					mustRelease(t, lock)
				}
			})
		}
		time.Sleep(time.Second)
		lock := mustAcquire(t, l, "a", distlock.Timeout(200*time.Millisecond))
		if s.held("a") != 1 {
			t.Error("a reader beside the writer")
		}
		mustRelease(t, lock)
		cancel()
		readers.Wait()
	})
}

func TestP25_Close(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		l := distlock.New(s, nil)
		held := mustAcquire(t, l, "a")
		set, err := l.AcquireAll(t.Context(), []string{"x", "y"})
		if err != nil {
			t.Fatal(err)
		}
		var waiters sync.WaitGroup
		for range 2 { // the second one in the queue behind the first, at the store
			waiters.Go(func() {
				_, err := l.Acquire(t.Context(), "a")
				wantErr(t, err, []error{distlock.ErrClosed}, distlock.ErrNotAcquired)
			})
		}
		synctest.Wait()
		for range 2 {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
		waiters.Wait()
		if !errors.Is(held.Err(), distlock.ErrReleased) || !errors.Is(set.Err(), distlock.ErrReleased) || s.held("a")+s.held("x")+s.held("y") > 0 || s.closed != 1 {
			t.Errorf("Err %v and %v, %d left, the backend was closed %d times", held.Err(), set.Err(), s.held("a"), s.closed)
		}
		if err := held.Release(); err != nil {
			t.Errorf("Release after Close: %v", err)
		}
		_, err = l.Acquire(t.Context(), "b")
		wantErr(t, err, []error{distlock.ErrClosed})
	})
}

func TestP25_CloseWhileAGrantIsOnItsWay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.answer = func(context.Context, driver.Request) (driver.Grant, bool, error) {
			time.Sleep(time.Second)
			return driver.Grant{}, false, nil
		}
		l := distlock.New(s, nil)
		result := make(chan error)
		go func() {
			_, err := l.Acquire(t.Context(), "a")
			result <- err
		}()
		synctest.Wait()
		go l.Close()
		wantErr(t, <-result, []error{distlock.ErrClosed})
		l.Close()
		if s.held("a") != 0 || s.count("release") != 1 {
			t.Error("the grant is still there after Close")
		}
	})
}

func TestP25_CloseIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		forever := make(chan struct{})
		s.release = func(context.Context, *hold) error { <-forever; return nil }
		l := distlock.New(s, &distlock.Options{ReleaseTimeout: 3 * time.Second})
		for i := range 10 {
			mustAcquire(t, l, fmt.Sprint(i))
		}
		start := time.Now()
		if err := l.Close(); err == nil {
			t.Error("nothing was released, and no error")
		}
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("Close took %v", took)
		}
		close(forever)
	})
}

func TestP26_NoSecretInErrorsOfOpen(t *testing.T) {
	for _, raw := range []string{
		"unknown://user:s3cret@host/db", "local://user:s3cret@host", "s3cret", "://s3cret", "mysql://user:s3cret%zz@host",
		"mysql://user:s3cret/x@host:port/db", "mysql://u:s3cret@[::1/x", "mysql://u:s3cret@host:s3cret", " local:s3cret", "local:\x7fs3cret",
		"local:?password=s3cret",
	} {
		_, err := distlock.Open(t.Context(), raw, nil)
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", raw, err)
		}
		if !errors.Is(err, distlock.ErrBadArgument) {
			t.Errorf("%s: %v, want ErrBadArgument", raw, err)
		}
	}
}

func FuzzOpen(f *testing.F) {
	f.Add("mysql://user:", "@host/db")
	f.Add("local:", "")
	f.Add("fuzz://", "@h?a=b")
	f.Fuzz(func(t *testing.T, before, after string) {
		const secret = "s3cret-s3cret"
		l, err := distlock.Open(t.Context(), before+secret+after, nil)
		if err == nil {
			t.Fatalf("%q was opened: %v", before+secret+after, l)
		}
		if e := (*distlock.Error)(nil); !errors.As(err, &e) {
			t.Fatalf("%q is no *Error", err)
		}
		// A scheme is quoted, and is no secret.
		if u, parseErr := url.Parse(before + secret + after); strings.Contains(err.Error(), secret) && (parseErr != nil || !strings.Contains(u.Scheme, secret)) {
			t.Fatalf("%q holds the secret", err)
		}
	})
}

func TestOpen(t *testing.T) {
	s := newStore()
	s.info.MinTTL, s.info.MaxTTL = 15*time.Second, time.Minute
	var opened *url.URL
	scheme := "scripted" + strings.ToLower(rand.Text()) // a scheme is for ever
	distlock.Register(strings.ToUpper(scheme), func(_ context.Context, u *url.URL) (driver.Backend, error) {
		if u.Query().Get("fail") != "" {
			return nil, &storeError{5}
		}
		opened = u
		return s, nil
	})
	l, err := distlock.Open(t.Context(), strings.ToUpper(scheme)+"://host/path?a=b", nil)
	if err != nil {
		t.Fatal(err)
	}
	if opened.Host != "host" || opened.Query().Get("a") != "b" {
		t.Errorf("opened with %v", opened)
	}
	mustRelease(t, mustAcquire(t, l, "a"))
	if err := l.Close(); err != nil {
		t.Error(err)
	}

	_, err = distlock.Open(t.Context(), scheme+"://?fail=1", nil)
	if se := (*storeError)(nil); !errors.As(err, &se) || errors.Is(err, distlock.ErrBadArgument) {
		t.Errorf("a store that fails: %v", err)
	}
	_, err = distlock.Open(t.Context(), scheme+":", &distlock.Options{TTL: time.Second})
	wantErr(t, err, []error{distlock.ErrBadArgument})
	if s.closed != 2 {
		t.Errorf("the backend was closed %d times, want once for each success of the opener", s.closed)
	}
	for _, raw := range []string{"", "nothing", "nothing://x"} {
		_, err := distlock.Open(t.Context(), raw, nil)
		wantErr(t, err, []error{distlock.ErrBadArgument})
		if !strings.Contains(err.Error(), "local") || !strings.Contains(err.Error(), scheme) {
			t.Errorf("%q: %v doesn't name what there is", raw, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = distlock.Open(ctx, scheme+":", nil)
	wantErr(t, err, []error{context.Canceled})

	for name, f := range map[string]func(){
		"twice": func() {
			distlock.Register(scheme, func(context.Context, *url.URL) (driver.Backend, error) { return nil, nil })
		},
		"nil": func() { distlock.Register("other", nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Register %s doesn't panic", name)
				}
			}()
			f()
		}()
	}
}

func TestUpgrade(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.tokens = true
		l := newLocker(t, s, nil)
		reader := mustAcquire(t, l, "a", distlock.Shared())
		lock := mustAcquire(t, l, "a", distlock.Upgradeable())
		before, _ := lock.Token()

		err := lock.Upgrade(t.Context(), distlock.Timeout(time.Second))
		wantErr(t, err, []error{distlock.ErrNotAcquired})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantErr(t, lock.Upgrade(ctx), []error{context.DeadlineExceeded, distlock.ErrNotAcquired})
		if lock.Err() != nil || s.held("a") != 2 || s.count("upgrade") != 0 {
			t.Error("an upgrade that was given up changed something, or asked the store although a reader is here")
		}
		mustRelease(t, mustAcquire(t, l, "a", distlock.Shared(), distlock.Timeout(time.Second)))

		time.AfterFunc(time.Second, func() { mustRelease(t, reader) })
		if err := lock.Upgrade(t.Context()); err != nil {
			t.Fatal(err)
		}
		if after, ok := lock.Token(); !ok || after <= before {
			t.Errorf("token %d after %d", after, before)
		}
		_, err = l.TryAcquire(t.Context(), "a", distlock.Shared())
		wantErr(t, err, []error{distlock.ErrNotAcquired})
		if err := lock.Upgrade(t.Context()); err != nil || s.count("upgrade") != 1 {
			t.Errorf("a second time: %v, %d questions", err, s.count("upgrade"))
		}
		mustRelease(t, lock)
		wantErr(t, lock.Upgrade(t.Context()), []error{distlock.ErrReleased})

		for _, o := range []distlock.AcquireOption{distlock.Shared(), distlock.Semaphore(1)} {
			lock := mustAcquire(t, l, "a", o)
			wantErr(t, lock.Upgrade(t.Context()), []error{errors.ErrUnsupported})
			wantErr(t, lock.Upgrade(t.Context(), distlock.Shared()), []error{distlock.ErrBadArgument})
			wantErr(t, lock.Upgrade(t.Context(), distlock.Timeout(-1)), []error{distlock.ErrBadArgument})
			mustRelease(t, lock)
		}
	})
}

func TestUpgradeWaitsForOtherProcessesReaders(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.info.PollMin = 10 * time.Millisecond
		here, there := newLocker(t, s, nil), newLocker(t, s, nil)
		reader := mustAcquire(t, there, "a", distlock.Shared())
		lock := mustAcquire(t, here, "a", distlock.Upgradeable())
		wantErr(t, lock.Upgrade(t.Context(), distlock.Timeout(time.Second)), []error{distlock.ErrNotAcquired})
		if lock.Err() != nil {
			t.Fatal("lost by an upgrade that failed")
		}
		// It is upgradeable again: readers may come.
		mustRelease(t, mustAcquire(t, here, "a", distlock.Shared(), distlock.Timeout(time.Second)))
		time.AfterFunc(time.Second, func() { mustRelease(t, reader) })
		if err := lock.Upgrade(t.Context(), distlock.Timeout(3*time.Second)); err != nil {
			t.Fatal(err)
		}
		mustRelease(t, lock)
	})
}

func TestReleaseDuringUpgrade(t *testing.T) {
	for _, where := range []string{"queue", "store", "store that doesn't listen"} {
		t.Run(where, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStore()
				l := newLocker(t, s, nil)
				lock := mustAcquire(t, l, "a", distlock.Upgradeable())
				switch where {
				case "queue":
					reader := mustAcquire(t, l, "a", distlock.Shared())
					defer mustRelease(t, reader)
				case "store":
					s.upgrade = func(ctx context.Context, _ time.Duration) error { <-ctx.Done(); return ctx.Err() }
				default:
					s.upgrade = func(context.Context, time.Duration) error { time.Sleep(2 * time.Second); return nil }
				}
				result := make(chan error)
				go func() { result <- lock.Upgrade(t.Context()) }()
				synctest.Wait()
				released := make(chan error)
				go func() { released <- lock.Release() }()
				wantErr(t, <-result, []error{distlock.ErrReleased})
				if err := <-released; err != nil {
					t.Errorf("Release: %v", err)
				}
				mustRelease(t, mustAcquire(t, l, "a", distlock.Shared()))
			})
		})
	}
}

func TestUpgradeOfSeveral(t *testing.T) {
	l := newLocker(t, newStore(), nil)
	lock, err := l.AcquireAll(t.Context(), []string{"a", "b"}, distlock.Upgradeable())
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Upgrade(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		_, err := l.TryAcquire(t.Context(), name, distlock.Shared())
		wantErr(t, err, []error{distlock.ErrNotAcquired})
	}
	mustRelease(t, lock)
}

func TestTrace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.tokens = true
		var mu sync.Mutex
		var events []string
		add := func(what string, e distlock.Event) {
			mu.Lock()
			defer mu.Unlock()
			outcome := ""
			if e.Err != nil {
				outcome = " failed"
			}
			if e.Passed {
				outcome += " passed"
			}
			events = append(events, fmt.Sprintf("%s %s %v %v %d%s", what, e.Resource, e.Mode, e.Duration, e.Token, outcome))
		}
		type key struct{}
		with := func(what string) func(context.Context, distlock.Event) {
			return func(ctx context.Context, e distlock.Event) {
				if ctx.Value(key{}) != "span" {
					t.Errorf("%s: not the context that Acquiring returned", what)
				}
				add(what, e)
			}
		}
		l := newLocker(t, s, &distlock.Options{Trace: &distlock.Trace{
			Acquiring: func(ctx context.Context, e distlock.Event) context.Context {
				add("acquiring", e)
				return context.WithValue(ctx, key{}, "span")
			},
			Waiting:  with("waiting"),
			Acquired: with("acquired"),
			Released: func(e distlock.Event) { add("released", e) },
		}})
		lock := mustAcquire(t, l, "a")
		var all sync.WaitGroup
		all.Go(func() { mustRelease(t, mustAcquire(t, l, "a")) })
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		mustRelease(t, lock)
		all.Wait()
		if _, err := l.Acquire(t.Context(), ""); err == nil {
			t.Error("no error")
		}
		want := []string{
			"acquiring a exclusive 0s 0", "acquired a exclusive 0s 1024",
			"acquiring a exclusive 0s 0", "waiting a exclusive 0s 0", "released a exclusive 10ms 1024",
			"acquired a exclusive 10ms 1025 passed", "released a exclusive 0s 1025",
		}
		slices.Sort(want[4:6]) // either may be told first
		slices.Sort(events[4:6])
		if !slices.Equal(events, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(events, "\n"), strings.Join(want, "\n"))
		}
	})
}

func TestLoggerIsToldWhatNobodyElseIs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var log safeBuffer
		lease := newLease(ttl)
		lease.renew = func(context.Context) error { return &storeError{9} }
		l := newLocker(t, leased(lease), &distlock.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		lock := mustAcquire(t, l, "inventory:42")
		<-lock.Done()
		synctest.Wait()
		for _, part := range []string{"renewal failed", "lock lost", "inventory:42", "scripted", "store error 9", "_test.go:"} {
			if !strings.Contains(log.String(), part) {
				t.Errorf("%q isn't in the log:\n%s", part, log.String())
			}
		}
	})
}

func TestHolders(t *testing.T) {
	l := newLocker(t, newStore(), nil)
	_, err := l.Holders(t.Context(), "a")
	wantErr(t, err, []error{errors.ErrUnsupported})
}

// Everything at once, against a store that is slow, fails, and loses sessions:
// one holder at a time, and nothing is left.
func TestP01_Storm(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.tokens = true
		s.info.MinTTL, s.info.MaxTTL = time.Second, time.Minute
		s.info.PollMin, s.info.PollMax = time.Millisecond, 20*time.Millisecond
		var n atomic.Int64
		var calm atomic.Bool
		every := func(k int64) bool { return n.Add(1)%k == 0 && !calm.Load() }
		s.answer = func(ctx context.Context, r driver.Request) (driver.Grant, bool, error) {
			time.Sleep(time.Duration(n.Load()%7) * 100 * time.Microsecond)
			if every(11) {
				s.grant(r) // and the answer is lost
				return driver.Grant{}, true, &storeError{1}
			}
			g, err := s.grant(r)
			if err == nil {
				g.Session = newLease(ttl)
			}
			return g, true, err
		}
		s.release = func(context.Context, *hold) error {
			time.Sleep(time.Duration(n.Load()%5) * 100 * time.Microsecond)
			if every(13) {
				return &storeError{2}
			}
			return nil
		}
		lockers := []*distlock.Locker{newLocker(t, s, nil), newLocker(t, s, &distlock.Options{HandoffCount: 2})}
		var holders atomic.Int32
		var last atomic.Uint64
		var got atomic.Int32
		var all sync.WaitGroup
		for g := range 24 {
			l := lockers[g%2]
			all.Go(func() {
				for i := range 100 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+(g*i)%40)*time.Millisecond)
					lock, err := l.Acquire(ctx, "a", distlock.Timeout(time.Duration(1+(g+i)%50)*time.Millisecond))
					cancel()
					if err != nil {
						continue
					}
					got.Add(1)
					if holders.Add(1) != 1 {
						t.Error("two holders")
					}
					if token, _ := lock.Token(); token <= last.Swap(token) {
						t.Error("a token isn't larger than the one before")
					}
					time.Sleep(time.Duration(i%3) * 100 * time.Microsecond)
					holders.Add(-1)
					lock.Release() // one that fails is tried again
				}
			})
		}
		all.Wait()
		time.Sleep(time.Minute)
		if s.held("a") != 0 || got.Load() < 100 {
			t.Errorf("%d left after %d holdings", s.held("a"), got.Load())
		}
		calm.Store(true)
		for _, l := range lockers {
			mustRelease(t, mustAcquire(t, l, "a", distlock.Timeout(time.Minute)))
		}
	})
}

// A Trace that panics is a mistake of the application, and locks nothing for
// ever.
func TestP07_PanicInTraceLeavesNothing(t *testing.T) {
	for name, trace := range map[string]*distlock.Trace{
		"Waiting":  {Waiting: func(context.Context, distlock.Event) { panic("ouch") }},
		"Acquired": {Acquired: func(context.Context, distlock.Event) { panic("ouch") }},
	} {
		for _, inProcess := range []bool{true, false} {
			for _, other := range []bool{true, false} { // the holder is another Locker's
				t.Run(fmt.Sprintf("%s/in process=%v/other=%v", name, inProcess, other), func(t *testing.T) {
					bubble(t, func(t *testing.T) {
						local, remote := locallock.New(), newStore()
						locker := func(o *distlock.Options) *distlock.Locker {
							if inProcess {
								return distlock.New(local.Share(), o)
							}
							return distlock.New(remote, o)
						}
						panicky, calm := locker(&distlock.Options{Trace: trace}), locker(nil)
						defer panicky.Close()
						defer calm.Close()
						attempt := func(l *distlock.Locker) {
							defer func() { _ = recover() }()
							if lock, err := l.Acquire(t.Context(), "a", distlock.Timeout(time.Second)); err == nil {
								time.AfterFunc(time.Millisecond, func() { lock.Release() })
							}
						}
						if other {
							attempt(calm)
						}
						attempt(panicky)
						attempt(panicky)
						synctest.Wait()
						mustRelease(t, mustAcquire(t, calm, "a", distlock.Timeout(time.Second)))
					})
				})
			}
		}
	}
}

func TestP16_LockIsKeptWhileItUpgrades(t *testing.T) {
	dropped := make(chan distlock.Event, 1)
	l := newLocker(t, newStore(), &distlock.Options{Trace: &distlock.Trace{Dropped: func(e distlock.Event) { dropped <- e }}})
	reader := mustAcquire(t, l, "a", distlock.Shared())
	collected := make(chan struct{})
	go func() {
		defer close(collected)
		for range 5 {
			runtime.GC()
		}
		reader.Release()
	}()
	if err := mustAcquire(t, l, "a", distlock.Upgradeable()).Upgrade(t.Context()); err != nil {
		t.Error(err)
	}
	<-collected
}

func TestP18_TriesAtFreePermitsAllSucceed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.answer = func(context.Context, driver.Request) (driver.Grant, bool, error) {
			time.Sleep(10 * time.Millisecond)
			return driver.Grant{}, false, nil
		}
		l := newLocker(t, s, nil)
		var got, refused atomic.Int32
		var all sync.WaitGroup
		for range 15 {
			all.Go(func() {
				lock, err := l.TryAcquire(t.Context(), "a", distlock.Semaphore(10))
				if err != nil {
					wantErr(t, err, []error{distlock.ErrNotAcquired})
					refused.Add(1)
					return
				}
				got.Add(1)
				time.Sleep(time.Minute)
				mustRelease(t, lock)
			})
		}
		all.Wait()
		if got.Load() != 10 || refused.Load() != 5 {
			t.Errorf("of ten permits %d were had, and %d refused", got.Load(), refused.Load())
		}
	})
}

// In a library within a program of another language, os.Args can be empty.
func TestNoArguments(t *testing.T) {
	defer func(args []string) { os.Args = args }(os.Args)
	os.Args = nil
	mustRelease(t, mustAcquire(t, newLocker(t, newStore(), nil), "a"))
}
