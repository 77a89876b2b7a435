package dbsession

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/distlock-go/distlock/driver"
)

// A Holding is a key that is held on a session: a [driver.Hold], or the core of one.
type Holding struct {
	Session  *Session
	Claim    *Claim // of Key
	Key      string
	GiveBack Verb // of Key, which results in 1 if it was held

	// Those of Release, of which there is one at a time.
	underWay *Step
	done     bool
	result   error

	mu  sync.Mutex
	who driver.Holder
}

// Take asks once, on any session, by a verb that takes h.Key, and returns its result,
// which is 0 also if the key is taken in this process. If something was taken h is what
// is held then. Asked is that of [Step].
func (p *Pool) Take(ctx context.Context, asked time.Time, h *Holding, verb Verb, checks []string) (result int64, err error) {
	c := p.newClaim(h.Key)
	c.holding = h
	st := Step{Verb: verb, Key: h.Key, Checks: checks, Takes: c, Asked: asked}
	s, result, _, err := p.run(ctx, nil, &st)
	if errors.Is(err, errClaimed) {
		return 0, nil
	}
	h.Session, h.Claim = s, c
	return result, err
}

var errClaimed = errors.New("the key is taken in this process")

// Release implements [driver.Hold].
func (h *Holding) Release(ctx context.Context) error {
	if h.done {
		return h.result
	}
	err := h.Session.pool.GiveBack(ctx, h.Session, h.Claim, h.GiveBack, h.Key, &h.underWay)
	if err == nil || errors.Is(err, driver.ErrLost) {
		h.done, h.result = true, err
	}
	return err
}

// Note notes who holds it. Until then nobody is told of it.
func (h *Holding) Note(who driver.Holder) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.who = who
}

// Who returns who holds it, if that has been noted.
func (h *Holding) Who() (who driver.Holder, noted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.who, !h.who.Since.IsZero()
}

// Holders returns who holds the key in this process, on the session of the server
// with that number if it isn't 0.
func (p *Pool) Holders(key string, session int64) []driver.Holder {
	p.mu.Lock()
	defer p.mu.Unlock()
	var holders []driver.Holder
	for _, c := range p.claims {
		h := c.holding
		if h == nil || h.Key != key || c.on == nil || c.on.dead || session != 0 && c.on.self.ID != session {
			continue
		}
		if who, noted := h.Who(); noted {
			holders = append(holders, who)
		}
	}
	return holders
}

// Within returns a context that ends a heartbeat from when something was asked, if that
// isn't zero. What is asked with it isn't asked by the caller himself.
func (p *Pool) Within(ctx context.Context, asked time.Time) (context.Context, context.CancelFunc) {
	if asked.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, asked.Add(p.opt.Heartbeat), ErrSilent)
}

// Persist calls ask, and again if what was taken was lost at once: the connection had
// ended, and perhaps more of them. To have asked again takes no longer than a heartbeat
// from when it was asked, if that isn't zero.
func (p *Pool) Persist(ctx context.Context, asked time.Time, ask func(ctx context.Context) error) error {
	err := ask(ctx)
	if !errors.Is(err, driver.ErrLost) {
		return err
	}
	ctx, cancel := p.Within(ctx, asked)
	defer cancel()
	for tries := 1; errors.Is(err, driver.ErrLost) && tries < 3; tries++ {
		err = ask(ctx)
	}
	return err
}

// GiveUp releases what hangs on s and nobody wants. If that can't be done it ends s, as
// nobody would try again.
func (s *Session) GiveUp(h driver.Hold) {
	if err := h.Release(context.Background()); err != nil && !errors.Is(err, driver.ErrLost) {
		s.Abandon()
	}
}

// TakeBack gives up what came of an Acquire that fails with err, and returns the error
// of that. It doesn't wait for the release, which may take a heartbeat, when ctx ends,
// nor for longer than a heartbeat from when it was asked, if that isn't zero.
func (s *Session) TakeBack(ctx context.Context, asked time.Time, err error, h driver.Hold) error {
	p := s.pool
	ctx, cancel := p.Within(ctx, asked)
	defer cancel()
	settled := make(chan struct{})
	p.inBackground(func() {
		defer close(settled)
		s.GiveUp(h)
	})
	select {
	case <-settled:
		return err
	case <-ctx.Done():
		return &driver.UnsettledError{Err: context.Cause(ctx), Settled: settled}
	}
}

var _ driver.Hold = (*Holding)(nil)
