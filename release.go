package distlock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/distlock-go/distlock/driver"
)

// release ends the holding and gives it back, or passes it on. It returns after
// Options.ReleaseTimeout at the latest, and soon after ctx ends.
func (h *holding) release(ctx context.Context) error {
	l := h.locker
	first, m := h.end(ErrReleased)
	simple := m == nil || m.ending == nil
	switch {
	case !first:
		if err := h.lostErr(); err != nil {
			return err
		}
		if simple {
			return nil
		}
		return h.awaitRelease(m.ending)
	case simple:
		l.queue.Leave(&h.place)
		return nil
	}
	m.ending.cleanup.Stop()
	var err error
	trace := l.options.Trace.Released
	var e Event
	if trace != nil { // else it isn't worth its cost
		e = h.event()
	}
	if m.tenure == nil {
		l.queue.Leave(&h.place)
	} else {
		err = h.leave(ctx, m.tenure)
	}
	h.releasedWith(m.ending, err)
	if trace != nil {
		e.Err = err
		trace(e)
	}
	return err
}

// releasedWith notes the result of the release, for all who called it.
func (h *holding) releasedWith(e *ending, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.result = err
	if e.through == nil {
		e.through = closedChan
	} else {
		close(e.through)
	}
}

// awaitRelease returns the result of the release that another call makes.
func (h *holding) awaitRelease(e *ending) error {
	h.mu.Lock()
	if e.through == nil {
		e.through = make(chan struct{})
	}
	through := e.through
	h.mu.Unlock()
	<-through
	return e.result
}

// watchFor arranges for dropped to be called when lock is dropped.
func (h *holding) watchFor(lock *Lock) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		h.more.ending.cleanup = runtime.AddCleanup(lock, (*holding).dropped, h)
	}
}

// dropped deals with a Lock that was dropped without Release.
func (h *holding) dropped() {
	h.mu.Lock()
	held := h.err == nil
	h.mu.Unlock()
	if !held {
		return
	}
	h.locker.inBackground(func() {
		h.locker.report("lock dropped without Release", h.locker.options.Trace.Dropped, h.event())
		_ = h.release(context.Background()) // a failure is retried and reported like that of any release
	})
}

// leave ends what the holding has of the tenure, which is given back or passed
// on if nobody else has it.
func (h *holding) leave(ctx context.Context, t *tenure) error {
	l := h.locker
	last, lost := t.leave(h)
	if !last {
		l.queue.Leave(&h.place)
		if lost {
			return l.fail("release", h.resource(), t.keeper.lossErr())
		}
		return nil
	}
	upgrading := h.upgrading()
	if upgrading == nil && l.passOn(t, h) {
		return nil
	}
	err := l.giveBack(ctx, t, h, upgrading)
	l.queue.Leave(&h.place)
	return err
}

// passOn hands the tenure, which h has left, to the next waiter of this process,
// if there is one of the same kind and other processes have not waited for long.
func (l *Locker) passOn(t *tenure, h *holding) bool {
	return l.queue.Pass(&h.place, t, func() bool {
		return l.mayGoOn(t) && (t.keeper == nil || !t.keeper.expired())
	})
}

// passOrGiveUp deals with a tenure that was passed to h, which doesn't want it
// any more.
func (l *Locker) passOrGiveUp(t *tenure, h *holding) {
	if !l.passOn(t, h) {
		l.giveUp(t, h)
	}
}

// giveBack releases the tenure in the store. If after isn't nil, an upgrade of its
// hold is under way, and it waits until that is over and after closed. It returns
// after Options.ReleaseTimeout at the latest, and soon after ctx ends. What could not
// be released is tried again in the background.
func (l *Locker) giveBack(ctx context.Context, t *tenure, h *holding, after <-chan struct{}) error {
	last := l.detach(t)
	start := monotonic()
	var err error
	var pending <-chan error
	inTime := after == nil && l.inTime(ctx, l.options.ReleaseTimeout)
	if inTime {
		err = t.hold.Release(ctx)
	}
	if inTime && last == nil && err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.options.ReleaseTimeout-(monotonic()-start))
	defer cancel()
	if !inTime {
		result := make(chan error, 1)
		go func() {
			if after != nil {
				<-after
			}
			result <- t.hold.Release(ctx)
		}()
		select {
		case err = <-result:
		case <-ctx.Done():
			err, pending = errNoAnswer, result
		}
	}
	if last != nil {
		// No renewal may be on its way when Release returns.
		last.cancel()
		select {
		case <-last.done:
		case <-ctx.Done():
		}
	}
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrLost) {
		return l.fail("release", h.resource(), err)
	}
	l.inBackground(func() {
		if pending != nil {
			if err := <-pending; err == nil || errors.Is(err, ErrLost) {
				return
			}
		}
		l.retryRelease(t.hold, h.resource())
	})
	return l.fail("release", h.resource(), fmt.Errorf("%w (it is tried again in the background)", err))
}

// giveUp gives back a tenure that nobody wants any more, behind the caller's
// back, and then the place.
func (l *Locker) giveUp(t *tenure, h *holding) {
	l.inBackground(func() {
		l.giveBack(context.Background(), t, h, nil)
		l.queue.Leave(&h.place)
	})
}

// reclaim waits for the answer to a question that nobody waits for any more and
// sees to it that nothing comes of it. The place in the queue is kept meanwhile,
// for a bounded time: the next one would only be second at the store.
func (l *Locker) reclaim(pending <-chan answer, h *holding, req driver.Request) {
	leave := func() { l.queue.Leave(&h.place) }
	defer leave()
	defer time.AfterFunc(l.options.ReleaseTimeout, leave).Stop()
	a := <-pending
	unsettled := (*driver.UnsettledError)(nil)
	switch {
	case a.err == nil:
		l.retryRelease(a.grant.Hold, h.resource())
	case errors.As(a.err, &unsettled):
		<-unsettled.Settled
	case !a.definite():
		l.undo(req)
	}
}

// undo takes back whatever a failed attempt may have been granted.
func (l *Locker) undo(req driver.Request) {
	if u, ok := l.backend.(driver.Undoer); ok {
		l.retry(req.Resource, func(ctx context.Context) error { return u.Undo(ctx, req) })
	}
}

func (l *Locker) retryRelease(hold driver.Hold, resource string) {
	l.retry(resource, hold.Release)
}

// retry calls f until it succeeds, or finds that there is nothing left to do,
// or the store can't believe in the holding any longer either, or the backend is
// about to be closed.
func (l *Locker) retry(resource string, f func(ctx context.Context) error) {
	const firstPause, longestPause = 50 * time.Millisecond, time.Second
	bound := l.options.ReleaseTimeout
	if l.leases {
		bound = max(bound, l.options.TTL)
	}
	start := l.now()
	err := ErrClosed
	for pause := firstPause; !l.isFinished(); pause = min(2*pause, longestPause) {
		ctx, cancel := context.WithTimeout(context.Background(), l.options.ReleaseTimeout)
		err = f(ctx)
		cancel()
		if err == nil || errors.Is(err, ErrLost) {
			return
		}
		if l.now().since(start)+pause >= bound {
			break
		}
		select {
		case <-time.After(jitter(pause)):
		case <-l.finished:
		}
	}
	l.report("clean-up failed", l.options.Trace.CleanupFailed, Event{Backend: l.name, Resource: resource, Err: err})
}

func (l *Locker) isFinished() bool {
	select {
	case <-l.finished:
		return true
	default:
		return false
	}
}
