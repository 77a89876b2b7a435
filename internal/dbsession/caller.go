package dbsession

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock-go/distlock/driver"
)

// A Caller is a connection of the caller's: the session of the locks on it.
type Caller struct {
	conn    *sql.Conn
	invalid error
	harms   func(error) bool

	looking atomic.Bool
	once    sync.Once
	lost    chan struct{}
}

// NewCaller returns the session. Invalid is the error if the driver says that its
// connection isn't valid, and harms reports whether an error means the end of the
// connection.
func NewCaller(conn *sql.Conn, invalid error, harms func(error) bool) *Caller {
	return &Caller{conn: conn, invalid: invalid, harms: harms, lost: make(chan struct{})}
}

// Use runs f, which sends statements and reads all of the answers, between two
// statements of the caller's. Another goroutine's would break the connection.
func (s *Caller) Use(f func(c *Conn) error) error {
	err := s.conn.Raw(func(dc any) error {
		if v, ok := dc.(sqldriver.Validator); ok && !v.IsValid() {
			return s.invalid
		}
		c, err := Wrap(dc)
		if err != nil {
			return err
		}
		return f(c)
	})
	if err == nil || !s.harms(err) {
		return err
	}
	s.once.Do(func() { close(s.lost) })
	return fmt.Errorf("%w: %w", driver.ErrLost, err)
}

// Lease implements [driver.Session].
func (s *Caller) Lease() driver.Lease { return driver.Lease{Every: 5 * time.Second} }

// Renew implements [driver.Session]. It looks whether the connection has failed
// under the caller, and sends nothing: that would break it if the caller is between
// two rows, which can't always be seen. While a statement of his is under way
// nothing can be seen at all; one look waits for its end then.
func (s *Caller) Renew(ctx context.Context) error {
	if !s.looking.CompareAndSwap(false, true) {
		return nil
	}
	seen := make(chan error, 1)
	go func() {
		defer s.looking.Store(false)
		err := s.Use(func(*Conn) error { return nil })
		if !errors.Is(err, driver.ErrLost) {
			err = nil
		}
		seen <- err
	}()
	select {
	case err := <-seen:
		return err
	case <-ctx.Done():
		return nil
	}
}

// Lost implements [driver.Session].
func (s *Caller) Lost() <-chan struct{} { return s.lost }

// Abandon implements [driver.Session]. The connection is the caller's: its locks
// end when he closes it, or the server does.
func (s *Caller) Abandon() {}
