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

// slowToClose is a store that closes when it may.
type slowToClose struct {
	*store
	may chan struct{}
}

func (s slowToClose) Close() error {
	<-s.may
	return s.store.Close()
}

func TestP25_CloseOfABackendThatHangsIsBounded(t *testing.T) {
	for _, c := range []struct{ timeout, want time.Duration }{
		{5 * time.Second, 5 * time.Second},
		{time.Millisecond, time.Second}, // so long it gets in any case
	} {
		bubble(t, func(t *testing.T) {
			s := slowToClose{newStore(), make(chan struct{})}
			l := distlock.New(s, &distlock.Options{ReleaseTimeout: c.timeout})
			start := time.Now()
			err := l.Close()
			wantErr(t, err, nil)
			if took := time.Since(start); took != c.want {
				t.Errorf("Close took %v, want %v", took, c.want)
			}
			if !strings.Contains(err.Error(), "close (scripted): the store did not answer in time") {
				t.Error(err)
			}
			close(s.may)
			synctest.Wait()
			if s.closed != 1 {
				t.Errorf("closed %d times", s.closed)
			}
		})
	}
}

// Who asks in his own goroutine is told by the backend when that is closed, if not
// before, and his error is that of all who wait.
func TestP25_CloseEndsWhatIsAskedInPlace(t *testing.T) {
	for name, modes := range map[string]driver.Modes{"interruptible": driver.ModesOf(driver.Exclusive), "not to be interrupted": 0} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStore()
				s.info.AnswersWithin, s.info.Interruptible = time.Hour, modes
				closed := make(chan struct{})
				s.answer = func(ctx context.Context, _ driver.Request) (driver.Grant, bool, error) {
					select {
					case <-ctx.Done():
						return driver.Grant{}, true, context.Cause(ctx)
					case <-closed:
						return driver.Grant{}, true, errors.New("the backend is closed")
					}
				}
				l := distlock.New(s, nil)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if modes == 0 {
					ctx = context.WithoutCancel(ctx)
				}
				result := make(chan error)
				go func() {
					_, err := l.Acquire(ctx, "a")
					result <- err
				}()
				synctest.Wait()
				within(t, 5*time.Second, "Close", func() { l.Close() })
				close(closed)
				wantErr(t, <-result, []error{distlock.ErrClosed}, distlock.ErrNotAcquired)
			})
		})
	}
}

// looked is an error that tells when it is looked at.
type looked struct {
	error
	at func()
}

func (e looked) As(any) bool { e.at(); return false }

// Close may come while it is found out what an answer means. The error is that of the
// timeout then, and never a context's that isn't the caller's.
func TestP25_CloseAmidAnAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.info.AnswersWithin, s.info.Interruptible = time.Hour, driver.ModesOf(driver.Exclusive)
		l := distlock.New(s, nil)
		closed := make(chan struct{})
		s.answer = func(ctx context.Context, _ driver.Request) (driver.Grant, bool, error) {
			<-ctx.Done()
			return driver.Grant{}, true, looked{context.Cause(ctx), sync.OnceFunc(func() {
				go func() { l.Close(); close(closed) }()
				synctest.Wait()
			})}
		}
		_, err := l.Acquire(t.Context(), "a", distlock.Timeout(time.Second))
		wantErr(t, err, []error{distlock.ErrNotAcquired})
		<-closed
	})
}

// Close waits while the Trace is being told something, and nothing is told after it.
func TestP25_NothingIsToldAfterClose(t *testing.T) {
	for _, c := range []struct {
		name   string
		do     func(t *testing.T, s *store, l *distlock.Locker)
		unsaid bool
	}{
		{"lost", func(t *testing.T, s *store, l *distlock.Locker) {
			lease := newLease(ttl)
			s.session = func() driver.Session { return lease }
			mustAcquire(t, l, "a")
			close(lease.lost)
		}, false},
		{"renewal failed", func(t *testing.T, s *store, l *distlock.Locker) {
			lease := newLease(ttl)
			lease.renew = func(context.Context) error { return &storeError{1} }
			s.session = func() driver.Session { return lease }
			mustAcquire(t, l, "a")
			time.Sleep(ttl / 3)
		}, false},
		{"clean-up that Close ends", func(t *testing.T, s *store, l *distlock.Locker) {
			s.release = func(context.Context, *hold) error { return &storeError{1} }
			if err := mustAcquire(t, l, "a").Release(); err == nil {
				t.Error("released")
			}
		}, false},
		{"clean-up that hangs", func(t *testing.T, s *store, l *distlock.Locker) {
			s.release = func(context.Context, *hold) error { time.Sleep(time.Minute); return &storeError{1} }
			if err := mustAcquire(t, l, "a").Release(); err == nil {
				t.Error("released")
			}
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var closed atomic.Bool
				var told, late atomic.Int32
				tell := func(distlock.Event) {
					time.Sleep(400 * time.Millisecond) // so slow is the application
					told.Add(1)
					if closed.Load() {
						late.Add(1)
					}
				}
				s := newStore()
				l := distlock.New(s, &distlock.Options{Trace: &distlock.Trace{
					Lost: tell, RenewalFailed: tell, CleanupFailed: tell,
				}})
				c.do(t, s, l)
				synctest.Wait()
				_ = l.Close()
				closed.Store(true)
				time.Sleep(time.Hour)
				if late.Load() > 0 || (told.Load() == 0) != c.unsaid {
					t.Errorf("told %d times, %d of them after Close", told.Load(), late.Load())
				}
			})
		})
	}
}
