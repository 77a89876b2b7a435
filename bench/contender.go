//go:build linux

package main

import (
	"context"
	"slices"
	"time"
)

// A role is what a contender is there for.
type role int

const (
	floor role = iota // the least that a lock can cost
	ours
	peer
)

func (r role) String() string { return [...]string{"floor", "distlock", "peer"}[r] }

// A contender is one way to lock.
type contender struct {
	name       string
	role       role
	note       string // what it is and how it is used, or what it stands in for
	module     string // what it is made with, if that isn't ours
	tests      []string
	serial     bool // one goroutine does it, whatever the test has
	cancelable bool // its context can be canceled, and else never ends
	open       func(ctx context.Context, p place) (locker, error)
}

// cancelable returns the contender with a context that can be canceled, for the
// tests named.
func cancelable(c *contender, tests ...string) *contender {
	other := *c
	other.name, other.note = c.name+", cancelable", c.name+", with a context that can be canceled"
	other.tests, other.cancelable = tests, true
	return &other
}

func (c *contender) does(test string) bool { return slices.Contains(c.tests, test) }

// A locker is a contender in one process.
type locker interface {
	// client returns what one goroutine locks one name with, in this context. What
	// a program would prepare once, it prepares.
	client(ctx context.Context, name string) (client, error)
	close() error
}

// A client holds its name between acquire, which waits, and release.
type client interface {
	acquire() error
	release() error
	token() (uint64, bool) // of the lock that is held; false: there are none
}

// noTokens is embedded by clients of what has none.
type noTokens struct{}

func (noTokens) token() (uint64, bool) { return 0, false }

// A place tells a worker where the locks are.
type place struct {
	Dir     string // of lock files
	Address string // of a server
	User    string
	Secret  string // of a server of this run, made up for it
	Name    string // of the database, or the container
}

// A store is what the contenders of one backend lock in.
type store interface {
	// prepare makes the store ready for one run of a test.
	prepare(ctx context.Context, test string) (place, error)
	// observe looks at the server. It is called when all workers are ready, and
	// again when they have done what the test is about.
	observe(ctx context.Context) (observation, error)
	version() string
	close()
}

// An observation is what a server says of itself. Negative is unknown.
type observation struct {
	connections int   // the most since prepare, as far as the server knows
	memory      int64 // resident, in bytes
}

var nothing = observation{connections: -1, memory: -1}

// A backend is a kind of store and those who can lock in it.
type backend struct {
	name       string // in flags and file names
	title      string
	alone      bool          // other processes have no part in it
	names      int           // to hold, if that is fewer than asked for: it takes its time for them
	pause      time.Duration // of who asks again, if that can be more than busy
	start      func(ctx context.Context) (store, error)
	contenders []*contender
}

var backends = []*backend{&local, &file, &mariaDB, &azurite}

func (b *backend) contender(name string) *contender {
	for _, c := range b.contenders {
		if c.name == name {
			return c
		}
	}
	return nil
}
