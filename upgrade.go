package distlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/queue"
)

// upgrade is Lock.Upgrade for one resource.
func (h *holding) upgrade(ctx context.Context, r *request) error {
	start := time.Now()
	err := h.tryUpgrade(ctx, r)
	if err != nil {
		err = h.locker.fail("upgrade", h.resource(), err)
	}
	if trace := h.locker.options.Trace.Upgraded; trace != nil {
		e := h.event()
		e.Duration, e.Err = time.Since(start), err
		trace(ctx, e)
	}
	return err
}

func (h *holding) tryUpgrade(ctx context.Context, r *request) error {
	l := h.locker
	if ctx.Err() != nil {
		return ended(ctx, false)
	}
	l.begin()
	defer l.end()
	// The end of the holding ends the wait too.
	held, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer h.onEnd(func(err error) { cancel(err) })()

	came := time.Now()
	done, err := h.beginUpgrade(held, r)
	if err != nil {
		return err
	}
	switch mode, _ := h.place.Kind(); mode {
	case driver.Upgradeable:
	case driver.Exclusive:
		done()
		return nil
	default:
		done()
		return &reason{"the lock is " + mode.String() + ": acquire it with Upgradeable", []error{errors.ErrUnsupported}}
	}
	t := h.tenure()
	var upgrader driver.Upgrader
	if t != nil {
		var ok bool
		if upgrader, ok = t.hold.(driver.Upgrader); !ok {
			done()
			return &reason{"this backend can't upgrade a lock: release it, and acquire an exclusive one", []error{errors.ErrUnsupported}}
		}
	}
	waited, err := l.queue.Upgrade(held, &h.place, r.left(), l.gate)
	if err != nil {
		done()
		if e := h.over(); e != nil {
			return e
		}
		return wordQueueError(ctx, r, queue.Admission{Contended: true}, err) // by a reader of this process
	}
	if t == nil {
		done()
		return h.over()
	}
	q := &acquisition{locker: l, h: h, r: *r, upgrader: upgrader, contended: waited}
	q.patience = max(loneAnswer-time.Since(came), leastAnswer)
	q.req.Resource = h.place.Name()
	o := q.ask(held, answer{})
	switch {
	case o.pending != nil:
		pending := o.pending
		l.inBackground(func() {
			a := <-pending
			h.notUpgraded(t, a.err)
			done()
		})
	case o.failure != nil:
		h.notUpgraded(t, o.err)
		done()
	default:
		defer done()
		return h.upgraded(t, o.grant.Token)
	}
	if e := h.over(); e != nil {
		return e
	}
	return o.failure
}

// notUpgraded undoes what an upgrade that failed did in this process.
func (h *holding) notUpgraded(t *tenure, err error) {
	if !errors.Is(err, ErrLost) {
		h.locker.queue.Downgrade(&h.place)
		return
	}
	if last := h.locker.detach(t); last != nil {
		last.cancel()
	}
	h.lose(err)
}

// beginUpgrade makes sure that there is one upgrade at a time, and that Release
// comes after it. It waits for another that is under way.
func (h *holding) beginUpgrade(ctx context.Context, r *request) (done func(), err error) {
	upgrading := make(chan struct{})
	for {
		h.mu.Lock()
		m := h.detailsLocked()
		other := m.upgrade
		if h.err == nil && other == nil {
			m.upgrade = upgrading
		}
		err := h.err
		h.mu.Unlock()
		switch {
		case err != nil:
			return nil, err
		case other == nil:
			return func() {
				h.mu.Lock()
				defer h.mu.Unlock()
				m.upgrade = nil
				close(upgrading)
			}, nil
		}
		if err := h.awaitUpgrade(ctx, r, other); err != nil && h.over() == nil {
			return nil, err
		}
	}
}

// awaitUpgrade waits until another upgrade is over.
func (h *holding) awaitUpgrade(ctx context.Context, r *request, other <-chan struct{}) error {
	limit, within := r.left(), r.timeout
	if r.timeout == 0 {
		limit, within = loneAnswer, loneAnswer
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-other:
		return nil
	case <-ctx.Done():
		return ended(ctx, false)
	case <-timer.C:
		return notAcquired(fmt.Sprintf(" within %v: another Upgrade of this lock is under way", within))
	}
}

// upgrading returns a channel that is closed when the upgrade under way has
// ended, or nil if there is none.
func (h *holding) upgrading() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.more.upgrade
}

// upgraded notes the new token.
func (h *holding) upgraded(t *tenure, store uint64) error {
	token, err := fencingToken(store)
	if err != nil {
		h.notUpgraded(t, err)
		return err
	}
	token = t.upgraded(token)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.more.token = token
	return h.err
}

// over returns why the holding has ended, or nil.
func (h *holding) over() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// granted reports whether the holding has begun.
func (h *holding) granted() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.locker.inProcess || h.more.tenure != nil
}
