package distlock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

// The time was over before the place in the queue was taken: that must not be
// taken for a single try, which may wait for five seconds.
func TestP04_TimeThatIsOverIsNoSingleTry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.answer = hang
		l := newLocker(t, s, &distlock.Options{Trace: &distlock.Trace{
			Acquiring: func(ctx context.Context, _ distlock.Event) context.Context {
				time.Sleep(2 * time.Millisecond)
				return ctx
			},
		}})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go l.Acquire(ctx, "a", distlock.Shared())
		time.Sleep(10 * time.Millisecond)
		within(t, 110*time.Millisecond, "Acquire with a timeout of 1 ms", func() {
			_, err := l.Acquire(t.Context(), "a", distlock.Shared(), distlock.Timeout(time.Millisecond))
			wantErr(t, err, []error{distlock.ErrNotAcquired})
		})
		cancel()
	})
}

// The same for a lock over several: the second finds no time left.
func TestP22_TimeThatIsOverIsNoSingleTry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.answer = func(ctx context.Context, r driver.Request) (driver.Grant, bool, error) {
			if r.Resource == "b" {
				return hang(ctx, r)
			}
			time.Sleep(50 * time.Millisecond) // the first try may take longer than the timeout
			return driver.Grant{}, false, nil
		}
		l := newLocker(t, s, nil)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go l.Acquire(ctx, "b", distlock.Shared())
		synctest.Wait()
		within(t, 200*time.Millisecond, "AcquireAll with a timeout of 10 ms", func() {
			_, err := l.AcquireAll(t.Context(), []string{"a", "b"}, distlock.Shared(), distlock.Timeout(10*time.Millisecond))
			wantErr(t, err, []error{distlock.ErrNotAcquired})
		})
		cancel()
	})
}

// Trace.Waiting that takes its time doesn't make the timeout longer.
func TestP04_TimeoutCoversWaitingOfTrace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLocker(t, newStore(), &distlock.Options{Trace: &distlock.Trace{
			Waiting: func(context.Context, distlock.Event) { time.Sleep(30 * time.Millisecond) },
		}})
		mustAcquire(t, l, "a")
		within(t, 50*time.Millisecond, "Acquire with a timeout of 50 ms", func() {
			_, err := l.Acquire(t.Context(), "a", distlock.Timeout(50*time.Millisecond))
			wantErr(t, err, []error{distlock.ErrNotAcquired})
		})
	})
}

// A Trace that panics leaves nothing of a lock over several either.
func TestP07_PanicInTraceLeavesNothingOfSeveral(t *testing.T) {
	for _, where := range []string{"Acquired", "Released"} {
		t.Run(where, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStore()
				trace := &distlock.Trace{}
				n := 0
				ouch := func() {
					if n++; n == 2 || where == "Released" && n == 1 {
						panic("ouch")
					}
				}
				switch where {
				case "Acquired":
					trace.Acquired = func(context.Context, distlock.Event) { ouch() }
				case "Released":
					trace.Released = func(distlock.Event) { ouch() }
				}
				l := newLocker(t, s, &distlock.Options{Trace: trace})
				var lock *distlock.Lock
				func() {
					defer func() { _ = recover() }()
					lock, _ = l.AcquireAll(t.Context(), []string{"a", "b"})
					if lock != nil {
						lock.Release()
					}
				}()
				n = 100
				synctest.Wait()
				if a, b := s.held("a"), s.held("b"); a+b > 0 {
					t.Errorf("left in the store: %d of a, %d of b", a, b)
				}
			})
		})
	}
}

// The end of the caller's context is told as such, also by a backend that is called in
// the caller's goroutine.
func TestP03_CauseThoughTheBackendAnswersWithin(t *testing.T) {
	for _, kind := range []string{"acquire", "upgrade"} {
		t.Run(kind, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStore()
				s.info.AnswersWithin = 50 * time.Millisecond
				slow := func(ctx context.Context) error {
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-time.After(50 * time.Millisecond):
						return nil
					}
				}
				l := newLocker(t, s, nil)
				cause := errors.New("the user went home")
				ctx, cancel := context.WithCancelCause(t.Context())
				var err error
				if kind == "acquire" {
					s.answer = func(ctx context.Context, _ driver.Request) (driver.Grant, bool, error) {
						err := slow(ctx)
						return driver.Grant{}, err != nil, err
					}
					time.AfterFunc(10*time.Millisecond, func() { cancel(cause) })
					_, err = l.Acquire(ctx, "a")
				} else {
					lock := mustAcquire(t, l, "a", distlock.Upgradeable())
					s.upgrade = func(ctx context.Context, _ time.Duration) error { return slow(ctx) }
					time.AfterFunc(10*time.Millisecond, func() { cancel(cause) })
					if err = lock.Upgrade(ctx); err == nil {
						return
					}
				}
				wantErr(t, err, []error{context.Canceled, cause})
			})
		})
	}
}

// The session ends while nothing hangs on it and a renewal that isn't wanted any more is
// under way: who gets a grant on it then is told.
func TestP13_SessionThatEndedIdleDuringARenewal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		conn := pooledLease(0)
		conn.lease.Every = 5 * time.Second
		conn.renew = func(context.Context) error {
			if isClosed(conn.lost) {
				return driver.ErrLost
			}
			time.Sleep(2 * time.Second) // it doesn't listen
			return context.Canceled
		}
		s := newStore()
		s.session = func() driver.Session { return conn }
		s.answer = func(_ context.Context, r driver.Request) (driver.Grant, bool, error) {
			g, err := s.grant(r)
			if r.Resource == "b" {
				time.Sleep(2 * time.Second) // the reply takes its time
			}
			return g, true, err
		}
		l := newLocker(t, s, nil)
		first := mustAcquire(t, l, "a")
		time.Sleep(4500 * time.Millisecond)
		time.AfterFunc(time.Second, func() { first.Release() })            // while it is renewed
		time.AfterFunc(1500*time.Millisecond, func() { close(conn.lost) }) // nothing hangs on it
		lock, err := l.Acquire(t.Context(), "b")                           // granted, and answered at 2 s
		if err != nil {
			return // that is right as well
		}
		start := time.Now()
		<-lock.Done()
		if took := time.Since(start); took > time.Second {
			t.Errorf("told %v after the session ended", took)
		}
		wantErr(t, lock.Release(), []error{distlock.ErrLost})
	})
}

// The lease seems to have run out when what was handed on arrives, as the machine slept, and
// a renewal that was under way says that it hasn't: nobody may be left with a grant that
// nobody has, renewed for ever.
func TestHandOffOfALeaseThatOnlySeemsToHaveRunOut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lease := newLease(ttl)
		lease.renew = func(context.Context) error { time.Sleep(time.Second / 2); return nil }
		s := leased(lease)
		s.info.PollMin, s.info.PollMax = 10*time.Millisecond, time.Second
		abandoned := make(chan struct{})
		go func() {
			select {
			case <-lease.abandoned: // the store frees what hung on it
				time.Sleep(ttl)
				s.free("a", func(*hold) bool { return true })
			case <-abandoned:
			}
		}()
		defer close(abandoned)
		stall := make(chan struct{})
		l := newLocker(t, s, &distlock.Options{HandoffTime: time.Hour, Trace: &distlock.Trace{
			Waiting: func(ctx context.Context, _ distlock.Event) { <-stall },
		}})
		first := mustAcquire(t, l, "a")
		result := make(chan error)
		go func() {
			lock, err := l.Acquire(t.Context(), "a", distlock.Timeout(10*ttl))
			if err == nil {
				defer lock.Release()
			}
			result <- err
		}()
		time.Sleep(ttl/3 + time.Second/4) // a renewal is under way
		mustRelease(t, first)
		defer distlock.SkewClocks(20 * time.Second)()
		s.session = func() driver.Session { return newLease(ttl) }
		close(stall)
		if err := <-result; err != nil {
			t.Errorf("%v; %d renewals of what nobody has", err, lease.count())
		}
	})
}

// Release is bounded, though both the store and a renewal take their time.
func TestP10_ReleaseIsBoundedBesideARenewalThatDoesNotListen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lease := newLease(ttl)
		lease.renew = func(context.Context) error { time.Sleep(20 * time.Second); return nil }
		s := leased(lease)
		s.info.AnswersWithin = 5 * time.Second
		s.release = func(context.Context, *hold) error { time.Sleep(4 * time.Second); return nil }
		l := newLocker(t, s, nil)
		lock := mustAcquire(t, l, "a")
		time.Sleep(ttl/3 + time.Second)
		within(t, 5*time.Second, "Release", func() { lock.Release() })
		time.Sleep(time.Minute)
	})
}
