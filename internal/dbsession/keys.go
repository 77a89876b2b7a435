package dbsession

import (
	"context"
	"slices"
	"time"
)

// A Claim is a key that is held, or asked for, within this process. The
// database would grant it once more to the session that has it already.
type Claim struct {
	pool *Pool
	key  string
	arg  any       // the key, as an argument
	line []*inLine // who wants it next

	claimed bool     // and not freed
	holding *Holding // what it is claimed for, if that is known
	on      *Session // that holds it in the database
}

// Key returns what is claimed.
func (c *Claim) Key() string { return c.key }

type inLine struct {
	turn  chan struct{}
	claim *Claim
}

// Claim takes the key within this process, and waits for at most wait if it is
// taken. It returns nil when the time is over.
func (p *Pool) Claim(ctx context.Context, key string, wait time.Duration) (*Claim, error) {
	p.mu.Lock()
	c := p.newClaim(key)
	if c.claim() {
		p.mu.Unlock()
		return c, nil
	}
	if wait <= 0 {
		p.mu.Unlock()
		return nil, nil
	}
	c = p.claims[key]
	w := &inLine{turn: make(chan struct{})}
	c.line = append(c.line, w)
	p.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	again := time.NewTicker(fresh)
	defer again.Stop()
	var err error
	for {
		select {
		case <-w.turn:
			return w.claim, nil
		case <-again.C:
			p.mu.Lock()
			if c := p.claims[key]; c != nil {
				p.doubt(c)
			}
			p.mu.Unlock()
			continue
		case <-timer.C:
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-p.life.Done():
			err = errClosed
		}
		break
	}
	p.mu.Lock()
	if w.claim != nil {
		p.mu.Unlock()
		w.claim.Free() // it came at the same moment
		return nil, err
	}
	c = p.claims[key]
	if i := slices.Index(c.line, w); i >= 0 {
		c.line = slices.Delete(c.line, i, i+1)
	}
	p.mu.Unlock()
	return nil, err
}

func (p *Pool) newClaim(key string) *Claim { return &Claim{pool: p, key: key, arg: key} }

// claim claims the key at once, and reports whether it could. Pool.mu is held.
func (c *Claim) claim() bool {
	if c.claimed { // it was asked for before
		return true
	}
	p := c.pool
	if other := p.claims[c.key]; other != nil {
		p.doubt(other)
		return false
	}
	p.claims[c.key], c.claimed = c, true
	return true
}

// Hold says what it is claimed for, and bound to a session by now.
func (c *Claim) Hold(h *Holding) {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	c.holding = h
}

// doubt finds out whether what is claimed is still held: whoever died isn't to
// keep it from the others of this process. Pool.mu is held.
func (p *Pool) doubt(c *Claim) {
	if s := c.on; s != nil && !s.busy && time.Since(s.proven) > fresh {
		p.start(s, &Step{Verb: Ping})
	}
}

// Bind says that a step of the claim's has taken the key on s. The claim ends
// with s. It reports false if s has ended.
func (c *Claim) Bind(s *Session) bool {
	p := c.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.dead {
		c.free()
		return false
	}
	c.bind(s)
	return true
}

func (c *Claim) bind(s *Session) {
	c.on = s
	if s.holds%crowd == 0 {
		c.pool.grow()
	}
}

// Free ends the claim, if it hasn't ended with its session.
func (c *Claim) Free() {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	c.free()
}

func (c *Claim) free() {
	if !c.claimed {
		return
	}
	c.claimed = false
	p := c.pool
	if c.on != nil {
		c.on.holds--
		if c.on.holds == 0 {
			c.on.idleSince = time.Now()
		}
	}
	if len(c.line) == 0 {
		delete(p.claims, c.key)
		return
	}
	next := c.line[0]
	next.claim = &Claim{pool: p, key: c.key, arg: c.arg, claimed: true, line: c.line[1:]}
	p.claims[c.key] = next.claim
	close(next.turn)
}

// freeAll ends the claims that s took with it.
func (p *Pool) freeAll(s *Session) {
	var claims []*Claim
	for _, c := range p.claims {
		if c.on == s {
			claims = append(claims, c)
		}
	}
	for _, c := range claims {
		c.free()
	}
}
