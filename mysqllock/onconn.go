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
// Resources have the names that [LockName] gives them: who shares them with a
// backend that has [Options.Prefix] puts that before them himself. Readers of [New]
// and [Open] exclude it, however many places [Options.Readers] gives them.
//
// A statement on the connection is never canceled, since that would close it: a
// waiter asks again and again, with timeout 0, and so has no place in the
// server's queue. If only readers are left he keeps the lock and asks until they
// have gone, so that no new ones get in. What the connection holds already, taken
// through this backend or in another way, is as held as anything else, and is never
// released by a failed or canceled wait.
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
	return &ConnBackend{session: dbsession.NewCaller(conn, errRows, ended), mine: make(map[string]bool)}
}

// ConnBackend locks on one connection of the caller's. Its methods are safe for
// concurrent use.
type ConnBackend struct {
	session *dbsession.Caller

	mu     sync.Mutex
	closed bool
	judged bool
	mine   map[string]bool // what this backend has taken, granted or not yet
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
	limit := dbsession.LimitOf(r.Wait)
	h := &connHold{b: b, name: LockName(r.Resource), free: allFree(namesOf(r.Resource).slots(maxReaders))}
	type answer struct {
		sent time.Time
		err  error
	}
	answered := make(chan answer, 1)
	go func() {
		sent, err := h.take(ctx, limit)
		answered <- answer{sent, err}
	}()
	select {
	case a := <-answered:
		if a.err != nil {
			return driver.Grant{}, a.err
		}
		return driver.Grant{Hold: h, Session: b.session, Sent: a.sent}, nil
	case <-ctx.Done():
		// The statement goes on; what comes of it is given back.
		go func() {
			if a := <-answered; a.err == nil {
				h.giveBack()
			}
		}()
		return driver.Grant{}, context.Cause(ctx)
	}
}

// take takes the name if it is free and has no readers. Given time, it waits until
// those have gone, with the name taken.
func (h *connHold) take(ctx context.Context, limit dbsession.Limit) (sent time.Time, err error) {
	name := literal(h.name)
	mine := "IS_USED_LOCK(" + name + ")<=>CONNECTION_ID()"
	read := "2"
	if limit == (dbsession.Limit{}) {
		read = "RELEASE_LOCK(" + name + ")-1"
	}
	sent = time.Now()
	got, err := h.ask("SELECT IF(" + mine + ",0,IF(GET_LOCK(" + name + ",0),IF(" + h.free + ",1," + read + "),0))")
	switch {
	case err != nil:
		return sent, err
	case got == 1:
		return sent, nil
	case got != 2:
		return sent, driver.ErrHeld
	}
	err = dbsession.Poll(ctx, limit.Left, func() (bool, error) {
		sent = time.Now()
		got, err := h.ask("SELECT IF(" + mine + "," + h.free + ",-1)")
		if got < 0 { // the caller has released all that his connection held
			err = driver.ErrHeld
		}
		return got == 1, err
	})
	if err != nil {
		h.giveBack()
	}
	return sent, err
}

// ask returns the number that a query results in. If that is positive, the
// connection has the name; if it is negative, it hasn't any more.
func (h *connHold) ask(query string) (int64, error) {
	b := h.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, errConnClosed
	}
	if !b.judged {
		if err := b.judge(); errors.Is(err, sql.ErrConnDone) {
			return 0, errConnDone
		} else if err != nil {
			return 0, err
		}
		b.judged = true
	}
	got, err := b.number(query)
	switch {
	case errors.Is(err, sql.ErrConnDone):
		return 0, errConnDone
	case err != nil:
		return 0, explain(err)
	}
	switch {
	case got > 0:
		b.mine[h.name] = true
	case got < 0: // what comes yet isn't this one's
		delete(b.mine, h.name)
	}
	return got, nil
}

// judge looks whether the server can be used.
func (b *ConnBackend) judge() error {
	found := make(map[string]string)
	err := b.session.Use(func(c *dbsession.Conn) error {
		return c.Each(showVariables, func(row []sqldriver.Value) { found[dbsession.Text(row[0])] = dbsession.Text(row[1]) })
	})
	if err == nil {
		_, err = judge(found)
	}
	return err
}

// release releases the name; b.mu is held.
func (b *ConnBackend) release(name string) error {
	got, err := b.number("SELECT RELEASE_LOCK(" + literal(name) + ")")
	if err == nil && got != 1 {
		err = dbsession.ErrGone
	}
	return err
}

type connHold struct {
	b    *ConnBackend
	name string
	free string // SQL: is 1 if it has no readers

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

// giveBack releases what isn't to be granted, as soon as no rows of the caller's
// are open.
func (h *connHold) giveBack() {
	if err := h.Release(context.Background()); errors.Is(err, errRows) {
		time.AfterFunc(50*time.Millisecond, h.giveBack)
	}
}

var (
	errConnClosed = errors.New("the backend is closed: OnConn makes another on the same connection")
	errConnDone   = fmt.Errorf("%w: OnConn needs a connection that is open", sql.ErrConnDone)
)

var errRows = errors.New("rows are open on the connection (close them first), or a canceled query has closed it")

// ended reports whether the error means the end of the connection.
func ended(err error) bool { return !errors.Is(err, errRows) && !(&dialect{}).Answered(err) }

// number returns the number that a query results in; NULL is 0.
func (b *ConnBackend) number(query string) (int64, error) {
	var st dbsession.Step
	err := b.session.Use(func(c *dbsession.Conn) error {
		row, err := c.Text(query)
		if err != nil {
			return err
		}
		return st.Set(row[0])
	})
	return st.Result, err
}
