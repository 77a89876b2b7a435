package mysqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/dbsession"
)

// OnConn returns a backend that locks on the caller's own connection, so that the
// lock and what is done under it share one fate: if the connection is lost, so is
// the transaction that it was in. It needs no further connection, and has
// exclusive locks only, without tokens. Conn stays the caller's to close, after
// the backend.
//
// A statement on the connection is never canceled, since that would close it: a
// waiter asks again and again, with timeout 0, and so has no place in the
// server's queue. What the connection holds already, taken through this backend
// or in another way, is as held as anything else, and is never released by a
// failed or canceled wait.
//
// Each call waits while a statement of the caller's runs. Close rows before: an
// Acquire or Release in the middle of an answer fails and has done nothing where
// the driver can tell, and else breaks the connection.
//
// Nothing is sent as long as a lock is held. That the connection is lost shows in
// Done and Err within five seconds after database/sql has noticed it, which is at
// the first use after the one that failed: what is written over that very
// connection needs no more. A query that the caller cancels closes the
// connection, and ends the lock. A wait_timeout of the server applies.
func OnConn(conn *sql.Conn) *ConnBackend {
	return &ConnBackend{conn: conn, session: &connSession{conn: conn, lost: make(chan struct{})}, mine: make(map[string]bool)}
}

// ConnBackend locks on one connection of the caller's. Its methods are safe for
// concurrent use.
type ConnBackend struct {
	conn    *sql.Conn
	session *connSession

	mu     sync.Mutex
	closed bool
	judged bool
	mine   map[string]bool // what this backend has taken
}

// Info implements [driver.Backend].
func (b *ConnBackend) Info() driver.Info {
	return driver.Info{
		Name: "mysql", Modes: driver.ModesOf(driver.Exclusive),
		PollMin: 5 * time.Millisecond, PollMax: 250 * time.Millisecond,
	}
}

// Close implements [driver.Backend]. It releases what was taken through b.
func (b *ConnBackend) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	var errs []error
	for name := range b.mine {
		errs = append(errs, b.release(name))
		delete(b.mine, name)
	}
	return errors.Join(errs...)
}

// Acquire implements [driver.Backend].
func (b *ConnBackend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if r.Mode != driver.Exclusive {
		return driver.Grant{}, errors.ErrUnsupported
	}
	if ctx.Err() != nil {
		return driver.Grant{}, context.Cause(ctx)
	}
	g := &connHold{b: b, name: LockName(r.Resource)}
	sent := time.Now()
	type answer struct{ err error }
	answered := make(chan answer, 1)
	go func() { answered <- answer{b.take(g.name)} }()
	select {
	case a := <-answered:
		if a.err != nil {
			return driver.Grant{}, a.err
		}
		return driver.Grant{Hold: g, Session: b.session, Sent: sent}, nil
	case <-ctx.Done():
		// The statement goes on; what comes of it is given back.
		go func() {
			if a := <-answered; a.err == nil {
				_ = g.Release(context.Background()) // it fails only with the connection
			}
		}()
		return driver.Grant{}, context.Cause(ctx)
	}
}

// take tries to take the name once.
func (b *ConnBackend) take(name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errConnClosed
	}
	if !b.judged {
		if err := b.judge(); errors.Is(err, sql.ErrConnDone) {
			return errConnDone
		} else if err != nil {
			return err
		}
		b.judged = true
	}
	got, err := b.session.ask("SELECT IF(IS_USED_LOCK(" + literal(name) + ")<=>CONNECTION_ID(),0,GET_LOCK(" + literal(name) + ",0))")
	switch {
	case errors.Is(err, sql.ErrConnDone):
		return errConnDone
	case err != nil:
		return explain(err)
	case got != 1:
		return driver.ErrHeld
	}
	b.mine[name] = true
	return nil
}

// judge looks whether the server can be used.
func (b *ConnBackend) judge() error {
	found := make(map[string]string)
	err := b.session.use(func(c *dbsession.Conn) error {
		return c.Each(showVariables, func(row []sqldriver.Value) { found[dbsession.Text(row[0])] = dbsession.Text(row[1]) })
	})
	if err == nil {
		_, err = judge(found)
	}
	return err
}

// release releases the name; b.mu is held.
func (b *ConnBackend) release(name string) error {
	got, err := b.session.ask("SELECT RELEASE_LOCK(" + literal(name) + ")")
	if err == nil && got != 1 {
		err = fmt.Errorf("%w: the server says that its session doesn't hold it", driver.ErrLost)
	}
	return err
}

type connHold struct {
	b    *ConnBackend
	name string

	done   bool // guarded by ConnBackend.mu
	result error
}

// Release implements [driver.Hold].
func (h *connHold) Release(context.Context) error {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	if h.done || !h.b.mine[h.name] {
		return h.result
	}
	err := h.b.release(h.name)
	if err == nil || errors.Is(err, driver.ErrLost) {
		h.done, h.result = true, err
		delete(h.b.mine, h.name)
	}
	return err
}

// connSession is the caller's connection.
type connSession struct {
	conn *sql.Conn
	once sync.Once
	lost chan struct{}
}

var (
	errConnClosed = errors.New("the backend is closed: OnConn makes another on the same connection")
	errConnDone   = fmt.Errorf("%w: OnConn needs a connection that is open", sql.ErrConnDone)
)

var errRows = errors.New("rows are open on the connection (close them first), or a canceled query has closed it")

// use runs f, which sends a statement and reads all of the answer, between two
// statements of the caller's. Another goroutine's would break the connection.
func (s *connSession) use(f func(c *dbsession.Conn) error) error {
	err := s.conn.Raw(func(dc any) error {
		if v, ok := dc.(sqldriver.Validator); ok && !v.IsValid() {
			return errRows
		}
		c, err := dbsession.Wrap(dc)
		if err != nil {
			return err
		}
		return f(c)
	})
	if err != nil && !errors.Is(err, errRows) {
		err = s.note(err)
	}
	return err
}

// ask returns the number that a query results in; NULL is 0.
func (s *connSession) ask(query string) (int64, error) {
	var st dbsession.Step
	err := s.use(func(c *dbsession.Conn) error {
		row, err := c.Text(query)
		if err != nil {
			return err
		}
		return st.Set(row[0])
	})
	return st.Result, err
}

// note looks whether the error means the end of the connection.
func (s *connSession) note(err error) error {
	if (&dialect{}).Answered(err) {
		return err
	}
	s.once.Do(func() { close(s.lost) })
	return fmt.Errorf("%w: %w", driver.ErrLost, err)
}

// Lease implements [driver.Session].
func (s *connSession) Lease() driver.Lease { return driver.Lease{Every: 5 * time.Second} }

// Renew implements [driver.Session]. It sends nothing: that would break the
// connection if the caller is between two rows, which can't always be seen. A
// connection that has failed is closed by database/sql at its next use.
func (s *connSession) Renew(ctx context.Context) error {
	answered := make(chan error, 1)
	go func() { answered <- s.conn.Raw(func(any) error { return nil }) }()
	select {
	case err := <-answered:
		if err != nil {
			err = s.note(err)
		}
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Lost implements [driver.Session].
func (s *connSession) Lost() <-chan struct{} { return s.lost }

// Abandon implements [driver.Session]. The connection is the caller's: its locks
// end when he closes it, or the server does.
func (s *connSession) Abandon() {}
