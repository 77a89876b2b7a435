package dbsession

import (
	"context"
	"crypto/rand"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/distlock-go/distlock/driver"
)

// Session is one connection, out of its *sql.DB for good.
type Session struct {
	pool *Pool
	conn *Conn
	self Identity
	cut  func() // ends a statement that hangs

	lost chan struct{} // closed when it is dead
	wake chan struct{} // gets a value when there is something to do
	line sync.Mutex    // held while the connection is used

	// Guarded by Pool.mu.
	state     sessionState
	busy      bool // awake, or about to be
	led       bool // by a goroutine other than its own
	running   bool // a statement is under way
	dead      bool
	deadErr   error
	queue     []*Step // that must run here
	batch     []*Step // that runs
	began     time.Time
	proven    time.Time // when it last answered
	idleSince time.Time
	holds     int // claims bound to it
}

type sessionState uint8

const (
	sessionShared sessionState = iota
	sessionWaiting
)

const (
	// growAt steps in the queue make the pool open a session more, up to atOnce
	// of them that take new locks: more would only make smaller batches.
	growAt = 4
	atOnce = 2

	// nearTrip is the longest trip of a server that is near, and patience how long
	// one may take for others to wait for it.
	nearTrip = 500 * time.Microsecond
	patience = 10 * time.Millisecond

	// stuckAfter is how long statements must have been under way on all sessions for
	// one more to be opened for what waits, if the server isn't that far away.
	stuckAfter = 100 * time.Millisecond

	// crowd is how many more locks than the others a session may hold before new
	// ones go to the others: a statement costs the server the more, the more
	// locks its session holds.
	crowd = 128

	// fresh is how long a session that has answered is trusted to answer again,
	// so that a statement may do without the means to end it.
	fresh = 500 * time.Millisecond

	// waitConnectTimeout bounds the opening of a session to wait on where there is
	// another to ask over.
	waitConnectTimeout = 2 * time.Second
)

// pick returns an idle session for new locks, or nil if there is none, or another
// will take them along. Pool.mu is held.
func (p *Pool) pick() *Session {
	var idle *Session
	for _, s := range p.sessions {
		switch {
		case s.crowded():
		case !s.busy:
			if idle == nil {
				idle = s
			}
		case !s.running, p.near() && len(p.queue) < maxBatch && time.Since(s.began) < patience:
			return nil
		}
	}
	return idle
}

// near reports whether trips are so short that the work for a statement is what
// counts, on both sides: then it is better to wait for the next of a session than
// to make one more statement. Pool.mu is held.
func (p *Pool) near() bool { return p.trip < nearTrip }

// noteTrip keeps about the shortest time of late. Pool.mu is held.
func (p *Pool) noteTrip(d time.Duration) {
	if p.trip == 0 || d < p.trip {
		p.trip = d
	} else {
		p.trip += (d - p.trip) / 256
	}
}

// rouse makes an idle session look what there is to do. Pool.mu is held.
func (p *Pool) rouse(s *Session) {
	s.busy = true
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// passOn wakes up a session for what waits for any. Pool.mu is held.
func (p *Pool) passOn() {
	if len(p.queue) == 0 {
		return
	}
	if s := p.pick(); s != nil {
		p.rouse(s)
	}
}

// crowded reports whether the session leaves new locks to others. Pool.mu is
// held.
func (s *Session) crowded() bool {
	if s.state != sessionShared {
		return true
	}
	if s.holds < crowd {
		return false
	}
	for _, other := range s.pool.sessions {
		if other.state == sessionShared && other.holds+crowd <= s.holds {
			return true
		}
	}
	return false
}

// grow opens a session if one more is of use. Pool.mu is held.
func (p *Pool) grow() {
	if p.growing || p.closed {
		return
	}
	shared, full := 0, 0
	for _, s := range p.sessions {
		if s.state == sessionShared {
			shared++
			if s.holds >= crowd*shared {
				full++
			}
		}
	}
	wanted := shared == 0 && len(p.queue) > 0 || shared > 0 && shared < atOnce && len(p.queue) >= p.growAt() || shared > 0 && full == shared || shared <= atOnce && p.stuck()
	if !wanted || len(p.sessions)+p.opening >= p.maxSessions() {
		return
	}
	p.opening++
	p.growing = true
	p.tasks.Go(func() {
		ctx, cancel := context.WithTimeoutCause(p.life, p.opt.ConnectTimeout, ErrSilent)
		defer cancel()
		_, err := p.open(ctx, sessionShared)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.opening--
		p.growing = false
		switch {
		case err != nil && !p.anyShared():
			p.failQueue(err)
		case err == nil && len(p.queue) > 0:
			p.grow() // the session may have died already
		}
	})
}

// stuck reports whether something waits for a session, and all are held up: a
// statement may wait for the row of a table, and a connection may be dead. One more is
// of use then, and not many: a server may be slow with all it does, and the rest of the
// sessions is for those who wait. Pool.mu is held.
func (p *Pool) stuck() bool {
	for _, s := range p.sessions {
		if s.state == sessionShared && !s.stuck() {
			return false
		}
	}
	return len(p.queue) > 0
}

// stuck reports whether the session's statement takes long. Pool.mu is held.
func (s *Session) stuck() bool {
	return s.running && time.Since(s.began) >= max(stuckAfter, 4*s.pool.trip)
}

// growAt returns how many steps in the queue are too many for the sessions there
// are. Pool.mu is held.
func (p *Pool) growAt() int {
	if p.near() {
		return maxBatch
	}
	return growAt
}

func (p *Pool) anyShared() bool {
	for _, s := range p.sessions {
		if s.state == sessionShared {
			return true
		}
	}
	return false
}

// open makes a session.
func (p *Pool) open(ctx context.Context, state sessionState) (*Session, error) {
	connect := p.opt.Connect
	if connect == nil {
		connect = func(ctx context.Context) (*sql.Conn, func(), error) {
			c, err := p.db.Conn(ctx)
			return c, nil, err
		}
	}
	p.mu.Lock()
	if p.exhausted() == nil {
		p.dialing++
		defer func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.dialing--
		}()
	}
	p.mu.Unlock()
	c, cut, err := connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoConnection, p.wrap(ctx, err))
	}
	life, cancel := context.WithCancel(context.Background())
	s := &Session{
		pool: p, lost: make(chan struct{}), wake: make(chan struct{}, 1),
		state: state, busy: true, proven: time.Now(),
		self: Identity{Mark: "distlock/session/" + rand.Text()},
	}
	s.cut = cancel
	if cut != nil {
		s.cut = func() { cut(); cancel() }
	}
	ready := make(chan error, 1)
	p.tasks.Go(func() {
		defer cancel()
		defer c.Close() // before that, so that the server is told
		err := c.Raw(func(dc any) error {
			conn, ok := dc.(sqldriver.Conn)
			if !ok {
				return errors.New("the connection is no database/sql/driver.Conn")
			}
			s.conn = &Conn{conn: conn, life: life, hasCut: cut != nil}
			err := s.setUp(ctx)
			ready <- err
			if err == nil {
				s.serve()
			}
			return sqldriver.ErrBadConn
		})
		select {
		case ready <- err:
		default:
		}
	})
	if err := <-ready; err != nil {
		return nil, p.wrap(ctx, err)
	}
	return s, nil
}

// setUp makes the session one of the pool's.
func (s *Session) setUp(ctx context.Context) error {
	p := s.pool
	var peer *Identity
	other := p.peer(ctx)
	if other != nil {
		peer = &other.self
	}
	stop := context.AfterFunc(ctx, s.cut)
	var err error
	s.self.ID, err = p.dialect.Setup(s.conn.life, s.conn, s.self.Mark, peer)
	if err != nil && peer != nil && p.DoOn(ctx, other, &Step{Verb: Ping}) != nil {
		s.self.ID, err = p.dialect.Setup(s.conn.life, s.conn, s.self.Mark, nil) // it was the peer's fault
	}
	switch {
	case stop():
	case p.life.Err() != nil:
		return errClosed
	default: // ctx is none of the caller's, and nor must its error look so
		return fmt.Errorf("%w: %w", errNoConnection, context.Cause(ctx))
	}
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errClosed
	}
	s.proven = time.Now()
	p.sessions = append(p.sessions, s)
	p.tend()
	return nil
}

// peer returns a session that is known to live, or nil: one that has ended
// unnoticed would look like one of another server. One that is stuck can't be asked
// whether it lives, and is better than none: if the server knows it, it does.
func (p *Pool) peer(ctx context.Context) *Session {
	p.mu.Lock()
	var likely []*Session
	var last *Session
	for _, s := range p.sessions {
		switch {
		case time.Since(s.proven) >= p.opt.Heartbeat || s.state != sessionShared:
		case s.stuck():
			last = s
		default:
			likely = append(likely, s)
		}
	}
	p.mu.Unlock()
	for _, s := range likely {
		if p.DoOn(ctx, s, &Step{Verb: Ping}) == nil {
			return s
		}
	}
	return last
}

// serve does what is asked of the session, until it is dead.
func (s *Session) serve() {
	p := s.pool
	p.mu.Lock()
	for !s.dead {
		if s.busy && !s.led && s.turn() {
			continue
		}
		p.mu.Unlock()
		select {
		case <-s.wake:
			// Others may be about to ask, who can come along.
			runtime.Gosched()
		case <-s.lost:
		}
		p.mu.Lock()
	}
	p.mu.Unlock()
	s.line.Lock() // somebody may still be in a turn
	defer s.line.Unlock()
}

// turn does one round trip's worth of what is asked, by whoever made the session
// busy, and reports whether there was anything. If not, it is busy no more.
// Pool.mu is held, but for the time of the trip.
func (s *Session) turn() bool {
	p := s.pool
	batch := p.gather(s)
	if len(batch) == 0 {
		s.busy, s.idleSince = false, time.Now()
		p.passOn()
		return false
	}
	s.batch, s.running, s.began = batch, true, time.Now()
	if len(p.queue) >= p.growAt() {
		p.grow()
	}
	s.line.Lock()
	p.mu.Unlock()
	err := s.send(batch)
	s.line.Unlock()
	p.mu.Lock()
	s.running = false
	if s.dead {
		return false // and those who asked know it
	}
	s.proven = time.Now()
	if s.state == sessionShared {
		p.noteTrip(s.proven.Sub(s.began))
	}
	s.batch = nil
	if !s.usable(err) {
		s.batch = batch
		p.drop(s, err)
		return false
	}
	for _, st := range batch {
		p.settle(st, st.verdict(err))
	}
	if len(batch) == 1 {
		batch[0].tell()
	} else {
		// Who is woken up wants the lock first. And those who were answered may have
		// more to ask; what they ask right away shall travel together. A step that
		// nobody waits for may be another's by then.
		for i, st := range batch {
			if !st.waitedFor() {
				batch[i] = nil
			}
		}
		p.mu.Unlock()
		for _, st := range batch {
			if st != nil {
				st.ready <- struct{}{}
			}
		}
		runtime.Gosched()
		p.mu.Lock()
	}
	clear(batch)
	if !s.dead {
		s.batch = batch[:0]
	}
	p.passOn()
	return true
}

// lead makes the caller do what is asked of an idle session, until its own step
// is finished: to wake up another goroutine for it, and to be woken up by that,
// would take longer than the trip. What is left then is the session's.
func (p *Pool) lead(s *Session, st *Step) {
	s.busy, s.led = true, true
	for !s.dead && st.state != stepFinished && s.turn() {
	}
	s.led = false
	if s.dead || !s.busy {
		return
	}
	if len(s.queue)+len(p.queue) > 0 {
		p.rouse(s)
		return
	}
	s.busy, s.idleSince = false, time.Now()
	p.passOn()
}

// drop ends the session. Pool.mu is held.
func (p *Pool) drop(s *Session, err error) {
	if s.dead {
		return
	}
	s.dead, s.deadErr = true, err
	for i, other := range p.sessions {
		if other == s {
			p.sessions = append(p.sessions[:i], p.sessions[i+1:]...)
			break
		}
	}
	close(s.lost)
	lost := s.lostErr()
	// The statement under way may return later, or never.
	steps := slices.Concat(s.batch, s.queue)
	s.batch, s.queue = nil, nil
	for _, st := range steps {
		if st.state != stepFinished {
			p.finish(st, lost)
		}
	}
	if s.holds > 0 {
		p.freeAll(s)
	}
	if s.running {
		s.cut()
	}
	if p.opt.Dropped != nil {
		p.tasks.Go(func() { p.opt.Dropped(s) })
	}
	if p.closed {
		return
	}
	p.passOn()
	if len(p.queue) > 0 {
		p.grow()
	}
}

// doom is drop for a session that the server may believe to be alive: it is
// ended there, too, so that its locks come free at once.
func (p *Pool) doom(s *Session, err error) {
	if s.dead {
		return
	}
	p.drop(s, err)
	var over *Session
	for _, other := range p.sessions {
		if other.state == sessionShared && time.Since(other.proven) < p.opt.Heartbeat {
			over = other
		}
	}
	if over == nil || p.closed {
		return
	}
	p.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(p.life, p.opt.Heartbeat)
		defer cancel()
		// If it fails, the server ends the session by its own timeout.
		_ = p.exclusively(ctx, over, func(c *Conn) error { return p.dialect.Kill(c.life, c, s.self) })
	})
}

// lostErr is what has become of the session's locks.
func (s *Session) lostErr() error {
	return fmt.Errorf("%w: %w", driver.ErrLost, s.deadErr)
}

// send sends the batch. If the server refuses it, what has been done of it is
// taken back, and each step is sent once more by itself: the statement may have
// been interrupted, or it was the fault of one, which is refused alone then.
func (s *Session) send(batch []*Step) error {
	if call := batch[0].call; call != nil {
		return call(s.conn)
	}
	err := s.try(batch)
	if err == nil || !s.usable(err) || s.pool.dialect.Company(batch[0].Verb) != Mixed {
		return err
	}
	for i, st := range batch {
		if st.done {
			continue
		}
		if st.refused = s.try(batch[i : i+1]); !s.usable(st.refused) {
			return st.refused
		}
	}
	return nil
}

// usable reports whether the session can be used after a statement that ended
// with err.
func (s *Session) usable(err error) bool {
	return err == nil || !errors.Is(err, ErrDoubt) && (errors.Is(err, ErrInterrupted) || s.pool.dialect.Answered(err))
}

// try runs the steps in one trip. If the server refuses, nothing is left of them.
func (s *Session) try(steps []*Step) error {
	d := s.pool.dialect
	err := d.Run(s.conn.life, s.conn, steps)
	if err == nil || !d.Answered(err) {
		return err
	}
	for _, st := range steps {
		undo := d.Undo(st)
		if undo == nil {
			continue
		}
		if again := d.Run(s.conn.life, s.conn, []*Step{undo}); again != nil {
			return errors.Join(ErrDoubt, again, err)
		}
		if undo.Verb == st.Verb { // it was to give something back, and that has been done
			st.Result, st.Null, st.done = 1, false, true
		}
	}
	return err
}

// ErrDoubt says that it isn't known what the session holds, which is ended then.
var ErrDoubt = errors.New("a statement failed half done")

// Lease implements [driver.Session].
func (s *Session) Lease() driver.Lease {
	return driver.Lease{TTL: 2 * s.pool.opt.Heartbeat, Every: s.pool.opt.Heartbeat, Pooled: true}
}

// Renew implements [driver.Session].
func (s *Session) Renew(ctx context.Context) error {
	return s.pool.DoOn(ctx, s, &Step{Verb: Ping})
}

// Lost implements [driver.Session].
func (s *Session) Lost() <-chan struct{} { return s.lost }

// Abandon implements [driver.Session].
func (s *Session) Abandon() {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	s.pool.doom(s, errors.New("it was declared lost"))
}

// Identity tells which session of the server it is.
func (s *Session) Identity() Identity { return s.self }

// Dead reports whether the session has ended.
func (s *Session) Dead() bool {
	select {
	case <-s.lost:
		return true
	default:
		return false
	}
}
