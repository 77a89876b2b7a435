//go:build linux

package main

import (
	"context"
	"time"

	"github.com/distlock-go/distlock"
)

// locks is this library, through its public API.
type locks struct{ *distlock.Locker }

func (l locks) client(ctx context.Context, name string) (client, error) {
	return &lock{ctx: ctx, locks: l, name: name}, nil
}

func (l locks) close() error { return l.Close() }

type lock struct {
	ctx   context.Context
	locks locks
	name  string
	held  *distlock.Lock
}

func (c *lock) acquire() (err error) {
	c.held, err = c.locks.Acquire(c.ctx, c.name, distlock.Timeout(time.Minute))
	return err
}

func (c *lock) release() error { return c.held.Release() }

func (c *lock) token() (uint64, bool) { return c.held.Token() }
