package distlock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
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
)

func TestP02_NilErrorMeansHeld(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, nil)
		lock := mustAcquire(t, l, "a")
		if lock == nil || lock.Err() != nil || isClosed(lock.Done()) || s.held("a") != 1 || lock.Resource() != "a" {
			t.Fatal("not held after a nil error")
		}
		if other, err := l.TryAcquire(t.Context(), "a"); other != nil || err == nil {
			t.Fatalf("a held one: got %v, %v", other, err)
		}
		mustRelease(t, lock)
	})
}

func TestP02_BackendThatGrantsNothingIsAnError(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.answer = func(context.Context, driver.Request) (driver.Grant, bool, error) { return driver.Grant{}, true, nil }
		lock, err := newLocker(t, s, nil).Acquire(t.Context(), "a")
		if lock != nil {
			t.Error("a lock on nothing")
		}
		wantErr(t, err, nil, distlock.ErrNotAcquired)
	})
}

func TestP03_TimeoutContextAndStoreAreNeverConfused(t *testing.T) {
	mine := errors.New("my cause")
	broken := &storeError{7}
	withCause := func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeoutCause(ctx, time.Second, mine)
	}
	plain := func(ctx context.Context) (context.Context, context.CancelFunc) { return context.WithCancel(ctx) }
	for _, c := range []struct {
		name   string
		answer func(context.Context, driver.Request) (driver.Grant, bool, error)
		ctx    func(context.Context) (context.Context, context.CancelFunc)
		opts   []distlock.AcquireOption
		want   []error
		not    []error
	}{
		{
			"timeout", heldByAnother, plain,
			[]distlock.AcquireOption{distlock.Timeout(time.Second)},
			[]error{distlock.ErrNotAcquired},
			[]error{context.DeadlineExceeded, context.Canceled},
		},
		{
			"single try", heldByAnother, plain,
			[]distlock.AcquireOption{distlock.Timeout(0)},
			[]error{distlock.ErrNotAcquired},
			[]error{context.DeadlineExceeded},
		},
		{
			"context while held", heldByAnother, withCause, nil,
			[]error{context.DeadlineExceeded, mine, distlock.ErrNotAcquired},
			nil,
		},
		{
			"context while the store is silent", hang, withCause, nil,
			[]error{context.DeadlineExceeded, mine},
			[]error{distlock.ErrNotAcquired},
		},
		{
			"timeout while the store is silent", hang, plain,
			[]distlock.AcquireOption{distlock.Timeout(time.Second)},
			[]error{distlock.ErrNotAcquired},
			[]error{context.DeadlineExceeded, context.Canceled},
		},
		{
			"single try while the store is silent", hang, plain,
			[]distlock.AcquireOption{distlock.Timeout(0)},
			nil,
			[]error{distlock.ErrNotAcquired, context.DeadlineExceeded, context.Canceled},
		},
		{
			"broken store", func(context.Context, driver.Request) (driver.Grant, bool, error) { return driver.Grant{}, true, broken },
			plain, nil,
			[]error{broken},
			[]error{distlock.ErrNotAcquired},
		},
		{
			"broken store while waiting", func(_ context.Context, r driver.Request) (driver.Grant, bool, error) {
				if r.Wait == 0 {
					return driver.Grant{}, true, driver.ErrHeld
				}
				return driver.Grant{}, true, broken
			},
			plain, nil,
			[]error{broken},
			[]error{distlock.ErrNotAcquired},
		},
		{
			"deadlock", func(context.Context, driver.Request) (driver.Grant, bool, error) {
				return driver.Grant{}, true, fmt.Errorf("%w: 1213", driver.ErrDeadlock)
			},
			plain, nil,
			[]error{distlock.ErrDeadlock},
			[]error{distlock.ErrNotAcquired},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStore()
				s.answer = c.answer
				l := newLocker(t, s, nil)
				ctx, cancel := c.ctx(t.Context())
				defer cancel()
				lock, err := l.Acquire(ctx, "a", c.opts...)
				if lock != nil {
					t.Error("a lock beside an error")
				}
				wantErr(t, err, c.want, c.not...)
			})
		})
	}
}

func TestP04_TimeoutIsExact(t *testing.T) {
	for _, d := range []time.Duration{time.Microsecond, 400 * time.Millisecond, 1900 * time.Millisecond, time.Hour} {
		for _, polls := range []bool{false, true} {
			t.Run(fmt.Sprint(d, "/polling=", polls), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					s := newStore()
					s.answer = heldByAnother
					if polls {
						s.info.PollMin, s.info.PollMax = 10*time.Millisecond, time.Second
						s.answer = func(context.Context, driver.Request) (driver.Grant, bool, error) {
							return driver.Grant{}, true, driver.ErrHeld
						}
					}
					l := newLocker(t, s, nil)
					start := time.Now()
					_, err := l.Acquire(t.Context(), "a", distlock.Timeout(d))
					wantErr(t, err, []error{distlock.ErrNotAcquired})
					if took := time.Since(start); took != d {
						t.Errorf("it took %v", took)
					}
				})
			})
		}
	}
}

func TestP04_TimeoutCoversQueueAndStore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, nil)
		first := mustAcquire(t, l, "a")
		time.AfterFunc(600*time.Millisecond, func() { mustRelease(t, first) })
		s.answer = heldByAnother
		start := time.Now()
		_, err := l.Acquire(t.Context(), "a", distlock.Timeout(time.Second))
		wantErr(t, err, []error{distlock.ErrNotAcquired})
		if took := time.Since(start); took != time.Second {
			t.Errorf("600 ms in the queue and the rest at the store: it took %v", took)
		}
	})
}

func TestP04_EnormousTimeoutIsNoneAtAll(t *testing.T) {
	for _, d := range []time.Duration{math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64 / 2} {
		bubble(t, func(t *testing.T) {
			s := newStore()
			free := make(chan struct{})
			s.answer = func(ctx context.Context, r driver.Request) (driver.Grant, bool, error) {
				if r.Wait == 0 {
					return driver.Grant{}, true, driver.ErrHeld
				}
				<-free
				return driver.Grant{}, false, nil
			}
			l := newLocker(t, s, nil)
			time.AfterFunc(24*time.Hour, func() { close(free) })
			mustRelease(t, mustAcquire(t, l, "a", distlock.Timeout(d)))
		})
	}
}

func TestP04_FirstTryIsAlwaysMade(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.answer = func(context.Context, driver.Request) (driver.Grant, bool, error) {
			time.Sleep(50 * time.Millisecond)
			return driver.Grant{}, false, nil
		}
		l := newLocker(t, s, nil)
		mustRelease(t, mustAcquire(t, l, "a", distlock.Timeout(time.Microsecond)))
	})
}

func TestP04_BadArgumentsComeBeforeAnyIO(t *testing.T) {
	s := newStore()
	l := newLocker(t, s, nil)
	calls := map[string]func() (*distlock.Lock, error){
		"empty resource":   func() (*distlock.Lock, error) { return l.Acquire(t.Context(), "") },
		"invalid UTF-8":    func() (*distlock.Lock, error) { return l.Acquire(t.Context(), "a\xff") },
		"negative timeout": func() (*distlock.Lock, error) { return l.Acquire(t.Context(), "a", distlock.Timeout(-1)) },
		"no permits":       func() (*distlock.Lock, error) { return l.Acquire(t.Context(), "a", distlock.Semaphore(0)) },
		"negative permits": func() (*distlock.Lock, error) { return l.Acquire(t.Context(), "a", distlock.Semaphore(-1)) },
		"two kinds": func() (*distlock.Lock, error) {
			return l.Acquire(t.Context(), "a", distlock.Shared(), distlock.Semaphore(1))
		},
		"empty option":      func() (*distlock.Lock, error) { return l.Acquire(t.Context(), "a", distlock.AcquireOption{}) },
		"try with timeout":  func() (*distlock.Lock, error) { return l.TryAcquire(t.Context(), "a", distlock.Timeout(1)) },
		"all of none":       func() (*distlock.Lock, error) { return l.AcquireAll(t.Context(), nil) },
		"all with an empty": func() (*distlock.Lock, error) { return l.AcquireAll(t.Context(), []string{"a", ""}) },
		"negative TTL": func() (*distlock.Lock, error) {
			return distlock.New(s, &distlock.Options{TTL: -1}).Acquire(t.Context(), "a")
		},
		"negative ReleaseTimeout": func() (*distlock.Lock, error) {
			return distlock.New(s, &distlock.Options{ReleaseTimeout: -1}).TryAcquire(t.Context(), "a")
		},
		"Do": func() (*distlock.Lock, error) {
			return nil, l.Do(t.Context(), "", func(context.Context) error { t.Error("called"); return nil })
		},
		"Holders": func() (*distlock.Lock, error) { _, err := l.Holders(t.Context(), ""); return nil, err },
	}
	for name, f := range calls {
		t.Run(name, func(t *testing.T) {
			lock, err := f()
			if lock != nil {
				t.Error("a lock")
			}
			wantErr(t, err, []error{distlock.ErrBadArgument}, distlock.ErrNotAcquired)
		})
	}
	if len(s.calls) > 0 {
		t.Errorf("%d calls of the backend", len(s.calls))
	}
}

func TestP04_TTLOutsideOfTheBackendsIsAnError(t *testing.T) {
	s := newStore()
	s.info.MinTTL, s.info.MaxTTL = 15*time.Second, 20*time.Second
	for _, ttl := range []time.Duration{time.Second, 21 * time.Second} {
		_, err := distlock.New(s, &distlock.Options{TTL: ttl}).Acquire(t.Context(), "a")
		wantErr(t, err, []error{distlock.ErrBadArgument})
	}
	l := newLocker(t, s, nil) // the default fits itself
	mustRelease(t, mustAcquire(t, l, "a"))
	if ttl := s.calls[0].req.TTL; ttl != 20*time.Second {
		t.Errorf("a lease of %v was asked for", ttl)
	}
}

func TestP05_DoneContextFailsEvenIfFree(t *testing.T) {
	s := newStore()
	l := newLocker(t, s, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	mine := errors.New("my cause")
	cancel(mine)
	_, err := l.Acquire(ctx, "a")
	wantErr(t, err, []error{context.Canceled, mine}, distlock.ErrNotAcquired)
	if len(s.calls) > 0 {
		t.Error("the store was asked")
	}
}

func TestP05_LateGrantIsGivenBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.answer = func(context.Context, driver.Request) (driver.Grant, bool, error) {
			time.Sleep(3 * time.Second)
			return driver.Grant{}, false, nil
		}
		l := newLocker(t, s, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		_, err := l.Acquire(ctx, "a")
		wantErr(t, err, []error{context.DeadlineExceeded})
		if took := time.Since(start); took != time.Second {
			t.Errorf("Acquire returned after %v", took)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if s.count("release") != 1 || s.held("a") != 0 {
			t.Errorf("the late grant is still there (%d calls of Release)", s.count("release"))
		}
	})
}

func TestP05_GrantThatComesWithTheEndIsGivenBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, nil)
		ctx, cancel := context.WithCancel(t.Context())
		s.answer = func(context.Context, driver.Request) (driver.Grant, bool, error) {
			cancel()
			return driver.Grant{}, false, nil
		}
		_, err := l.Acquire(ctx, "a")
		wantErr(t, err, []error{context.Canceled})
		synctest.Wait()
		if s.held("a") != 0 {
			t.Error("still held")
		}
		s.answer = nil
		mustRelease(t, mustAcquire(t, l, "a"))
	})
}

func TestP06_ContextAndTimeoutBoundTheWaitOnly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		type key struct{}
		s.answer = func(ctx context.Context, _ driver.Request) (driver.Grant, bool, error) {
			if _, ok := ctx.Deadline(); ok {
				t.Error("the backend's context has a deadline")
			}
			if ctx.Value(key{}) != "v" {
				t.Error("the backend's context lacks the caller's values")
			}
			return driver.Grant{}, false, nil
		}
		l := newLocker(t, s, nil)
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "v"), time.Second)
		lock, err := l.Acquire(ctx, "a", distlock.Timeout(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		time.Sleep(time.Hour)
		if lock.Err() != nil || s.held("a") != 1 {
			t.Error("the holding ended with the context of the wait")
		}
		mustRelease(t, lock)
	})
}

func TestP07_LostReplyIsUndone(t *testing.T) {
	for _, c := range []struct {
		name    string
		abandon bool
		fails   int // calls of Undo
	}{{"error", false, 0}, {"error, undo fails at first", false, 3}, {"no answer", true, 0}} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStore()
				first := true
				s.answer = func(ctx context.Context, r driver.Request) (driver.Grant, bool, error) {
					if !first {
						return driver.Grant{}, false, nil
					}
					first = false
					if _, err := s.grant(r); err != nil {
						t.Error(err)
					}
					if c.abandon {
						<-ctx.Done()
					}
					return driver.Grant{}, true, &storeError{1}
				}
				failed := 0
				s.undo = func(context.Context, driver.Request) error {
					if failed < c.fails {
						failed++
						return &storeError{2}
					}
					return nil
				}
				l := newLocker(t, s, nil)
				if _, err := l.Acquire(t.Context(), "a", distlock.Timeout(time.Second)); err == nil {
					t.Fatal("acquired")
				}
				// Who comes next gets it within a bounded time.
				start := time.Now()
				for {
					lock, err := l.TryAcquire(t.Context(), "a")
					if err == nil {
						mustRelease(t, lock)
						break
					}
					if time.Since(start) > 2*time.Second {
						t.Fatalf("still held after %v: %v", time.Since(start), err)
					}
					time.Sleep(10 * time.Millisecond)
				}
				if n := s.count("undo"); n != c.fails+1 {
					t.Errorf("%d calls of Undo", n)
				}
			})
		})
	}
}

func TestP07_DefiniteAnswersAreNotUndone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, err := range []error{driver.ErrHeld, errors.ErrUnsupported, driver.ErrDeadlock} {
			s := newStore()
			s.answer = func(context.Context, driver.Request) (driver.Grant, bool, error) { return driver.Grant{}, true, err }
			l := newLocker(t, s, nil)
			if _, err := l.TryAcquire(t.Context(), "a"); err == nil {
				t.Fatal("acquired")
			}
			synctest.Wait()
			if s.count("undo") > 0 {
				t.Errorf("undone after %v", err)
			}
		}
	})
}

func TestP07_UndoIsBoundedAndItsFailureReported(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.answer = func(context.Context, driver.Request) (driver.Grant, bool, error) {
			return driver.Grant{}, true, &storeError{1}
		}
		s.undo = func(context.Context, driver.Request) error { return &storeError{2} }
		var reported []distlock.Event
		l := newLocker(t, s, &distlock.Options{Trace: &distlock.Trace{CleanupFailed: func(e distlock.Event) { reported = append(reported, e) }}})
		if _, err := l.TryAcquire(t.Context(), "a"); err == nil {
			t.Fatal("acquired")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		n := s.count("undo")
		time.Sleep(time.Hour)
		if n != s.count("undo") || n < 3 {
			t.Errorf("%d calls of Undo in a minute, %d in an hour", n, s.count("undo"))
		}
		if len(reported) != 1 || reported[0].Resource != "a" || reported[0].Err == nil {
			t.Errorf("reported: %+v", reported)
		}
	})
}

func TestP08_AcquireReturnsWhateverTheStoreDoes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		forever := make(chan struct{})
		s.answer = func(context.Context, driver.Request) (driver.Grant, bool, error) {
			<-forever // its context is nothing to it
			return driver.Grant{}, true, &storeError{1}
		}
		l := newLocker(t, s, nil)
		for _, f := range []func() error{
			func() error {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := l.Acquire(ctx, "a")
				return err
			},
			func() error {
				_, err := l.Acquire(t.Context(), "b", distlock.Timeout(time.Second))
				return err
			},
			func() error { // behind the first, in the queue
				_, err := l.Acquire(t.Context(), "a", distlock.Timeout(time.Second))
				return err
			},
		} {
			start := time.Now()
			if err := f(); err == nil {
				t.Error("acquired")
			}
			if took := time.Since(start); took > time.Second {
				t.Errorf("it took %v", took)
			}
		}
		close(forever)
	})
}

func TestP08_QueueGoesOnBehindACallThatNeverReturns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		forever := make(chan struct{})
		var calls atomic.Int32
		s.answer = func(context.Context, driver.Request) (driver.Grant, bool, error) {
			if calls.Add(1) == 1 {
				<-forever
				return driver.Grant{}, true, &storeError{1}
			}
			return driver.Grant{}, false, nil
		}
		l := newLocker(t, s, &distlock.Options{ReleaseTimeout: 3 * time.Second})
		if _, err := l.TryAcquire(t.Context(), "a"); err == nil {
			t.Fatal("acquired")
		}
		start := time.Now()
		mustRelease(t, mustAcquire(t, l, "a"))
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("it took %v", took)
		}
		close(forever)
	})
}

func TestP17_AnyStringIsAResource(t *testing.T) {
	s := newStore()
	l := newLocker(t, s, nil)
	for _, name := range []string{" ", "a/b", "..", "\x00", "é", "e\u0301", "🔒", strings.Repeat("x", 100_000)} {
		lock := mustAcquire(t, l, name)
		if lock.Resource() != name || s.held(name) != 1 {
			t.Errorf("%.20q: held as another", name)
		}
		mustRelease(t, lock)
	}
}

func TestP18_FirstComeFirstServed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, nil)
		first := mustAcquire(t, l, "a")
		var order []int
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				lock := mustAcquire(t, l, "a")
				order = append(order, i)
				mustRelease(t, lock)
			})
			synctest.Wait()
		}
		mustRelease(t, first)
		all.Wait()
		if !slices.IsSorted(order) || len(order) != 20 {
			t.Errorf("served in the order %v", order)
		}
	})
}

func TestP18_CancelledWaiterSwallowsNoGrant(t *testing.T) {
	for at := range 8 {
		bubble(t, func(t *testing.T) {
			s := newStore()
			s.answer = func(context.Context, driver.Request) (driver.Grant, bool, error) {
				time.Sleep(time.Millisecond)
				return driver.Grant{}, false, nil
			}
			s.release = func(context.Context, *hold) error { time.Sleep(time.Millisecond); return nil }
			l := newLocker(t, s, nil)
			first := mustAcquire(t, l, "a")
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			all.Go(func() {
				if lock, err := l.Acquire(ctx, "a"); err == nil {
					mustRelease(t, lock)
				}
			})
			synctest.Wait()
			all.Go(func() { mustRelease(t, mustAcquire(t, l, "a", distlock.Timeout(time.Minute))) })
			synctest.Wait()
			all.Go(func() { mustRelease(t, first) })
			time.Sleep(time.Duration(at) * 500 * time.Microsecond)
			cancel()
			all.Wait()
			synctest.Wait()
			if s.held("a") != 0 {
				t.Errorf("cancelled after %d half milliseconds: still held", at)
			}
		})
	}
}

func TestP19_OneOfAProcessAtTheStore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.answer = heldByAnother
		l := newLocker(t, s, nil)
		var all sync.WaitGroup
		wait := func(d time.Duration) {
			all.Go(func() {
				_, err := l.Acquire(t.Context(), "a", distlock.Timeout(d), distlock.Shared())
				wantErr(t, err, []error{distlock.ErrNotAcquired})
			})
			synctest.Wait()
		}
		wait(time.Minute)
		for range 100 {
			wait(30 * time.Second)
		}
		all.Wait()
		if s.most != 1 {
			t.Errorf("%d at once asked for one resource", s.most)
		}
		// The first tries and waits; the others time out in the queue behind it.
		if n := s.count("acquire"); n != 2 {
			t.Errorf("%d questions: waiters in the queue cost the store something", n)
		}
	})
}

func TestP19_PollingIsPacedAndJittered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.info.PollMin, s.info.PollMax = 50*time.Millisecond, time.Second
		s.answer = func(context.Context, driver.Request) (driver.Grant, bool, error) {
			return driver.Grant{}, true, driver.ErrHeld
		}
		l := newLocker(t, s, nil)
		start := time.Now()
		_, err := l.Acquire(t.Context(), "a", distlock.Timeout(time.Minute))
		wantErr(t, err, []error{distlock.ErrNotAcquired})
		at := s.times("acquire")
		if n := len(at); n < 40 || n > 130 {
			t.Errorf("%d questions in a minute", n)
		}
		if last := at[len(at)-1]; !last.Equal(start.Add(time.Minute)) {
			t.Errorf("the last question came %v before the limit", start.Add(time.Minute).Sub(last))
		}
		pauses := make(map[time.Duration]bool)
		for i := 10; i < len(at)-1; i++ {
			pause := at[i].Sub(at[i-1])
			pauses[pause] = true
			if pause > 1500*time.Millisecond || pause < 500*time.Millisecond {
				t.Errorf("a pause of %v", pause)
			}
		}
		if len(pauses) < 10 {
			t.Errorf("%d different pauses: no jitter", len(pauses))
		}
	})
}

func TestP19_BackendThatWaitsIsAskedTwice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.answer = heldByAnother
		l := newLocker(t, s, nil)
		_, err := l.Acquire(t.Context(), "a", distlock.Timeout(10*time.Second))
		wantErr(t, err, []error{distlock.ErrNotAcquired})
		if n := s.count("acquire"); n != 2 {
			t.Errorf("%d questions", n)
		}
		if r := s.calls[0].req; r.Wait != 0 || !r.Queue {
			t.Errorf("the first: %+v", r)
		}
		if r := s.calls[1].req; r.Wait != 10*time.Second {
			t.Errorf("the second: %+v", r)
		}
		if s.calls[0].req.Owner.ID != s.calls[1].req.Owner.ID {
			t.Error("one attempt under two IDs")
		}
	})
}

func TestP24_MissingKindFailsAtOnceAndBeforeAnyIO(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.info.Modes = driver.ModesOf(driver.Exclusive)
		l := newLocker(t, s, nil)
		lock := mustAcquire(t, l, "a") // so that others would have to queue
		before := len(s.calls)
		for _, o := range []distlock.AcquireOption{distlock.Shared(), distlock.Upgradeable(), distlock.Semaphore(2)} {
			_, err := l.Acquire(t.Context(), "a", o)
			wantErr(t, err, []error{errors.ErrUnsupported}, distlock.ErrNotAcquired)
		}
		if len(s.calls) != before {
			t.Error("the store was asked")
		}
		mustRelease(t, lock)
	})
}

func TestErrorTexts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		l := newLocker(t, s, nil)
		lock := mustAcquire(t, l, "inventory:42")
		texts := []string{}
		add := func(_ *distlock.Lock, err error) { texts = append(texts, err.Error()) }
		add(l.TryAcquire(t.Context(), "inventory:42"))
		add(l.Acquire(t.Context(), "inventory:42", distlock.Timeout(5*time.Second)))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		add(l.Acquire(ctx, "inventory:42"))
		add(l.Acquire(t.Context(), ""))
		add(l.Acquire(t.Context(), "inventory:42", distlock.Timeout(-time.Second)))
		mustRelease(t, lock)
		want := []string{
			`distlock: acquire "inventory:42" (scripted): not acquired: held by another`,
			`distlock: acquire "inventory:42" (scripted): not acquired within 5s: held by another`,
			`distlock: acquire "inventory:42" (scripted): not acquired: context deadline exceeded, while held by another`,
			`distlock: acquire (scripted): empty resource`,
			`distlock: acquire "inventory:42" (scripted): negative timeout: -1s (for no limit, leave the option out)`,
		}
		for i, w := range want {
			if texts[i] != w {
				t.Errorf("got  %s\nwant %s", texts[i], w)
			}
		}
	})
}

// questions returns how many questions the store was asked in each second.
func questions(s *store, start time.Time) map[int]int {
	in := make(map[int]int)
	for _, at := range s.times("acquire") {
		in[int(at.Sub(start)/time.Second)]++
	}
	return in
}

func TestP19_WaitersWhoGiveUpTogetherAskNoMore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.info.PollMin, s.info.PollMax = 200*time.Millisecond, time.Second
		s.answer = heldByAnotherAtOnce
		l := newLocker(t, s, nil)
		start := time.Now()
		var all sync.WaitGroup
		for range 1000 {
			all.Go(func() {
				_, err := l.Acquire(t.Context(), "a", distlock.Timeout(5*time.Second))
				if !errors.Is(err, distlock.ErrNotAcquired) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if d := time.Since(start); d != 5*time.Second {
			t.Errorf("they gave up after %v", d)
		}
		for second, n := range questions(s, start) {
			if n > 4 {
				t.Errorf("%d questions in second %d", n, second)
			}
		}
		if last := s.times("acquire"); time.Since(last[len(last)-1]) > 100*time.Millisecond {
			t.Errorf("no last try: the last question was %v before the end", time.Since(last[len(last)-1]))
		}
	})
}

func TestP19_WaitersWhoComeAndGoAskAtThePaceOfOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.info.PollMin, s.info.PollMax = 200*time.Millisecond, time.Second
		s.answer = heldByAnotherAtOnce
		l := newLocker(t, s, nil)
		start := time.Now()
		var all sync.WaitGroup
		for range 500 {
			all.Go(func() {
				_, err := l.Acquire(t.Context(), "a", distlock.Timeout(150*time.Millisecond))
				if !errors.Is(err, distlock.ErrNotAcquired) {
					t.Error(err)
				}
			})
			time.Sleep(10 * time.Millisecond)
		}
		all.Wait()
		for second, n := range questions(s, start) {
			if n > 11 { // a refusal is as good as a last try for 100 ms
				t.Errorf("%d questions in second %d", n, second)
			}
		}
	})
}

func TestP18_NextInLineAsksThoughTheOneBeforeWasRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.info.PollMin, s.info.PollMax = 200*time.Millisecond, time.Second
		l, other := newLocker(t, s, nil), newLocker(t, s, nil)
		held := mustAcquire(t, other, "a")
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error)
		go func() {
			_, err := l.Acquire(ctx, "a")
			first <- err
		}()
		synctest.Wait()
		start := time.Now()
		got := make(chan *distlock.Lock)
		go func() { got <- mustAcquire(t, l, "a", distlock.Timeout(10*time.Second)) }()
		time.Sleep(5 * time.Second)
		cancel()
		wantErr(t, <-first, []error{context.Canceled})
		mustRelease(t, held)
		mustRelease(t, <-got)
		if d := time.Since(start); d > 5*time.Second+1500*time.Millisecond {
			t.Errorf("the next got it %v after it came free", d-5*time.Second)
		}
	})
}

// A backend that bounds its answers is called in the caller's goroutine, if that
// can't make the caller late.
func TestP08_AnswersWithin(t *testing.T) {
	for _, c := range []struct {
		bound, takes time.Duration
		interrupted  bool // the caller can be
		inline       bool
		returns      time.Duration
	}{
		{0, time.Second, false, false, time.Second},
		{0, time.Second, true, false, 10 * time.Millisecond},
		{100 * time.Millisecond, 100 * time.Millisecond, false, true, 100 * time.Millisecond},
		{100 * time.Millisecond, 100 * time.Millisecond, true, true, 100 * time.Millisecond},
		{time.Second, time.Second, false, true, time.Second},
		{time.Second, time.Second, true, false, 10 * time.Millisecond},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStore()
				s.info.AnswersWithin = c.bound
				inline := false
				s.answer = func(context.Context, driver.Request) (driver.Grant, bool, error) {
					stack := make([]byte, 1<<16)
					inline = strings.Contains(string(stack[:runtime.Stack(stack, false)]), "(*Locker).Acquire(")
					time.Sleep(c.takes)
					return driver.Grant{}, false, nil
				}
				l := newLocker(t, s, nil)
				ctx := context.WithoutCancel(t.Context())
				if c.interrupted {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, 10*time.Millisecond)
					defer cancel()
				}
				within(t, c.returns, "Acquire", func() {
					lock, err := l.Acquire(ctx, "a", distlock.Timeout(time.Minute))
					if c.interrupted {
						wantErr(t, err, []error{context.DeadlineExceeded})
					} else if err != nil {
						t.Error(err)
					} else {
						mustRelease(t, lock)
					}
				})
				time.Sleep(2 * time.Second)
				if s.held("a") != 0 {
					t.Error("it is still held")
				}
				if inline != c.inline {
					t.Errorf("called in the caller's goroutine: %t", inline)
				}
			})
		})
	}
}

// A backend that returns when its context ends is called in the caller's goroutine by
// those, too, who can be interrupted, or have less time than it may take. It is done
// with what it left unsettled before the next of this process asks.
func TestP08_Interruptible(t *testing.T) {
	for _, c := range []struct {
		name    string
		timeout time.Duration
		cancel  time.Duration // after which the caller's context ends; 0: never
		returns time.Duration
		want    []error
	}{
		{"canceled", time.Minute, 10 * time.Millisecond, 10 * time.Millisecond, []error{context.Canceled}},
		{"short of time", 200 * time.Millisecond, 0, 200 * time.Millisecond, []error{distlock.ErrNotAcquired}},
		{"a single try", 0, 10 * time.Millisecond, 10 * time.Millisecond, []error{context.Canceled}},
		{"silent", time.Minute, 0, 5 * time.Second, []error{errSilent}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStore()
				s.info.AnswersWithin = 5 * time.Second
				s.info.Interruptible = driver.ModesOf(driver.Exclusive)
				settled := make(chan struct{})
				inline, asked := false, 0
				s.answer = func(ctx context.Context, _ driver.Request) (driver.Grant, bool, error) {
					if asked++; asked > 1 {
						return driver.Grant{}, false, nil
					}
					stack := make([]byte, 1<<16)
					inline = strings.Contains(string(stack[:runtime.Stack(stack, false)]), "(*Locker).Acquire(")
					err := errSilent
					select {
					case <-ctx.Done():
						err = context.Cause(ctx)
					case <-time.After(5 * time.Second):
					}
					return driver.Grant{}, true, fmt.Errorf("wrapped: %w", &driver.UnsettledError{Err: err, Settled: settled})
				}
				l := newLocker(t, s, nil)
				ctx := context.WithoutCancel(t.Context())
				if c.cancel > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithCancel(ctx)
					time.AfterFunc(c.cancel, cancel)
				}
				within(t, c.returns, "Acquire", func() {
					_, err := l.Acquire(ctx, "a", distlock.Timeout(c.timeout))
					wantErr(t, err, c.want)
				})
				if !inline {
					t.Error("not called in the caller's goroutine")
				}
				start := time.Now()
				time.AfterFunc(time.Second, func() { close(settled) })
				lock := mustAcquire(t, l, "a", distlock.Timeout(time.Minute))
				if d := time.Since(start); d != time.Second {
					t.Errorf("the next got it after %v, and it was settled after 1s", d)
				}
				mustRelease(t, lock)
				if n := s.count("undo"); n > 0 {
					t.Errorf("%d calls of Undo", n)
				}
			})
		})
	}
}

var errSilent = errors.New("no answer")

// What such a backend knows of why there was no answer in time is told.
func TestP03_ReasonOfNoAnswerInTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.info.AnswersWithin = 5 * time.Second
		s.info.Interruptible = driver.ModesOf(driver.Exclusive)
		full := errors.New("no connection became free")
		s.answer = func(ctx context.Context, _ driver.Request) (driver.Grant, bool, error) {
			<-ctx.Done()
			return driver.Grant{}, true, full
		}
		l := newLocker(t, s, nil)
		_, err := l.Acquire(t.Context(), "a", distlock.Timeout(time.Second))
		wantErr(t, err, []error{distlock.ErrNotAcquired, full})
		if !strings.Contains(err.Error(), "not acquired within 1s: no connection became free") {
			t.Errorf("the error doesn't say so: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = l.Acquire(ctx, "a")
		wantErr(t, err, []error{context.DeadlineExceeded, full})
		if !strings.Contains(err.Error(), "context deadline exceeded: no connection became free") {
			t.Errorf("the error doesn't say so: %v", err)
		}
	})
}

// Who polls for what is held for a moment asks again soon, and who polls for what
// is held for long has time.
func TestP19_PollingFollowsHowLongItIsHeld(t *testing.T) {
	for _, c := range []struct {
		held       time.Duration
		late       time.Duration // at most, on average
		soonest    time.Duration // that it is asked again
		mostAsking int
	}{
		{30 * time.Millisecond, 40 * time.Millisecond, 10 * time.Millisecond, 4},
		{20 * time.Second, time.Second, 400 * time.Millisecond, 27},
	} {
		t.Run(c.held.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStore()
				s.info.PollMin, s.info.PollMax = 200*time.Millisecond, time.Second
				here, there := newLocker(t, s, nil), newLocker(t, s, nil)
				var late time.Duration
				const learning, rounds = 10, 50
				for i := range learning + rounds {
					other := mustAcquire(t, there, "a")
					asked := s.count("acquire")
					began := time.Now()
					var again time.Duration // until it is asked again
					s.answer = func(context.Context, driver.Request) (driver.Grant, bool, error) {
						if since := time.Since(began); again == 0 && since > 0 {
							again = since
						}
						return driver.Grant{}, false, nil
					}
					time.AfterFunc(c.held, func() { mustRelease(t, other) })
					mustRelease(t, mustAcquire(t, here, "a"))
					if i < learning {
						continue
					}
					late += time.Since(began) - c.held
					if again < c.soonest {
						t.Errorf("asked again after %v", again)
					}
					if n := s.count("acquire") - asked; n > c.mostAsking {
						t.Errorf("asked %d times", n)
					}
				}
				if late /= rounds; late > c.late {
					t.Errorf("%v late on average", late)
				}
			})
		})
	}
}

func TestPaceIsRememberedForSoMany(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.info.PollMin, s.info.PollMax = 10*time.Millisecond, time.Second
		here, there := newLocker(t, s, nil), newLocker(t, s, nil)
		for i := range 1100 {
			name := fmt.Sprint(i)
			other := mustAcquire(t, there, name)
			if _, err := here.Acquire(t.Context(), name, distlock.Timeout(20*time.Millisecond)); err == nil {
				t.Error("got it")
			}
			mustRelease(t, other)
		}
		if n := here.Paces(); n != 1024 {
			t.Errorf("%d are remembered", n)
		}
	})
}

// A backend that waits by itself is asked to at once, however long it took before.
func TestP18_NoPauseBeforeAWaitAtTheStore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		freed := make(chan struct{}, 1)
		s.release = func(context.Context, *hold) error { freed <- struct{}{}; return nil }
		s.answer = func(_ context.Context, r driver.Request) (driver.Grant, bool, error) {
			g, err := s.grant(r)
			for ; err != nil && r.Wait > 0; g, err = s.grant(r) {
				<-freed
				synctest.Wait() // until it is
			}
			return g, true, err
		}
		here, there := newLocker(t, s, nil), newLocker(t, s, nil)
		for _, held := range []time.Duration{time.Minute, time.Millisecond, time.Millisecond} {
			other := mustAcquire(t, there, "a")
			time.AfterFunc(held, func() { mustRelease(t, other) })
			within(t, held, "Acquire", func() { mustRelease(t, mustAcquire(t, here, "a")) })
			<-freed
		}
	})
}
