// Package locallock locks within one process: the backend for development and
// for tests, and for code whose locks need not reach further.
//
// # Requirements
//
// None. It is registered for URLs of the form "local:"; all of them in one
// process share one store. [New] makes a store of its own, so that tests don't
// meet.
//
// # How it locks
//
// A sharded table of names, in memory. Names that nobody holds or waits for
// take none of it. All kinds of holding are supported: exclusive, shared,
// upgradeable, and permits.
//
// # Waiting
//
// First come first served over all kinds of one name.
//
// # Loss
//
// A holding can't be lost. It ends with Release or with the process.
//
// # Tokens
//
// A counter of the store; it starts anew with the process, as do the holdings.
//
// # Limits
//
// A lock that was dropped without Release is noticed only by a Locker that has a
// Logger or a Trace to report it to: the watching costs more than the lock
// itself. Without, it stays held, and [distlock.Locker.Holders] doesn't tell since
// when anything is.
package locallock

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/queue"
)

func init() {
	shared := New()
	distlock.Register("local", func(_ context.Context, u *url.URL) (driver.Backend, error) {
		if u.Opaque != "" || u.Host != "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
			return nil, fmt.Errorf(`%w: the URL is just "local:", nothing may follow`, distlock.ErrBadArgument)
		}
		return shared.Share(), nil
	})
}

// Backend is a handle on an in-process store. Its methods are safe for
// concurrent use.
type Backend struct {
	store // package distlock uses the queue in place of one in front of the backend, which would only repeat it
	queue *queue.Queue
	gate  *queue.Gate
}

type store = queue.Store

// New returns a backend with a store of its own.
func New() *Backend {
	return newBackend(queue.New(false))
}

// Share returns another backend on the same store: a lock that is held through
// one is held for the other.
func (b *Backend) Share() *Backend {
	return newBackend(b.queue)
}

func newBackend(q *queue.Queue) *Backend {
	b := &Backend{queue: q, gate: q.NewGate()}
	b.store = queue.NewStore(q, b)
	return b
}

// Info implements [driver.Backend].
func (b *Backend) Info() driver.Info {
	return driver.Info{
		Name:  "local",
		Modes: driver.ModesOf(driver.Exclusive, driver.Shared, driver.Upgradeable, driver.Permit),
	}
}

// Acquire implements [driver.Backend].
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if ctx.Err() != nil {
		return driver.Grant{}, context.Cause(ctx)
	}
	h := &hold{backend: b}
	h.place.Value = driver.Holder{Owner: r.Owner, Mode: r.Mode}
	_, err := b.queue.Enter(ctx, &h.place, queue.Request{
		Name: r.Resource, Mode: r.Mode, Limit: r.Limit, Wait: r.Wait, Try: r.Wait == 0, Gate: b.gate,
	})
	switch {
	case errors.Is(err, queue.ErrTimeout):
		return driver.Grant{}, driver.ErrHeld
	case errors.Is(err, queue.ErrClosed):
		return driver.Grant{}, errors.New("the backend is closed")
	case err != nil:
		return driver.Grant{}, context.Cause(ctx)
	}
	return driver.Grant{Hold: h, Token: h.place.Token()}, nil
}

// Holders implements [driver.Inspector].
func (b *Backend) Holders(_ context.Context, resource string, mode driver.Mode) ([]driver.Holder, error) {
	if resource == "" {
		return nil, errors.New("empty resource")
	}
	var holders []driver.Holder
	for _, p := range b.queue.Holders(resource, mode == driver.Permit) {
		var h driver.Holder
		switch v := p.Value.(type) {
		case driver.Holder:
			h = v
		case interface{ Holder() driver.Holder }:
			h = v.Holder()
		default:
			return nil, fmt.Errorf("holder of unknown type %T", v)
		}
		h.Mode, _ = p.Kind()
		h.Token = p.Token()
		holders = append(holders, h)
	}
	return holders, nil
}

// Close implements [driver.Backend]. The store stays, with what is held in it.
func (b *Backend) Close() error {
	b.gate.Close()
	return nil
}

type hold struct {
	backend *Backend
	place   queue.Place
}

func (h *hold) Release(context.Context) error {
	h.backend.queue.Leave(&h.place)
	return nil
}

func (h *hold) Upgrade(ctx context.Context, wait time.Duration) (uint64, error) {
	_, err := h.backend.queue.Upgrade(ctx, &h.place, wait, h.backend.gate)
	switch {
	case errors.Is(err, queue.ErrTimeout):
		return 0, driver.ErrHeld
	case err != nil:
		return 0, err
	}
	return h.place.Token(), nil
}
