package mysqllock

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
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
func (a *attempt) ask(ctx context.Context) (driver.Hold, *dbsession.Holding, error) {
	var h *dbsession.Holding
	var err error
	switch a.r.Mode {
	case driver.Exclusive:
		h, err = a.exclusive(ctx)
	case driver.Shared:
		h, err := a.shared(ctx)
		if err != nil {
			return nil, nil, err
		}
		return h, &h.Holding, nil
	case driver.Permit:
		h, err = a.permit(ctx)
	default:
		err = errors.ErrUnsupported
	}
	return h, h, err
}

// askAndCount is ask, and counts the token of what was granted.
func (a *attempt) askAndCount(ctx context.Context) (driver.Grant, error) {
	hold, h, err := a.ask(ctx)
	if err != nil {
		return driver.Grant{}, explain(err)
	}
	who := driver.Holder{Owner: a.r.Owner, Mode: a.r.Mode, Since: a.sent}
	if a.r.Wait > 0 {
		who.Since = time.Now() // and not when it was asked for
	}
	who.Token, err = a.b.count(ctx, a.begun, h.Session, a.names, who)
	if err != nil {
		return driver.Grant{}, h.Session.TakeBack(ctx, a.begun, err, hold)
	}
	h.Note(who)
	return driver.Grant{Hold: hold, Token: who.Token, Session: h.Session, Sent: a.sent}, nil
}

// left returns how much of the time to wait is left.
func (a *attempt) left() time.Duration { return a.limit.Left() }

// do asks any session.
func (a *attempt) do(ctx context.Context, st *dbsession.Step) (*dbsession.Session, error) {
	a.sent = time.Now()
	return a.b.pool.Do(ctx, st)
}

// exclusive takes the lock itself, and waits until no reader is left. As long
// as it has the lock, no new reader gets in.
func (a *attempt) exclusive(ctx context.Context) (*dbsession.Holding, error) {
	if a.r.Wait == 0 {
		return a.exclusiveAtOnce(ctx)
	}
	claim, err := a.b.pool.Claim(ctx, a.names.lock, a.left())
	if err != nil {
		return nil, err
	}
	if claim == nil {
		return nil, driver.ErrHeld
	}
	s, result, err := a.wait(ctx, claim, doGetLock)
	if err != nil {
		return nil, err
	}
	h := holding(s, claim)
	var slots []string
	if result != 1 {
		slots = a.names.slots(a.b.opt.Readers)
	} else if time.Since(a.sent) < a.b.opt.Heartbeat {
		return h, nil
	}
	err = dbsession.Poll(ctx, a.left, func() (bool, error) {
		st := dbsession.Step{Verb: doCountFree, Checks: slots}
		if len(slots) == 0 {
			st.Verb = dbsession.Ping // to know that it lives: the answer may have come long ago
		}
		a.sent = time.Now()
		if err := a.b.pool.DoOn(ctx, s, &st); err != nil {
			return false, err
		}
		return len(slots) == 0 || st.Result == int64(len(slots)), nil
	})
	if err != nil {
		return nil, h.Session.TakeBack(ctx, a.begun, err, h)
	}
	return h, nil
}

// exclusiveAtOnce is exclusive for who doesn't wait.
func (a *attempt) exclusiveAtOnce(ctx context.Context) (*dbsession.Holding, error) {
	verb := doGetLock
	var slots []string
	if a.b.opt.Readers > 0 && !a.b.dialect.quiet() {
		slots = a.names.slots(a.b.opt.Readers)
		verb = doGetIfAll
	}
	h := &dbsession.Holding{Key: a.names.lock, GiveBack: doRelease}
	a.sent = a.begun
	result, err := a.b.pool.Take(ctx, a.begun, h, verb, slots)
	switch {
	case err != nil:
		return nil, err
	case result != 1 && result != 3:
		return nil, driver.ErrHeld
	case result == 3:
		slots = a.names.slots(a.b.opt.Readers)
		look := dbsession.Step{Verb: doCountFree, Checks: slots, Asked: a.begun}
		if err := a.b.pool.DoOn(ctx, h.Session, &look); err != nil {
			return nil, h.Session.TakeBack(ctx, a.begun, err, h)
		}
		if look.Result != int64(len(slots)) {
			return nil, h.Session.TakeBack(ctx, a.begun, driver.ErrHeld, h)
		}
	}
	return h, nil
}

// holding returns what is held by the claim on s.
func holding(s *dbsession.Session, c *dbsession.Claim) *dbsession.Holding {
	h := &dbsession.Holding{Session: s, Claim: c, Key: c.Key(), GiveBack: doRelease}
	c.Hold(h)
	return h
}

// give gives back a key that was of use for a while only.
func give(s *dbsession.Session, c *dbsession.Claim, key string) {
	s.GiveUp(&dbsession.Holding{Session: s, Claim: c, Key: key, GiveBack: doRelease})
}

// wait waits at the server until the claimed key is this process's, and returns
// the result of the verb, which takes it. If that is in vain, the claim is freed.
func (a *attempt) wait(ctx context.Context, claim *dbsession.Claim, verb dbsession.Verb) (*dbsession.Session, int64, error) {
	st := dbsession.Step{Verb: verb, Key: claim.Key(), Cleanup: claim.Free}
	var s *dbsession.Session
	var err error
	if verb == doGet { // nobody has asked for it yet, and it may be free
		s, err = a.b.pool.Do(ctx, &st)
	}
	if err == nil && st.Result == 0 {
		a.sent = time.Now()
		s, err = a.b.pool.Wait(ctx, &st, a.left())
	}
	switch {
	case err != nil:
		return nil, 0, err
	case st.Result == 0:
		return nil, 0, driver.ErrHeld
	case !claim.Bind(s):
		return nil, 0, driver.ErrHeld // it is to be asked again
	}
	return s, st.Result, nil
}

// A share is the place among the readers that all shared holdings of a resource
// in this process have in common.
type share struct {
	b     *Backend
	hash  string
	turn  chan struct{} // has a value while somebody takes or gives back the place
	users int           // of the share value, guarded by Backend.mu

	// Guarded by turn.
	holds   int
	session *dbsession.Session // nil: there is no place
	claim   *dbsession.Claim
	slot    string
	term    uint64          // counts the places
	leaving *dbsession.Step // gives the place back; nobody may join any more
}

// share returns the share of the resource; it is to be unused again.
func (b *Backend) share(hash string) *share {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.shares[hash]
	if s == nil {
		s = &share{b: b, hash: hash, turn: make(chan struct{}, 1)}
		b.shares[hash] = s
	}
	s.users++
	return s
}

func (s *share) unuse() {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.users--
	if s.users == 0 {
		delete(s.b.shares, s.hash)
	}
}

func (s *share) enter(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// A sharedHold is one of the holdings of a share.
type sharedHold struct {
	dbsession.Holding // of the place

	share *share
	term  uint64

	mu     sync.Mutex
	done   bool
	result error
}

// Release implements [driver.Hold].
func (h *sharedHold) Release(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.done {
		return h.result
	}
	err := h.share.leave(ctx, h)
	if err == nil || errors.Is(err, driver.ErrLost) {
		h.done, h.result = true, err
		b := h.share.b
		b.mu.Lock()
		delete(b.sharing, h)
		b.mu.Unlock()
	}
	return err
}

// leave ends one holding.
func (s *share) leave(ctx context.Context, h *sharedHold) error {
	on := h.Session
	if on.Dead() {
		s.unuse()
		return dbsession.ErrEnded
	}
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer func() { <-s.turn }()
	if s.session == on && s.term == h.term {
		if s.holds == 1 {
			err := s.giveBack(ctx)
			if err != nil && !errors.Is(err, driver.ErrLost) {
				return err
			}
			s.unuse()
			return err
		}
		s.holds--
	}
	s.unuse()
	return nil
}

// holding returns one more holding of the place.
func (s *share) holding() *sharedHold {
	return &sharedHold{Holding: dbsession.Holding{Session: s.session, Claim: s.claim, Key: s.slot}, share: s, term: s.term}
}

// giveBack gives the place back. Errors but ErrLost leave it open whether it is, as
// long as there is an answer to come.
func (s *share) giveBack(ctx context.Context) error {
	err := s.b.pool.GiveBack(ctx, s.session, s.claim, doRelease, s.slot, &s.leaving)
	if err != nil && !errors.Is(err, driver.ErrLost) {
		return err
	}
	on := s.session
	s.holds, s.session = 0, nil
	s.b.notReading(on)
	return err
}

// shared takes a place among the readers, or a part of the one that this process
// has, unless somebody has the lock itself.
func (a *attempt) shared(ctx context.Context) (*sharedHold, error) {
	b := a.b
	s := b.share(a.names.hash())
	h, err := a.sharedOn(ctx, s)
	if err != nil {
		s.unuse()
		return nil, err
	}
	b.mu.Lock()
	b.sharing[h] = struct{}{}
	b.mu.Unlock()
	if h.Session.Dead() {
		b.dropped(h.Session) // which may have been before it was there
	}
	return h, nil
}

func (a *attempt) sharedOn(ctx context.Context, s *share) (*sharedHold, error) {
	h, err := a.enterShare(ctx, s, false)
	switch {
	case !errors.Is(err, driver.ErrHeld):
		return h, err
	case a.r.Wait == 0 && a.r.Queue: // it will be asked again
		return nil, err
	case a.r.Wait == 0:
		return a.sharedAgain(ctx, s)
	}
	// Wait among those who want the lock itself, and take the place while having
	// it.
	claim, err := a.b.pool.Claim(ctx, a.names.lock, a.left())
	if err != nil {
		return nil, err
	}
	if claim == nil {
		return nil, driver.ErrHeld
	}
	on, _, err := a.wait(ctx, claim, doGet)
	if err != nil {
		return nil, err
	}
	h, err = a.enterShare(ctx, s, true)
	give(on, claim, a.names.lock)
	return h, err
}

// onItsWay is about how long a reader that has waited has the lock itself.
const onItsWay = 10 * time.Millisecond

// sharedAgain is for a try that was refused. It may have met a reader on its way to
// its place, and such a one is gone in a moment.
func (a *attempt) sharedAgain(ctx context.Context, s *share) (h *sharedHold, err error) {
	end := time.Now().Add(onItsWay)
	err = dbsession.Poll(ctx, func() time.Duration { return time.Until(end) }, func() (bool, error) {
		st := dbsession.Step{Verb: doLookFree, Key: a.names.lock}
		if _, err := a.do(ctx, &st); err != nil || st.Result != 1 {
			return false, err
		}
		h, err = a.enterShare(ctx, s, false)
		if errors.Is(err, driver.ErrHeld) {
			return false, nil
		}
		return err == nil, err
	})
	return h, err
}

// enterShare takes part in the share. locked says that this attempt has the
// lock itself.
func (a *attempt) enterShare(ctx context.Context, s *share, locked bool) (*sharedHold, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer func() { <-s.turn }()
	if s.session != nil && s.session.Dead() {
		s.session, s.holds, s.leaving = nil, 0, nil
	}
	if s.leaving != nil {
		// Whether it has been given back is decided by the server's answer, and not by
		// how long somebody waited for that.
		if err := s.giveBack(ctx); err != nil && !errors.Is(err, driver.ErrLost) {
			return nil, err
		}
	}
	if s.session != nil {
		if !locked {
			st := dbsession.Step{Verb: doLookFree, Key: a.names.lock}
			a.sent = time.Now()
			if err := a.b.pool.DoOn(ctx, s.session, &st); err != nil {
				return nil, err
			}
			if st.Result != 1 {
				return nil, driver.ErrHeld
			}
		}
		s.holds++
		return s.holding(), nil
	}
	on, err := a.b.reading(ctx)
	if err != nil {
		return nil, err
	}
	slots := a.names.slots(a.b.opt.Readers)
	for i := range slots {
		slot := slots[(a.b.first+i)%len(slots)]
		claim, err := a.b.pool.Claim(ctx, slot, 0)
		if err != nil {
			a.b.notReading(on)
			return nil, err
		}
		if claim == nil {
			continue
		}
		st := dbsession.Step{Verb: doGetIf, Key: slot, Checks: []string{a.names.lock}, Cleanup: claim.Free}
		if locked {
			st.Verb, st.Checks = doGet, nil
		}
		a.sent = time.Now()
		if err := a.b.pool.DoOn(ctx, on, &st); err != nil {
			a.b.notReading(on)
			return nil, err
		}
		if st.Result == 1 {
			if !claim.Bind(on) {
				a.b.notReading(on)
				return nil, dbsession.ErrEnded
			}
			s.session, s.claim, s.slot, s.holds = on, claim, slot, 1
			s.term++
			return s.holding(), nil
		}
		claim.Free()
		if st.Result == 2 {
			break
		}
	}
	a.b.notReading(on)
	return nil, driver.ErrHeld
}

// reading returns the session that holds what this process has in shared mode,
// marked as one that does.
func (b *Backend) reading(ctx context.Context) (*dbsession.Session, error) {
	select {
	case b.readTurn <- struct{}{}:
		defer func() { <-b.readTurn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if r := b.reader; r.session != nil && !r.session.Dead() {
		b.reader.users++
		return r.session, nil
	}
	marks := b.dialect.marks
	names := make([]string, len(marks))
	first := rand.IntN(len(marks))
	for i := range names {
		names[i] = marks[(first+i)%len(marks)]
	}
	// Only this backend's own claim could be in the way, and there is none.
	claim, err := b.pool.Claim(ctx, readingKey, time.Second)
	if err != nil {
		return nil, err
	}
	if claim == nil {
		return nil, driver.ErrHeld
	}
	st := dbsession.Step{Verb: doGetAny, Key: noGate, Checks: names, Cleanup: claim.Free}
	s, err := b.pool.Do(ctx, &st)
	switch {
	case err != nil:
		return nil, err
	case st.Result <= 0:
		claim.Free()
		return nil, driver.ErrHeld
	case !claim.Bind(s):
		return nil, dbsession.ErrEnded
	}
	b.reader.session, b.reader.claim, b.reader.name, b.reader.users = s, claim, names[st.Result-1], 1
	return s, nil
}

// notReading ends one use of the session. The mark goes with the last.
func (b *Backend) notReading(s *dbsession.Session) {
	b.readTurn <- struct{}{}
	defer func() { <-b.readTurn }()
	r := &b.reader
	if r.session != s {
		return // it has ended, and another took its place
	}
	if r.users--; r.users > 0 {
		return
	}
	r.session = nil
	give(s, r.claim, r.name)
}

// permit takes one of the permits. Those who wait do so in the line for a gate;
// the first of them looks for a permit now and then.
func (a *attempt) permit(ctx context.Context) (*dbsession.Holding, error) {
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
	s, _, err := a.wait(ctx, claim, doGet)
	if err != nil {
		return nil, err
	}
	var h *dbsession.Holding
	err = a.b.pool.PollAtGate(ctx, s, a.left, func(ctx context.Context) error {
		h, err = a.anyPermit(ctx, false)
		return err
	})
	give(s, claim, gate)
	return h, err
}

// anyPermit takes a permit that is free, unless somebody waits for one and that
// is to be respected.
func (a *attempt) anyPermit(ctx context.Context, respect bool) (*dbsession.Holding, error) {
	gate := noGate
	if respect {
		gate = a.names.gate()
	}
	claim, s, sent, err := a.b.pool.TakeAny(ctx, doGetAny, gate, a.r.Limit, a.names.permits())
	a.sent = sent
	if err != nil {
		return nil, err
	}
	return holding(s, claim), nil
}
