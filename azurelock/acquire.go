package azurelock

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/lease"
	"github.com/distlock-go/distlock/driver"
)

// Acquire takes a lease; see [driver.Backend]. It never waits for others.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := b.check(r.Resource, r.Mode, true); err != nil {
		if errors.Is(err, errClosed) { // Undo finds out by itself what else there is
			b.remember(r.Owner.ID, outcome{})
		}
		return driver.Grant{}, err
	}
	if r.TTL < minTTL || r.TTL > maxTTL {
		b.remember(r.Owner.ID, outcome{})
		return driver.Grant{}, badArgument("a lease of %v: the service leases for %v to %v", r.TTL, minTTL, maxTTL)
	}
	asking, cancel := patient(ctx)
	defer cancel()
	begun := time.Now()
	n := b.candidates(r)
	first := rand.N(n) // not all who come for a permit shall ask for the same one
	for i := range n {
		t := b.candidate(r, (first+i)%n)
		if ctx.Err() != nil {
			b.remember(r.Owner.ID, outcome{})
			return driver.Grant{}, ctx.Err()
		}
		if time.Since(begun) > permitsTime {
			return driver.Grant{}, driver.ErrHeld // all that were asked for are; the next try begins elsewhere
		}
		h, doubt, err := b.lease(asking, &t, r)
		if errors.Is(err, driver.ErrHeld) {
			continue
		}
		var token uint64
		if err == nil {
			// It must be given back from here on, beside what may yet arrive.
			if doubt >= silent {
				doubt++
			} else {
				doubt = answered
			}
			token, err = b.annotate(asking, &t, r)
		}
		if err != nil {
			b.remember(r.Owner.ID, outcome{doubt: doubt, blob: t.blob})
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return driver.Grant{}, err
		}
		if t.seen != nil {
			h.looked, h.marked = true, t.seen.marked()
		}
		return driver.Grant{Hold: h, Token: token, Session: h, Sent: h.renewed}, nil
	}
	return driver.Grant{}, driver.ErrHeld
}

// permitsTime bounds how long a try asks for one permit after the other. Package
// distlock gives it five seconds, and would take the service for silent then.
const permitsTime = 4 * time.Second

// mostRounds is how often a blob or container is created that is gone again
// when it is to be leased.
const mostRounds = 4

// lease takes a lease on one blob, and creates it if need be: before the first
// try if it seems to be missing, else after the service said so.
func (b *Backend) lease(ctx context.Context, t *target, r driver.Request) (*hold, doubt, error) {
	l, err := leaseClient(t.blob, r.Owner.ID)
	if err != nil {
		return nil, none, err
	}
	seconds := int32(math.Ceil(r.TTL.Seconds()))
	h := &hold{backend: b, name: t.name, id: r.Owner.ID, ttl: r.TTL}
	var left doubt
	held := func() (*hold, doubt, error) {
		if left >= silent {
			// It isn't ours: our own lease would have been prolonged. But the request
			// that got no answer may yet arrive.
			if err := b.settle(ctx, &outcome{doubt: left, blob: t.blob}, r.Owner.ID); err != nil {
				return nil, left, err
			}
		}
		return nil, none, driver.ErrHeld
	}
	create := t.block != nil && b.existing.seemsMissing(t.name)
	var refusal error
	for range mostRounds {
		if create {
			p, err := b.create(ctx, t.block)
			switch {
			case err == nil:
				t.seen = p
				b.existing.found(t.name, p == nil)
			case errors.Is(err, driver.ErrHeld):
				b.existing.found(t.name, true)
				return held()
			case bloberror.HasCode(err, bloberror.ContainerNotFound) && b.o.CreateContainer:
				if err := b.createContainer(ctx); err != nil {
					return nil, left, err
				}
				continue
			case forbidden(err):
				refusal = err // whoever may not create may yet lease what exists
			default:
				return nil, left, err
			}
		}
		h.renewed = time.Now()
		var leased lease.BlobAcquireResponse
		doubt, err := exchange(ctx, acquireTries, func(ctx context.Context) error {
			var err error
			leased, err = l.AcquireLease(ctx, seconds, nil)
			if err != nil {
				return err
			}
			return checkID(leased.LeaseID, h.id)
		})
		left = left.and(doubt)
		missing := bloberror.HasCode(err, bloberror.BlobNotFound) ||
			bloberror.HasCode(err, bloberror.ContainerNotFound) && b.o.CreateContainer
		switch {
		case err == nil:
			if t.seen != nil && (leased.ETag == nil || deref(t.seen.etag) != *leased.ETag) {
				// Between the two requests somebody else deleted it, and made or wrote
				// the one that is leased now. A lease doesn't change the ETag.
				t.seen = nil
			}
			b.existing.found(t.name, !create || refusal != nil)
			return h, left, nil
		case meansHeld(err):
			b.existing.found(t.name, !create)
			return held()
		case missing && refusal != nil:
			return nil, left, refusal
		case missing && t.block != nil:
			b.existing.gone(t.name)
			create = true
		default:
			return nil, left, explain(err)
		}
	}
	return held() // others create it, lease it and delete it all the time
}

// create creates the blob, unless it exists, and returns what it then is like;
// nil if it existed. The error is driver.ErrHeld if it exists and is leased.
func (b *Backend) create(ctx context.Context, c *blockblob.Client) (*properties, error) {
	var metadata map[string]*string
	if b.o.DeleteOnRelease {
		metadata = map[string]*string{medallionMarker: new(time.Now().UTC().Format(time.RFC3339Nano))}
	}
	anyTag := azcore.ETagAny
	var p blockblob.UploadResponse
	_, err := exchange(ctx, acquireTries, func(ctx context.Context) error {
		var err error
		p, err = c.Upload(ctx, nothing{strings.NewReader("")}, &blockblob.UploadOptions{
			Metadata:         metadata,
			AccessConditions: &blob.AccessConditions{ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfNoneMatch: &anyTag}},
		})
		return err
	})
	switch {
	case err == nil:
		return &properties{etag: p.ETag, date: p.Date, metadata: metadata}, nil
	case bloberror.HasCode(err, bloberror.BlobAlreadyExists, bloberror.ConditionNotMet, bloberror.UnauthorizedBlobOverwrite):
		// The last is what a SAS without the right to write says of a blob that
		// exists; the lease will say so, too.
		return nil, nil
	case bloberror.HasCode(err, bloberror.LeaseIDMissing):
		return nil, driver.ErrHeld
	}
	return nil, explain(err)
}

// mostKnown bounds how many blobs are known to exist.
const mostKnown = 1 << 15

// existence remembers which blobs exist, and guesses whether those that it
// knows nothing of do: as it was with the last one. A wrong guess costs a
// request.
type existence struct {
	seed maphash.Seed

	mu    sync.Mutex
	known map[uint64]struct{} // hashes: two names that share one cost a request
	guess bool
}

func (e *existence) seemsMissing(name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, known := e.known[maphash.String(e.seed, name)]
	return !known && !e.guess
}

// found notes that the blob exists, and whether it did before.
func (e *existence) found(name string, before bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	hash := maphash.String(e.seed, name)
	if _, known := e.known[hash]; known {
		return
	}
	e.guess = before
	if len(e.known) >= mostKnown {
		clear(e.known)
	}
	e.known[hash] = struct{}{}
}

// gone notes that the blob doesn't exist.
func (e *existence) gone(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	hash := maphash.String(e.seed, name)
	if _, known := e.known[hash]; !known {
		e.guess = false
	}
	delete(e.known, hash)
}

// nothing is the content of a lock blob.
type nothing struct{ io.ReadSeeker }

func (nothing) Close() error { return nil }

func (b *Backend) createContainer(ctx context.Context) error {
	_, err := exchange(ctx, acquireTries, func(ctx context.Context) error {
		_, err := b.container.Create(ctx, nil)
		return err
	})
	if err == nil || bloberror.HasCode(err, bloberror.ContainerAlreadyExists) {
		return nil
	}
	return fmt.Errorf("the container doesn't exist and can't be created: %w", explain(err))
}

func leaseClient(c *blob.Client, id driver.ID) (*lease.BlobClient, error) {
	return lease.NewBlobClient(c, &lease.BlobClientOptions{LeaseID: new(id.String())})
}

// endLease releases the lease with the ID.
func endLease(ctx context.Context, n tries, c *blob.Client, id driver.ID) (doubt, error) {
	l, err := leaseClient(c, id)
	if err != nil {
		return none, err
	}
	return exchange(ctx, n, func(ctx context.Context) error {
		_, err := l.ReleaseLease(ctx, nil)
		return err
	})
}
