// Package queue keeps the goroutines of one process in order: per name, first
// come first served, over all kinds of holding.
//
// It serves two masters. In front of a store it decides whose turn it is to go
// there, so that at most one goroutine a name does. Inside locallock it is the
// lock itself: who is admitted, holds.
package queue

import (
	"context"
	"errors"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock-go/distlock/driver"
)

var (
	// ErrTimeout reports that the time to wait was over before the turn came.
	ErrTimeout = errors.New("timed out in the queue")
	// ErrClosed reports that the gate was closed.
	ErrClosed = errors.New("queue closed")
)

// roomy is how many names a table may have had without its room being given
// back.
const roomy = 256

// shardCount trades memory of an idle table for contention between names.
const shardCount = 64

// A Queue is a table of names that are held or waited for. A name that is
// neither is forgotten, but for the last one of each shard: it is likely to be
// used again soon, and then costs no change of the table.
type Queue struct {
	// oneByOne makes an admitted place keep all others of its name waiting until
	// it is settled.
	oneByOne bool
	seed     maphash.Seed
	shards   [shardCount]shard
}

type shard struct {
	mu      sync.Mutex
	locks   map[string]*entry
	permits map[string]*entry
	idle    *entry   // in a table, and neither held nor waited for
	peak    int      // the most names in one table since it was made
	tokens  uint64   // how many were given out
	_       [16]byte // keeps shards on cache lines of their own
}

// entry is the state of one name. Its shard's mutex guards it.
type entry struct {
	shard     *shard
	name      string
	writer    *Place              // the exclusive holder
	upgrader  *Place              // the upgradeable holder
	sharers   map[*Place]struct{} // the holders of shared locks, or of permits
	unsettled *Place              // admitted, and not to be joined by others yet
	contended bool                // and the store has said that the name is held
	permit    bool
	answers   uint // how often the store has told somebody what he gets
	joint     any  // what the last sharer settled with

	upgrade    *waiter // the upgrader's wish, which goes before all waiters
	head, tail *waiter
}

// A Gate stops the waiters of one user of a queue without touching those of
// another.
type Gate struct {
	queue  *Queue
	closed atomic.Bool
	done   chan struct{}
}

// NewGate returns an open gate.
func (q *Queue) NewGate() *Gate { return &Gate{queue: q, done: make(chan struct{})} }

// Close closes the gate and reports whether it was open. All waiters behind it
// return ErrClosed, and later ones at once.
func (g *Gate) Close() bool {
	if g.closed.Swap(true) {
		return false
	}
	close(g.done)
	// The waiters don't wait for the channel: to be among thousands who do takes as
	// long as all the rest.
	for i := range g.queue.shards {
		s := &g.queue.shards[i]
		s.mu.Lock()
		for _, m := range []map[string]*entry{s.locks, s.permits} {
			for _, e := range m {
				g.turnAway(e)
			}
		}
		s.mu.Unlock()
	}
	return true
}

// turnAway wakes the waiters of the entry that are behind the gate.
func (g *Gate) turnAway(e *entry) {
	if w := e.upgrade; w != nil && w.gate == g {
		w.withdraw(ErrClosed)
	}
	for w := e.head; w != nil; w = w.next {
		if w.gate == g {
			w.withdraw(ErrClosed)
		}
	}
}

// Closed reports whether the gate is closed.
func (g *Gate) Closed() bool { return g.closed.Load() }

// Done returns a channel that is closed with the gate.
func (g *Gate) Done() <-chan struct{} { return g.done }

// A Place is one goroutine's place in the order of a name, from Enter until
// Leave or Pass. It is embedded in what represents the holding.
type Place struct {
	// Value is what Holders and All show for the place. It is set before Enter.
	Value any

	entry *entry
	token uint64
	limit int32
	mode  driver.Mode
	in    bool // admitted, and not given up yet
}

// Name returns the name that the place was last asked for.
func (p *Place) Name() string { return p.entry.name }

// Token returns a number that is larger than that of every place of the same name
// that was admitted, or upgraded, before this one.
func (p *Place) Token() uint64 {
	s := p.entry.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.token
}

// Kind returns the kind of holding that the place has, or had last, and the
// limit in mode Permit.
func (p *Place) Kind() (mode driver.Mode, limit int) {
	s := p.entry.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.mode, int(p.limit)
}

type waiter struct {
	place      *Place
	gate       *Gate
	next, prev *waiter
	news       chan bool // whether the wait is over; if not, the name is held. Sending never blocks
	try        bool      // it waits only until the name is known to be held
	told       bool      // somebody wants to hear of that
	contended  bool      // the name was seen to be held; never if try, as that is refused then
	answers    uint      // entry.answers when it came
	answered   bool      // they were more when it was withdrawn
	admitted   bool
	err        error // why it was refused
	baton      any
	note       any
}

// New returns a queue. With oneByOne an admitted place keeps the others of its
// name waiting until Settle, whatever their kind.
func New(oneByOne bool) *Queue {
	return &Queue{oneByOne: oneByOne, seed: maphash.MakeSeed()}
}

// Request says what a place is for.
type Request struct {
	Name  string
	Mode  driver.Mode
	Limit int           // permits that exist, in mode Permit
	Wait  time.Duration // driver.Forever: no limit
	Try   bool          // wait only until the name is known to be held
	Gate  *Gate
	// Waiting, if not nil, is called once when the name is known to be held and p
	// waits for it.
	Waiting func()
	// Orphaned is called with a baton that was handed to a place whose Waiting
	// panicked. The place is still there, and Orphaned sees to that it is left.
	Orphaned func(baton any)
}

// Admission says how a place came to be admitted, or wasn't.
type Admission struct {
	// Contended says that the name was seen to be held: by others who are in and
	// settled, or, as one said with Contend, elsewhere.
	Contended bool
	// Answered says, after an error, that the store has answered others meanwhile, who
	// came before.
	Answered bool
	Baton    any // what the place before handed over with Pass, or nil
	Note     any // what the place before left with Retire, or nil
}

// EnterFree is Enter for a name that is free: it reports false if it isn't, and p
// has no place then. It takes less time than Enter to find out.
func (q *Queue) EnterFree(p *Place, name string, mode driver.Mode, limit int, g *Gate) bool {
	s := q.shard(name)
	s.mu.Lock()
	if g.Closed() {
		s.mu.Unlock()
		return false
	}
	e := s.find(name, mode == driver.Permit)
	p.ask(e, mode, limit)
	free := e.head == nil && e.admissible(p)
	if free {
		q.admit(p)
	} else {
		e.rest()
	}
	s.mu.Unlock()
	return free
}

// ask notes what the place is for.
func (p *Place) ask(e *entry, mode driver.Mode, limit int) {
	p.entry, p.mode, p.limit = e, mode, int32(min(limit, math.MaxInt32))
}

// Enter takes a place and returns when it is its turn: nobody incompatible is
// in, and all who came before have had their turn. Errors are ErrTimeout,
// ErrClosed and, when ctx ended, ctx.Err(); then p has no place. A turn that
// comes together with the end of ctx or of the time is taken: callers who must
// not have it check and leave.
func (q *Queue) Enter(ctx context.Context, p *Place, r Request) (Admission, error) {
	s := q.shard(r.Name)
	s.mu.Lock()
	if r.Gate.Closed() {
		s.mu.Unlock()
		return Admission{}, ErrClosed
	}
	e := s.find(r.Name, r.Mode == driver.Permit)
	p.ask(e, r.Mode, r.Limit)
	if e.head == nil && e.admissible(p) {
		q.admit(p)
		s.mu.Unlock()
		return Admission{}, nil
	}
	contended := e.busy(p) || e.tail != nil && e.tail.contended
	if contended && r.Try {
		e.rest()
		s.mu.Unlock()
		return Admission{Contended: true}, ErrTimeout
	}
	w := &waiter{
		place: p, gate: r.Gate, news: make(chan bool, 2), try: r.Try, told: r.Waiting != nil, prev: e.tail,
	}
	if e.tail == nil {
		e.head = w
	} else {
		e.tail.next = w
	}
	e.tail = w
	if contended {
		w.contend()
	}
	w.answers = e.answers
	s.mu.Unlock()

	err := w.wait(ctx, r.Wait, func() { q.tell(w, &r) })
	return Admission{Contended: w.contended, Answered: w.answered, Baton: w.baton, Note: w.note}, err
}

// tell calls the Waiting of a waiter.
func (q *Queue) tell(w *waiter, r *Request) {
	told := false
	defer func() {
		if !told { // it panicked
			q.giveUp(w, r.Orphaned)
		}
	}()
	r.Waiting()
	told = true
}

// giveUp takes back a waiter that nobody is behind any more.
func (q *Queue) giveUp(w *waiter, orphaned func(baton any)) {
	e := w.place.entry
	e.shard.mu.Lock()
	w.withdraw(ErrClosed)
	admitted := w.admitted
	e.shard.mu.Unlock()
	switch {
	case admitted && w.baton != nil:
		orphaned(w.baton)
	case admitted:
		q.Leave(w.place)
	}
}

// wait waits until the waiter is admitted or refused, and refuses it when d is
// over or ctx ends. It calls tell when the name is known to be held.
func (w *waiter) wait(ctx context.Context, d time.Duration, tell func()) error {
	s := w.place.entry.shard
	if d != driver.Forever {
		defer time.AfterFunc(d, func() { // cheaper than one more case below
			s.mu.Lock()
			defer s.mu.Unlock()
			w.withdraw(ErrTimeout)
		}).Stop()
	}
	ended := ctx.Done()
	for {
		select {
		case over := <-w.news:
			if over {
				return w.err
			}
			tell()
		case <-ended:
			ended = nil // what is in the news is heard first
			s.mu.Lock()
			w.withdraw(ctx.Err())
			s.mu.Unlock()
		}
	}
}

// withdraw refuses the waiter, unless it was admitted or refused before.
func (w *waiter) withdraw(err error) {
	if w.admitted || w.err != nil {
		return
	}
	e := w.place.entry
	w.answered = e.answers != w.answers
	if e.upgrade == w {
		e.upgrade = nil
	} else {
		e.unlink(w)
	}
	w.refuse(err)
	w.gate.queue.advance(e) // it may have been all that kept the next one waiting
}

// Settle lets others of the name go on: p holds. If p is shared, joint is what
// Joint returns to those who come beside it.
func (q *Queue) Settle(p *Place, joint any) {
	e := p.entry
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	if p.in && p.mode == driver.Shared {
		e.joint = joint
	}
	if e.unsettled == p {
		e.answers++
		e.unsettled = nil
		q.advance(e)
	}
}

// Joint returns what the last of the shared places that are in has settled with,
// or nil if there is none.
func (q *Queue) Joint(p *Place) any {
	e := p.entry
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	return e.joint
}

// Contend notes that the store has said to p, which isn't settled, that the name is
// held. Those behind p are told, and refused if they only try.
func (q *Queue) Contend(p *Place) {
	e := p.entry
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	if e.unsettled == p && !e.contended {
		e.answers++
		e.contended = true
		q.advance(e)
	}
}

// Leave gives up the place. A place that was given up already stays so.
func (q *Queue) Leave(p *Place) {
	e := p.entry
	e.shard.mu.Lock()
	if p.in {
		e.remove(p)
		q.advance(e)
	}
	e.shard.mu.Unlock()
}

// Retire is Leave for a place that the store refused. If the next in the order
// wants the same, it finds the note in its Admission.
func (q *Queue) Retire(p *Place, note any) {
	e := p.entry
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	if !p.in {
		return
	}
	e.remove(p)
	if w := e.head; w != nil && w.place.mode == p.mode && w.place.limit == p.limit {
		w.note = note
	}
	q.advance(e)
}

// Pass gives up the place in favour of the next waiter and hands it baton, if
// there is a waiter of the same kind whose turn it is then, and may, which is asked
// after that, allows it. It reports whether it did; if not, nothing has changed.
//
// May is called under the queue's own lock. It must not take one under which somebody
// calls the queue: that of a holding, which is held while its place is asked for its
// token or kind.
func (q *Queue) Pass(p *Place, baton any, may func() bool) bool {
	e := p.entry
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	w := e.head
	if !p.in || w == nil || w.place.mode != p.mode || w.place.limit != p.limit || e.upgrade != nil || e.unsettled != nil && e.unsettled != p {
		return false
	}
	unsettled := e.unsettled
	e.remove(p)
	if !e.admissible(w.place) || !may() {
		e.add(p)
		e.unsettled = unsettled
		return false
	}
	w.baton = baton
	q.advance(e)
	return true
}

// Upgrade turns an upgradeable place into an exclusive one when the readers
// have left; new ones wait meanwhile. A reader who isn't settled isn't waited for:
// he may himself wait at the store, for somebody who waits for p. The store decides
// between the two. Upgrade reports whether it had to wait. Errors
// are those of Enter, after which the place is upgradeable still; a place that
// was given up is ErrClosed.
func (q *Queue) Upgrade(ctx context.Context, p *Place, wait time.Duration, g *Gate) (waited bool, err error) {
	e := p.entry
	s := e.shard
	s.mu.Lock()
	if !p.in {
		s.mu.Unlock()
		return false, ErrClosed
	}
	if p.mode == driver.Exclusive {
		s.mu.Unlock()
		return false, nil
	}
	if e.settledSharers() == 0 {
		q.promote(p)
		s.mu.Unlock()
		return false, nil
	}
	if wait <= 0 {
		s.mu.Unlock()
		return false, ErrTimeout
	}
	if g.Closed() {
		s.mu.Unlock()
		return false, ErrClosed
	}
	w := &waiter{place: p, gate: g, news: make(chan bool, 1)}
	e.upgrade = w
	s.mu.Unlock()

	return true, w.wait(ctx, wait, nil)
}

// Downgrade undoes Upgrade.
func (q *Queue) Downgrade(p *Place) {
	e := p.entry
	e.shard.mu.Lock()
	defer e.shard.mu.Unlock()
	if p.in && e.writer == p {
		e.writer, e.upgrader, p.mode = nil, p, driver.Upgradeable
		q.advance(e)
	}
}

// All returns the places of all names that are admitted. The result is a
// snapshot of each name.
func (q *Queue) All() []*Place {
	var all []*Place
	for i := range q.shards {
		s := &q.shards[i]
		s.mu.Lock()
		for _, m := range []map[string]*entry{s.locks, s.permits} {
			for _, e := range m {
				all = e.appendHolders(all)
			}
		}
		s.mu.Unlock()
	}
	return all
}

// Holders returns the places of the name that are admitted: those of permits,
// or the others. The result is a snapshot.
func (q *Queue) Holders(name string, permit bool) []*Place {
	s := q.shard(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.table(permit)[name]; e != nil {
		return e.appendHolders(nil)
	}
	return nil
}

func (q *Queue) shard(name string) *shard {
	return &q.shards[maphash.String(q.seed, name)%shardCount]
}

func (e *entry) appendHolders(all []*Place) []*Place {
	for _, p := range []*Place{e.writer, e.upgrader} {
		if p != nil {
			all = append(all, p)
		}
	}
	for p := range e.sharers {
		all = append(all, p)
	}
	return all
}

// table returns the table of locks or of permits.
func (s *shard) table(permit bool) map[string]*entry {
	m := &s.locks
	if permit {
		m = &s.permits
	}
	if *m == nil {
		*m = make(map[string]*entry)
	}
	return *m
}

// find returns the entry of the name, a new one if there is none. The caller
// holds s.mu and then admits or queues a place, or calls rest.
func (s *shard) find(name string, permit bool) *entry {
	if e := s.idle; e != nil && e.permit == permit && e.name == name {
		s.idle = nil
		return e
	}
	m := s.table(permit)
	e := m[name]
	if e == nil {
		e = &entry{shard: s, name: name, permit: permit}
		m[name] = e
		s.peak = max(s.peak, len(m))
	}
	return e
}

// rest notes that the entry may be idle, and forgets the one that was before.
func (e *entry) rest() {
	s := e.shard
	if e.writer != nil || e.upgrader != nil || len(e.sharers) > 0 || e.head != nil || e == s.idle {
		return
	}
	if old := s.idle; old != nil {
		delete(s.table(old.permit), old.name)
	}
	s.idle = e
	if s.peak > roomy && len(s.locks)+len(s.permits) == 1 {
		// A map keeps the room of its largest size.
		s.locks, s.permits, s.peak = nil, nil, 1
		s.table(e.permit)[e.name] = e
	}
}

// admissible reports whether p may go in now.
func (e *entry) admissible(p *Place) bool { return e.unsettled == nil && e.compatible(p) }

// busy reports whether the name is known to be held by somebody whom p has to wait
// for. One who isn't settled may be about to hold it, or to find the store out of
// order.
func (e *entry) busy(p *Place) bool {
	return e.unsettled != nil && e.contended || !e.compatible(p)
}

// compatible reports whether p may be in beside those who are settled.
func (e *entry) compatible(p *Place) bool {
	if e.upgrade != nil || e.writer != nil && e.writer != e.unsettled {
		return false
	}
	upgrader := e.upgrader != nil && e.upgrader != e.unsettled
	switch p.mode {
	case driver.Shared:
		return true
	case driver.Upgradeable:
		return !upgrader
	case driver.Permit:
		return e.settledSharers() < int(p.limit)
	default:
		return e.settledSharers() == 0 && !upgrader
	}
}

// settledSharers returns how many sharers there are, without one who only asks to
// be one.
func (e *entry) settledSharers() int {
	n := len(e.sharers)
	if u := e.unsettled; u != nil && (u.mode == driver.Shared || u.mode == driver.Permit) {
		n--
	}
	return n
}

func (s *shard) nextToken() uint64 {
	s.tokens++
	return s.tokens
}

func (q *Queue) admit(p *Place) {
	p.token = p.entry.shard.nextToken()
	p.entry.add(p)
	if q.oneByOne {
		p.entry.unsettled, p.entry.contended = p, false
	}
}

func (e *entry) add(p *Place) {
	switch p.mode {
	case driver.Shared, driver.Permit:
		if e.sharers == nil {
			e.sharers = make(map[*Place]struct{})
		}
		e.sharers[p] = struct{}{}
	case driver.Upgradeable:
		e.upgrader = p
	default:
		e.writer = p
	}
	p.in = true
}

func (e *entry) remove(p *Place) {
	switch p.mode {
	case driver.Shared, driver.Permit:
		delete(e.sharers, p)
		if len(e.sharers) == 0 {
			e.joint = nil
		}
	case driver.Upgradeable:
		e.upgrader = nil
	default:
		e.writer = nil
	}
	if e.unsettled == p {
		e.unsettled = nil
	}
	if w := e.upgrade; w != nil && w.place == p {
		e.upgrade = nil
		w.refuse(ErrClosed) // there is nothing to wait for any more
	}
	p.in = false
}

func (q *Queue) promote(p *Place) {
	e := p.entry
	p.token = e.shard.nextToken()
	e.upgrader, e.writer, p.mode = nil, p, driver.Exclusive
}

func (e *entry) unlink(w *waiter) {
	if w.prev == nil {
		e.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		e.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
}

// advance admits whose turn has come, and tells the others if the name is held.
func (q *Queue) advance(e *entry) {
	if w := e.upgrade; w != nil && e.settledSharers() == 0 {
		e.upgrade = nil
		q.promote(w.place)
		w.wake()
	}
	for w := e.head; w != nil; w = e.head {
		switch {
		case e.admissible(w.place):
			e.unlink(w)
			q.admit(w.place)
			w.wake()
			continue
		case !w.contended && e.busy(w.place):
			if w.try { // the next may have better luck
				w.contend()
				continue
			}
			for ; w != nil && !w.contended; w = w.next { // those behind it wait as long
				w.contend()
			}
		}
		break
	}
	e.rest()
}

// contend notes that the name is held, and that the waiter, which is in the order,
// has to wait for it.
func (w *waiter) contend() {
	w.contended = true
	switch {
	case w.try:
		w.place.entry.unlink(w)
		w.refuse(ErrTimeout)
	case w.told:
		w.news <- false
	}
}

func (w *waiter) refuse(err error) {
	w.err = err
	w.news <- true
}

func (w *waiter) wake() {
	w.admitted = true
	w.news <- true
}
