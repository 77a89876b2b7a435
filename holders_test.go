package distlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

// An inspected store tells who holds, when it may.
type inspected struct {
	*store
	may chan struct{}
}

func (s inspected) Holders(context.Context, string, driver.Mode) ([]driver.Holder, error) {
	<-s.may
	s.note("holders", driver.Request{})
	return nil, nil
}

func TestHoldersOfABackendThatCannotTell(t *testing.T) {
	_, err := newLocker(t, newStore(), nil).Holders(t.Context(), "a")
	wantErr(t, err, []error{errors.ErrUnsupported})
	if got := err.Error(); got != `distlock: inspect "a" (scripted): this backend can't tell who holds a resource` {
		t.Error(got)
	}
}

func TestHoldersTakesOneOption(t *testing.T) {
	may := make(chan struct{})
	close(may)
	s := inspected{newStore(), may}
	l := distlock.New(s, nil)
	defer l.Close()
	for _, o := range []distlock.AcquireOption{
		distlock.Timeout(0), distlock.Timeout(time.Second), distlock.Shared(), distlock.Upgradeable(), distlock.Semaphore(0), {},
	} {
		_, err := l.Holders(t.Context(), "a", o)
		wantErr(t, err, []error{distlock.ErrBadArgument})
		if !strings.HasPrefix(err.Error(), `distlock: inspect "a" (scripted): `) {
			t.Error(err)
		}
	}
	if n := s.count("holders"); n != 0 {
		t.Errorf("the store was asked %d times", n)
	}
	for _, opts := range [][]distlock.AcquireOption{nil, {distlock.Semaphore(3)}} {
		if _, err := l.Holders(t.Context(), "a", opts...); err != nil {
			t.Error(err)
		}
	}
}

func TestP25_CloseWaitsForHolders(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := inspected{newStore(), make(chan struct{})}
		l := distlock.New(s, nil)
		told := make(chan error)
		go func() {
			_, err := l.Holders(t.Context(), "a")
			told <- err
		}()
		synctest.Wait()
		closed := make(chan error)
		go func() { closed <- l.Close() }()
		time.Sleep(time.Second)
		if s.closed > 0 {
			t.Error("the backend was closed while it was asked who holds")
		}
		close(s.may)
		if err := <-told; err != nil {
			t.Error(err)
		}
		if err := <-closed; err != nil || s.closed != 1 {
			t.Errorf("Close: %v, the backend was closed %d times", err, s.closed)
		}
		_, err := l.Holders(t.Context(), "a")
		wantErr(t, err, []error{distlock.ErrClosed})
	})
}
