package distlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
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

const ttl = 30 * time.Second

// leased returns a store whose grants hang on the one session.
func leased(s *lease) *store {
	st := newStore()
	st.info.MinTTL, st.info.MaxTTL = time.Second, time.Minute
	st.session = func() driver.Session { return s }
	return st
}

func TestP09_ReleaseOfALostLock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lease := newLease(ttl)
		s := leased(lease)
		l := newLocker(t, s, nil)
		lock := mustAcquire(t, l, "a")
		close(lease.lost)
		<-lock.Done()
		for range 2 {
			wantErr(t, lock.Release(), []error{distlock.ErrLost}, distlock.ErrReleased)
		}
		wantErr(t, lock.Err(), []error{distlock.ErrLost})
		if s.count("release") > 0 {
			t.Error("the backend was told to release what was lost")
		}
	})
}

func TestP09_ReleaseIsIdempotent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.release = func(context.Context, *hold) error { time.Sleep(time.Second); return nil }
		l := newLocker(t, s, nil)
		lock := mustAcquire(t, l, "a")
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				if err := lock.Release(); err != nil || s.held("a") != 0 {
					t.Errorf("Release returned %v before it was through", err)
				}
			})
		}
		all.Wait()
		if err := lock.Release(); err != nil || s.count("release") != 1 || !errors.Is(lock.Err(), distlock.ErrReleased) {
			t.Errorf("later: %v, %d calls, Err %v", err, s.count("release"), lock.Err())
		}
	})
}

func TestP09_LossFoundByReleaseIsTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.release = func(context.Context, *hold) error { return fmt.Errorf("%w: broken", driver.ErrLost) }
		l := newLocker(t, s, nil)
		lock := mustAcquire(t, l, "a")
		for range 2 {
			wantErr(t, lock.Release(), []error{distlock.ErrLost})
		}
		if s.count("release") != 1 {
			t.Error("released again, although there is nothing")
		}
	})
}

func TestP10_FailedReleaseIsTriedAgainAndPoisonsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		failures := 3
		s.release = func(context.Context, *hold) error {
			if failures--; failures >= 0 {
				return &storeError{3}
			}
			return nil
		}
		l := newLocker(t, s, nil)
		lock := mustAcquire(t, l, "a")
		err := lock.Release()
		var broken *storeError
		if !errors.As(err, &broken) || errors.Is(err, distlock.ErrLost) {
			t.Fatalf("got %v", err)
		}
		if !errors.Is(lock.Err(), distlock.ErrReleased) {
			t.Errorf("Err is %v", lock.Err())
		}
		s.info.PollMin = time.Millisecond
		l2 := newLocker(t, s, nil)
		mustRelease(t, mustAcquire(t, l2, "a", distlock.Timeout(10*time.Second)))
		mustRelease(t, mustAcquire(t, l, "a", distlock.Timeout(10*time.Second)))
	})
}

func TestP10_ReleaseIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		forever := make(chan struct{})
		s.release = func(context.Context, *hold) error { <-forever; return nil }
		l := newLocker(t, s, &distlock.Options{ReleaseTimeout: 2 * time.Second})
		lock := mustAcquire(t, l, "a")
		start := time.Now()
		if err := lock.Release(); err == nil || errors.Is(err, distlock.ErrLost) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("it took %v", took)
		}
		close(forever)
		synctest.Wait()
		if s.count("release") != 1 || s.held("a") != 0 {
			t.Error("it succeeded late, and was tried again")
		}
	})
}

func TestP11_ValidityCountsFromBeforeTheRequest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lease := newLease(ttl)
		lease.renew = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		s := leased(lease)
		s.answer = func(context.Context, driver.Request) (driver.Grant, bool, error) {
			time.Sleep(4 * time.Second) // the reply takes its time
			return driver.Grant{}, false, nil
		}
		l := newLocker(t, s, nil)
		asked := time.Now()
		lock := mustAcquire(t, l, "a")
		<-lock.Done()
		if after := time.Since(asked); after != ttl-ttl/10 {
			t.Errorf("lost %v after the request, want %v", after, ttl-ttl/10)
		}
		wantErr(t, lock.Err(), []error{distlock.ErrLost})
	})
}

func TestP11_BackendSaysWhenItsRequestWentOut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lease := newLease(ttl)
		lease.renew = func(context.Context) error { return &storeError{1} }
		s := leased(lease)
		var sent time.Time
		s.answer = func(_ context.Context, r driver.Request) (driver.Grant, bool, error) {
			time.Sleep(time.Minute) // it waits by itself, for longer than a lease
			sent = time.Now()
			time.Sleep(time.Second)
			g, err := s.grant(r)
			g.Sent = sent
			return g, true, err
		}
		l := newLocker(t, s, nil)
		lock := mustAcquire(t, l, "a")
		<-lock.Done()
		if after := time.Since(sent); after != ttl-ttl/10 {
			t.Errorf("lost after %v, want %v", after, ttl-ttl/10)
		}
	})
}

func TestP11_SlowRenewalCountsFromItsStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lease := newLease(ttl)
		var started time.Time
		first := true
		lease.renew = func(context.Context) error {
			if !first {
				return &storeError{1}
			}
			first = false
			started = time.Now()
			time.Sleep(4 * time.Second)
			return nil
		}
		l := newLocker(t, leased(lease), nil)
		lock := mustAcquire(t, l, "a")
		<-lock.Done()
		if after := time.Since(started); after != ttl-ttl/10 {
			t.Errorf("lost %v after the last good renewal began", after)
		}
	})
}

func TestP11_LossIsAnnouncedThoughARenewalHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lease := newLease(ttl)
		forever := make(chan struct{})
		lease.renew = func(context.Context) error { <-forever; return nil }
		l := newLocker(t, leased(lease), nil)
		start := time.Now()
		lock := mustAcquire(t, l, "a")
		ctx, cancel := lock.Context(t.Context())
		defer cancel()
		<-ctx.Done()
		if after := time.Since(start); after != ttl-ttl/10 {
			t.Errorf("announced after %v", after)
		}
		if cause := context.Cause(ctx); !errors.Is(cause, distlock.ErrLost) || ctx.Err() != context.Canceled || !isClosed(lock.Done()) {
			t.Errorf("cause %v, error %v", cause, ctx.Err())
		}
		<-lease.abandoned
		close(forever)
	})
}

// A process that was stopped, or a machine that slept, sees the loss at the very
// next look, before any timer fires.
func TestP11_StoppedProcessSeesTheLossAtOnce(t *testing.T) {
	for name, look := range map[string]func(*distlock.Lock, context.Context) bool{
		"Err":       func(l *distlock.Lock, _ context.Context) bool { return errors.Is(l.Err(), distlock.ErrLost) },
		"Done":      func(l *distlock.Lock, _ context.Context) bool { return isClosed(l.Done()) },
		"Context":   func(_ *distlock.Lock, c context.Context) bool { return c.Err() != nil },
		"Context's": func(_ *distlock.Lock, c context.Context) bool { return isClosed(c.Done()) },
		"Release":   func(l *distlock.Lock, _ context.Context) bool { return errors.Is(l.Release(), distlock.ErrLost) },
		"set's Err": nil,
		"in time":   nil,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				leases := map[string]*lease{"a": newLease(ttl), "b": newLease(ttl)}
				s := newStore()
				s.info.MinTTL, s.info.MaxTTL = time.Second, time.Minute
				s.answer = func(_ context.Context, r driver.Request) (driver.Grant, bool, error) {
					g, err := s.grant(r)
					g.Session = leases[r.Resource]
					return g, true, err
				}
				l := newLocker(t, s, nil)
				var lock *distlock.Lock
				if name == "set's Err" {
					var err error
					if lock, err = l.AcquireAll(t.Context(), []string{"a", "b"}); err != nil {
						t.Fatal(err)
					}
					look = func(l *distlock.Lock, _ context.Context) bool { return errors.Is(l.Err(), distlock.ErrLost) }
				} else {
					lock = mustAcquire(t, l, "a")
				}
				ctx, cancel := lock.Context(t.Context())
				defer cancel()
				slept := ttl - ttl/10
				if name == "in time" {
					slept -= time.Second
					look = func(l *distlock.Lock, c context.Context) bool {
						return l.Err() == nil && c.Err() == nil && !isClosed(l.Done())
					}
				}
				defer distlock.SkewClocks(slept)()
				if !look(lock, ctx) {
					t.Error("it sees another state")
				}
			})
		})
	}
}

// Nobody looks: the keeper finds out by itself, within its longest nap.
func TestP11_KeeperNoticesAJumpOfTheClocks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLocker(t, leased(newLease(ttl)), nil)
		lock := mustAcquire(t, l, "a")
		done := lock.Done()
		time.Sleep(5 * time.Second)
		defer distlock.SkewClocks(ttl)()
		start := time.Now()
		<-done
		if after := time.Since(start); after > time.Second {
			t.Errorf("noticed after %v", after)
		}
	})
}

func TestP12_OneFailedRenewalLosesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lease := newLease(ttl)
		n := 0
		lease.renew = func(context.Context) error {
			if n++; n%3 != 0 { // two of three fail
				return &storeError{1}
			}
			return nil
		}
		var failed atomic.Int32
		l := newLocker(t, leased(lease), &distlock.Options{Trace: &distlock.Trace{RenewalFailed: func(distlock.Event) { failed.Add(1) }}})
		lock := mustAcquire(t, l, "a")
		time.Sleep(10 * time.Minute)
		if err := lock.Err(); err != nil {
			t.Fatal(err)
		}
		if failed.Load() == 0 {
			t.Error("no failure was reported")
		}
		mustRelease(t, lock)
	})
}

func TestP12_RenewalsAtAThirdAndRetriesUntilTheMargin(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lease := newLease(ttl)
		var fail atomic.Bool
		lease.renew = func(context.Context) error {
			if fail.Load() {
				return &storeError{1}
			}
			return nil
		}
		l := newLocker(t, leased(lease), nil)
		lock := mustAcquire(t, l, "a")
		time.Sleep(5 * time.Minute)
		if n := lease.count(); n < 29 || n > 30 {
			t.Errorf("%d renewals in ten leases, want one in a third of each", n)
		}
		fail.Store(true)
		before := lease.count()
		start := time.Now()
		<-lock.Done()
		if n := lease.count() - before; n < 4 || n > 30 {
			t.Errorf("%d tries in the %v until it was given up", n, time.Since(start))
		}
		pauses := make(map[time.Duration]bool)
		for i := before + 1; i < len(lease.renewals); i++ {
			pauses[lease.renewals[i].Sub(lease.renewals[i-1])] = true
		}
		if len(pauses) < 3 {
			t.Errorf("pauses %v: no jitter", pauses)
		}
	})
}

func TestP12_NoRenewalAfterRelease(t *testing.T) {
	for at := range 12 {
		bubble(t, func(t *testing.T) {
			lease := newLease(ttl)
			var inFlight atomic.Bool
			lease.renew = func(ctx context.Context) error {
				inFlight.Store(true)
				defer inFlight.Store(false)
				select {
				case <-time.After(3 * time.Second):
				case <-ctx.Done():
				}
				return ctx.Err()
			}
			l := newLocker(t, leased(lease), nil)
			lock := mustAcquire(t, l, "a")
			time.Sleep(5*time.Second + time.Duration(at)*time.Second)
			mustRelease(t, lock)
			if inFlight.Load() {
				t.Error("a renewal is under way after Release")
			}
			n := lease.count()
			time.Sleep(10 * ttl)
			if lease.count() != n {
				t.Errorf("%d renewals after Release", lease.count()-n)
			}
		})
	}
}

func TestP12_ReleaseDoesNotWaitForARenewalThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lease := newLease(ttl)
		lease.renew = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		l := newLocker(t, leased(lease), nil)
		lock := mustAcquire(t, l, "a")
		time.Sleep(ttl/3 + time.Second)
		start := time.Now()
		mustRelease(t, lock)
		if took := time.Since(start); took > 0 {
			t.Errorf("Release took %v", took)
		}
	})
}

func TestP13_LossIsSignalledOnceForEveryWayOfLosing(t *testing.T) {
	for name, lose := range map[string]func(*lease){
		"the backend notices": func(l *lease) { close(l.lost) },
		"a renewal finds it": func(l *lease) {
			l.renew = func(context.Context) error { return fmt.Errorf("%w: gone", driver.ErrLost) }
		},
		"the time runs out": func(l *lease) { l.renew = func(context.Context) error { return &storeError{1} } },
		"all at once": func(l *lease) {
			l.renew = func(context.Context) error { close(l.lost); return driver.ErrLost }
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				lease := newLease(ttl)
				var lost atomic.Int32
				var lock *distlock.Lock
				l := newLocker(t, leased(lease), &distlock.Options{Trace: &distlock.Trace{Lost: func(e distlock.Event) {
					// Under an internal lock this would hang.
					if !errors.Is(lock.Err(), distlock.ErrLost) || !errors.Is(lock.Release(), distlock.ErrLost) || !errors.Is(e.Err, distlock.ErrLost) {
						t.Error("not lost inside of Trace.Lost")
					}
					lost.Add(1)
				}}})
				lock = mustAcquire(t, l, "a")
				var after atomic.Int32
				ctx, cancel := lock.Context(t.Context())
				defer cancel()
				context.AfterFunc(ctx, func() {
					after.Add(1)
					lock.Release()
				})
				lose(lease)
				<-lock.Done()
				time.Sleep(2 * ttl)
				lock.Err()
				synctest.Wait()
				if lost.Load() != 1 || after.Load() != 1 {
					t.Errorf("Trace.Lost was called %d times, the context's function %d times", lost.Load(), after.Load())
				}
				if !isClosed(lease.abandoned) {
					t.Error("the session was not abandoned")
				}
			})
		})
	}
}

func TestP13_HoldersAreToldBeforeTheSessionIsAbandoned(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lease := &watchedLease{lease: newLease(ttl)}
		s := newStore()
		s.session = func() driver.Session { return lease }
		l := newLocker(t, s, nil)
		for _, name := range []string{"a", "b", "c"} {
			lease.locks = append(lease.locks, mustAcquire(t, l, name))
		}
		close(lease.lost)
		<-lease.abandoned
		if lease.early {
			t.Error("abandoned before all were told")
		}
	})
}

// watchedLease looks at the locks when it is abandoned.
type watchedLease struct {
	*lease
	locks []*distlock.Lock
	early bool
}

func (w *watchedLease) Abandon() {
	for _, l := range w.locks {
		w.early = w.early || !isClosed(l.Done())
	}
	w.lease.Abandon()
}

func TestP16_DroppedLockIsReportedAndItsRenewalStops(t *testing.T) {
	s := leased(newLease(ttl))
	s.tokens = true
	var log safeBuffer
	dropped := make(chan distlock.Event, 1)
	l := newLocker(t, s, &distlock.Options{
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Trace:  &distlock.Trace{Dropped: func(e distlock.Event) { dropped <- e }},
	})
	if _, err := l.Acquire(t.Context(), "a"); err != nil { // the line that is reported
		t.Fatal(err)
	}
	_, file, line, _ := runtime.Caller(0)
	want := fmt.Sprintf("%s:%d", file, line-3)
	e := collect(t, dropped)
	if e.Site != want || e.Resource != "a" {
		t.Errorf("reported %+v, want site %s", e, want)
	}
	// It is given back.
	mustRelease(t, mustAcquire(t, l, "a"))
	if text := log.String(); !strings.Contains(text, want) || !strings.Contains(text, "dropped") {
		t.Errorf("logged: %s", text)
	}
}

// Whatever function acquires, the site is the application's line.
func TestP16_SiteIsWhereTheApplicationCalls(t *testing.T) {
	for _, b := range []driver.Backend{newStore(), locallock.New()} {
		var site string
		l := distlock.New(b, &distlock.Options{Trace: &distlock.Trace{Released: func(e distlock.Event) { site = e.Site }}})
		defer l.Close()
		for name, call := range map[string]func() int{
			"Acquire": func() int {
				lock, err := l.Acquire(t.Context(), "a")
				if err == nil {
					err = lock.Release()
				}
				return lineBefore(t, err, 4)
			},
			"TryAcquire": func() int {
				lock, err := l.TryAcquire(t.Context(), "a")
				if err == nil {
					err = lock.Release()
				}
				return lineBefore(t, err, 4)
			},
			"AcquireAll": func() int {
				lock, err := l.AcquireAll(t.Context(), []string{"a", "b"})
				if err == nil {
					err = lock.Release()
				}
				return lineBefore(t, err, 4)
			},
			"Do": func() int {
				err := l.Do(t.Context(), "a", func(context.Context) error { return nil })
				return lineBefore(t, err, 1)
			},
		} {
			if want := fmt.Sprintf("session_test.go:%d", call()); !strings.HasSuffix(site, want) {
				t.Errorf("%s on %s: site %q, want %s", name, b.Info().Name, site, want)
			}
		}
	}
}

// lineBefore returns the number of the line that is n before the caller's.
func lineBefore(t *testing.T, err error, n int) int {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
	_, _, line, _ := runtime.Caller(1)
	return line - n
}

// collect runs the garbage collector until it finds something.
func collect(t *testing.T, dropped <-chan distlock.Event) distlock.Event {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		runtime.GC()
		select {
		case e := <-dropped:
			return e
		case <-deadline:
			t.Fatal("nothing was reported")
		case <-time.After(time.Millisecond):
		}
	}
}

func TestP16_InProcessToo(t *testing.T) {
	dropped := make(chan distlock.Event, 1)
	l := distlock.New(locallock.New(), &distlock.Options{Trace: &distlock.Trace{Dropped: func(e distlock.Event) { dropped <- e }}})
	func() {
		if _, err := l.AcquireAll(t.Context(), []string{"a"}); err != nil {
			t.Fatal(err)
		}
	}()
	if e := collect(t, dropped); !strings.Contains(e.Site, "session_test.go:") {
		t.Errorf("reported %+v", e)
	}
	mustRelease(t, mustAcquire(t, l, "a"))
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestP16_WhatIsReleasedLostOrInUseIsNotReported(t *testing.T) {
	gone := newLease(ttl)
	s := leased(gone)
	dropped := make(chan distlock.Event, 3)
	lost := make(chan struct{})
	o := &distlock.Options{Trace: &distlock.Trace{
		Dropped: func(e distlock.Event) { dropped <- e },
		Lost:    func(distlock.Event) { close(lost) },
	}}
	l := newLocker(t, s, o)
	ctx, cancel := func() (context.Context, context.CancelFunc) { // in use: its context is alive
		kept := mustAcquire(t, newLocker(t, newStore(), o), "kept")
		return kept.Context(t.Context())
	}()
	func() {
		mustRelease(t, mustAcquire(t, l, "released"))
		mustAcquire(t, l, "lost")
	}()
	close(gone.lost)
	<-lost
	func() { mustAcquire(t, newLocker(t, newStore(), o), "dropped") }()
	if e := collect(t, dropped); e.Resource != "dropped" {
		t.Errorf("reported: %+v", e)
	}
	for range 3 {
		runtime.GC()
	}
	if ctx.Err() != nil || len(dropped) > 0 {
		t.Error("reported too much")
	}
	cancel()
	runtime.KeepAlive(ctx)
}

func TestP20_SharedSessionIsRenewedOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lease := newLease(ttl)
		l := newLocker(t, leased(lease), nil)
		var locks []*distlock.Lock
		for i := range 100 {
			locks = append(locks, mustAcquire(t, l, fmt.Sprint(i)))
		}
		time.Sleep(ttl)
		if n := lease.count(); n > 3 {
			t.Errorf("%d renewals of one session in one lease", n)
		}
		// It goes on as long as one is left, and no longer.
		for _, lock := range locks[1:] {
			mustRelease(t, lock)
		}
		n := lease.count()
		time.Sleep(10 * ttl)
		if lease.count() <= n || locks[0].Err() != nil {
			t.Error("the last lock on the session isn't kept")
		}
		mustRelease(t, locks[0])
		n = lease.count()
		time.Sleep(10 * ttl)
		if lease.count() != n {
			t.Error("a session without locks is kept")
		}
		// And begins anew with the next (scenario 19).
		lock := mustAcquire(t, l, "next")
		time.Sleep(10 * ttl)
		if lease.count() <= n || lock.Err() != nil {
			t.Error("a lock that was taken after another was released isn't renewed")
		}
		close(lease.lost)
		<-lock.Done()
	})
}

func TestP20_AllOnASessionAreLostWithIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		first, second := newLease(ttl), newLease(ttl)
		s := leased(first)
		l := newLocker(t, s, nil)
		a, b := mustAcquire(t, l, "a"), mustAcquire(t, l, "b")
		s.session = func() driver.Session { return second }
		c := mustAcquire(t, l, "c")
		close(first.lost)
		<-a.Done()
		<-b.Done()
		wantErr(t, a.Err(), []error{distlock.ErrLost})
		wantErr(t, b.Err(), []error{distlock.ErrLost})
		if c.Err() != nil {
			t.Error("another session's lock is lost too")
		}
		mustRelease(t, c)
	})
}

// A session without a lease of its own is looked at in its own pace.
func TestP11_ConnectionIsLostWhenItsHeartbeatSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		conn := newLease(0)
		conn.lease = driver.Lease{Every: 5 * time.Second}
		var dead atomic.Bool
		conn.renew = func(context.Context) error {
			if dead.Load() {
				return driver.ErrLost
			}
			return nil
		}
		s := newStore()
		s.session = func() driver.Session { return conn }
		l := newLocker(t, s, nil)
		lock := mustAcquire(t, l, "a")
		time.Sleep(time.Minute)
		if n := conn.count(); n < 11 || n > 12 {
			t.Errorf("%d heartbeats in a minute", n)
		}
		dead.Store(true)
		start := time.Now()
		<-lock.Done()
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("noticed after %v", took)
		}
	})
}

// safeBuffer is a bytes.Buffer for several goroutines.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// pooledLease returns a session that carries one grant after another.
func pooledLease(ttl time.Duration) *lease {
	s := newLease(ttl)
	s.lease.Pooled = true
	return s
}

func TestP12_NoRenewalOfAPooledSessionWithoutLocks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := pooledLease(ttl)
		l := newLocker(t, leased(s), nil)
		for range 3 {
			lock := mustAcquire(t, l, "a")
			time.Sleep(ttl/3 + time.Second)
			mustRelease(t, lock)
			n := s.count()
			if n == 0 {
				t.Error("it isn't renewed while it is held")
			}
			time.Sleep(10 * ttl)
			if s.count() != n {
				t.Errorf("%d renewals after Release", s.count()-n)
			}
		}
	})
}

func TestP11_PooledSessionIsKeptForGrantAfterGrant(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := pooledLease(ttl)
		l := newLocker(t, leased(s), nil)
		for range 200 { // for longer than the lease
			lock := mustAcquire(t, l, "a")
			time.Sleep(time.Second / 4)
			mustRelease(t, lock)
		}
		mustRelease(t, mustAcquire(t, l, "a"))
		time.Sleep(ttl / 6) // nobody needs it
		lock := mustAcquire(t, l, "a")
		time.Sleep(3 * ttl)
		if err := lock.Err(); err != nil {
			t.Fatalf("lost: %v", err)
		}
		// The renewals fail: it is lost at the margin, counted from the last one.
		s.renew = func(context.Context) error { return errors.New("no answer") }
		before := s.last()
		<-lock.Done()
		if got, want := time.Since(before), ttl-ttl/10; got > want || got < want-time.Second {
			t.Errorf("lost %v after the last renewal, want %v", got, want)
		}
		wantErr(t, lock.Release(), []error{distlock.ErrLost})
	})
}

func TestP11_GrantOnAPooledSessionThatEndedIsLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := pooledLease(ttl)
		st := leased(s)
		l := newLocker(t, st, nil)
		mustRelease(t, mustAcquire(t, l, "a"))
		close(s.lost)
		synctest.Wait()
		next := pooledLease(ttl)
		st.session = func() driver.Session { return next }
		lock := mustAcquire(t, l, "a")
		close(next.lost)
		<-lock.Done()
		wantErr(t, lock.Release(), []error{distlock.ErrLost})
	})
}

// manyLeases grants everything, each on a lease of its own.
type manyLeases struct {
	renewals atomic.Int64
	renew    func() // nil: at once
}

type oneLease struct {
	store *manyLeases
	ttl   time.Duration
}

func (*manyLeases) Info() driver.Info {
	return driver.Info{Name: "many", Modes: driver.ModesOf(driver.Exclusive), MinTTL: time.Second, MaxTTL: time.Hour}
}

func (m *manyLeases) Acquire(_ context.Context, r driver.Request) (driver.Grant, error) {
	s := &oneLease{m, r.TTL}
	return driver.Grant{Hold: s, Session: s, Token: 1}, nil
}

func (*manyLeases) Close() error                { return nil }
func (*oneLease) Release(context.Context) error { return nil }
func (s *oneLease) Lease() driver.Lease         { return driver.Lease{TTL: s.ttl} }
func (*oneLease) Lost() <-chan struct{}         { return nil }
func (*oneLease) Abandon()                      {}

func (s *oneLease) Renew(context.Context) error {
	s.store.renewals.Add(1)
	if s.store.renew != nil {
		s.store.renew()
	}
	return nil
}

func TestP25_CloseWaitsForTheRenewalOfWhatHasEnded(t *testing.T) {
	for name, end := range map[string]func(*distlock.Lock){
		"lost":     func(lock *distlock.Lock) { <-lock.Done() },
		"released": func(lock *distlock.Lock) { time.Sleep(ttl/3 + 3*time.Second); lock.Release() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var returned atomic.Bool
				s := &manyLeases{renew: func() { time.Sleep(2 * ttl / 3); returned.Store(true) }} // whatever its context says
				l := distlock.New(s, &distlock.Options{ReleaseTimeout: ttl / 2})
				end(mustAcquire(t, l, "a"))
				if s.renewals.Load() != 1 || returned.Load() {
					t.Fatal("no renewal is under way")
				}
				l.Close()
				if !returned.Load() {
					t.Error("a renewal is under way after Close")
				}
			})
		})
	}
}

// A lock that is held costs memory, and neither a goroutine nor a timer. A KiB is to do
// for all of it, so that a quarter is left for what the backend knows.
func TestP20_ManyLeases(t *testing.T) {
	n := 20_000
	if stormLong {
		n = 100_000
	}
	bubble(t, func(t *testing.T) {
		s := &manyLeases{}
		l := distlock.New(s, nil)
		defer l.Close()
		locks := make([]*distlock.Lock, n)
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprintf("product:%d", i)
		}
		heap := func() uint64 {
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before, goroutines := heap(), runtime.NumGoroutine()
		for i, name := range names {
			lock, err := l.Acquire(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			locks[i] = lock
			if i%1000 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		synctest.Wait()
		if each := (int64(heap()) - int64(before)) / int64(n); each >= 768 {
			t.Errorf("a lock that is held takes %d bytes", each)
		} else {
			t.Logf("%d bytes each", each)
		}
		if more := runtime.NumGoroutine() - goroutines; more > 10 {
			t.Errorf("%d goroutines for %d locks", more, n)
		}
		time.Sleep(15 * time.Second)
		if got := s.renewals.Load(); got != int64(n) {
			t.Errorf("%d renewals of %d locks in 15 s", got, n)
		}
		for _, lock := range locks {
			if err := lock.Release(); err != nil {
				t.Fatal(err)
			}
		}
		got := s.renewals.Load()
		time.Sleep(time.Minute)
		if s.renewals.Load() != got {
			t.Error("renewed after the release")
		}
	})
}
