//go:build linux

package main

import (
	"context"
	"time"

	"github.com/distlock-go/distlock"
)

// locks is this library, through its public API.
type locks struct {
	*distlock.Locker

	ctx context.Context
}

// usual is called with a context that never ends, as the peers are.
func usual(l *distlock.Locker) locker { return &locks{l, context.Background()} }

func (l *locks) client(_ context.Context, name string) (client, error) {
	return &lock{locks: l, name: name}, nil
}

func (l *locks) close() error { return l.Close() }

type lock struct {
	locks *locks
	name  string
	held  *distlock.Lock
}

func (c *lock) acquire() (err error) {
	c.held, err = c.locks.Acquire(c.locks.ctx, c.name, distlock.Timeout(time.Minute))
	return err
}

func (c *lock) release() error { return c.held.Release() }

func (c *lock) token() (uint64, bool) { return c.held.Token() }

// cancelable returns the contender with a context that can be canceled, for the
// tests named.
func cancelable(c *contender, tests ...string) *contender {
	return &contender{
		name: c.name + ", cancelable", role: ours, note: c.name + ", with a context that can be canceled", tests: tests,
		open: func(ctx context.Context, p place) (locker, error) {
			l, err := c.open(ctx, p)
			if err != nil {
				return nil, err
			}
			l.(*locks).ctx = ctx
			return l, nil
		},
	}
}
