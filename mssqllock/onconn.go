package mssqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"sync"
	"time"

	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/dbsession"
)

// OnConn returns a backend that locks on the caller's own connection, so that the
// lock and what is done under it share one fate: if the connection is lost, so is
// the transaction that it was in. It needs no further connection, has exclusive,
// shared and upgradeable locks, and no tokens. For a lock that is to end with a
// transaction see [InTx]. There is no [Options.Prefix] here: put one before the
// resources yourself.
//
// Conn stays the caller's to close, after the backend, which releases what is
// still held: the server keeps the locks of a connection that has gone back to
// its pool until somebody uses that again.
//
// A waiter asks again and again, without waiting at the server, and so has no
// place in the server's queue. What the connection holds already, taken through
// this backend or in another way, is as held as anything else, in all modes, and
// is never released by a failed or canceled wait.
//
// Each call waits while a statement of the caller's runs. While rows are open the
// driver can't run another statement, and two wait for each other for ever: close
// rows before each Acquire and Release, as before any statement on a *sql.Conn.
// For that reason nothing is sent as long as a lock is held, so that the loss of the connection shows when it is
// used next, or within five seconds after the caller's own statement has met it.
func OnConn(conn *sql.Conn) *ConnBackend {
	return &ConnBackend{session: dbsession.NewCaller(conn, sqldriver.ErrBadConn, ended), mine: make(map[string]bool), dialect: newDialect()}
}

// ConnBackend locks on one connection of the caller's. Its methods are safe for
// concurrent use.
type ConnBackend struct {
	session *dbsession.Caller
	dialect *dialect

	mu     sync.Mutex
	closed bool
	judged bool
	mine   map[string]bool // what this backend has taken
}

// Info implements [driver.Backend].
func (b *ConnBackend) Info() driver.Info {
	return driver.Info{
		Name: "sqlserver", Modes: driver.ModesOf(driver.Exclusive, driver.Shared, driver.Upgradeable),
		PollMin: 5 * time.Millisecond, PollMax: 250 * time.Millisecond,
	}
}

var errConnClosed = errors.New("the backend is closed, though its connection may be open")

// Close implements [driver.Backend]. It releases what was taken through b. Nothing
// is sent on the connection after that.
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

// modeNames are those of sp_getapplock.
var modeNames = map[driver.Mode]string{driver.Exclusive: "Exclusive", driver.Shared: "Shared", driver.Upgradeable: "Update"}

// Acquire implements [driver.Backend].
func (b *ConnBackend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	want, ok := modeNames[r.Mode]
	if !ok {
		return driver.Grant{}, errors.ErrUnsupported
	}
	if ctx.Err() != nil {
		return driver.Grant{}, context.Cause(ctx)
	}
	g := &connHold{b: b, name: LockName(r.Resource)}
	sent := time.Now()
	answered := make(chan error, 1)
	go func() { answered <- b.take(g.name, want) }()
	select {
	case err := <-answered:
		if err != nil {
			return driver.Grant{}, err
		}
		return driver.Grant{Hold: g, Session: b.session, Sent: sent}, nil
	case <-ctx.Done():
		// The statement goes on; what comes of it is given back.
		go func() {
			if <-answered == nil {
				_ = g.Release(context.Background()) // or it ends with the connection
			}
		}()
		return driver.Grant{}, context.Cause(ctx)
	}
}

var takeOnce = &query{
	"DECLARE @r int=-1;IF APPLOCK_MODE('public',@p1,'Session')='NoLock' EXEC @r=sp_getapplock @p1,@p2,'Session',0;SELECT @r",
	"@p1 nvarchar(255),@p2 nvarchar(32)",
}

// take tries to take the name once.
func (b *ConnBackend) take(name, want string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errConnClosed
	}
	var st dbsession.Step
	err := b.session.Use(func(c *dbsession.Conn) error {
		if !b.judged {
			row, err := c.Text(about)
			if err != nil {
				return err
			}
			_, s, err := read(row)
			if err != nil {
				return err
			}
			s.trans = 0 // it may well have one
			if err := s.judge(); err != nil {
				return refusedError{err}
			}
			b.judged = true
		}
		row, err := execute(context.Background(), c, takeOnce, 2, func(i int) any { return []any{name, want}[i] })
		if err != nil {
			return err
		}
		return st.Set(row[0])
	})
	if err != nil {
		return explain(err)
	}
	st.Result = result(st.Result)
	switch {
	case st.Result < 0:
		return codeError(st.Result)
	case st.Result == 0:
		return driver.ErrHeld
	}
	b.mine[name] = true
	return nil
}

// refusedError is the judgement on a server, which is no fault of the connection.
type refusedError struct{ error }

func (r refusedError) Unwrap() error { return r.error }

// do runs a step on the connection; b.mu is held.
func (b *ConnBackend) do(verb dbsession.Verb, name string) (int64, error) {
	st := &dbsession.Step{Verb: verb, Key: name}
	err := b.session.Use(func(c *dbsession.Conn) error {
		return b.dialect.Run(context.Background(), c, []*dbsession.Step{st})
	})
	if err == nil {
		err = checked(st)
	}
	return st.Result, err
}

// release releases the name; b.mu is held.
func (b *ConnBackend) release(name string) error {
	got, err := b.do(doRelease, name)
	if err == nil && got != 1 {
		err = dbsession.ErrGone
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

// Upgrade implements [driver.Upgrader]. It asks once.
func (h *connHold) Upgrade(context.Context, time.Duration) (uint64, error) {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	switch {
	case h.b.closed:
		return 0, errConnClosed
	case h.done || !h.b.mine[h.name]:
		return 0, dbsession.ErrGone // what is held of the name isn't this
	}
	got, err := h.b.do(doUpgrade, h.name)
	switch {
	case err != nil:
	case got == notHeld:
		err = dbsession.ErrGone
	case got != 1:
		err = driver.ErrHeld
	}
	return 0, explain(err)
}

// ended reports whether the error means the end of the connection.
func ended(err error) bool {
	return !errors.As(err, &refusedError{}) && !(&dialect{}).Answered(err)
}

var (
	_ driver.Backend  = (*ConnBackend)(nil)
	_ driver.Upgrader = (*connHold)(nil)
)
