package distlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/locallock"
)

// within fails the test if f takes longer than d.
func within(t *testing.T, d time.Duration, what string, f func()) {
	t.Helper()
	start := time.Now()
	f()
	if took := time.Since(start); took > d {
		t.Errorf("%s took %v, want at most %v", what, took, d)
	}
}

// strange ends without having been canceled.
type strange struct{ context.Context }

func (strange) Err() error { return context.Canceled }

func TestP03_ContextWithoutACause(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := newLocker(t, newStore(), nil).Acquire(strange{ctx}, "a")
	wantErr(t, err, []error{context.Canceled}, distlock.ErrNotAcquired)
}

func TestP04_DefaultTTLFitsTheBackend(t *testing.T) {
	for _, c := range []struct{ least, most, want time.Duration }{
		{time.Second, time.Minute, 30 * time.Second},
		{time.Second, 10 * time.Second, 10 * time.Second},
		{time.Minute, time.Hour, time.Minute},
	} {
		s := newStore()
		s.info.MinTTL, s.info.MaxTTL = c.least, c.most
		mustAcquire(t, newLocker(t, s, nil), "a")
		if got := s.calls[0].req.TTL; got != c.want {
			t.Errorf("%v to %v: asked for %v", c.least, c.most, got)
		}
	}
}

// The answer takes longer than the lease: the grant is given back, and the next
// attempt can't be mistaken for the one before.
func TestP07_EachAttemptHasAnOwnerOfItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.info.MinTTL, s.info.MaxTTL = time.Second, time.Minute
		s.session = func() driver.Session { return newLease(ttl) }
		slow := 3
		s.answer = func(_ context.Context, r driver.Request) (driver.Grant, bool, error) {
			g, err := s.grant(r)
			if slow--; slow >= 0 {
				time.Sleep(ttl)
			}
			return g, true, err
		}
		l := newLocker(t, s, nil)
		lock := mustAcquire(t, l, "a")
		owners := make(map[driver.ID]bool)
		for _, c := range s.calls {
			if c.what == "acquire" {
				owners[c.req.Owner.ID] = true
			}
		}
		if len(owners) != 4 || s.count("release") != 3 || s.held("a") != 1 {
			t.Errorf("%d owners in 4 attempts, %d given back, %d held", len(owners), s.count("release"), s.held("a"))
		}
		mustRelease(t, lock)
	})
}

// A store that grants nothing but dead sessions isn't asked in a tight loop.
func TestP19_DeadSessionsAreAskedForInAPace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		dead := newLease(ttl)
		s.session = func() driver.Session { return dead }
		l := newLocker(t, s, nil)
		lock := mustAcquire(t, l, "a")
		close(dead.lost)
		<-lock.Done()
		s.free("a", func(*hold) bool { return true })
		within(t, time.Second, "Acquire", func() {
			_, err := l.Acquire(t.Context(), "a", distlock.Timeout(time.Second))
			if err == nil {
				t.Error("acquired on a session that had ended")
			}
		})
		if n := s.count("acquire"); n > 250 {
			t.Errorf("%d questions in a second", n)
		}
		synctest.Wait()
		if s.held("a") != 0 {
			t.Error("something is left")
		}
	})
}

// The grant was asked for while the session lived and comes when it doesn't.
func TestP11_GrantOnALostSessionIsNone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		first, second := newLease(ttl), newLease(ttl)
		first.renew = func(context.Context) error { return &storeError{1} }
		s := leased(first)
		var slow atomic.Bool
		s.answer = func(_ context.Context, r driver.Request) (driver.Grant, bool, error) {
			g, err := s.grant(r)
			if slow.Swap(false) {
				s.session = func() driver.Session { return second }
				time.Sleep(2 * time.Second)
			}
			return g, true, err
		}
		l := newLocker(t, s, nil)
		lost := mustAcquire(t, l, "a")
		time.Sleep(ttl - ttl/10 - time.Second)
		slow.Store(true)
		lock := mustAcquire(t, l, "b")
		if !isClosed(lost.Done()) || lock.Err() != nil {
			t.Fatalf("the first: %v; the second: %v", lost.Err(), lock.Err())
		}
		time.Sleep(10 * ttl)
		if lock.Err() != nil || second.count() == 0 {
			t.Errorf("the second: %v after %d renewals", lock.Err(), second.count())
		}
		mustRelease(t, lock)
	})
}

// The process is stopped while a holding is on its way to the next.
func TestP11_LeaseThatRanOutIsNotPassedOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		old := newLease(ttl)
		s := leased(old)
		l := newLocker(t, s, &distlock.Options{Trace: stalls()})
		lock := mustAcquire(t, l, "a")
		stall := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() {
			next, err := l.Acquire(context.WithValue(t.Context(), stallKey{}, stall), "a")
			if err != nil || next.Err() != nil || s.count("acquire") != 2 {
				t.Fatalf("%v after %d grants", err, s.count("acquire"))
			}
			mustRelease(t, next)
		})
		synctest.Wait()
		mustRelease(t, lock)
		t.Cleanup(distlock.SkewClocks(ttl))
		s.free("a", func(*hold) bool { return true })
		s.mu.Lock()
		s.session = func() driver.Session { return newLease(ttl) }
		s.mu.Unlock()
		close(stall)
		all.Wait()
		<-old.abandoned
		synctest.Wait()
	})
}

// Whoever looks after the lease ran out sees it, also while another goroutine is
// just telling it.
func TestP11_AllWhoLookSeeTheLoss(t *testing.T) {
	for range 200 {
		s := leased(newLease(ttl))
		l := newLocker(t, s, nil)
		var locks []*distlock.Lock
		for i := range 8 {
			locks = append(locks, mustAcquire(t, l, fmt.Sprint(i)))
		}
		restore := distlock.SkewClocks(ttl)
		var all sync.WaitGroup
		for i, lock := range locks {
			all.Go(func() {
				switch i % 3 {
				case 0:
					if lock.Err() == nil {
						t.Error("Err doesn't see it")
					}
				case 1:
					if !isClosed(lock.Done()) {
						t.Error("Done doesn't see it")
					}
				default:
					if err := lock.Release(); !errors.Is(err, distlock.ErrLost) {
						t.Errorf("Release: %v", err)
					}
				}
			})
		}
		all.Wait()
		restore()
	}
}

// Contexts of locks on one session within each other don't hang one another up.
func TestP13_ContextsWithinEachOther(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLocker(t, leased(newLease(ttl)), nil)
		outer, cancelOuter := mustAcquire(t, l, "a").Context(t.Context())
		defer cancelOuter()
		inner, cancelInner := mustAcquire(t, l, "b").Context(outer)
		defer cancelInner()
		derived, cancel := context.WithTimeout(inner, time.Hour)
		defer cancel()
		defer distlock.SkewClocks(ttl)()
		if inner.Err() == nil || outer.Err() == nil || derived.Err() == nil || !errors.Is(context.Cause(derived), distlock.ErrLost) {
			t.Errorf("inner %v, outer %v, derived %v", inner.Err(), outer.Err(), context.Cause(derived))
		}
	})
}

// The lock of a hung Renew is released and acquired again on the same session:
// the scripted session panics if the next keeper renews beside it.
func TestP12_RenewalsOfOneSessionNeverOverlap(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lease := newLease(ttl)
		forever := make(chan struct{})
		hang := true
		lease.renew = func(context.Context) error {
			if hang {
				hang = false
				<-forever
			}
			return nil
		}
		l := newLocker(t, leased(lease), &distlock.Options{ReleaseTimeout: time.Second})
		lock := mustAcquire(t, l, "a")
		time.Sleep(ttl/3 + time.Second)
		for range 3 {
			within(t, time.Second, "Release", func() { mustRelease(t, lock) })
			lock = mustAcquire(t, l, "a")
			time.Sleep(ttl/3 + time.Second)
			if n := lease.count(); n != 1 || lock.Err() != nil {
				t.Fatalf("%d renewals, %v", n, lock.Err())
			}
		}
		close(forever)
		time.Sleep(10 * ttl)
		if lock.Err() != nil || lease.count() < 20 {
			t.Errorf("it isn't kept afterwards: %v, %d renewals", lock.Err(), lease.count())
		}
		mustRelease(t, lock)
	})
}

func TestP08_AcquireDoesNotWaitForAReleaseThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := leased(newLease(ttl))
		forever := make(chan struct{})
		s.release = func(context.Context, *hold) error { <-forever; return nil }
		s.answer = func(_ context.Context, r driver.Request) (driver.Grant, bool, error) {
			g, err := s.grant(r)
			g.Sent = time.Now().Add(-ttl)
			return g, true, err
		}
		l := newLocker(t, s, nil)

		// After a grant that came too late, it stands between the waiter and the store.
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				within(t, time.Second, "Acquire", func() {
					_, err := l.Acquire(ctx, "a")
					wantErr(t, err, []error{context.DeadlineExceeded}, distlock.ErrNotAcquired) // nobody has it
				})
			})
		}
		all.Wait()

		// After a part of several, it is in the way of the error.
		s.answer = func(_ context.Context, r driver.Request) (driver.Grant, bool, error) {
			return driver.Grant{}, r.Resource == "y", driver.ErrHeld
		}
		s.session = func() driver.Session { return newLease(ttl) }
		within(t, 100*time.Millisecond, "AcquireAll", func() {
			_, err := l.AcquireAll(t.Context(), []string{"x", "y"}, distlock.Timeout(0))
			wantErr(t, err, []error{distlock.ErrNotAcquired})
		})
		close(forever)
		synctest.Wait()
		if s.held("a")+s.held("x") != 0 {
			t.Error("something is left")
		}
		mustRelease(t, mustAcquire(t, l, "a"))
	})
}

func TestP10_ReleaseIsBoundedBesideAnUpgradeThatNeverReturns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		forever := make(chan struct{})
		s.upgrade = func(context.Context, time.Duration) error { <-forever; return nil }
		l := newLocker(t, s, &distlock.Options{ReleaseTimeout: 2 * time.Second})
		lock := mustAcquire(t, l, "a", distlock.Upgradeable())
		_ = lock.Upgrade(t.Context(), distlock.Timeout(time.Second))
		if err := lock.Upgrade(t.Context()); err == nil {
			t.Error("a second upgrade beside the first")
		}
		within(t, 2*time.Second, "Release", func() {
			if lock.Release() == nil {
				t.Error("it can't have been released")
			}
		})
		close(forever)
		synctest.Wait()
		if s.held("a") != 0 || s.count("release") != 1 {
			t.Errorf("%d held after %d releases", s.held("a"), s.count("release"))
		}
	})
}

// The scripted hold panics if it is passed on while it is being upgraded.
func TestReleaseDuringUpgradePassesNothingOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.upgrade = func(context.Context, time.Duration) error { time.Sleep(2 * time.Second); return nil }
		l := newLocker(t, s, &distlock.Options{HandoffTime: time.Minute})
		lock := mustAcquire(t, l, "a", distlock.Upgradeable())
		var all sync.WaitGroup
		all.Go(func() { mustRelease(t, mustAcquire(t, l, "a")) })
		all.Go(func() { wantErr(t, lock.Upgrade(t.Context()), []error{distlock.ErrReleased}) })
		synctest.Wait()
		mustRelease(t, lock)
		all.Wait()
		if s.count("acquire") != 2 || s.held("a") != 0 {
			t.Errorf("%d grants, %d left", s.count("acquire"), s.held("a"))
		}
	})
}

func TestP13_LossFoundByUpgradeIsTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lease := newLease(ttl)
		s := leased(lease)
		s.upgrade = func(context.Context, time.Duration) error { return fmt.Errorf("%w: broken", driver.ErrLost) }
		var lost atomic.Int32
		l := newLocker(t, s, &distlock.Options{Trace: &distlock.Trace{Lost: func(distlock.Event) { lost.Add(1) }}})
		lock := mustAcquire(t, l, "a", distlock.Upgradeable())
		wantErr(t, lock.Upgrade(t.Context()), []error{distlock.ErrLost})
		if !isClosed(lock.Done()) {
			t.Error("it is not lost")
		}
		wantErr(t, lock.Err(), []error{distlock.ErrLost})
		wantErr(t, lock.Release(), []error{distlock.ErrLost})
		time.Sleep(10 * ttl)
		if lost.Load() != 1 || s.count("release") != 0 || lease.count() > 0 {
			t.Errorf("told %d times, %d releases, %d renewals", lost.Load(), s.count("release"), lease.count())
		}
		s.free("a", func(*hold) bool { return true })
		mustRelease(t, mustAcquire(t, l, "a", distlock.Timeout(time.Second)))
	})
}

// Application code may do from a Trace function what it may do elsewhere.
func TestP13_TraceFunctionsMayUseTheLocker(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lease := newLease(ttl)
		s := leased(lease)
		var l *distlock.Locker
		var lock *distlock.Lock
		var told atomic.Int32
		use := func() {
			mustRelease(t, mustAcquire(t, l, "other", distlock.Timeout(time.Second)))
			told.Add(1)
		}
		var busy atomic.Bool
		once := func(f func()) {
			if !busy.Swap(true) {
				f()
				busy.Store(false)
			}
		}
		l = newLocker(t, s, &distlock.Options{Trace: &distlock.Trace{
			Acquiring: func(ctx context.Context, _ distlock.Event) context.Context { once(use); return ctx },
			Waiting:   func(context.Context, distlock.Event) { once(use) },
			Acquired:  func(context.Context, distlock.Event) { once(use) },
			Released:  func(distlock.Event) { once(use) },
			RenewalFailed: func(distlock.Event) {
				within(t, 0, "Release", func() { mustRelease(t, lock) })
				told.Add(1)
			},
		}})
		lock = mustAcquire(t, l, "a")
		_, err := l.Acquire(t.Context(), "a", distlock.Timeout(time.Second))
		wantErr(t, err, []error{distlock.ErrNotAcquired})
		lease.renew = func(context.Context) error { return &storeError{1} }
		<-lock.Done()
		synctest.Wait()
		if !errors.Is(lock.Err(), distlock.ErrReleased) || told.Load() < 6 {
			t.Errorf("%v; told %d times", lock.Err(), told.Load())
		}
	})
}

func TestP13_CloseFromLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lease := newLease(ttl)
		var l *distlock.Locker
		closed := make(chan struct{})
		l = newLocker(t, leased(lease), &distlock.Options{Trace: &distlock.Trace{Lost: func(distlock.Event) {
			within(t, 5*time.Second, "Close", func() { l.Close() }) // it waits for this very function
			close(closed)
		}}})
		lock := mustAcquire(t, l, "a")
		close(lease.lost)
		<-closed
		wantErr(t, lock.Release(), []error{distlock.ErrLost})
	})
}

func TestP16_SeveralThatWereDropped(t *testing.T) {
	dropped := make(chan distlock.Event, 2)
	l := newLocker(t, newStore(), &distlock.Options{Trace: &distlock.Trace{Dropped: func(e distlock.Event) { dropped <- e }}})
	func() {
		if _, err := l.AcquireAll(t.Context(), []string{"a", "b"}); err != nil {
			t.Fatal(err)
		}
	}()
	for range 2 {
		collect(t, dropped)
	}
	for _, name := range []string{"a", "b"} {
		mustRelease(t, mustAcquire(t, l, name))
	}
}

// The pauses are longer than the time to wait: the last question is put when
// that is over.
func TestP19_LastTryIsAtTheLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.info.PollMin, s.info.PollMax = time.Minute, time.Minute
		here, there := newLocker(t, s, nil), newLocker(t, s, nil)
		lock := mustAcquire(t, there, "a")
		time.AfterFunc(900*time.Millisecond, func() { lock.Release() })
		within(t, time.Second, "Acquire", func() {
			mustRelease(t, mustAcquire(t, here, "a", distlock.Timeout(time.Second)))
		})
		if n := s.count("acquire"); n != 3 {
			t.Errorf("%d questions", n)
		}
	})
}

func TestP22_ReleaseOfSeveralIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		forever := make(chan struct{})
		s.release = func(context.Context, *hold) error { <-forever; return nil }
		l := newLocker(t, s, &distlock.Options{ReleaseTimeout: 2 * time.Second})
		lock, err := l.AcquireAll(t.Context(), []string{"a", "b", "c"})
		if err != nil {
			t.Fatal(err)
		}
		within(t, 2*time.Second, "Release", func() {
			if lock.Release() == nil {
				t.Error("it can't have been released")
			}
		})
		close(forever)
		synctest.Wait()
		if n := s.held("a") + s.held("b") + s.held("c"); n != 0 {
			t.Errorf("%d are left", n)
		}
	})
}

// plainHold can be released, and nothing else.
type plainHold struct{ driver.Hold }

func TestP24_UpgradeOfAHoldThatCannot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.answer = func(_ context.Context, r driver.Request) (driver.Grant, bool, error) {
			g, err := s.grant(r)
			g.Hold = plainHold{g.Hold}
			return g, true, err
		}
		l := newLocker(t, s, nil)
		reader := mustAcquire(t, l, "a", distlock.Shared())
		lock := mustAcquire(t, l, "a", distlock.Upgradeable())
		within(t, 0, "Upgrade", func() { wantErr(t, lock.Upgrade(t.Context()), []error{errors.ErrUnsupported}) })
		mustRelease(t, mustAcquire(t, l, "a", distlock.Shared(), distlock.Timeout(0)))
		mustRelease(t, reader)
		mustRelease(t, lock)
	})
}

func TestP25_NothingIsAskedOfAClosedBackend(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.release = func(context.Context, *hold) error { return &storeError{1} }
		s.undo = func(context.Context, driver.Request) error { return &storeError{2} }
		s.answer = func(_ context.Context, r driver.Request) (driver.Grant, bool, error) {
			return driver.Grant{}, r.Resource == "b", &storeError{3}
		}
		l := distlock.New(s, &distlock.Options{TTL: time.Minute})
		mustAcquire(t, l, "a")
		if _, err := l.Acquire(t.Context(), "b"); err == nil {
			t.Fatal("acquired")
		}
		within(t, 5*time.Second, "Close", func() {
			if l.Close() == nil {
				t.Error("no error")
			}
		})
		n := len(s.calls)
		time.Sleep(time.Hour)
		if s.closed != 1 || len(s.calls) != n {
			t.Errorf("closed %d times, %d calls after Close", s.closed, len(s.calls)-n)
		}
	})
}

func TestP25_CloseWhileAHoldingIsPassedOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		l := distlock.New(s, &distlock.Options{Trace: stalls()})
		lock := mustAcquire(t, l, "a")
		stall := make(chan struct{})
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				_, err := l.Acquire(context.WithValue(t.Context(), stallKey{}, stall), "a")
				wantErr(t, err, []error{distlock.ErrClosed})
			})
		}
		synctest.Wait()
		mustRelease(t, lock)
		time.AfterFunc(time.Second, func() { close(stall) })
		within(t, time.Second, "Close", func() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
		all.Wait()
		if s.held("a") != 0 || s.closed != 1 {
			t.Errorf("%d are left", s.held("a"))
		}
	})
}

// Close at any moment of many acquires: nobody keeps what he got, and the next
// user of the store finds it free.
func TestP25_CloseAtAnyMoment(t *testing.T) {
	for i := range 300 {
		b := locallock.New()
		var o *distlock.Options
		if i%2 == 0 {
			o = &distlock.Options{Trace: &distlock.Trace{}}
		}
		l, other := distlock.New(b, o), distlock.New(b.Share(), nil)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for {
					lock, err := l.Acquire(t.Context(), "a")
					if err != nil {
						wantErr(t, err, []error{distlock.ErrClosed})
						return
					}
					if i%3 == 0 {
						lock.Release()
					}
				}
			})
		}
		time.Sleep(time.Duration(i%7) * 10 * time.Microsecond)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		all.Wait()
		mustRelease(t, mustAcquire(t, other, "a", distlock.Timeout(0)))
		other.Close()
	}
}
