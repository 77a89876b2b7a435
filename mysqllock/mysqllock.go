package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/dbsession"
)

// Options tune a [Backend]. Nil and the zero value are the defaults.
type Options struct {
	// Prefix is put before each resource. Locks of GET_LOCK are those of the whole
	// server, whatever the database: a prefix keeps applications apart. .NET
	// services use none.
	Prefix string

	// MaxSessions is how many connections may be in use at once. Default 8; of a
	// pool with a limit never more than half, but one.
	MaxSessions int

	// MaxWaiting is how many of them may wait for a lock at the server. Default
	// half of MaxSessions; negative is none (not in a URL). Waiters beyond that ask
	// again and again, in common statements.
	MaxWaiting int

	// Readers is how many processes may hold one resource in shared mode at once:
	// each takes one of as many places. All users of a server must have the same
	// number, or writers don't see all readers. Default 16, at most 64; negative is
	// no shared mode, on condition that nobody else on the server has it.
	Readers int

	// Heartbeat is the pause between two proofs that a connection lives. A dead
	// one is noticed within twice that. Default 5 s, at least 100 ms and at most 10
	// minutes. The server frees the locks of a client that vanished after three times
	// that. With a FenceTable it should be 2 s at least: to count a token can take one
	// second, if somebody has locked the row, and a connection that doesn't answer for
	// a heartbeat is closed.
	Heartbeat time.Duration

	// IdleTimeout is how long a connection without locks is kept, two heartbeats at
	// most, which is the default.
	IdleTimeout time.Duration

	// FenceTable is the table that counts the fencing tokens, as name or
	// database.name. Empty means that there are no tokens. [FenceTableDDL] makes it.
	FenceTable string

	// CreateFenceTable makes the table if it isn't there.
	CreateFenceTable bool
}

// maxReaders is the largest value of [Options.Readers].
const maxReaders = 64

func (o *Options) withDefaults() (Options, error) {
	var full Options
	if o != nil {
		full = *o
	}
	if full.Readers == 0 {
		full.Readers = 16
	}
	full.Readers = max(full.Readers, 0)
	switch {
	case full.Readers > maxReaders:
		return full, fmt.Errorf("Options.Readers of %d: at most %d", full.Readers, maxReaders)
	case full.CreateFenceTable && full.FenceTable == "":
		return full, errors.New("Options.CreateFenceTable without a FenceTable")
	}
	return full, dbsession.Complete(&full.MaxSessions, &full.MaxWaiting, &full.Heartbeat, &full.IdleTimeout)
}

// Backend locks on a MySQL or MariaDB server. Its methods are safe for
// concurrent use.
type Backend struct {
	db      *sql.DB
	ownDB   bool
	opt     Options
	bad     error
	dialect *dialect
	pool    *dbsession.Pool
	first   int // the place where this process begins to look for one

	readTurn chan struct{} // has a value while somebody uses reader
	reader   struct {
		session *dbsession.Session
		claim   *dbsession.Claim
		name    string
		users   int // shares on it, or on their way
	}

	mu      sync.Mutex
	shares  map[string]*share
	sharing map[*sharedHold]struct{}
}

// New returns a backend that takes its connections from db, which stays the
// caller's to close, after the backend. It does no I/O; invalid options are
// reported by the first Acquire.
//
// Leave readTimeout out of db's DSN: it breaks the connection of who waits for
// longer than that, and he waits anew, behind all others. A server that doesn't
// answer is noticed without it.
func New(db *sql.DB, o *Options) *Backend { return newBackend(db, o, 0, nil) }

func newBackend(db *sql.DB, o *Options, timeout time.Duration, connect func(context.Context) (*sql.Conn, func(), error)) *Backend {
	b := &Backend{db: db, dialect: newDialect(), readTurn: make(chan struct{}, 1), shares: make(map[string]*share), sharing: make(map[*sharedHold]struct{})}
	b.opt, b.bad = o.withDefaults()
	if b.bad == nil && b.opt.FenceTable != "" {
		b.dialect.fence, b.bad = quoteTable(b.opt.FenceTable)
	}
	if b.bad != nil {
		b.bad = fmt.Errorf("%w: %w", distlock.ErrBadArgument, b.bad)
	}
	b.dialect.setReaders(b.opt.Readers)
	// A lost lock is announced two heartbeats after the last sign of life; only
	// then may the server free it by itself.
	b.dialect.vanish = max(3*b.opt.Heartbeat, time.Second)
	b.first = rand.IntN(max(b.opt.Readers, 1))
	b.pool = dbsession.New(db, b.dialect, dbsession.Options{
		MaxSessions: b.opt.MaxSessions, MaxWaiting: b.opt.MaxWaiting,
		Heartbeat: b.opt.Heartbeat, IdleTimeout: b.opt.IdleTimeout, ConnectTimeout: timeout, Connect: connect, Dropped: b.dropped,
	})
	return b
}

// Info implements [driver.Backend].
func (b *Backend) Info() driver.Info {
	modes := driver.ModesOf(driver.Exclusive, driver.Permit)
	if b.opt.Readers > 0 {
		modes |= driver.ModesOf(driver.Shared)
	}
	return driver.Info{Name: "mysql", Modes: modes, AnswersWithin: b.opt.Heartbeat, Interruptible: driver.ModesOf(driver.Exclusive)}
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
	var g driver.Grant
	err := b.pool.Persist(ctx, a.begun, func(ctx context.Context) (err error) {
		g, err = a.askAndCount(ctx)
		return err
	})
	return g, err
}

// dropped forgets who shared what on a session: nobody releases what is lost.
func (b *Backend) dropped(s *dbsession.Session) {
	b.mu.Lock()
	var lost []*sharedHold
	for h := range b.sharing {
		if h.Session == s {
			lost = append(lost, h)
			delete(b.sharing, h)
		}
	}
	b.mu.Unlock()
	for _, h := range lost {
		h.mu.Lock()
		if !h.done {
			h.done, h.result = true, dbsession.ErrEnded
			h.share.unuse()
		}
		h.mu.Unlock()
	}
}
