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

// A reader here waits at the store behind a writer of another process, who waits
// for the upgradeable lock. If its upgrade waited for that reader, none of the three
// would ever go on.
func TestUpgradeDoesNotWaitForAReaderAtTheStore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		writerIsThrough := make(chan struct{})
		s.answer = func(ctx context.Context, r driver.Request) (driver.Grant, bool, error) {
			if r.Mode != driver.Shared {
				return driver.Grant{}, false, nil
			}
			if r.Wait == 0 {
				return driver.Grant{}, true, driver.ErrHeld
			}
			select {
			case <-writerIsThrough:
				return driver.Grant{}, false, nil
			case <-ctx.Done():
				return driver.Grant{}, true, ctx.Err()
			}
		}
		l := newLocker(t, s, nil)
		lock := mustAcquire(t, l, "a", distlock.Upgradeable())
		reader := make(chan *distlock.Lock)
		go func() { reader <- mustAcquire(t, l, "a", distlock.Shared()) }()
		synctest.Wait()
		within(t, 0, "Upgrade", func() {
			if err := lock.Upgrade(t.Context(), distlock.Timeout(time.Minute)); err != nil {
				t.Error(err)
			}
		})
		mustRelease(t, lock)
		close(writerIsThrough)
		mustRelease(t, <-reader)
	})
}

// Who of the two comes first is the store's choice, and the other waits there.
func TestUpgradeWaitsAtTheStoreForAReaderWhoGotThereFirst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		s.info.PollMin = 10 * time.Millisecond
		granted := make(chan struct{})
		s.answer = func(_ context.Context, r driver.Request) (driver.Grant, bool, error) {
			if r.Mode == driver.Shared {
				<-granted
			}
			return driver.Grant{}, false, nil
		}
		l := newLocker(t, s, nil)
		lock := mustAcquire(t, l, "a", distlock.Upgradeable())
		reader := make(chan *distlock.Lock)
		go func() { reader <- mustAcquire(t, l, "a", distlock.Shared()) }()
		synctest.Wait()
		s.upgrade = func(context.Context, time.Duration) error {
			select {
			case <-granted:
			default:
				close(granted)
				synctest.Wait()
			}
			return nil
		}
		upgraded := make(chan error)
		go func() { upgraded <- lock.Upgrade(t.Context()) }()
		got := <-reader
		time.Sleep(time.Second)
		select {
		case err := <-upgraded:
			t.Fatalf("upgraded beside a reader: %v", err)
		default:
		}
		mustRelease(t, got)
		if err := <-upgraded; err != nil {
			t.Fatal(err)
		}
		mustRelease(t, lock)
	})
}

// An upgrade that was given up may be under way at the store for a while. The next one
// of the same lock waits for that, and is itself given up like any other.
func TestUpgradeAfterOneThatWasGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		under := make(chan struct{})
		upgrades := 0
		s.upgrade = func(ctx context.Context, _ time.Duration) error {
			if upgrades++; upgrades > 1 {
				return nil
			}
			<-under // it doesn't listen
			return context.Cause(ctx)
		}
		l := newLocker(t, s, nil)
		lock := mustAcquire(t, l, "a", distlock.Upgradeable())
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		wantErr(t, lock.Upgrade(ctx), []error{context.Canceled})

		within(t, 2*time.Second, "Upgrade with a timeout", func() {
			wantErr(t, lock.Upgrade(t.Context(), distlock.Timeout(2*time.Second)), []error{distlock.ErrNotAcquired})
		})
		within(t, 5*time.Second, "a single try", func() {
			wantErr(t, lock.Upgrade(t.Context(), distlock.Timeout(0)), []error{distlock.ErrNotAcquired})
		})
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		wantErr(t, lock.Upgrade(ctx), []error{context.Canceled})
		if n := s.count("upgrade"); n != 1 {
			t.Errorf("%d upgrades at once", n)
		}

		time.AfterFunc(time.Second, func() { close(under) })
		if err := lock.Upgrade(t.Context(), distlock.Timeout(time.Minute)); err != nil {
			t.Fatal(err)
		}
		mustRelease(t, lock)
	})
	bubble(t, func(t *testing.T) {
		s := newStore()
		under := make(chan struct{})
		s.upgrade = func(context.Context, time.Duration) error { <-under; return nil }
		l := newLocker(t, s, &distlock.Options{ReleaseTimeout: time.Second})
		lock := mustAcquire(t, l, "a", distlock.Upgradeable())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantErr(t, lock.Upgrade(ctx), []error{context.DeadlineExceeded})
		time.AfterFunc(time.Second, func() { lock.Release() })
		within(t, time.Second, "Upgrade of what is released", func() {
			wantErr(t, lock.Upgrade(t.Context()), []error{distlock.ErrReleased})
		})
		close(under)
	})
}

// A single try has five seconds to be answered, those included in which another upgrade
// of the lock is waited for.
func TestP08_SingleUpgradeIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStore()
		first := time.Now().Add(5 * time.Second)
		s.upgrade = func(ctx context.Context, _ time.Duration) error {
			if until := time.Until(first); until > 0 {
				time.Sleep(until)
				return context.Canceled
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}
		l := newLocker(t, s, nil)
		lock := mustAcquire(t, l, "a", distlock.Upgradeable())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantErr(t, lock.Upgrade(ctx), []error{context.DeadlineExceeded})
		start := time.Now()
		if err := lock.Upgrade(t.Context(), distlock.Timeout(0)); err == nil || errors.Is(err, distlock.ErrNotAcquired) {
			t.Errorf("a store that doesn't answer: %v", err)
		}
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("a single try took %v", took)
		}
		mustRelease(t, lock)
	})
}
