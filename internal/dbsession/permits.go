package dbsession

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

// PollAtGate is Poll by who holds a gate on s, until ask says something else than
// ErrHeld. What is asked may all go over other sessions, and nobody renews this one:
// so it is proven here. If it has ended, the gate is lost, and the error is ErrHeld.
func (p *Pool) PollAtGate(ctx context.Context, s *Session, left func() time.Duration, ask func() error) error {
	proven := time.Now()
	return Poll(ctx, left, func() (bool, error) {
		var err error
		if time.Since(proven) >= p.opt.Heartbeat {
			proven = time.Now()
			err = s.Renew(ctx)
		}
		switch {
		case s.Dead():
			return false, driver.ErrHeld
		case err != nil:
			return false, err
		}
		err = ask()
		if errors.Is(err, driver.ErrHeld) {
			return false, nil
		}
		return err == nil, err
	})
}
