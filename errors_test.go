package distlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

// An error says once what failed, though its cause is one of this package.
func TestErrorTextsOfALostLock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lease := newLease(ttl)
		s := leased(lease)
		l := newLocker(t, s, nil)
		lock := mustAcquire(t, l, "a", distlock.Upgradeable())
		close(lease.lost)
		<-lock.Done()
		for _, c := range []struct {
			err  error
			want string
		}{
			{lock.Err(), `distlock: hold "a" (scripted): lock lost: the session ended`},
			{lock.Upgrade(t.Context()), `distlock: upgrade "a" (scripted): lock lost: the session ended`},
			{lock.Release(), `distlock: release "a" (scripted): lock lost: the session ended`},
		} {
			wantErr(t, c.err, []error{distlock.ErrLost})
			if got := c.err.Error(); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		}

		// The first of two is lost while the second is acquired.
		lease = newLease(ttl)
		s.session = func() driver.Session { return lease }
		s.answer = func(_ context.Context, r driver.Request) (driver.Grant, bool, error) {
			if r.Resource == "c" {
				s.session = nil
				close(lease.lost)
				<-lease.abandoned // after the holder was told
			}
			return driver.Grant{}, false, nil
		}
		_, err := l.AcquireAll(t.Context(), []string{"b", "c"})
		wantErr(t, err, []error{distlock.ErrLost})
		if got := err.Error(); got != `distlock: acquire "b" (scripted): lock lost: the session ended` {
			t.Error(got)
		}
	})
}

func TestUpgradeOfAHoldThatCannotSaysWhatToDo(t *testing.T) {
	s := newStore()
	s.answer = func(_ context.Context, r driver.Request) (driver.Grant, bool, error) {
		g, err := s.grant(r)
		g.Hold = plainHold{g.Hold}
		return g, true, err
	}
	lock := mustAcquire(t, newLocker(t, s, nil), "a", distlock.Upgradeable())
	err := lock.Upgrade(t.Context())
	wantErr(t, err, []error{errors.ErrUnsupported})
	if !strings.HasSuffix(err.Error(), "this backend can't upgrade a lock: release it, and acquire an exclusive one") {
		t.Error(err)
	}
}
