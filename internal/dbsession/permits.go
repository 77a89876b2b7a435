package dbsession

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/distlock-go/distlock/driver"
)

// ErrGone says that the server denies what was thought to be held.
var ErrGone = fmt.Errorf("%w: the server says that its session doesn't hold it", driver.ErrLost)

// ErrEnded says that the session has ended that was just granted something.
var ErrEnded = fmt.Errorf("%w: the session ended at the same moment", driver.ErrLost)

// tryAtOnce bounds how many keys one statement tries.
const tryAtOnce = 32

// TakeAny takes one of n keys, the next best that is free. The verb takes the first
// free one of its Checks, and results in its number, from 1, or in less than 0 if its
// Key is gate and isn't free. Sent is when that was asked which was granted. The error
// is ErrHeld if none is free, or if the gate isn't.
func (p *Pool) TakeAny(ctx context.Context, verb Verb, gate string, n int, key func(i int) string) (c *Claim, s *Session, sent time.Time, err error) {
	start := rand.IntN(n)
	var claims []*Claim
	var keys []string
	for i := range n {
		name := key((start + i) % n)
		if c, _ := p.Claim(ctx, name, 0); c != nil { // it doesn't wait
			claims = append(claims, c)
			keys = append(keys, name)
		}
		if len(claims) == 0 || len(claims) < tryAtOnce && i+1 < n {
			continue
		}
		tried := claims
		st := &Step{Verb: verb, Key: gate, Checks: keys, Cleanup: func() { freeAllBut(tried, -1) }}
		sent = time.Now()
		if s, err = p.Do(ctx, st); err != nil {
			return nil, nil, sent, err
		}
		taken := -1
		if st.Result > 0 {
			taken = min(int(st.Result), len(claims)) - 1
		}
		freeAllBut(claims, taken)
		switch {
		case taken >= 0 && !claims[taken].Bind(s):
			return nil, nil, sent, ErrEnded
		case taken >= 0:
			return claims[taken], s, sent, nil
		case st.Result < 0:
			return nil, nil, sent, driver.ErrHeld
		}
		claims, keys = nil, nil
	}
	return nil, nil, sent, driver.ErrHeld
}

func freeAllBut(claims []*Claim, but int) {
	for i, c := range claims {
		if i != but {
			c.Free()
		}
	}
}

// WaitAny is Wait for a step that may take any of several keys; Taken names the one,
// and Takes is the claim of it then, which is bound. It asks nothing, and returns no
// session, if there is none to wait on. For at most two heartbeats it waits for whoever
// has the claim still.
func (p *Pool) WaitAny(ctx context.Context, st *Step, d time.Duration) (*Session, error) {
	st.Result = 0
	p.mu.Lock()
	room := !p.closed && len(p.polled) == 0 && p.mayWait()
	p.mu.Unlock()
	if !room {
		return nil, nil
	}
	deadline, over, stop := timeFor(d)
	defer stop()
	s, noRoom, err := p.toWaitOn(ctx, over)
	switch {
	case s != nil:
		return p.waitOn(ctx, s, st, deadline, over)
	case noRoom:
		return nil, nil
	}
	return nil, err
}

// claimTaken claims what a wait has taken, before anything else is done on its
// session. In the database nobody else has it: who claims it still was refused it, has
// given it back, or has lost his session and doesn't know it yet.
func (p *Pool) claimTaken(ctx context.Context, c *Conn, w *ownWait) error {
	claim, _ := p.Claim(ctx, w.step.Taken(w.step.Result), 2*p.opt.Heartbeat)
	if claim == nil {
		if err := p.dialect.Run(c.life, c, []*Step{p.dialect.Undo(&w.step)}); err != nil {
			return errors.Join(ErrDoubt, err)
		}
		return ErrInterrupted
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.s.dead {
		claim.free()
		return w.s.deadErr
	}
	claim.bind(w.s)
	w.s.holds++
	w.step.Takes = claim
	return nil
}

// PollAtGate is Poll by who holds a gate on s, until ask says something else than
// ErrHeld. What is asked may all go over other sessions, and nobody renews this one:
// so it is proven meanwhile. If it has ended, the gate is lost: that ends what is
// asked, and the error is ErrHeld.
func (p *Pool) PollAtGate(ctx context.Context, s *Session, left func() time.Duration, ask func(ctx context.Context) error) error {
	ctx, end := context.WithCancelCause(ctx)
	var proving sync.WaitGroup
	defer proving.Wait()
	defer end(nil)
	proving.Go(func() {
		beat := time.NewTicker(p.opt.Heartbeat)
		defer beat.Stop()
		for {
			select {
			case <-beat.C:
				_ = s.Renew(ctx) // if there is no answer, s ends
			case <-s.lost:
				end(driver.ErrHeld)
				return
			case <-ctx.Done():
				return
			}
		}
	})
	return Poll(ctx, left, func() (bool, error) {
		err := ask(ctx)
		if errors.Is(err, driver.ErrHeld) {
			return false, nil
		}
		return err == nil, err
	})
}
