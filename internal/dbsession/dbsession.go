// Package dbsession keeps many locks on few database sessions. The relational
// backends are made of it; what differs between their databases is a [Dialect].
//
// A [Pool] takes connections out of a *sql.DB and keeps them: session locks
// live and die with a connection, so that none of them may go back to the
// *sql.DB while it holds some, nor afterwards, since its settings were changed.
//
// What is asked of the database is a [Step]. A session that is free takes along
// all that has queued up, in one round trip; a step that finds a session free is
// sent at once.
//
// Only a wait in the database ([Pool.Wait], [Pool.WaitAny]) takes a session of its
// own, and one that holds nothing, so that cancelling the wait can't harm any lock.
// When it is granted, the session joins the others.
//
// No statement on a session that holds locks is ever canceled. When the state of
// a session is in doubt, the connection is closed, and everything on it is lost.
package dbsession

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/distlock-go/distlock/driver"
)

// A Dialect is what the pool has to know about a database. Its methods are
// called by one goroutine at a time for one Conn.
type Dialect interface {
	// Setup makes a new session ready: it checks that the server can be trusted
	// with locks, sets the timeouts that free the locks of a client that vanished,
	// and marks the session with a lock on mark. If peer isn't nil, it proves that
	// peer's mark is held, and by peer: else the two are not on one server.
	Setup(ctx context.Context, c *Conn, mark string, peer *Identity) (id int64, err error)

	// Run does the steps together and sets their results. They have been sorted by
	// Verb, and are of verbs that bear each other's company. An error is that of all
	// of them.
	Run(ctx context.Context, c *Conn, steps []*Step) error

	// Company tells with what steps of the verb can travel together.
	Company(Verb) Company

	// Wait is Run for one step that waits in the database's queue for at most d.
	// Its result is 0 if that was in vain. The error is ErrInterrupted if it was
	// stopped and nothing was taken. When ctx ends it stops, unless the dialect is
	// an Interrupter.
	Wait(ctx context.Context, c *Conn, s *Step, d time.Duration) error

	// Undo returns the step that gives back what s may have taken, or nil if s
	// takes nothing; Took reports whether it has, by its result.
	Undo(s *Step) *Step
	Took(s *Step) bool

	// Kill ends another session, over c, if it hasn't ended.
	Kill(ctx context.Context, c *Conn, other Identity) error

	// Answered reports whether err is the server's answer to a statement, after
	// which the connection can be used as before.
	Answered(err error) bool
}

// Company is with what a step may be done together.
type Company uint8

// The kinds of company, from the widest.
const (
	Mixed Company = iota // steps of all verbs that bear it
	Alike                // steps of the same verb
	Alone                // none
)

// A Filler is a [Dialect] that can make one statement of different numbers of
// steps, of those verbs for which Fills holds. Of the others as many travel
// together as make few different statements.
type Filler interface {
	Fills(Verb) bool
}

// An Interrupter is a [Dialect] whose driver can't cancel a statement and keep
// the connection: it takes another session to stop a wait.
type Interrupter interface {
	// Interrupt stops the Wait of another session, over c, and does nothing if
	// that session has ended.
	Interrupt(ctx context.Context, c *Conn, other Identity) error
}

// ErrInterrupted is the error of a [Dialect.Wait] that was stopped.
var ErrInterrupted = errors.New("the wait was interrupted")

// Verb is what a step does; the dialect gives it its meaning.
type Verb uint8

// These verbs exist in every dialect.
const (
	// Ping does nothing.
	Ping Verb = iota
	// Owner results in the identity of the session that holds Key, or NULL. Where
	// the database doesn't tell whose it is, Result stays as it was if somebody's.
	Owner
	// FirstVerb is the first that the dialect may use.
	FirstVerb

	// Exclusively is the pool's own: it runs a function on the connection.
	Exclusively Verb = 255
)

// maxVerb is the largest verb of a dialect that doesn't travel alone.
const maxVerb = 15

// Step is one thing to be done on a session.
type Step struct {
	Verb   Verb
	Key    string
	Checks []string // more keys, whose number belongs to the verb
	Arg    string
	N      int // a number that belongs to the verb

	// Asked, if not zero, is when that was begun which it is a part of: nobody waits for
	// its answer for longer than a heartbeat from then, whatever the context.
	Asked time.Time

	Result int64
	Null   bool // the result is NULL

	// Takes, if not nil, is claimed, bound to the session if the step takes its key,
	// and freed if it doesn't, when it is sure that the step has left nothing behind.
	Takes *Claim

	// Taken tells by its result which key a [Pool.WaitAny] has taken.
	Taken func(result int64) string

	// Frees, if not nil, ends when the step is done, or its session has ended,
	// whether or not somebody waits for it.
	Frees *Claim

	// Cleanup, if not nil, is called once if Do fails, when it is sure that the
	// step has left nothing behind.
	Cleanup func()

	call    func(c *Conn) error
	on      *Session      // where it must run; nil: anywhere
	ready   chan struct{} // has a value when it is finished, and is closed when it is overdue
	bounded bool          // it is overdue after a heartbeat
	awaited bool          // it wasn't finished when send returned, and ready hasn't told so

	// Guarded by Pool.mu.
	state   stepState
	overdue bool          // set before ready is closed
	left    bool          // nobody waits for it any more
	settled chan struct{} // if it is left: closed when it has left nothing behind
	undo    bool          // it gives back what another has taken
	ran     *Session      // where it ran, or runs
	err     error

	// The session's, while it runs.
	done    bool  // though the statement failed that it was part of
	refused error // by the server, when it was sent by itself
}

type stepState uint8

const (
	stepNew stepState = iota
	stepQueued
	stepRunning
	stepFinished
)

// Identity says which session of the server one is.
type Identity struct {
	ID   int64
	Mark string
}

// Pool holds the sessions of one backend. Its methods are safe for concurrent
// use.
type Pool struct {
	db      *sql.DB
	dialect Dialect
	opt     Options

	life context.Context // ends with Close
	end  context.CancelFunc

	mu       sync.Mutex
	sessions []*Session // all but the dead, oldest first
	opening  int
	dialing  int       // of those that found a connection to be had
	growing  bool      // one of those is for the queue
	waiting  int       // sessions that wait, or are opened to
	noRoom   time.Time // until then no connection is asked for to wait on
	queue    []*Step   // for any session
	tending  bool
	checking bool
	closed   bool
	polled   []*polledWait
	tick     chan struct{} // closed when those who poll shall; nil: nobody polls
	waits    int64         // of db.Stats, at the last look
	trip     time.Duration // about the shortest of late
	claims   map[string]*Claim
	tasks    sync.WaitGroup
	steps    sync.Pool // of *Step, to be used again
}

var errClosed = errors.New("the backend is closed")

// New returns a pool on db. It does no I/O.
func New(db *sql.DB, d Dialect, o Options) *Pool {
	if o.ConnectTimeout == 0 {
		o.ConnectTimeout = ConnectTimeout
	}
	p := &Pool{db: db, dialect: d, opt: o, claims: make(map[string]*Claim)}
	p.life, p.end = context.WithCancel(context.Background())
	return p
}

// maxSessions is how many sessions there may be. Of a pool with a limit half is
// left to the application, of a pool of one nothing.
func (p *Pool) maxSessions() int {
	n := p.opt.MaxSessions
	if limit := p.db.Stats().MaxOpenConnections; limit > 0 {
		n = min(n, max(1, limit/2))
	}
	return n
}

// Close ends all sessions, and with them what they hold. It waits for a moment
// until the connections are closed.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	for _, s := range slices.Clone(p.sessions) {
		p.drop(s, errClosed)
	}
	p.failQueue(errClosed)
	p.mu.Unlock()
	p.end()
	closed := make(chan struct{})
	go func() {
		p.tasks.Wait()
		close(closed)
	}()
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C:
	}
}

// inBackground runs f in a goroutine that Close waits for, unless it does so already.
func (p *Pool) inBackground(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		go f() // which finds all sessions dead
	} else {
		p.tasks.Go(f)
	}
}

// closeTimeout bounds Close: a connection may hang.
const closeTimeout = 2 * time.Second

// Open opens a session, or says why that can't be done.
func (p *Pool) Open(ctx context.Context) error {
	// With a context that ends, that is what counts, and not a heartbeat.
	ctx, cancel := context.WithTimeoutCause(ctx, p.opt.ConnectTimeout+time.Second, ErrSilent)
	defer cancel()
	_, err := p.Do(ctx, &Step{Verb: Ping})
	return err
}

// Do runs the step on any session and returns which. If ctx ends before it is
// answered, the error is ctx's, and what the step takes is given back when the
// answer comes.
func (p *Pool) Do(ctx context.Context, st *Step) (*Session, error) {
	s, result, null, err := p.run(ctx, nil, st)
	if err == nil {
		st.Result, st.Null = result, null
	}
	return s, err
}

// DoOn runs the step on s.
func (p *Pool) DoOn(ctx context.Context, s *Session, st *Step) error {
	_, result, null, err := p.run(ctx, s, st)
	if err == nil {
		st.Result, st.Null = result, null
	}
	return err
}

// exclusively runs f on the connection of s when nobody else uses it.
func (p *Pool) exclusively(ctx context.Context, s *Session, f func(c *Conn) error) error {
	st := &Step{Verb: Exclusively, call: f}
	return p.DoOn(ctx, s, st)
}

// Exec runs a statement on s that answers nothing.
func (p *Pool) Exec(ctx context.Context, s *Session, query string) error {
	return p.exclusively(ctx, s, func(c *Conn) error {
		_, err := c.Exec(query, nil)
		return err
	})
}

// Query runs a query on any session and calls f for each row.
func (p *Pool) Query(ctx context.Context, query string, f func(row []sqldriver.Value)) error {
	var mu sync.Mutex
	var rows [][]sqldriver.Value
	_, err := p.Do(ctx, &Step{Verb: Exclusively, call: func(c *Conn) error {
		var got [][]sqldriver.Value
		err := c.Each(query, func(row []sqldriver.Value) {
			for i, v := range row {
				if b, ok := v.([]byte); ok { // the driver's
					row[i] = string(b)
				}
			}
			got = append(got, slices.Clone(row))
		})
		mu.Lock()
		defer mu.Unlock()
		rows = got
		return err
	}})
	if err != nil {
		return err
	}
	mu.Lock() // a session that has died may still be at it
	answer := rows
	mu.Unlock()
	for _, row := range answer {
		f(row)
	}
	return nil
}

func (p *Pool) run(ctx context.Context, s *Session, asked *Step) (ran *Session, result int64, null bool, err error) {
	err = context.Cause(ctx)
	var first time.Time // when it was asked
	// A session that has died may still be about to set the result of what it was
	// asked.
	st := p.newStep(asked)
	for tries := 1; err == nil; tries++ {
		p.send(ctx, s, st)
		err = p.await(ctx, st)
		if err == nil {
			ran, result, null = st.ran, st.Result, st.Null
			p.reuse(st)
			return ran, result, null, nil
		}
		if s != nil || !errors.Is(err, driver.ErrLost) {
			break
		}
		// The session may have been dead for long, and so may others. What the step
		// took ended with it.
		p.mu.Lock()
		err = fmt.Errorf("the connection broke: %w", st.ran.deadErr)
		p.mu.Unlock()
		first = st.Asked
		if tries > p.opt.MaxSessions || ctx.Err() != nil || time.Since(first) >= p.opt.Heartbeat {
			break
		}
		err = nil
		st = p.newStep(asked)
		st.Asked = first
	}
	p.mu.Lock()
	running := st.state == stepRunning
	switch st.state {
	case stepQueued:
		p.unqueue(st)
		if full := p.exhausted(); full != nil && (errors.Is(err, ErrSilent) || errors.Is(err, context.DeadlineExceeded)) && !p.anyShared() {
			err = full // and the server was never asked
		}
	case stepRunning:
		st.left = true
		if st.Takes != nil || st.Cleanup != nil {
			st.settled = make(chan struct{})
			err = &driver.UnsettledError{Err: err, Settled: st.settled}
		}
	case stepFinished:
		switch {
		case st.err == nil: // the answer came at the same moment
			err, result, null = nil, st.Result, st.Null
		case s != nil || !errors.Is(st.err, driver.ErrLost):
			err = st.err
		}
	case stepNew: // it was never sent
	}
	if err != nil && !running && st.Takes != nil {
		st.Takes.free()
	}
	ran = st.ran
	p.mu.Unlock()
	if err != nil && !running && st.Cleanup != nil {
		st.Cleanup()
	}
	return ran, result, null, err
}

// newStep returns a copy of what is asked.
func (p *Pool) newStep(asked *Step) *Step {
	st, _ := p.steps.Get().(*Step)
	if st == nil {
		st = &Step{ready: make(chan struct{}, 1)}
	}
	ready := st.ready
	*st = *asked
	st.ready, st.bounded = ready, !asked.Asked.IsZero()
	return st
}

// reuse is for a step whose answer has come and been waited for, without an error:
// no session knows it any more then, unless it was overdue.
func (p *Pool) reuse(st *Step) {
	if !st.overdue {
		*st = Step{ready: st.ready} // and keeps nothing alive
		p.steps.Put(st)
	}
}

// GiveBack runs a step that gives back the claim's key on s. If ctx ends before it is
// answered it goes on; underWay keeps it then, and to call GiveBack again is to wait
// for its answer. With nil or another error it has been answered. The error is
// ErrGone if the session did not hold the key.
func (p *Pool) GiveBack(ctx context.Context, s *Session, c *Claim, verb Verb, key string, underWay **Step) error {
	st := *underWay
	if st == nil {
		st = p.newStep(&Step{Verb: verb, Key: key, Frees: c})
		p.send(ctx, s, st)
	}
	err := p.await(ctx, st)
	waited := err == nil
	if !waited && !p.finished(st) {
		*underWay = st
		return err
	}
	*underWay = nil
	err = st.err // also if the answer came as ctx ended
	if err == nil && st.Result != 1 {
		err = ErrGone
	}
	if waited {
		p.reuse(st)
	}
	return err
}

// send queues the step for s, or for any session if s is nil. If ctx never ends,
// send may return only when the step is finished.
func (p *Pool) send(ctx context.Context, s *Session, st *Step) {
	p.mu.Lock()
	defer p.mu.Unlock()
	endless := ctx.Done() == nil
	// Nobody can be woken up from a trip that he makes himself: what is begun late might
	// end too late.
	late := st.bounded && time.Since(st.Asked) > tendEvery
	st.bounded = st.bounded || endless
	if st.Takes != nil && !st.Takes.claim() {
		st.state, st.err = stepFinished, errClaimed
		return
	}
	if s := p.enqueue(s, st); s != nil {
		if endless && !late && s.conn.canCut() {
			p.lead(s, st)
		} else {
			p.rouse(s)
		}
	}
	st.awaited = st.state != stepFinished
}

// start is send, but returns at once, and nobody waits for the answer.
func (p *Pool) start(s *Session, st *Step) {
	if s := p.enqueue(s, st); s != nil {
		p.rouse(s)
	}
}

// enqueue returns the idle session that is to look at its queue, if there is one.
func (p *Pool) enqueue(s *Session, st *Step) *Session {
	st.on, st.state = s, stepQueued
	if st.Asked.IsZero() {
		st.Asked = time.Now()
	}
	switch {
	case p.closed && s == nil:
		p.finish(st, errClosed)
	case s == nil:
		p.queue = append(p.queue, st)
		if s := p.pick(); s != nil {
			return s
		}
		p.grow()
		p.tend()
	case s.dead:
		p.finish(st, s.lostErr())
	default:
		s.queue = append(s.queue, st)
		if !s.busy {
			return s
		}
	}
	return nil
}

// await waits until the step is finished, or ctx ends; if that never ends, for
// as long as a statement may take.
func (p *Pool) await(ctx context.Context, st *Step) error {
	if !st.awaited {
		return st.err
	}
	if ctx.Done() == nil && !st.bounded {
		bounded, cancel := context.WithTimeoutCause(ctx, p.opt.Heartbeat, ErrSilent)
		defer cancel()
		ctx = bounded
	}
	if ctx.Done() == nil {
		<-st.ready // which costs less than to watch the time, too; see endOverdue
	} else {
		select {
		case <-st.ready:
		case <-ctx.Done():
			select {
			case <-st.ready:
			default:
				return context.Cause(ctx)
			}
		}
	}
	if !st.overdue {
		st.awaited = false
		return st.err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if st.state == stepFinished {
		return st.err
	}
	return ErrSilent
}

// finished reports whether the step is through, whoever waits for it.
func (p *Pool) finished(st *Step) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return st.state == stepFinished
}

// ErrSilent says that an answer has not come in time.
var ErrSilent = errors.New("the server did not answer in time: is it reachable, and not overloaded?")

// finish ends the step and wakes up who waits for it. Pool.mu is held.
func (p *Pool) finish(st *Step, err error) {
	p.settle(st, err)
	st.tell()
}

// tell wakes up who waits for the step, which is finished. Pool.mu is held.
func (st *Step) tell() {
	if st.waitedFor() {
		st.ready <- struct{}{}
	}
}

// waitedFor reports whether somebody is to be told of the step. Pool.mu is held.
func (st *Step) waitedFor() bool { return st.awaited && !st.overdue }

// verdict returns what the answer to a statement is for a step that was part of it.
func (st *Step) verdict(err error) error {
	switch {
	case st.done:
		return nil
	case err == nil:
		return st.refused
	}
	return err
}

// settle ends the step. Pool.mu is held.
func (p *Pool) settle(st *Step, err error) {
	st.state, st.err = stepFinished, err
	if st.Frees != nil && (err == nil || errors.Is(err, driver.ErrLost)) {
		st.Frees.free()
	}
	took := err == nil && st.call == nil && p.dialect.Took(st)
	switch {
	case took && !st.left:
		st.ran.holds++
		if st.Takes != nil {
			st.Takes.bind(st.ran)
		}
	case err == nil && st.Takes != nil && !took:
		st.Takes.free()
	case took:
		// The session is the one that calls, and looks at its queue next.
		undo := p.dialect.Undo(st)
		undo.on, undo.state, undo.Asked, undo.left = st.ran, stepQueued, time.Now(), true
		undo.undo, undo.Cleanup, undo.Takes, undo.settled = true, st.Cleanup, st.Takes, st.settled
		st.ran.queue = append(st.ran.queue, undo)
		return
	case st.undo && err != nil && !st.on.dead:
		p.doom(st.on, err)
	}
	if !st.left {
		return
	}
	if st.Takes != nil {
		st.Takes.free()
	}
	settled := st.settled
	switch {
	case st.Cleanup != nil:
		p.tasks.Go(func() {
			st.Cleanup()
			if settled != nil {
				close(settled)
			}
		})
	case settled != nil:
		close(settled)
	}
}

// unqueue takes the step out of the queue that it is in.
func (p *Pool) unqueue(st *Step) {
	q := &p.queue
	if st.on != nil {
		q = &st.on.queue
	}
	if i := slices.Index(*q, st); i >= 0 {
		*q = slices.Delete(*q, i, i+1)
	}
	st.state = stepNew
}

// maxBatch bounds how many steps travel together.
const maxBatch = 32

// fitting returns the largest number of steps of one verb, at most n, that may
// travel together: few sizes make few statements to prepare.
func fitting(n int) int { return 1 << (bits.Len(uint(n)) - 1) }

// gather returns what s is to do next: what waits for it, and what waits for any
// session. Pool.mu is held.
func (p *Pool) gather(s *Session) []*Step {
	batch := p.take(s.batch[:0], &s.queue)
	if s.state == sessionShared && !s.crowded() {
		batch = p.take(batch, &p.queue)
	}
	if len(batch) > 1 {
		batch = p.arrange(s, batch)
	}
	for _, st := range batch {
		st.state, st.ran = stepRunning, s
	}
	return batch
}

// company returns with what the step can travel together.
func (p *Pool) company(st *Step) Company {
	if st.Verb > maxVerb {
		return Alone
	}
	return p.dialect.Company(st.Verb)
}

// fits reports whether the step can come with the batch.
func (p *Pool) fits(batch []*Step, st *Step) bool {
	switch {
	case len(batch) == 0:
		return true
	case len(batch) == maxBatch:
		return false
	}
	switch p.company(st) {
	case Mixed:
		return p.company(batch[0]) == Mixed
	case Alike:
		return batch[0].Verb == st.Verb
	default:
		return false
	}
}

// take moves steps from the queue to the batch. One that doesn't travel with all
// others is taken with its like, if it is the first.
func (p *Pool) take(batch []*Step, q *[]*Step) []*Step {
	left := (*q)[:0]
	for _, st := range *q {
		if p.fits(batch, st) {
			batch = append(batch, st)
		} else {
			left = append(left, st)
		}
	}
	clear((*q)[len(left):])
	*q = left
	return batch
}

// arrange sorts the batch by verb, and puts back at the head of the queues what
// makes the number of one verb an odd one.
func (p *Pool) arrange(s *Session, batch []*Step) []*Step {
	var number, room [maxVerb + 1]int
	for _, st := range batch {
		number[st.Verb]++
	}
	filler, _ := p.dialect.(Filler)
	for v, n := range number {
		switch {
		case filler != nil && filler.Fills(Verb(v)):
			room[v] = n
		case n > 0:
			room[v] = fitting(n)
		}
	}
	var back, backAny []*Step
	out := batch[:0]
	for _, st := range batch {
		switch {
		case room[st.Verb] > 0:
			room[st.Verb]--
			out = append(out, st)
		case st.on != nil:
			back = append(back, st)
		default:
			backAny = append(backAny, st)
		}
	}
	if len(back) > 0 {
		s.queue = append(back, s.queue...)
	}
	if len(backAny) > 0 {
		p.queue = append(backAny, p.queue...)
	}
	slices.SortStableFunc(out, func(a, b *Step) int { return int(a.Verb) - int(b.Verb) })
	return out
}

// failQueue ends all steps that wait for a session.
func (p *Pool) failQueue(err error) {
	queue := p.queue
	p.queue = nil
	for _, st := range queue {
		p.finish(st, err)
	}
}

// wrap tells what is the matter if no session came up before ctx ended, which is
// none of the caller's.
func (p *Pool) wrap(ctx context.Context, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	p.mu.Lock()
	full := p.exhausted()
	p.mu.Unlock()
	if full != nil {
		return full
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// exhausted returns an error if the *sql.DB has no connection to give. It is no
// context's, whoever had waited. One that is being dialed for a session was given: if
// that takes long, it is the server. Pool.mu is held.
func (p *Pool) exhausted() error {
	st := p.db.Stats()
	if st.MaxOpenConnections == 0 || st.InUse-p.dialing < st.MaxOpenConnections {
		return nil
	}
	return fmt.Errorf("no connection became free: all %d that DB.SetMaxOpenConns allows are in use", st.MaxOpenConnections)
}

// KeyArg returns the key as an argument of a statement.
func (st *Step) KeyArg() any {
	switch {
	case st.Takes != nil && st.Takes.key == st.Key:
		return st.Takes.arg // which is there already
	case st.Frees != nil && st.Frees.key == st.Key:
		return st.Frees.arg
	}
	return st.Key
}

var _ driver.Session = (*Session)(nil)

// Text returns what the database sent as text; NULL is empty.
func Text(v sqldriver.Value) string {
	switch v := v.(type) {
	case nil:
		return ""
	case []byte:
		return string(v)
	case string:
		return v
	}
	return fmt.Sprint(v)
}

// Set sets the result to what the database sent.
func (st *Step) Set(v sqldriver.Value) error {
	st.Null, st.Result = false, 0
	switch v := v.(type) {
	case nil:
		st.Null = true
	case int64:
		st.Result = v
	case uint64:
		st.Result = int64(v)
	case bool:
		if v {
			st.Result = 1
		}
	case string:
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return fmt.Errorf("not the number that was expected: %w", err)
		}
		st.Result = n
	default:
		return fmt.Errorf("a %T where a number was expected", v)
	}
	return nil
}
