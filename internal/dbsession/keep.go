package dbsession

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// tendEvery is the pause between two looks at the sessions.
const tendEvery = 50 * time.Millisecond

// tend starts to look after the sessions and the queue, until there is neither.
// Pool.mu is held.
func (p *Pool) tend() {
	if p.tending {
		return
	}
	p.tending = true
	p.tasks.Go(func() {
		ticker := time.NewTicker(tendEvery)
		defer ticker.Stop()
		checked := time.Now()
		for {
			select {
			case <-ticker.C:
			case <-p.life.Done():
				return
			}
			p.mu.Lock()
			p.endHanging()
			p.endOverdue()
			p.endIdle()
			p.passOn()
			p.promote()
			if p.stuck() {
				p.grow()
			}
			more := len(p.sessions)+len(p.queue) > 0
			check := more && p.waiting > 0 && !p.checking && time.Since(checked) >= p.opt.Heartbeat
			p.checking = p.checking || check
			p.tending = more
			p.mu.Unlock()
			if !more {
				return
			}
			if check {
				checked = time.Now()
				p.tasks.Go(p.checkWaiting)
			}
		}
	})
}

// endHanging ends the sessions whose statement gets no answer. Those that wait
// for a lock aren't meant. Pool.mu is held.
func (p *Pool) endHanging() {
	for _, s := range slices.Clone(p.sessions) {
		if s.running && s.state == sessionShared && time.Since(s.began) > p.opt.Heartbeat-tendEvery {
			p.doom(s, fmt.Errorf("no answer from the server for %v", p.opt.Heartbeat))
		}
	}
}

// endOverdue wakes up those who wait for steps that have been there for a
// heartbeat, and can't be interrupted otherwise. Pool.mu is held.
func (p *Pool) endOverdue() {
	end := func(steps []*Step) {
		for _, st := range steps {
			if st.bounded && !st.overdue && st.awaited && time.Since(st.Asked) > p.opt.Heartbeat-tendEvery {
				st.overdue = true
				close(st.ready)
			}
		}
	}
	end(p.queue)
	for _, s := range p.sessions {
		end(s.queue)
		end(s.batch)
	}
}

// endIdle ends the sessions that nobody has used for a while, and at once if
// others wait for a connection of the *sql.DB. Pool.mu is held.
func (p *Pool) endIdle() {
	// Nobody renews a session without locks, and the server will end it.
	after := min(p.opt.IdleTimeout, 2*p.opt.Heartbeat)
	if st := p.db.Stats(); st.MaxOpenConnections > 0 {
		if st.WaitCount > p.waits && st.InUse >= st.MaxOpenConnections {
			after = 0
		}
		p.waits = st.WaitCount
	}
	for _, s := range slices.Clone(p.sessions) {
		if !s.busy && s.holds == 0 && len(s.queue) == 0 && time.Since(s.idleSince) >= after {
			p.drop(s, errIdle)
		}
	}
}

var errIdle = errors.New("it was idle")

// checkWaiting ends the waiting sessions that the server doesn't know any more:
// a wait can take days, and nothing is sent on the connection meanwhile.
func (p *Pool) checkWaiting() {
	p.mu.Lock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.checking = false
	}()
	var waiting []*Session
	for _, s := range p.sessions {
		if s.state == sessionWaiting && s.running {
			waiting = append(waiting, s)
		}
	}
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(p.life, p.opt.Heartbeat)
	defer cancel()
	for _, s := range waiting {
		st := &Step{Verb: Owner, Key: s.self.Mark, Result: s.self.ID}
		other, err := p.Do(ctx, st)
		if err != nil || other == s {
			return
		}
		if st.Null || st.Result != s.self.ID {
			p.mu.Lock()
			p.drop(s, errors.New("the server has ended it"))
			p.mu.Unlock()
		}
	}
}
