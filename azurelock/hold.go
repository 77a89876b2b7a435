package azurelock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/lease"
	"github.com/distlock-go/distlock/driver"
)

// A hold is one lease, and its session.
type hold struct {
	backend   *Backend
	name      string // of the blob, if it may be deleted
	blob      *blob.Client
	lease     *lease.BlobClient
	id        string
	ttl       time.Duration
	created   bool // by the attempt that got the lease
	mayDelete bool // on release, if the blob was made for that
	resource  string
	fenced    bool // its token is in the blob's own metadata
	note      string

	releasing sync.Mutex // held while a release is under way

	mu       sync.Mutex
	renewed  time.Time // just before the last request that prolonged the lease
	doubtful bool      // a release was sent that got no answer
	released bool
	lost     bool
	seen     *properties // of the blob, when we last looked or wrote; nil: never
}

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
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	sent := time.Now()
	_, err := exchange(ctx, renewTries, func(ctx context.Context) error {
		_, err := h.lease.RenewLease(ctx, nil)
		return err
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
	if h.mayDelete && h.marked(ctx) {
		doubt, err := exchange(ctx, releaseTries, func(ctx context.Context) error {
			_, err := h.blob.Delete(ctx, &blob.DeleteOptions{AccessConditions: underLease(h.id, nil)})
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
	doubt, err := exchange(ctx, releaseTries, func(ctx context.Context) error {
		_, err := h.lease.ReleaseLease(ctx, nil)
		return err
	})
	return max(before, doubt), err
}

// marked reports whether the blob was created to be deleted.
func (h *hold) marked(ctx context.Context) bool {
	if h.created {
		return true
	}
	h.mu.Lock()
	seen := h.seen
	h.mu.Unlock()
	if seen == nil {
		p, err := h.backend.look(ctx, h.blob, h.id)
		if err != nil {
			return false // the release will tell
		}
		seen = p
		h.set(func() { h.seen = p })
	}
	return seen.get(medallionMarker) != nil
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
		_, _ = exchange(context.Background(), releaseTries[:1], func(ctx context.Context) error {
			_, err := h.lease.ReleaseLease(ctx, nil)
			return err
		})
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
