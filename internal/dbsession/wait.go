package dbsession

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/distlock-go/distlock/driver"
)

const (
	pollFirst = 2 * time.Millisecond
	pollLast  = 50 * time.Millisecond
)

// A Limit is how long somebody may wait, from when it was made. The zero value is not
// at all.
type Limit struct {
	wait time.Duration
	end  time.Time // zero: there is none, or no waiting
}

// LimitOf returns the limit of a wait that begins now; [driver.Forever] has no end.
func LimitOf(wait time.Duration) Limit {
	l := Limit{wait: wait}
	if wait > 0 && wait < driver.Forever {
		l.end = time.Now().Add(wait)
	}
	return l
}

// Left returns how much of it is left.
func (l Limit) Left() time.Duration {
	if l.end.IsZero() {
		return l.wait
	}
	return max(time.Until(l.end), 0)
}

// Poll asks, with growing pauses, until the answer is yes. When nothing is left of
// the time the error is ErrHeld.
func Poll(ctx context.Context, left func() time.Duration, ask func() (bool, error)) error {
	for pause := pollFirst; ; pause = min(2*pause, pollLast) {
		yes, err := ask()
		if err != nil || yes {
			return err
		}
		rest := left()
		if rest <= 0 {
			return driver.ErrHeld
		}
		timer := time.NewTimer(min(pause/2+rand.N(pause), rest))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

// A polledWait waits without a session of its own.
type polledWait struct {
	promoted chan struct{} // closed when it may have one
}

// Wait runs the step, which waits for a lock in the database for at most d, and
// returns the session that it ran on. The result is 0 when d is over, or when it
// is to be asked again. If ctx ends the error is ctx's. What the step may still
// be given then is given back behind the caller's back; Cleanup is called after
// that, and in all cases in which nothing was taken.
func (p *Pool) Wait(ctx context.Context, st *Step, d time.Duration) (*Session, error) {
	deadline, over, stop := timeFor(d)
	defer stop()
	s, asked, err := p.inPlace(ctx, st, over)
	for s == nil && !asked && err == nil {
		var noRoom bool
		s, noRoom, err = p.toWaitOn(ctx, over)
		if s != nil {
			return p.waitOn(ctx, s, st, deadline, over)
		}
		if !noRoom {
			break
		}
		s, asked, err = p.inPlace(ctx, st, over)
	}
	if s == nil {
		st.Result = 0
		if !asked && st.Cleanup != nil {
			st.Cleanup()
		}
	}
	return s, err
}

// timeFor returns until when a wait of d goes on, and what tells that it is over, until
// stop is called.
func timeFor(d time.Duration) (deadline time.Time, over <-chan time.Time, stop func()) {
	deadline = time.Now().Add(min(d, forever))
	if d >= forever {
		return deadline, nil, func() {}
	}
	timer := time.NewTimer(d)
	return deadline, timer.C, func() { timer.Stop() }
}

// Elsewhere runs the step on a session that holds nothing, without waiting for
// more than such a session, and no longer than a heartbeat. It returns nil if
// there is no room for one.
func (p *Pool) Elsewhere(ctx context.Context, st *Step) (*Session, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.opt.Heartbeat, ErrSilent)
	defer cancel()
	p.mu.Lock()
	room := !p.closed && p.mayWait()
	p.mu.Unlock()
	var err error
	if room {
		var s *Session
		if s, err = p.waitingSession(ctx, nil); s != nil {
			return p.waitOn(ctx, s, st, time.Now(), nil)
		}
		p.doneWaiting()
	}
	if st.Cleanup != nil {
		st.Cleanup()
	}
	return nil, err
}

// inPlace returns nothing when the caller has a place among those who wait with
// a session of their own. Until then it asks again and again, with all others
// that have none; s is the session on which that succeeded. asked says that
// Cleanup has been seen to.
func (p *Pool) inPlace(ctx context.Context, st *Step, over <-chan time.Time) (s *Session, asked bool, err error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, false, errClosed
	}
	if len(p.polled) == 0 && p.mayWait() {
		p.mu.Unlock()
		return nil, false, nil
	}
	w := &polledWait{promoted: make(chan struct{})}
	p.polled = append(p.polled, w)
	p.mu.Unlock()
	for {
		p.mu.Lock()
		if p.tick == nil {
			p.tick = make(chan struct{})
			p.schedule()
		}
		tick := p.tick
		p.mu.Unlock()
		select {
		case <-w.promoted:
			return nil, false, nil
		case <-tick:
			s, err := p.Do(ctx, st)
			if err == nil && st.Result == 0 {
				continue
			}
			p.leave(w)
			return s, err != nil, err
		case <-over:
			p.leave(w)
			if st.Cleanup != nil {
				st.Cleanup()
			}
			return nil, true, nil
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-p.life.Done():
			err = errClosed
		}
		p.leave(w)
		return nil, false, err
	}
}

// forever is longer than anybody waits, and what servers accept.
const forever = 365 * 24 * time.Hour

// errNoConnection is why a session could not be opened, and not what the server
// said about it.
var errNoConnection = errors.New("can't connect")

// hasNoRoom notes that no connection could be had to wait on, and reports whether
// there is another to ask over.
func (p *Pool) hasNoRoom() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noRoom = time.Now().Add(p.opt.ConnectTimeout)
	return !p.closed && p.anyShared()
}

// mayWait takes one of the places for waiting sessions. Pool.mu is held.
func (p *Pool) mayWait() bool {
	limit := p.maxSessions()
	if time.Now().Before(p.noRoom) || p.waiting >= min(p.opt.MaxWaiting, limit-1) {
		return false
	}
	spare, shared := false, 0
	for _, s := range p.sessions {
		if s.state == sessionShared {
			shared++
			spare = spare || s.holds == 0 && !s.busy
		}
	}
	if len(p.sessions)+p.opening >= limit && (!spare || shared <= 1) {
		return false
	}
	p.waiting++
	return true
}

// doneWaiting frees the place, for the one who has polled for longest.
func (p *Pool) doneWaiting() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting--
	p.promote()
}

func (p *Pool) promote() {
	for len(p.polled) > 0 && p.mayWait() {
		next := p.polled[0]
		p.polled = p.polled[1:]
		close(next.promoted)
	}
}

// leave ends a polled wait. A place that it was given meanwhile is passed on.
func (p *Pool) leave(w *polledWait) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, other := range p.polled {
		if other == w {
			p.polled = append(p.polled[:i], p.polled[i+1:]...)
			return
		}
	}
	p.waiting--
	p.promote()
}

// schedule makes those who poll do so all together, so that their questions
// travel together. Pool.mu is held.
func (p *Pool) schedule() {
	pause := min(max(20*time.Millisecond, time.Duration(len(p.polled))*500*time.Microsecond), time.Second)
	pause = pause/2 + rand.N(pause)
	time.AfterFunc(pause, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		close(p.tick)
		p.tick = nil
	})
}

// toWaitOn is waitingSession for who has a place among those who wait, and gives it
// back if there is no session. noRoom says that none could be had, but there is another
// to ask over.
func (p *Pool) toWaitOn(ctx context.Context, over <-chan time.Time) (s *Session, noRoom bool, err error) {
	s, err = p.waitingSession(ctx, over)
	if s == nil {
		noRoom = errors.Is(err, errNoConnection) && ctx.Err() == nil && p.hasNoRoom()
		p.doneWaiting()
	}
	return s, noRoom, err
}

// waitingSession returns a session that holds nothing, for a wait.
func (p *Pool) waitingSession(ctx context.Context, over <-chan time.Time) (*Session, error) {
	p.mu.Lock()
	shared := 0
	var spare *Session
	for _, s := range p.sessions {
		if s.state != sessionShared {
			continue
		}
		shared++
		if !s.busy && s.holds == 0 && len(s.queue) == 0 {
			spare = s
		}
	}
	if spare != nil && shared > 1 {
		spare.state = sessionWaiting
		p.mu.Unlock()
		return spare, nil
	}
	p.opening++
	p.mu.Unlock()
	patience := p.opt.ConnectTimeout
	if shared > 0 {
		patience = min(patience, waitConnectTimeout)
	}
	type result struct {
		s   *Session
		err error
	}
	opening, cancel := context.WithTimeoutCause(p.life, patience, ErrSilent)
	opened := make(chan result)
	gone := make(chan struct{})
	p.inBackground(func() {
		defer cancel()
		s, err := p.open(opening, sessionWaiting)
		p.mu.Lock()
		p.opening--
		if len(p.queue) > 0 {
			p.grow()
		}
		p.mu.Unlock()
		select {
		case opened <- result{s, err}:
		case <-gone:
			if s != nil {
				p.mu.Lock()
				s.state = sessionShared
				if !s.busy {
					p.rouse(s)
				}
				p.mu.Unlock()
			}
		}
	})
	defer close(gone)
	select {
	case r := <-opened:
		if r.s == nil {
			return nil, r.err
		}
		return r.s, nil
	case <-over:
		cancel()
		return nil, nil
	case <-ctx.Done():
		cancel()
		return nil, context.Cause(ctx)
	}
}

const (
	// interruptGrace is how long a wait that is over may take to say so by itself.
	interruptGrace = 50 * time.Millisecond

	// interruptedGrace is how long one may that was interrupted, on a busy server that is
	// near.
	interruptedGrace = 250 * time.Millisecond
)

// waitOn waits on a session of its own.
func (p *Pool) waitOn(ctx context.Context, s *Session, st *Step, deadline time.Time, over <-chan time.Time) (*Session, error) {
	w := &ownWait{s: s, step: *st} // a copy: the caller may be gone when the answer comes
	wanted, stop := context.WithCancel(s.conn.life)
	w.stop = stop
	w.outer.Verb, w.outer.awaited, w.outer.ready = Exclusively, true, make(chan struct{}, 1)
	w.outer.call = func(c *Conn) error {
		defer stop()
		err := p.dialect.Wait(wanted, c, &w.step, min(max(time.Until(deadline), 0), forever))
		if err == nil && w.step.Taken != nil && p.dialect.Took(&w.step) {
			err = p.claimTaken(wanted, c, w)
		}
		return err
	}
	p.mu.Lock()
	p.start(s, &w.outer)
	p.mu.Unlock()
	var err error
	select {
	case <-w.outer.ready:
		st.Result, err = p.waited(w)
		if st.Result != 0 {
			st.Takes = w.step.Takes
		}
		if (err != nil || st.Result == 0) && st.Cleanup != nil {
			st.Cleanup()
		}
		return s, err
	case <-over:
		st.Result = 0
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-p.life.Done():
		err = errClosed
	}
	timedOut := err == nil
	cleanup := st.Cleanup
	p.inBackground(func() {
		p.stopWaiting(w, timedOut)
		if cleanup != nil {
			cleanup()
		}
	})
	return nil, err
}

// An ownWait is under way on a session of its own.
type ownWait struct {
	s     *Session
	step  Step // what is waited for
	outer Step // that waits
	stop  func()
}

// waited deals with the answer and returns the result: the session becomes one
// of the shared. The statement of one that is dead may still be under way.
func (p *Pool) waited(w *ownWait) (result int64, err error) {
	defer p.doneWaiting()
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.s.dead {
		// Nothing is held. The caller asks again, and is told what is the matter, if
		// it is the server.
		return 0, nil
	}
	w.s.state = sessionShared
	p.passOn() // it may take a part of the queue
	switch err := w.outer.err; {
	case errors.Is(err, ErrInterrupted):
		return 0, nil
	case err != nil:
		return 0, err
	}
	if w.step.Result != 0 && w.step.Taken == nil { // else it has been counted
		w.s.holds++
	}
	return w.step.Result, nil
}

// stopWaiting ends a wait that nobody waits for any more.
func (p *Pool) stopWaiting(w *ownWait, timedOut bool) {
	if timedOut {
		timer := time.NewTimer(interruptGrace)
		defer timer.Stop()
		select {
		case <-w.outer.ready:
			p.backOut(w)
			return
		case <-timer.C:
		}
	}
	ctx, cancel := context.WithTimeout(p.life, p.opt.Heartbeat)
	defer cancel()
	w.stop()
	interrupter, fromOutside := p.dialect.(Interrupter)
	var err error
	var missed <-chan time.Time
	if fromOutside {
		began := time.Now()
		err = errors.New("there is no other session to cancel the wait from")
		if other := p.another(w.s); other != nil {
			err = p.exclusively(ctx, other, func(c *Conn) error { return interrupter.Interrupt(c.life, c, w.s.self) })
		}
		// One that came before the statement of the wait is without effect. An answer
		// takes two trips, where that took one.
		timer := time.NewTimer(interruptedGrace + 4*time.Since(began))
		defer timer.Stop()
		missed = timer.C
	}
	if err == nil {
		select {
		case <-w.outer.ready:
			if !fromOutside || errors.Is(w.outer.err, ErrInterrupted) {
				p.backOut(w)
				return
			}
			// The wait ended before it was interrupted, and the interruption may hit
			// what comes next.
			err = errors.New("it may have been interrupted")
		case <-missed:
			err = errors.New("its wait wasn't interrupted")
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	// It holds nothing, but what it may have been given too late.
	p.mu.Lock()
	p.doom(w.s, err)
	p.mu.Unlock()
	p.doneWaiting()
}

// backOut gives back what came too late.
func (p *Pool) backOut(w *ownWait) {
	if result, err := p.waited(w); err == nil && result != 0 {
		if undo := p.dialect.Undo(&w.step); undo != nil {
			err := p.DoOn(context.Background(), w.s, undo)
			p.mu.Lock()
			defer p.mu.Unlock()
			if w.step.Taken != nil {
				w.step.Takes.free()
			} else {
				w.s.holds--
			}
			if err != nil {
				p.doom(w.s, err)
			}
		}
	}
}

// another returns a shared session other than s, or nil.
func (p *Pool) another(s *Session) *Session {
	p.mu.Lock()
	defer p.mu.Unlock()
	var best *Session
	for _, o := range p.sessions {
		if o != s && o.state == sessionShared && (best == nil || best.busy && !o.busy) {
			best = o
		}
	}
	return best
}
