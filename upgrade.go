package distlock

import (
	"context"
	"errors"
	"time"

	"github.com/distlock-go/distlock/driver"
)

var errUpgrading = errors.New("another Upgrade of this lock is under way")

// upgrade is Lock.Upgrade for one resource.
func (h *holding) upgrade(ctx context.Context, r *request) error {
	start := time.Now()
	err := h.tryUpgrade(ctx, r)
	if err != nil {
		err = h.fail("upgrade", err)
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
	done, err := h.beginUpgrade()
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
	// The end of the holding ends the wait too.
	held, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer h.onEnd(func(err error) { cancel(err) })()

	waited, err := l.queue.Upgrade(held, &h.place, r.left(), l.gate)
	if err != nil {
		done()
		if e := h.over(); e != nil {
			return e
		}
		return l.wordQueueError(ctx, r, err)
	}
	if l.inProcess {
		done()
		return h.over()
	}
	hold, ok := h.tenure().hold.(driver.Upgrader)
	if !ok {
		done()
		return errors.ErrUnsupported
	}
	a, pending, err := l.ask(held, r, waited, nil, func(ctx context.Context, wait time.Duration, _ bool) (driver.Grant, error) {
		token, err := hold.Upgrade(ctx, wait)
		return driver.Grant{Token: token}, err
	})
	switch {
	case pending != nil:
		l.inBackground(func() {
			<-pending
			l.queue.Downgrade(&h.place)
			done()
		})
	case err != nil:
		l.queue.Downgrade(&h.place)
		done()
	default:
		done()
		return h.upgraded(a.grant.Token)
	}
	if e := h.over(); e != nil {
		return e
	}
	return err
}

// beginUpgrade makes sure that there is one upgrade at a time, and that Release
// comes after it.
func (h *holding) beginUpgrade() (done func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return nil, h.err
	}
	m := h.detailsLocked()
	if m.upgrade != nil {
		return nil, errUpgrading
	}
	upgrading := make(chan struct{})
	m.upgrade = upgrading
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		m.upgrade = nil
		close(upgrading)
	}, nil
}

// waitForUpgrade waits until the upgrade under way has ended, for a bounded
// time.
func (h *holding) waitForUpgrade() {
	h.mu.Lock()
	upgrading := h.more.upgrade
	h.mu.Unlock()
	if upgrading == nil {
		return
	}
	timer := time.NewTimer(h.locker.options.ReleaseTimeout)
	defer timer.Stop()
	select {
	case <-upgrading:
	case <-timer.C:
	}
}

// upgraded notes the new token.
func (h *holding) upgraded(token uint64) error {
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
