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

// A keeper keeps one session alive for all tenures that hang on it.
type keeper struct {
	locker  *Locker
	session driver.Session
	lease   driver.Lease
	margin  time.Duration

	// Guarded by Locker.keepersMu. When the last tenure has gone, the keeper is of
	// no use any more; that of a pooled session stays until it has something to do.
	tenures  []*tenure
	renewing bool
	stopping bool
	asleep   *time.Timer // starts the runner; nil: it was started at once
	runner   *runner     // nil: asleep
	room     [1]*tenure  // of tenures: most have one

	mu    sync.Mutex
	valid reading // the session is known to have lived then
	err   error   // why it is lost
}

// A runner is the goroutine of a keeper that is awake.
type runner struct {
	running  context.Context
	stop     context.CancelFunc // no renewal starts any more
	stopped  chan struct{}      // and none is under way
	renewing context.Context
	cancel   context.CancelFunc // ends the renewal under way
}

// Of a lease of TTL, a tenth is kept back: it has to cover the drift between
// our clock and the store's, and what the holder needs to stop. See
// docs/design.md.
const marginPart = 10

// longestNap bounds how late a keeper notices that the clocks jumped: its
// timers run on the monotonic clock, which stands still while the machine
// sleeps.
const longestNap = time.Second

// attach hangs the tenure on its session, which is known to have lived at
// sent. It reports false if the session has ended already.
func (l *Locker) attach(t *tenure, s driver.Session, sent reading) bool {
	if s == nil {
		return true
	}
	l.keepersMu.Lock()
	defer l.keepersMu.Unlock()
	k := l.keepers[s]
	switch {
	case k != nil && (k.lost() || len(k.tenures) > 0 && k.expired()):
		return false
	case k != nil && len(k.tenures) == 0 && !k.stopping:
		k.confirm(sent)
		if k.expired() {
			return false
		}
	case k == nil || len(k.tenures) == 0:
		var before <-chan struct{}
		if k != nil {
			before = k.runner.stopped
		}
		lease := s.Lease()
		if lease.Every <= 0 {
			lease.Every = lease.TTL / 3
		}
		if lease.Every <= 0 {
			lease.Every = driver.Forever
		}
		k = &keeper{
			locker: l, session: s, lease: lease, margin: lease.TTL / marginPart,
			valid: sent,
		}
		k.tenures = k.room[:0]
		if k.expired() {
			return false
		}
		l.keepers[s] = k
		if before == nil && s.Lost() == nil {
			// Most locks are held for less than a keeper may nap.
			k.asleep = time.AfterFunc(k.nap(sent, lease.Every), k.awake)
		} else {
			go k.run(k.newRunner(), before)
		}
	}
	t.keeper = k
	t.at = len(k.tenures)
	k.tenures = append(k.tenures, t)
	return true
}

// awake is called when the keeper has slept for as long as it may.
func (k *keeper) awake() {
	l := k.locker
	l.keepersMu.Lock()
	if k.stopping {
		l.keepersMu.Unlock()
		return
	}
	r := k.newRunner()
	l.keepersMu.Unlock()
	k.run(r, nil)
}

// newRunner makes the keeper one that is awake. Locker.keepersMu is held.
func (k *keeper) newRunner() *runner {
	r := &runner{stopped: make(chan struct{})}
	r.running, r.stop = context.WithCancel(context.Background())
	r.renewing, r.cancel = context.WithCancel(context.Background())
	k.runner = r
	return r
}

// detach takes the tenure off its session. If that was the last one, no renewal
// starts any more, and it returns the runner that may be at one.
func (l *Locker) detach(t *tenure) *runner {
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
	if last > 0 || k.lease.Pooled && !k.renewing {
		return nil
	}
	return k.end()
}

// end makes the keeper stop and returns its runner, if it has one. Locker.keepersMu
// is held.
func (k *keeper) end() *runner {
	k.stopping = true
	if k.runner == nil {
		k.asleep.Stop()
		delete(k.locker.keepers, k.session)
		return nil
	}
	k.runner.stop()
	return k.runner
}

// stopIdle stops the keepers that are there for grants to come.
func (l *Locker) stopIdle(ctx context.Context) {
	l.keepersMu.Lock()
	keepers := slices.Collect(maps.Values(l.keepers))
	l.keepersMu.Unlock()
	for _, k := range keepers {
		if r, idle := k.idle(); idle && r != nil {
			select {
			case <-r.stopped:
			case <-ctx.Done():
			}
		}
	}
}

// idle reports whether nothing hangs on the session. The keeper stops then, and
// so does its runner.
func (k *keeper) idle() (r *runner, idle bool) {
	k.locker.keepersMu.Lock()
	defer k.locker.keepersMu.Unlock()
	if len(k.tenures) > 0 {
		return nil, false
	}
	return k.end(), true
}

// beginRenewal reports whether the session is to be renewed: no renewal may
// begin after the last release.
func (k *keeper) beginRenewal() bool {
	k.locker.keepersMu.Lock()
	defer k.locker.keepersMu.Unlock()
	k.renewing = len(k.tenures) > 0
	return k.renewing
}

func (k *keeper) endRenewal() {
	k.locker.keepersMu.Lock()
	defer k.locker.keepersMu.Unlock()
	k.renewing = false
}

// forget is called when the keeper has stopped. A lost one is remembered until
// no grant on its session can be under way any more: what is granted there ends
// with the session, whenever it was asked for.
func (l *Locker) forget(k *keeper) {
	if k.lost() {
		time.AfterFunc(max(k.lease.TTL, time.Minute), func() { l.drop(k) })
	} else {
		l.drop(k)
	}
}

func (l *Locker) drop(k *keeper) {
	l.keepersMu.Lock()
	defer l.keepersMu.Unlock()
	if l.keepers[k.session] == k {
		delete(l.keepers, k.session)
	}
}

// A renewal is the outcome of one.
type renewal struct{ err error }

// run keeps the session alive until it is stopped or lost. If there was a keeper
// before, its last renewal may still be under way until before is closed, and
// none may run beside it.
func (k *keeper) run(r *runner, before <-chan struct{}) {
	defer func() {
		r.cancel()
		if before != nil {
			<-before
		}
		close(r.stopped)
		k.locker.forget(k)
	}()
	var (
		timer   = time.NewTimer(0)
		done    chan renewal // the one under way
		sent    reading      // when that was sent
		dueFrom = k.lastValid()
		pause   = k.lease.Every
		backoff = k.retryPause()
	)
	defer timer.Stop()
	if before != nil {
		pause = driver.Forever
	}
	for {
		timer.Reset(k.nap(dueFrom, pause))
		select {
		case <-r.running.Done():
			if done != nil {
				<-done
			}
			return
		case <-before:
			before, pause = nil, k.lease.Every
		case <-k.session.Lost():
			if _, idle := k.idle(); !idle {
				k.lose(fmt.Errorf("%w: the session ended", ErrLost))
			}
		case renewed := <-done:
			done = nil
			k.endRenewal()
			switch err := renewed.err; {
			case err == nil:
				k.confirm(sent)
				dueFrom, pause, backoff = sent, k.lease.Every, k.retryPause()
			case errors.Is(err, ErrLost):
				k.lose(err)
			default:
				go k.renewalFailed(err) // it calls application code
				dueFrom, pause = k.locker.now(), jitter(backoff)
				backoff = min(2*backoff, k.attemptTimeout())
			}
		case <-timer.C:
		}
		expired, due := k.expired(), k.locker.now().since(dueFrom) >= pause
		if expired || due {
			if _, idle := k.idle(); idle {
				continue // it has been told to stop
			}
		}
		if expired {
			k.lose(fmt.Errorf("%w: the lease of %v could not be renewed in time", ErrLost, k.lease.TTL))
		}
		if k.lost() {
			if done != nil {
				r.cancel()
				<-done
			}
			return
		}
		if due && done == nil && k.beginRenewal() {
			done, sent = make(chan renewal, 1), k.locker.now()
			go func() {
				ctx, cancel := context.WithTimeout(r.renewing, k.attemptTimeout())
				defer cancel()
				done <- renewal{k.session.Renew(ctx)}
			}()
			dueFrom, pause = sent, driver.Forever // nothing is due until it is done
		}
	}
}

// nap returns how long the keeper may sleep.
func (k *keeper) nap(dueFrom reading, pause time.Duration) time.Duration {
	n := k.locker.now()
	nap := pause - n.since(dueFrom)
	if k.lease.TTL > 0 {
		nap = min(nap, k.left(n), longestNap)
	}
	return max(nap, 0)
}

// attemptTimeout bounds one renewal, so that several fit into a lease.
func (k *keeper) attemptTimeout() time.Duration {
	if k.lease.TTL > 0 {
		return k.lease.TTL / 6
	}
	return k.lease.Every
}

func (k *keeper) retryPause() time.Duration { return k.attemptTimeout() / 10 }

// jitter returns a duration between d/2 and 3d/2.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }

func (k *keeper) lastValid() reading {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.valid
}

func (k *keeper) confirm(sent reading) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.valid = sent
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
	if k.lease.TTL <= 0 {
		return driver.Forever
	}
	return k.lease.TTL - k.margin - n.since(k.lastValid())
}

func (k *keeper) expired() bool {
	return k.lease.TTL > 0 && k.left(k.locker.now()) <= 0 || k.lost()
}

// lose ends all holdings on the session. The holders are told first, and the
// session is abandoned after that: whatever Abandon sets free is not theirs
// any more by then.
func (k *keeper) lose(err error) {
	l := k.locker
	l.keepersMu.Lock()
	tenures := k.tenures
	if len(tenures) == 0 { // lost already, or given back
		l.keepersMu.Unlock()
		return
	}
	k.tenures = nil
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
		l.keepersMu.Lock()
		k.stopping = true
		r := k.runner
		l.keepersMu.Unlock()
		if r == nil {
			k.asleep.Stop()
			l.forget(k)
		} else {
			r.stop()
			r.cancel()
		}
		for _, h := range lost {
			h.afterLoss()
		}
	})
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
