package distlock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

// Who stands in the queue behind a question to a store that is silent isn't told
// that somebody holds the resource.
func TestP03_SilentStoreIsNoContentionForThoseInTheQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.answer = hang
		var waiting atomic.Int32
		l := newLocker(t, s, &distlock.Options{Trace: &distlock.Trace{
			Waiting: func(context.Context, distlock.Event) { waiting.Add(1) },
		}})
		first, cancelFirst := context.WithCancel(t.Context())
		var all sync.WaitGroup
		start := func(ctx context.Context, check func(err error), opts ...distlock.AcquireOption) {
			all.Go(func() {
				_, err := l.Acquire(ctx, "a", opts...)
				check(err)
			})
			synctest.Wait()
		}
		start(first, func(err error) {
			wantErr(t, err, []error{context.Canceled}, distlock.ErrNotAcquired)
		})
		start(t.Context(), func(err error) {
			wantErr(t, err, []error{distlock.ErrNotAcquired})
			if !strings.HasSuffix(err.Error(), "not acquired within 1s: the store did not answer") {
				t.Error(err)
			}
		}, distlock.Timeout(time.Second))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		start(ctx, func(err error) {
			wantErr(t, err, []error{context.DeadlineExceeded}, distlock.ErrNotAcquired)
		})
		begun := time.Now()
		start(t.Context(), func(err error) {
			wantErr(t, err, nil, distlock.ErrNotAcquired, context.DeadlineExceeded)
			if took := time.Since(begun); took != 5*time.Second {
				t.Errorf("a single try took %v", took)
			}
		}, distlock.Timeout(0))
		time.Sleep(time.Minute)
		cancelFirst()
		all.Wait()
		if waiting.Load() > 0 {
			t.Errorf("Waiting was told %d times", waiting.Load())
		}
	})
}

// Who stands in the queue behind a question is told what comes of it at once.
func TestP03_QueueIsToldWhatTheStoreSays(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func() (driver.Grant, bool, error)
		held   bool
	}{
		{"granted", func() (driver.Grant, bool, error) { return driver.Grant{}, false, nil }, true},
		{"held elsewhere", func() (driver.Grant, bool, error) { return driver.Grant{}, true, driver.ErrHeld }, true},
		{"broken", func() (driver.Grant, bool, error) { return driver.Grant{}, true, &storeError{1} }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStore()
				answered := make(chan struct{})
				s.answer = func(ctx context.Context, r driver.Request) (driver.Grant, bool, error) {
					select {
					case <-answered:
					case <-ctx.Done():
						return driver.Grant{}, true, ctx.Err()
					}
					if r.Wait > 0 {
						return hang(ctx, r)
					}
					return c.answer()
				}
				var waiting atomic.Int32
				l := newLocker(t, s, &distlock.Options{Trace: &distlock.Trace{
					Waiting: func(context.Context, distlock.Event) { waiting.Add(1) },
				}})
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				for range 2 {
					all.Go(func() {
						lock, err := l.Acquire(ctx, "a")
						if err == nil {
							defer mustRelease(t, lock)
							<-ctx.Done()
							return
						}
						if errors.Is(err, distlock.ErrNotAcquired) != c.held {
							t.Error(err)
						}
					})
					synctest.Wait()
				}
				all.Go(func() {
					_, err := l.TryAcquire(t.Context(), "a")
					if errors.Is(err, distlock.ErrNotAcquired) != c.held {
						t.Errorf("a try: %v", err)
					}
				})
				synctest.Wait()
				if waiting.Load() > 0 {
					t.Fatal("told before there was an answer")
				}
				close(answered)
				time.Sleep(time.Second)
				// Where the first one waits at the store, it is told too.
				if got, want := waiting.Load(), map[string]int32{"granted": 1, "held elsewhere": 2}[c.name]; got != want {
					t.Errorf("Waiting was told %d times, want %d", got, want)
				}
				cancel()
				all.Wait()
			})
		})
	}
}

// A try that comes when the one before has been refused isn't kept waiting, though
// that one had stood in the queue itself.
func TestTryBehindOneWhoWaitedAndWasRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, nil)
		held := mustAcquire(t, l, "a")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s.answer = heldByAnother // somebody else gets it in between
		result := make(chan error)
		go func() {
			_, err := l.Acquire(ctx, "a", distlock.Shared())
			result <- err
		}()
		synctest.Wait()
		mustRelease(t, held)
		synctest.Wait()
		within(t, 0, "TryAcquire", func() {
			_, err := l.TryAcquire(t.Context(), "a", distlock.Shared())
			wantErr(t, err, []error{distlock.ErrNotAcquired})
		})
		cancel()
		wantErr(t, <-result, []error{context.Canceled, distlock.ErrNotAcquired})
	})
}

// A store whose sessions end while it grants isn't a resource that somebody has.
func TestP03_DeadSessionsAreNoContention(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := leased(newLease(ttl))
		s.answer = func(_ context.Context, r driver.Request) (driver.Grant, bool, error) {
			g, err := s.grant(r)
			g.Sent = time.Now().Add(-ttl) // its lease has run out
			return g, true, err
		}
		l := newLocker(t, s, nil)
		// It ends in the pause before the next question.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := l.Acquire(ctx, "a")
		wantErr(t, err, []error{context.DeadlineExceeded}, distlock.ErrNotAcquired)
		// It ends while the grant is given back.
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s.release = func(context.Context, *hold) error { time.Sleep(2 * time.Second); return nil }
		_, err = l.Acquire(ctx, "b")
		wantErr(t, err, []error{context.DeadlineExceeded}, distlock.ErrNotAcquired)
	})
}

// What a single try spends in the queue, it doesn't have at the store.
func TestSingleTryTakesFiveSecondsInAll(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.answer = func(ctx context.Context, r driver.Request) (driver.Grant, bool, error) {
			if len(s.times("acquire")) > 1 {
				return hang(ctx, r)
			}
			time.Sleep(3 * time.Second)
			return driver.Grant{}, true, &storeError{1}
		}
		l := newLocker(t, s, nil)
		start := time.Now()
		first := make(chan error)
		go func() {
			_, err := l.Acquire(t.Context(), "a")
			first <- err
		}()
		synctest.Wait()
		_, err := l.TryAcquire(t.Context(), "a")
		wantErr(t, err, nil, distlock.ErrNotAcquired)
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("it took %v", took)
		}
		if n := s.count("acquire"); n != 2 {
			t.Errorf("the store was asked %d times", n)
		}
		wantErr(t, <-first, nil, distlock.ErrNotAcquired)
	})
}

// A store that answers isn't called silent by those whose time ends in the queue,
// behind others who are all granted what they want.
func TestP03_StoreThatAnswersIsNotSilent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.answer = func(context.Context, driver.Request) (driver.Grant, bool, error) {
			time.Sleep(60 * time.Millisecond)
			return driver.Grant{}, false, nil // as the store sees fit
		}
		l := newLocker(t, s, nil)
		var all sync.WaitGroup
		for range 200 {
			all.Go(func() {
				lock, err := l.Acquire(t.Context(), "a", distlock.Semaphore(1000))
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(time.Minute)
				lock.Release()
			})
		}
		synctest.Wait()
		for _, timeout := range []time.Duration{0, time.Second} {
			_, err := l.Acquire(t.Context(), "a", distlock.Semaphore(1000), distlock.Timeout(timeout))
			wantErr(t, err, []error{distlock.ErrNotAcquired})
			if !strings.HasSuffix(err.Error(), "others of this process came first") {
				t.Error(err)
			}
		}
		all.Wait()
	})
}

// A time that means "for ever" is no time that is over.
func TestP25_CloseWithTheLongestReleaseTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, timeout := range []time.Duration{1<<63 - 1, 1 << 60} {
			s := newStore()
			l := distlock.New(s, &distlock.Options{ReleaseTimeout: timeout})
			if _, err := l.Acquire(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			s.release = func(context.Context, *hold) error { time.Sleep(time.Second); return nil }
			if err := l.Close(); err != nil {
				t.Errorf("%v: %v", timeout, err)
			}
		}
	})
}
