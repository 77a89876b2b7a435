package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/distlock-go/distlock/driver"
)

// session is a lease if ttl isn't zero, else a connection.
type session struct {
	memory    *memory
	ttl       time.Duration
	expires   time.Time // all of this is guarded by store.mu
	dead      bool
	restarted bool
	reported  int
	records   []*record
	lost      chan struct{}
	hold      *both // that a defect takes for the session
}

// session returns what a grant shall hang on. The caller holds store.mu.
func (m *memory) session(r driver.Request) *session {
	s := m.store
	if !s.leases && m.connection != nil && !m.connection.dead {
		return m.connection
	}
	c := &session{memory: m, lost: make(chan struct{})}
	if s.leases {
		c.ttl = r.TTL
		c.expires = time.Now().Add(r.TTL)
	}
	m.connection = c
	s.sessions[c] = true
	return c
}

// incomparable is a session of a type that can't be a key.
type incomparable struct {
	*session
	_ []int
}

// dress returns the hold and its session as the backend shows them.
func (m *memory) dress(h *hold, c *session) (driver.Hold, driver.Session) {
	switch {
	case m.store.is("sessions can't be compared"):
		return h, incomparable{session: c}
	case m.store.is("each grant pretends a session of its own"):
		return h, &wrapped{c}
	case m.store.is("a hold is the session of all"):
		if c.hold != nil {
			return h, c.hold
		}
		c.hold = &both{h, c}
		return c.hold, c.hold
	}
	return h, c
}

type both struct {
	*hold
	*session
}

type wrapped struct{ *session }

func (c *session) base() *session { return c }

// die ends the session in the store. The caller holds store.mu.
func (c *session) die() {
	s := c.memory.store
	if c.dead {
		return
	}
	c.dead = true
	delete(s.sessions, c)
	for _, r := range c.records {
		if r.released {
			continue
		}
		r.lost = true
		if s.is("permits of the dead are lost for good") && r.mode == driver.Permit {
			continue
		}
		s.remove(r)
	}
	if c.ttl == 0 && !s.is("renewals never fail") {
		close(c.lost)
	}
	if s.is("one session takes the others along") {
		for other := range s.sessions {
			if other.memory == c.memory {
				other.die()
			}
		}
	}
	if s.is("token restarts after a loss") {
		s.tokens = 0
	}
}

func (c *session) Lease() driver.Lease {
	switch s := c.memory.store; s.defect {
	case "renewals come after the lease":
		return driver.Lease{TTL: c.ttl, Every: 2 * c.ttl}
	case "the session is never looked at":
		return driver.Lease{}
	}
	if c.ttl > 0 {
		return driver.Lease{TTL: c.ttl}
	}
	return driver.Lease{Every: time.Second}
}

func (c *session) Lost() <-chan struct{} {
	if c.ttl > 0 || c.memory.store.is("the session is never looked at") {
		return nil
	}
	if c.memory.store.is("loss is reported from the start") {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	return c.lost
}

func (c *session) Abandon() {
	s := c.memory.store
	if s.is("Abandon blocks") {
		select {
		case <-s.end:
		case <-time.After(time.Hour):
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.ttl == 0 && !s.is("Abandon does nothing") {
		c.die()
	}
}

func (c *session) Renew(ctx context.Context) error {
	s := c.memory.store
	if err := c.memory.travel(ctx); err != nil {
		return err
	}
	if s.is("renewals read, then write") {
		s.mu.Lock()
		held := !c.dead && c.records[0].since.Add(time.Hour).After(time.Now()) && !c.records[0].released
		s.mu.Unlock()
		time.Sleep(200 * time.Microsecond)
		if held {
			s.mu.Lock()
			if r := c.records[0]; r.released {
				s.entry(r.key, false).records = []*record{r}
			}
			s.mu.Unlock()
		}
	}
	s.mu.Lock()
	err := c.renew()
	s.mu.Unlock()
	if s.is("no answer to a renewal is a loss") {
		if c.memory.answer(ctx) != nil {
			return driver.ErrLost
		}
		return err
	}
	if err := c.memory.answer(ctx); err != nil {
		return err
	}
	return err
}

// renew is Renew in the store. The caller holds store.mu.
func (c *session) renew() error {
	s := c.memory.store
	s.expire()
	if s.is("renewals always fail") {
		return errStore
	}
	if s.is("restart frees silently") && c.restarted || s.is("renewals never fail") || s.is("leases end early and nobody is told") {
		return nil
	}
	if c.dead {
		c.reported++
		r := c.records[len(c.records)-1]
		e := s.entry(r.key, r.mode == driver.Permit)
		switch {
		case s.is("renewal brings back what was lost") && len(e.records) == 0 && c.reported > 1:
			e.records = append(e.records, r)
			return nil
		case s.is("renewal revives the expired") && c.ttl > 0 && len(e.records) == 0:
			e.records = append(e.records, r)
			return driver.ErrLost
		case s.is("renewal ends the next holder's session") && len(e.records) > 0:
			next := e.records[0]
			next.lost = true
			s.remove(next)
		}
		return driver.ErrLost
	}
	if s.is("renewal revives the released") {
		for _, r := range c.records {
			if r.released {
				s.entry(r.key, r.mode == driver.Permit).records = []*record{r}
			}
		}
	}
	if !s.is("renewals renew nothing") {
		c.expires = time.Now().Add(c.ttl)
	}
	return nil
}

type hold struct {
	memory *memory
	record *record
}

func (h *hold) Release(ctx context.Context) error {
	s := h.memory.store
	if s.is("a failed release counts as done") && ctx.Err() != nil {
		h.record.released = true
		return ctx.Err()
	}
	if s.is("a failed release breaks the backend") && ctx.Err() != nil {
		s.mu.Lock()
		h.memory.broken = driver.ErrHeld
		s.mu.Unlock()
	}
	if err := h.memory.travel(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	err := h.release()
	s.mu.Unlock()
	if answer := h.memory.answer(ctx); answer != nil {
		if s.is("secrets in errors") {
			return fmt.Errorf("memory://me:%s@store: %w", secret, answer)
		}
		return answer
	}
	return err
}

// release is Release in the store. The caller holds store.mu.
func (h *hold) release() error {
	s, r := h.memory.store, h.record
	s.expire()
	e := s.entry(r.key, r.mode == driver.Permit)
	switch {
	case r.released && s.is("the second release fails"):
		return errStore
	case r.released && s.is("a permit comes back with each release") && r.mode == driver.Permit,
		r.released && s.is("a reader leaves with each release") && r.mode == driver.Shared,
		r.released && s.is("the second release is by name") && r.mode == driver.Exclusive,
		r.lost && s.is("release after loss is by name") && h.record.session.ttl == 0,
		r.lost && s.is("release after expiry is by name") && h.record.session.ttl > 0:
		if len(e.records) > 0 {
			s.remove(e.records[0])
		}
		if r.released {
			return nil
		}
	case r.released:
		return nil
	case r.lost && s.is("release after loss is nil"):
		return nil
	}
	if r.lost {
		return driver.ErrLost
	}
	if !slices.Contains(e.records, r) {
		return driver.ErrLost
	}
	r.released = true
	switch {
	case s.is("a released name is spoilt"):
		h.memory.spoilt = r.request.Resource
	case s.is("releases do nothing"),
		s.is("released permits are lost") && r.mode == driver.Permit:
		return nil
	case s.is("release frees later"):
		time.AfterFunc(100*time.Millisecond, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.remove(r)
		})
		return nil
	case s.is("upgraded holdings leave a part behind") && r.request.Mode == driver.Upgradeable && r.mode == driver.Exclusive:
		r.mode = driver.Shared
		return nil
	case s.is("release frees all of the session"):
		for _, other := range r.session.records {
			if !other.released {
				s.remove(other)
			}
		}
	}
	s.remove(r)
	if r.session.ttl == 0 {
		r.session.records = slices.DeleteFunc(r.session.records, func(other *record) bool { return other == r })
		return nil
	}
	if !s.is("renewal revives the released") && !s.is("renewals read, then write") {
		delete(s.sessions, r.session)
		r.session.dead = true
	}
	return nil
}

func (h *hold) Upgrade(ctx context.Context, wait time.Duration) (uint64, error) {
	s, r := h.memory.store, h.record
	var over <-chan time.Time
	if wait > 0 && wait < driver.Forever {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		over = timer.C
	}
	for {
		s.mu.Lock()
		s.expire()
		e := s.entry(r.key, false)
		switch {
		case r.lost || r.released:
			s.mu.Unlock()
			return 0, driver.ErrLost
		case len(e.records) == 1 || s.is("upgrade doesn't wait for readers"):
			e.upgrading = nil
			if s.is("upgrade lets go and takes again") {
				s.remove(r)
				s.mu.Unlock()
				time.Sleep(time.Millisecond)
				s.mu.Lock()
				e = s.entry(r.key, false)
				e.records = append(e.records, r)
			}
			r.mode = driver.Exclusive
			if !s.is("upgrade keeps the token") {
				s.tokens++
				r.token = s.tokens
			}
			defer s.mu.Unlock()
			return r.token, nil
		}
		e.upgrading = r
		p := &parked{ready: make(chan struct{})}
		e.waiters = append(e.waiters, p)
		s.mu.Unlock()
		err := driver.ErrHeld
		if wait > 0 {
			select {
			case <-p.ready:
				continue
			case <-over:
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		s.mu.Lock()
		if !s.is("failed upgrade keeps readers out") {
			e.upgrading = nil
		}
		e.waiters = slices.DeleteFunc(e.waiters, func(q *parked) bool { return q == p })
		s.wake(e)
		if s.is("failed upgrade drops the holding") && errors.Is(err, driver.ErrHeld) ||
			s.is("cancelled upgrade drops the holding") && !errors.Is(err, driver.ErrHeld) {
			s.remove(r)
			r.lost = true
		}
		s.mu.Unlock()
		if s.is("upgrade that must wait is some error") {
			return 0, errStore
		}
		return 0, err
	}
}
