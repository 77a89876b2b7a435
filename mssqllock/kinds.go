package mssqllock

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/dbsession"
)

// attempt is one call of Acquire.
type attempt struct {
	b     *Backend
	r     driver.Request
	limit dbsession.Limit // of the wait
	names names
	begun time.Time // of a try, which a heartbeat later is over; else zero
	sent  time.Time // when the question was sent that was granted
}

// ask asks once for what is wanted.
func (a *attempt) ask(ctx context.Context) (*hold, error) {
	switch a.r.Mode {
	case driver.Exclusive:
		return a.exclusive(ctx)
	case driver.Upgradeable:
		return a.upgradeable(ctx)
	case driver.Shared:
		return a.shared(ctx)
	case driver.Permit:
		return a.permit(ctx)
	default:
		return nil, errors.ErrUnsupported
	}
}

// left returns how much of the time to wait is left.
func (a *attempt) left() time.Duration { return a.limit.Left() }

func (a *attempt) exclusive(ctx context.Context) (*hold, error) { return a.exclusively(ctx, doGet) }

func (a *attempt) upgradeable(ctx context.Context) (*hold, error) {
	return a.exclusively(ctx, doUpdate)
}

// exclusively takes the lock in a mode that one at a time may have. Of this
// process only one asks for it.
func (a *attempt) exclusively(ctx context.Context, verb dbsession.Verb) (*hold, error) {
	if a.r.Wait == 0 && verb == doGet {
		return a.exclusiveAtOnce(ctx)
	}
	claim, err := a.b.pool.Claim(ctx, a.names.lock, a.left())
	if err != nil {
		return nil, err
	}
	if claim == nil {
		return nil, driver.ErrHeld
	}
	return a.take(ctx, verb, a.names.lock, claim)
}

func (a *attempt) exclusiveAtOnce(ctx context.Context) (*hold, error) {
	h := &hold{b: a.b, Holding: dbsession.Holding{Key: a.names.lock, GiveBack: doRelease}}
	a.sent = a.begun
	result, err := a.b.pool.Take(ctx, a.begun, &h.Holding, doGet, nil)
	switch {
	case err != nil:
		return nil, err
	case result < 0:
		return nil, codeError(result)
	case result != 1:
		return nil, driver.ErrHeld
	}
	return h, nil
}

// holding returns what is held by the claim on s.
func (b *Backend) holding(s *dbsession.Session, c *dbsession.Claim, key string, giveBack dbsession.Verb) *hold {
	h := &hold{b: b, Holding: dbsession.Holding{Session: s, Claim: c, Key: key, GiveBack: giveBack}}
	c.Hold(&h.Holding)
	return h
}

// shared takes the lock beside others. The server counts how often a session has
// it.
func (a *attempt) shared(ctx context.Context) (*hold, error) {
	claim, err := a.b.oneUse(ctx, a.names.lock)
	if err != nil {
		return nil, err
	}
	return a.take(ctx, doShare, a.names.lock, claim)
}

// oneUse claims one of the times that a key is held.
func (b *Backend) oneUse(ctx context.Context, key string) (*dbsession.Claim, error) {
	b.mu.Lock()
	b.uses++
	// No lock's name has a NUL.
	unique := key + "\x00" + strconv.FormatUint(b.uses, 10)
	b.mu.Unlock()
	return b.pool.Claim(ctx, unique, 0)
}

// take takes the key, and waits for it at the server if the request says so. The
// claim is freed if that is in vain.
func (a *attempt) take(ctx context.Context, verb dbsession.Verb, key string, claim *dbsession.Claim) (*hold, error) {
	pool := a.b.pool
	st := &dbsession.Step{Verb: verb, Key: key, Cleanup: claim.Free}
	a.sent = time.Now()
	s, err := pool.Do(ctx, st)
	waited := false
	switch {
	case err != nil || st.Result == 1 || st.Result < 0:
	case a.r.Wait > 0:
		waited = true
		s, err = pool.Wait(ctx, st, a.left())
	case st.Result == onlyElsewhere:
		a.sent = time.Now()
		s, err = pool.Elsewhere(ctx, st)
	}
	switch {
	case err != nil:
		return nil, err
	case st.Result != 1:
		claim.Free()
		if err := checked(st); err != nil {
			return nil, err
		}
		return nil, driver.ErrHeld
	case !claim.Bind(s):
		if waited {
			return nil, driver.ErrHeld // it is to be asked again
		}
		return nil, dbsession.ErrEnded
	}
	giveBack := doRelease
	if verb == doShare {
		giveBack = doUnshare
	}
	h := a.b.holding(s, claim, key, giveBack)
	if waited {
		return a.proven(ctx, h)
	}
	return h, nil
}

// proven finds out that the session of what was waited for lives: the answer proves
// that it did when the server granted it, and not when that was.
func (a *attempt) proven(ctx context.Context, h *hold) (*hold, error) {
	a.sent = time.Now()
	if err := a.b.pool.DoOn(ctx, h.Session, &dbsession.Step{Verb: dbsession.Ping}); err != nil {
		h.Session.GiveUp(h)
		return nil, err
	}
	return h, nil
}

// Upgrade implements [driver.Upgrader]. The session that holds the lock holds
// others too and isn't to wait, so that it asks again and again whether the
// readers are gone; meanwhile another session stands in the server's queue for
// the lock, so that no new readers get in. That one isn't granted it as long as
// it is held here.
func (h *hold) Upgrade(ctx context.Context, wait time.Duration) (uint64, error) {
	limit := dbsession.LimitOf(wait)
	var begun time.Time
	if wait == 0 {
		begun = time.Now()
	}
	done, err := h.convert()
	if err == nil && !done {
		if wait == 0 {
			return 0, driver.ErrHeld
		}
		step := h.b.queueUp(ctx, h.Key, limit.Left())
		err = dbsession.Poll(ctx, limit.Left, h.convert)
		step(ctx)
	}
	if err != nil {
		return 0, explain(err)
	}
	h.upgraded = true
	who, _ := h.Who()
	who.Mode = driver.Exclusive
	return h.count(ctx, begun, who)
}

// convert tries to make the lock exclusive. It isn't canceled: what was granted
// too late couldn't be taken back.
func (h *hold) convert() (bool, error) {
	if h.upgraded {
		return true, nil
	}
	st := &dbsession.Step{Verb: doUpgrade, Key: h.Key}
	if err := h.b.pool.DoOn(context.Background(), h.Session, st); err != nil {
		return false, err
	}
	if st.Result == notHeld {
		return false, dbsession.ErrGone
	}
	return st.Result == 1, checked(st)
}

// queueUp stands in the queue for the lock until the returned function is
// called, which returns when the place is given up.
func (b *Backend) queueUp(ctx context.Context, key string, wait time.Duration) (leave func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		claim, err := b.oneUse(ctx, key)
		if err != nil {
			return
		}
		nothing := make(chan struct{})
		st := &dbsession.Step{Verb: doStandIn, Key: key, Cleanup: func() {
			claim.Free()
			close(nothing)
		}}
		s, err := b.pool.Wait(ctx, st, wait)
		if err != nil || st.Result != 1 {
			<-nothing
			return
		}
		// The holder's session has ended.
		if claim.Bind(s) {
			s.GiveUp(b.holding(s, claim, key, doRelease)) // it wasn't meant to be had
		}
	}()
	return func(outer context.Context) {
		cancel()
		select {
		case <-gone:
		case <-outer.Done():
		}
	}
}

// permit takes one of the permits. Those who wait do so in the line for a gate; the
// first of them waits for a permit.
func (a *attempt) permit(ctx context.Context) (*hold, error) {
	if a.r.Wait == 0 {
		return a.anyPermit(ctx, a.r.Queue)
	}
	gate := a.names.gate()
	claim, err := a.b.pool.Claim(ctx, gate, a.left())
	if err != nil {
		return nil, err
	}
	if claim == nil {
		return nil, driver.ErrHeld
	}
	first, err := a.take(ctx, doGet, gate, claim)
	if err != nil {
		return nil, err
	}
	var h *hold
	err = a.b.pool.PollAtGate(ctx, first.Session, a.left, func(ctx context.Context) error {
		h, err = a.anyPermit(ctx, false)
		if errors.Is(err, driver.ErrHeld) {
			h, err = a.nextPermit(ctx)
		}
		return err
	})
	first.Session.GiveUp(first)
	return h, err
}

// nextPermit waits at the server for the permit that comes free next. The error is
// ErrHeld, too, if there is no session to wait on.
func (a *attempt) nextPermit(ctx context.Context) (*hold, error) {
	name := a.names.permits()
	st := &dbsession.Step{
		Verb: doWaitAny, Key: a.names.permitsEnd(), N: min(a.r.Limit, maxPermits),
		Taken: func(result int64) string { return name(int(result) - 1) },
	}
	if a.r.Limit == 1 {
		st.Verb, st.Key = doGet, name(0)
	}
	s, err := a.b.pool.WaitAny(ctx, st, a.left())
	switch {
	case err != nil:
		return nil, err
	case st.Result == 0:
		return nil, driver.ErrHeld
	}
	return a.proven(ctx, a.b.holding(s, st.Takes, st.Takes.Key(), doRelease))
}

// anyPermit takes a permit that is free, unless somebody waits for one and that
// is to be respected.
func (a *attempt) anyPermit(ctx context.Context, respect bool) (*hold, error) {
	gate := ""
	if respect {
		gate = a.names.gate()
	}
	claim, s, sent, err := a.b.pool.TakeAny(ctx, doGetAny, gate, a.r.Limit, a.names.permits())
	a.sent = sent
	if err != nil {
		return nil, err
	}
	return a.b.holding(s, claim, claim.Key(), doRelease), nil
}
