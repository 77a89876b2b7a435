//go:build linux

package main

import (
	"context"
	"hash/maphash"
	"sync"

	mobylocker "github.com/moby/locker"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/locallock"
)

var localTests = []string{"uncontended", "names", "hot", "hold"}

var localLocks = &contender{
	name: "distlock", role: ours, note: "locallock", tests: localTests,
	open: func(context.Context, place) (locker, error) { return locks{distlock.New(locallock.New(), nil)}, nil },
}

var local = backend{
	name: "local", title: "In process", alone: true,
	start: func(context.Context) (store, error) { return noStore{}, nil },
	contenders: []*contender{
		{
			name: "sync.Mutex", role: floor, note: "one for each name, found beforehand", tests: localTests,
			open: func(context.Context, place) (locker, error) { return &mutexes{m: make(map[string]*sync.Mutex)}, nil },
		},
		{
			name: "moby/locker", role: peer, note: "Lock and Unlock", module: "github.com/moby/locker", tests: localTests,
			open: func(context.Context, place) (locker, error) { return named{mobylocker.New()}, nil },
		},
		{
			name: "keyed mutex", role: peer, note: "written by hand: a map of mutexes with counts of their users, in 64 shards", tests: localTests,
			open: func(context.Context, place) (locker, error) { return newKeyedMutex(), nil },
		},
		localLocks,
		cancelable(localLocks, "uncontended"),
	},
}

// noStore stands for no server.
type noStore struct{}

func (noStore) prepare(context.Context, string) (place, error) { return place{}, nil }
func (noStore) observe(context.Context) (observation, error)   { return nothing, nil }
func (noStore) version() string                                { return "" }
func (noStore) close()                                         {}

// mutexes are the floor: the work of finding the mutex of a name isn't counted.
type mutexes struct{ m map[string]*sync.Mutex }

func (l *mutexes) client(_ context.Context, name string) (client, error) {
	if l.m[name] == nil {
		l.m[name] = new(sync.Mutex)
	}
	return &mutexClient{mu: l.m[name]}, nil
}

func (l *mutexes) close() error { return nil }

type mutexClient struct {
	noTokens

	mu *sync.Mutex
}

func (c *mutexClient) acquire() error { c.mu.Lock(); return nil }
func (c *mutexClient) release() error { c.mu.Unlock(); return nil }

// named is moby/locker.
type named struct{ l *mobylocker.Locker }

func (n named) client(_ context.Context, name string) (client, error) {
	return &namedClient{l: n.l, name: name}, nil
}

func (n named) close() error { return nil }

type namedClient struct {
	noTokens

	l    *mobylocker.Locker
	name string
}

func (c *namedClient) acquire() error { c.l.Lock(c.name); return nil }
func (c *namedClient) release() error { return c.l.Unlock(c.name) }

// A keyedMutex is what a careful programmer writes: names that nobody uses take
// no memory.
type keyedMutex struct {
	seed   maphash.Seed
	shards [64]struct {
		mu    sync.Mutex
		names map[string]*countedMutex
	}
}

type countedMutex struct {
	mu    sync.Mutex
	users int
}

func newKeyedMutex() *keyedMutex {
	k := &keyedMutex{seed: maphash.MakeSeed()}
	for i := range k.shards {
		k.shards[i].names = make(map[string]*countedMutex)
	}
	return k
}

func (k *keyedMutex) lock(name string) {
	s := &k.shards[maphash.String(k.seed, name)%64]
	s.mu.Lock()
	m := s.names[name]
	if m == nil {
		m = new(countedMutex)
		s.names[name] = m
	}
	m.users++
	s.mu.Unlock()
	m.mu.Lock()
}

func (k *keyedMutex) unlock(name string) {
	s := &k.shards[maphash.String(k.seed, name)%64]
	s.mu.Lock()
	m := s.names[name]
	if m.users--; m.users == 0 {
		delete(s.names, name)
	}
	s.mu.Unlock()
	m.mu.Unlock()
}

func (k *keyedMutex) client(_ context.Context, name string) (client, error) {
	return &keyedClient{k: k, name: name}, nil
}

func (k *keyedMutex) close() error { return nil }

type keyedClient struct {
	noTokens

	k    *keyedMutex
	name string
}

func (c *keyedClient) acquire() error { c.k.lock(c.name); return nil }
func (c *keyedClient) release() error { c.k.unlock(c.name); return nil }
