package mssqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/dbsession"
)

// Options tune a [Backend]. Nil and the zero value are the defaults.
type Options struct {
	// Prefix is put before each resource. Locks belong to a database: a prefix
	// keeps applications apart that share one. .NET services use none.
	Prefix string

	// MaxSessions is how many connections may be in use at once. Default 8; of a
	// pool with a limit never more than half, but one.
	MaxSessions int

	// MaxWaiting is how many of them may wait for a lock at the server. Default
	// half of MaxSessions; negative is none (not in a URL). Waiters beyond that ask
	// again and again, in common statements.
	MaxWaiting int

	// Heartbeat is the pause between two proofs that a connection lives. A dead
	// one is noticed within twice that. Default 5 s, at least 100 ms, and at most
	// 10 minutes, as Azure cuts connections that are idle for 30.
	Heartbeat time.Duration

	// IdleTimeout is how long a connection without locks is kept, two heartbeats at
	// most, which is the default.
	IdleTimeout time.Duration

	// Sequence is the SEQUENCE that the fencing tokens come from, as name or
	// schema.name. Empty means that there are no tokens. [SequenceDDL] makes it.
	Sequence string

	// CreateSequence makes the sequence if it isn't there.
	CreateSequence bool
}

func (o *Options) withDefaults() (Options, error) {
	var full Options
	if o != nil {
		full = *o
	}
	if full.CreateSequence && full.Sequence == "" {
		return full, errors.New("Options.CreateSequence without a Sequence")
	}
	return full, dbsession.Complete(&full.MaxSessions, &full.MaxWaiting, &full.Heartbeat, &full.IdleTimeout)
}

// Backend locks in a database of a SQL Server. Its methods are safe for
// concurrent use.
type Backend struct {
	db      *sql.DB
	ownDB   bool
	opt     Options
	bad     error
	dialect *dialect
	pool    *dbsession.Pool

	mu     sync.Mutex
	fenced bool   // the sequence is known to be there, and good
	uses   uint64 // of keys that can be held several times
}

// New returns a backend that takes its connections from db, which stays the
// caller's to close, after the backend. It does no I/O; invalid options are
// reported by the first Acquire.
func New(db *sql.DB, o *Options) *Backend {
	return newBackend(db, o, func(ctx context.Context) (*sql.Conn, func(), error) {
		c, err := connectWithin(ctx, db)
		return c, nil, err
	})
}

func newBackend(db *sql.DB, o *Options, connect func(context.Context) (*sql.Conn, func(), error)) *Backend {
	b := &Backend{db: db, dialect: newDialect()}
	b.opt, b.bad = o.withDefaults()
	if b.bad == nil && b.opt.Sequence != "" {
		b.dialect.sequence, b.bad = quoteSequence(b.opt.Sequence)
	}
	if b.bad != nil {
		b.bad = fmt.Errorf("%w: %w", distlock.ErrBadArgument, b.bad)
	}
	b.pool = dbsession.New(db, b.dialect, dbsession.Options{
		MaxSessions: b.opt.MaxSessions, MaxWaiting: b.opt.MaxWaiting,
		Heartbeat: b.opt.Heartbeat, IdleTimeout: b.opt.IdleTimeout, Connect: connect,
	})
	return b
}

// Info implements [driver.Backend].
func (b *Backend) Info() driver.Info {
	return driver.Info{
		Name:          "sqlserver",
		Modes:         driver.ModesOf(driver.Exclusive, driver.Shared, driver.Upgradeable, driver.Permit),
		AnswersWithin: b.opt.Heartbeat,
		Interruptible: driver.ModesOf(driver.Exclusive),
	}
}

// Close implements [driver.Backend].
func (b *Backend) Close() error {
	b.pool.Close()
	if b.ownDB {
		return b.db.Close()
	}
	return nil
}

// Acquire implements [driver.Backend].
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if b.bad != nil {
		return driver.Grant{}, b.bad
	}
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, context.Cause(ctx)
	}
	a := &attempt{b: b, r: r, limit: dbsession.LimitOf(r.Wait), names: namesOf(b.opt.Prefix + r.Resource)}
	if r.Wait == 0 {
		a.begun = time.Now()
	}
	var h *hold
	err := b.pool.Persist(ctx, a.begun, func(ctx context.Context) (err error) {
		h, err = a.ask(ctx)
		return err
	})
	if err != nil {
		return driver.Grant{}, explain(err)
	}
	token, err := h.count(ctx, a.begun, driver.Holder{Owner: r.Owner, Mode: r.Mode})
	if err != nil {
		return driver.Grant{}, h.Session.TakeBack(ctx, a.begun, err, h)
	}
	return driver.Grant{Hold: h, Token: token, Session: h.Session, Sent: a.sent}, nil
}

// hold is one holding.
type hold struct {
	dbsession.Holding

	b        *Backend
	upgraded bool
}

// count returns a new token, and notes who has it.
func (h *hold) count(ctx context.Context, asked time.Time, who driver.Holder) (uint64, error) {
	token, err := h.b.count(ctx, asked, h.Session)
	if err == nil {
		who.Since, who.Token = time.Now(), token
		h.Note(who)
	}
	return token, err
}

var (
	_ driver.Backend  = (*Backend)(nil)
	_ driver.Hold     = (*hold)(nil)
	_ driver.Upgrader = (*hold)(nil)
)
