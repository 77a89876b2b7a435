package distlock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/distlock-go/distlock/driver"
)

// A keeper keeps one session alive for all tenures that hang on it. It has no
// goroutine of its own but while a renewal is under way, and where the session
// tells of its end: a schedule looks after all keepers of a Locker.
type keeper struct {
	locker  *Locker
	session driver.Session
	ttl     time.Duration // of the lease; 0: the session doesn't end by the clock
	every   time.Duration // between renewals
	pooled  bool          // it stays when the last tenure has gone

	// Guarded by Locker.keepersMu. When the last tenure has gone, the keeper is of
	// no use any more; that of a pooled session stays until it has something to do.
	at      int32 // in the schedule; -1: not in it
	tenures []*tenure
	room    [1]*tenure    // of tenures: most have one
	wake    time.Duration // when there is something to do, by the monotonic clock
	dueFrom reading       // the next renewal is due when pause has passed since
	pause   time.Duration
	backoff time.Duration // the next pause, if the next renewal fails
	renewal *renewal      // under way
	gone    chan struct{} // closed when nobody needs to hear of the session's end; nil: it doesn't tell

	mu    sync.Mutex
	valid reading // the session is known to have lived then
	err   error   // why it is lost
}

// A renewal is one that is under way.
type renewal struct {
	sent     reading
	cancel   context.CancelFunc
	done     chan struct{} // closed when it has returned
	unwanted bool          // it was canceled; guarded by Locker.keepersMu
}

// Of a lease of TTL, a tenth is kept back: it has to cover the drift between
// our clock and the store's, and what the holder needs to stop. See
// docs/design.md.
const marginPart = 10

// attach hangs the tenure on its session, which is known to have lived at
// sent. It reports false if the session has ended already.
func (l *Locker) attach(t *tenure, s driver.Session, sent reading) bool {
	if s == nil {
		return true
	}
	own := any(s) == any(t.hold) // and so no other grant will ask for its keeper
	var n reading
	if !own || s.Lease().TTL > 0 { // else no time is too late
		n = l.now() // before, as all grants want the lock
	}
	l.keepersMu.Lock()
	defer l.keepersMu.Unlock()
	var k *keeper
	if !own {
		k = l.keepers[s]
	}
	known := k != nil
	if !known {
		k = l.newKeeper(s, sent)
	} else if len(k.tenures) == 0 {
		k.confirm(sent)
	}
	if k.expiredAt(n) {
		return false
	}
	if !known && !own {
		l.keepers[s] = k
	}
	if k.gone == nil {
		k.watch()
	}
	t.keeper = k
	t.at = len(k.tenures)
	k.tenures = append(k.tenures, t)
	if k.at < 0 {
		l.schedule.add(k, sent)
	}
	return true
}

func (l *Locker) newKeeper(s driver.Session, sent reading) *keeper {
	lease := s.Lease()
	if lease.Every <= 0 {
		lease.Every = lease.TTL / 3
	}
	if lease.Every <= 0 {
		lease.Every = driver.Forever
	}
	k := &keeper{
		locker: l, session: s, ttl: lease.TTL, every: lease.Every, pooled: lease.Pooled,
		at: -1, dueFrom: sent, pause: lease.Every, valid: sent,
	}
	k.tenures, k.backoff = k.room[:0], k.retryPause()
	return k
}

// watch waits for news of the session's end, if it gives any.
func (k *keeper) watch() {
	ended := k.session.Lost()
	if ended == nil {
		return
	}
	gone := make(chan struct{})
	k.gone = gone
	go func() {
		select {
		case <-ended:
			k.lose(fmt.Errorf("%w: the session ended", ErrLost))
		case <-gone:
		}
	}()
}

// detach takes the tenure off its session. If that was the last one, no renewal
// starts any more, and it returns the one that is under way.
func (l *Locker) detach(t *tenure) *renewal {
	k := t.keeper
	if k == nil {
		return nil
	}
	l.keepersMu.Lock()
	defer l.keepersMu.Unlock()
	last := len(k.tenures) - 1
	if t.at > last || k.tenures[t.at] != t {
		return nil // it was lost
	}
	k.tenures[t.at] = k.tenures[last]
	k.tenures[t.at].at = t.at
	k.tenures[last] = nil
	k.tenures = k.tenures[:last]
	if last > 0 {
		return nil
	}
	if k.renewal != nil {
		k.renewal.unwanted = true
		l.keepers[k.session] = k // so that Close finds the renewal, also that of a hold's own
	} else if !k.pooled {
		k.end()
	}
	return k.renewal
}

// end ends the keeper. Locker.keepersMu is held.
func (k *keeper) end() {
	k.leaveSchedule()
	if k.locker.keepers[k.session] == k {
		delete(k.locker.keepers, k.session)
	}
}

// leaveSchedule ends the looking after the session. Locker.keepersMu is held.
func (k *keeper) leaveSchedule() {
	k.locker.schedule.remove(k)
	k.unwatch()
}

// unwatch ends the waiting for news of the session's end. Locker.keepersMu is held.
func (k *keeper) unwatch() {
	if k.gone != nil {
		close(k.gone)
		k.gone = nil
	}
}

// stopKeeping ends the keepers that are there for grants to come, and waits for
// renewals that are under way.
func (l *Locker) stopKeeping(ctx context.Context) {
	l.keepersMu.Lock()
	l.schedule.stopped = true
	var underWay []*renewal
	for _, k := range slices.AppendSeq(slices.Clone(l.schedule.keepers), maps.Values(l.keepers)) {
		if k.renewal != nil {
			underWay = append(underWay, k.renewal)
		}
		k.leaveSchedule()
	}
	l.keepersMu.Unlock()
	for _, r := range underWay {
		r.cancel()
		select {
		case <-r.done:
		case <-ctx.Done():
		}
	}
}

// look does what is to be done for the session now. It reports true if the session
// is to be declared lost. Locker.keepersMu is held.
func (k *keeper) look(n reading) (expired bool) {
	expired = k.ttl > 0 && k.left(n) <= 0
	due := n.since(k.dueFrom) >= k.pause
	switch {
	case len(k.tenures) == 0 && k.renewal != nil:
		return false // renewed goes on from there
	case len(k.tenures) == 0 && (expired || due):
		k.end()
		return false
	case expired && len(k.tenures) > 0:
		return true
	case due && k.renewal == nil:
		k.renew()
	}
	k.locker.schedule.add(k, n)
	return false
}

// never is longer than any process runs, and can be added to a reading.
const never = driver.Forever / 2

// next returns when there is something to do for the session, by the monotonic clock.
func (k *keeper) next(n reading) time.Duration {
	pause := k.pause - max(n.since(k.dueFrom), 0) // a renewal goes out after n
	if k.ttl > 0 {
		pause = min(pause, k.left(n))
	}
	return n.mono + min(max(pause, 0), never)
}

// renew starts a renewal. Locker.keepersMu is held.
func (k *keeper) renew() {
	ctx, cancel := context.WithTimeout(context.Background(), k.attemptTimeout())
	r := &renewal{sent: k.locker.now(), cancel: cancel, done: make(chan struct{})}
	k.renewal = r
	k.dueFrom, k.pause = r.sent, driver.Forever // nothing is due until it is done
	go func() {
		defer close(r.done)
		defer cancel()
		k.renewed(r, k.session.Renew(ctx))
	}()
}

// renewed notes the outcome of a renewal.
func (k *keeper) renewed(r *renewal, err error) {
	l := k.locker
	l.keepersMu.Lock()
	k.renewal = nil
	n := l.now()
	switch {
	case err == nil:
		k.confirm(r.sent)
		k.dueFrom, k.pause, k.backoff = r.sent, k.every, k.retryPause()
	case r.unwanted:
		k.dueFrom, k.pause = n, k.every
	default:
		k.dueFrom, k.pause = n, jitter(k.backoff)
		k.backoff = min(2*k.backoff, k.attemptTimeout())
		if !errors.Is(err, ErrLost) && len(k.tenures) > 0 {
			l.inBackground(func() { k.renewalFailed(err) }) // it calls application code
		}
	}
	switch {
	case k.lost():
	case len(k.tenures) > 0 || k.pooled:
		l.schedule.add(k, n)
	default:
		k.end()
	}
	l.keepersMu.Unlock()
	if errors.Is(err, ErrLost) {
		k.lose(err)
	}
}

// attemptTimeout bounds one renewal, so that several fit into a lease.
func (k *keeper) attemptTimeout() time.Duration {
	if k.ttl > 0 {
		return k.ttl / 6
	}
	return k.every
}

func (k *keeper) retryPause() time.Duration { return k.attemptTimeout() / 10 }

// jitter returns a duration between d/2 and 3d/2.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }

func (k *keeper) lastValid() reading {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.valid
}

// confirm notes that the session lived at sent. What was sent earlier may be
// answered later.
func (k *keeper) confirm(sent reading) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if sent.mono > k.valid.mono {
		k.valid = sent
	}
}

// ranOut is the error of a lease that could not be renewed.
func (k *keeper) ranOut() error {
	return fmt.Errorf("%w: the lease of %v could not be renewed in time", ErrLost, k.ttl)
}

// lossErr returns why the session is lost, or nil.
func (k *keeper) lossErr() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

func (k *keeper) lost() bool { return k.lossErr() != nil }

// left returns how long the session can be relied on, without a clock that
// says otherwise.
func (k *keeper) left(n reading) time.Duration {
	if k.ttl <= 0 {
		return driver.Forever
	}
	return k.ttl - k.ttl/marginPart - n.since(k.lastValid())
}

func (k *keeper) expired() bool { return k.expiredAt(k.locker.now()) }

func (k *keeper) expiredAt(n reading) bool {
	return k.ttl > 0 && k.left(n) <= 0 || k.lost()
}

// lose ends all holdings on the session. The holders are told first, and the
// session is abandoned after that: whatever Abandon sets free is not theirs
// any more by then.
func (k *keeper) lose(err error) {
	l := k.locker
	l.keepersMu.Lock()
	tenures := k.tenures
	if len(tenures) == 0 { // lost already, or given back
		switch {
		case k.lost():
		case k.renewal == nil:
			k.end()
		default:
			k.unwatch() // a grant that comes yet watches anew, and is told at once
		}
		l.keepersMu.Unlock()
		return
	}
	k.tenures = nil
	k.leaveSchedule()
	l.keepers[k.session] = k // for grants under way, see below, and so that Close finds the renewal
	underWay := k.renewal
	k.mu.Lock()
	k.err = err
	k.mu.Unlock()
	l.keepersMu.Unlock()

	var lost []*holding
	for _, t := range tenures {
		for _, h := range t.end() {
			if h.endAsLost(err) {
				lost = append(lost, h)
			}
		}
	}
	// The caller may be application code that asks Err, and the rest calls
	// application code.
	l.inBackground(func() {
		k.session.Abandon()
		if underWay != nil {
			underWay.cancel()
		}
		// The loss is remembered until no grant on the session can be under way any
		// more: what is granted there ends with it, whenever it was asked for.
		time.AfterFunc(max(k.ttl, time.Minute), func() { l.forget(k) })
		for _, h := range lost {
			h.afterLoss()
		}
	})
}

func (l *Locker) forget(k *keeper) {
	l.keepersMu.Lock()
	defer l.keepersMu.Unlock()
	if l.keepers[k.session] == k {
		delete(l.keepers, k.session)
	}
}

func (k *keeper) renewalFailed(err error) {
	l := k.locker
	l.keepersMu.Lock()
	var resource string
	for _, t := range k.tenures {
		if resource = t.resource(); resource != "" {
			break
		}
	}
	n := len(k.tenures)
	l.keepersMu.Unlock()
	if n == 0 {
		return
	}
	left := k.left(k.locker.now())
	l.report("renewal failed", l.options.Trace.RenewalFailed, Event{
		Backend: l.name, Resource: resource, Duration: left, Err: err,
	})
}
