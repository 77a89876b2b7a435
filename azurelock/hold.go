package azurelock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/distlock-go/distlock/driver"
)

// A hold is one lease, and its session. It keeps no client: one is made for each
// request, which allocates many times as much anyway, and many are held at once.
type hold struct {
	backend *Backend
	name    string // of the blob
	id      driver.ID
	ttl     time.Duration

	releasing sync.Mutex // held while a release is under way

	mu       sync.Mutex
	renewed  time.Time // just before the last request that prolonged the lease
	doubtful bool      // a release was sent that got no answer
	released bool
	lost     bool
	looked   bool // it is known whether the blob was made to be deleted,
	marked   bool // and it was
}

func (h *hold) blob() *blob.Client { return h.backend.blob(h.name) }

// Lease returns how long the lease lives without renewal.
func (h *hold) Lease() driver.Lease { return driver.Lease{TTL: h.ttl} }

// Lost returns nil: the service tells nothing unasked.
func (h *hold) Lost() <-chan struct{} { return nil }

// left returns how long the service is sure to honour the lease. The monotonic
// clock may have stood still, the wall clock may have been set: the one that
// says less is believed.
func (h *hold) left() time.Duration {
	now := time.Now()
	return h.ttl - max(now.Sub(h.renewed), now.Round(0).Sub(h.renewed.Round(0)))
}

// state returns how long the lease lives, or why it doesn't. A lease that ran
// out is never touched again: the service would revive it if nobody took it
// meanwhile.
func (h *hold) state() (left time.Duration, over bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released {
		return 0, true, nil
	}
	left = h.left()
	if h.lost || left <= 0 {
		h.lost = true
		return 0, true, driver.ErrLost
	}
	return left, false, nil
}

func (h *hold) set(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

// Renew prolongs the lease.
func (h *hold) Renew(ctx context.Context) error {
	left, over, _ := h.state()
	if over {
		return driver.ErrLost
	}
	l, err := leaseClient(h.blob(), h.id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	sent := time.Now()
	_, err = exchange(ctx, renewTries, func(ctx context.Context) error {
		r, err := l.RenewLease(ctx, nil)
		if err != nil {
			return err
		}
		return checkID(r.LeaseID, h.id)
	})
	switch {
	case err == nil:
		h.set(func() { h.renewed = sent })
		return nil
	case meansGone(err):
		h.set(func() { h.lost = true })
		return lost(err)
	}
	return explain(err)
}

// Release ends the lease, or deletes the blob.
func (h *hold) Release(ctx context.Context) error {
	h.releasing.Lock()
	defer h.releasing.Unlock()
	left, over, err := h.state()
	if over {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	h.mu.Lock()
	before := h.doubtful
	h.mu.Unlock()
	doubt, err := h.end(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.doubtful = before || doubt != none
	switch {
	case err == nil, meansGone(err) && h.doubtful:
		h.released = true
		return nil
	case meansGone(err):
		h.lost = true
		return lost(err)
	}
	return explain(err)
}

// end sends what ends the holding.
func (h *hold) end(ctx context.Context) (doubt, error) {
	before := none
	c := h.blob()
	if h.backend.o.DeleteOnRelease && h.toBeDeleted(ctx, c) {
		doubt, err := exchange(ctx, releaseTries, func(ctx context.Context) error {
			_, err := c.Delete(ctx, &blob.DeleteOptions{AccessConditions: underLease(h.id.String(), nil)})
			return err
		})
		if err == nil {
			h.backend.existing.gone(h.name)
		}
		if r, ok := errors.AsType[*azcore.ResponseError](err); !ok || meansGone(r) || transient(r) {
			return doubt, err
		}
		before = doubt // it can't be deleted
	}
	doubt, err := endLease(ctx, releaseTries, c, h.id)
	return max(before, doubt), err
}

// toBeDeleted reports whether the blob was created to be deleted.
func (h *hold) toBeDeleted(ctx context.Context, c *blob.Client) bool {
	h.mu.Lock()
	looked, marked := h.looked, h.marked
	h.mu.Unlock()
	if looked {
		return marked
	}
	p, err := h.backend.look(ctx, c, h.id.String())
	if err != nil {
		return false // the release will tell
	}
	marked = p.marked()
	h.set(func() { h.looked, h.marked = true, marked })
	return marked
}

// Abandon sees to it that a renewal that is still on its way doesn't bring the
// lease back, for nobody: it is released, but not before it has run out, so that
// nothing is set free that the holder had been promised.
func (h *hold) Abandon() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost || h.released {
		return // the service said so
	}
	h.lost = true
	time.AfterFunc(max(0, h.left()), func() {
		if h.backend.isClosed() {
			return
		}
		// Nothing depends on it, and there is nobody to tell.
		_, _ = endLease(context.Background(), releaseTries[:1], h.blob(), h.id)
	})
}

func (b *Backend) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

// underLease is the condition that the blob is leased with the ID and, if etag
// isn't nil, that it is unchanged.
func underLease(id string, p *properties) *blob.AccessConditions {
	c := &blob.AccessConditions{}
	if id != "" {
		c.LeaseAccessConditions = &blob.LeaseAccessConditions{LeaseID: new(id)}
	}
	if p != nil {
		c.ModifiedAccessConditions = &blob.ModifiedAccessConditions{IfMatch: p.etag}
	}
	return c
}
