// Package driver is the contract between package distlock and a backend.
//
// Applications import it only to name the types [Holder] and [Mode]. Read it to
// write a backend, and run package drivertest against what you wrote.
//
// # Who does what
//
// Package distlock owns policy: it validates arguments, queues the goroutines
// of this process, measures timeouts, paces retries, keeps sessions alive,
// announces loss, gives back what arrived too late, and words the errors. A
// backend answers one question at a time about one store, synchronously. It
// starts no goroutine that outlives a call, except to serve a [Session] that
// it owns, or to take back what an [UnsettledError] is about.
//
// # Concurrency
//
// Every method of a [Backend] may be called from many goroutines at once, also
// for the same resource. On one [Hold] the calls Upgrade and Release are
// never concurrent with each other. On one [Session] at most one Renew runs at
// a time, but it may run beside any method of the holds on that session, and
// beside Acquire.
//
// # Contexts
//
// The context of a call bounds that call and never the holding that comes of
// it: a grant outlives the context it was asked with. A call should return
// soon after its context ends. Package distlock does not rely on it (it stops
// listening, and deals with the answer when it comes), but a call that never
// returns keeps a goroutine for ever.
//
// # Errors
//
// An error says what is true afterwards:
//
//   - [ErrHeld]: nothing was changed; somebody else has the resource.
//   - [errors.ErrUnsupported]: this backend can't do this, ever; nothing was
//     sent to the store.
//   - [ErrDeadlock]: the store chose this call as the victim; nothing is held
//     by it, or, from Upgrade, just what was held before.
//   - [ErrLost]: the holding, or the session, has ended in the store. There is
//     nothing to release.
//   - An [UnsettledError]: unknown yet. The backend deals with it by itself.
//   - Any other error, the context's own included: unknown. The store may have
//     done it. After such an error from Acquire package distlock calls
//     [Undoer.Undo], where there is one; a backend without Undo must itself
//     have made sure that nothing stays behind.
//
// Errors are returned as the store's client gave them, wrapped so that
// errors.As still finds its type, with what the user should do about it where
// that is known, and without passwords, keys or signatures. They don't repeat
// the operation, backend or resource: package distlock adds those.
package driver

import (
	"context"
	"encoding/hex"
	"errors"
	"math"
	"time"
)

var (
	// ErrHeld reports that the resource is held by somebody else in a way that
	// excludes the request.
	ErrHeld = errors.New("held by another")

	// ErrLost reports that a holding or a session ended without being released:
	// its lease expired, its connection died, an administrator broke it.
	// It is the same value as distlock.ErrLost.
	ErrLost = errors.New("lock lost")

	// ErrDeadlock reports that the store found waiting for this request to be
	// part of a cycle and refused it. It is the same value as distlock.ErrDeadlock.
	ErrDeadlock = errors.New("deadlock")
)

// An UnsettledError is the error of an Acquire that didn't wait for the store's answer,
// because its context had ended, or for another reason. The backend sees to it that
// nothing comes of it, and needs no [Undoer] for that.
type UnsettledError struct {
	Err     error           // why it didn't wait
	Settled <-chan struct{} // closed when nothing is held by it, and nothing will be
}

// Error implements error.
func (e *UnsettledError) Error() string { return e.Err.Error() }

// Unwrap returns why the store's answer wasn't waited for.
func (e *UnsettledError) Unwrap() error { return e.Err }

// Forever as [Request.Wait] asks to wait as long as the context lives.
const Forever time.Duration = math.MaxInt64

// Mode is the kind of holding that is asked for.
type Mode uint8

const (
	// Exclusive is compatible with nothing.
	Exclusive Mode = iota
	// Shared is compatible with Shared and Upgradeable.
	Shared
	// Upgradeable is compatible with Shared, and can become Exclusive.
	Upgradeable
	// Permit is one of Request.Limit. Permits of a resource are a name space of
	// their own: they neither exclude nor are excluded by the other modes.
	Permit
)

// String returns the mode as it appears in logs and status output.
func (m Mode) String() string {
	switch m {
	case Exclusive:
		return "exclusive"
	case Shared:
		return "shared"
	case Upgradeable:
		return "upgradeable"
	case Permit:
		return "permit"
	}
	return "unknown mode"
}

// Modes is a set of modes.
type Modes uint8

// ModesOf returns the set of the given modes.
func ModesOf(modes ...Mode) Modes {
	var s Modes
	for _, m := range modes {
		s |= 1 << m
	}
	return s
}

// Has reports whether m is in the set.
func (s Modes) Has(m Mode) bool { return s&(1<<m) != 0 }

// Info describes a backend. It never changes during the backend's life.
type Info struct {
	// Name is the backend's name in error texts and logs: "file", "mysql".
	Name string

	// Modes are the kinds of holding that the backend can do. Package distlock
	// refuses the others before any call; Acquire refuses them too.
	Modes Modes

	// MinTTL and MaxTTL bound the lease that may be asked for. Both are zero on
	// backends that have no use for a lease length.
	MinTTL, MaxTTL time.Duration

	// PollMin and PollMax are for a backend that doesn't wait by itself. They pace the
	// questions of one waiting process about one resource: the pauses between them grow
	// from PollMin to PollMax, jittered. If the resource was waited for before, the first
	// pause is half of what that took, and an eighth of PollMin at least.
	//
	// A backend that waits by itself leaves PollMin zero. It is asked to wait right after
	// its first answer. If it answers ErrHeld before the time is over, there are pauses of
	// 10 ms to 1 s.
	PollMin, PollMax time.Duration

	// AnswersWithin, if not zero, is a promise: Acquire and Upgrade with a wait of zero,
	// and Release, return within it, whatever the store does, and also if their context
	// never ends. Package distlock then calls them in the caller's own goroutine, which
	// saves the change to another, where that can't make the caller late: always with
	// 100 ms or less, else where nothing could interrupt the caller, or in the modes that
	// are Interruptible.
	AnswersWithin time.Duration

	// Interruptible are the modes in which Acquire with a wait of zero promises one thing
	// more: it returns soon after its context has ended, whatever the store does, with an
	// *[UnsettledError] if something may come of it yet. Without AnswersWithin it means
	// nothing.
	Interruptible Modes
}

// Backend is one store.
type Backend interface {
	// Info describes the backend, without I/O.
	Info() Info

	// Acquire takes r.Resource or returns an error, among them ErrHeld.
	//
	// With r.Wait zero it answers at once, that is, within one exchange with the
	// store, or as few as it takes. Else it may wait for at most r.Wait, and must
	// answer ErrHeld when that is over; how it waits (in the store's own queue, for
	// a notification, not at all) is the backend's choice, and returning ErrHeld
	// early is always allowed: package distlock pauses and asks again, with what is
	// left.
	//
	// Acquire is never re-entrant: a resource held through this very backend
	// value is as held as any other, whatever the store itself thinks about it.
	//
	// A nil error means that the grant was in force when the store answered.
	Acquire(ctx context.Context, r Request) (Grant, error)

	// Close gives back the backend's connections and files. Package distlock
	// has released all holds before, or given up on them; what is left ends
	// with its session. Close is called once. Acquire then returns an error that
	// isn't ErrHeld.
	Close() error
}

// Request is what is asked for. Fields may be added in later versions.
type Request struct {
	// Resource is a non-empty valid UTF-8 string of any length. Distinct strings
	// are distinct resources: a backend maps names that its store can't hold,
	// injectively for all practical purposes and stably over releases.
	Resource string

	Mode Mode

	// Limit is the number of permits that exist, at least 1, in mode Permit;
	// else 0.
	Limit int

	// Wait is the longest time to wait for others to release the resource; zero
	// is not at all, Forever is no limit. Never negative. A backend whose store
	// counts more coarsely rounds up, but answers in time.
	Wait time.Duration

	// Queue tells a request with Wait zero that the caller will come back to
	// wait if the answer is ErrHeld. A backend that keeps its waiters in order
	// then answers ErrHeld when others wait already.
	Queue bool

	// TTL is the lease to ask for, within Info.MinTTL and Info.MaxTTL. A backend
	// without leases ignores it.
	TTL time.Duration

	// Owner says who asks.
	Owner Owner
}

// Owner identifies one attempt to acquire, and who makes it.
type Owner struct {
	// ID is unique to this attempt over all processes and hosts. It is chosen
	// before anything is sent, so that an attempt whose answer was lost can be
	// recognised in the store and undone.
	ID ID

	// The rest is for people who look at the store. Any of it may be empty.
	Host    string
	PID     int
	Program string
	Note    string
}

// ID is 128 bits, unique to one attempt.
type ID [16]byte

// String returns the ID in the form of a UUID.
func (id ID) String() string {
	var b [36]byte
	hex.Encode(b[0:8], id[0:4])
	hex.Encode(b[9:13], id[4:6])
	hex.Encode(b[14:18], id[6:8])
	hex.Encode(b[19:23], id[8:10])
	hex.Encode(b[24:36], id[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}

// Grant is what a successful Acquire returns.
type Grant struct {
	// Hold ends the holding. Never nil.
	Hold Hold

	// Token is the fencing token: larger than that of every earlier grant of the
	// resource in any mode that shares its name space, whatever happened to
	// sessions, processes and the store in between. Zero means that the backend,
	// as configured, has none; 1<<53-1 is the largest that can be used. What the
	// application sees is larger: package distlock hands one grant on to several
	// holdings, and appends a count of them.
	Token uint64

	// Session is what the holding's life hangs on: one value, of a comparable
	// type, for all grants that end together. It may be Hold, if it is that of no
	// other grant. Nil means that the holding can't end without Release while this
	// process lives.
	Session Session

	// Sent is the time just before the request that was granted went out. Zero
	// means: when Acquire was called. A backend that waits by itself and has
	// leases sets it, so that the time it waited isn't counted as lease used up.
	Sent time.Time
}

// Hold is one holding in the store.
type Hold interface {
	// Release gives back this holding and no other, ever: not a later one of the
	// same resource, whoever has it. It returns nil also when an earlier call
	// had done it already and only its answer was lost, and ErrLost when the
	// holding had ended otherwise. After any other error package distlock may
	// call it again, for a bounded time. Its context is never the application's.
	//
	// Release may run beside Session.Renew: a renewal that reaches the store
	// after the release must not bring anything back.
	Release(ctx context.Context) error
}

// Upgrader is implemented by the holds of backends that have mode Upgradeable.
type Upgrader interface {
	// Upgrade turns an upgradeable holding into an exclusive one without ever
	// letting go of it, and returns a new and larger token, or zero. It waits as
	// Acquire does. After any error but ErrLost the upgradeable holding is as it
	// was before; if the outcome is unknown, it may also be exclusive, and Upgrade
	// may be called again.
	Upgrade(ctx context.Context, wait time.Duration) (token uint64, err error)
}

// Session is what holdings hang on: a lease, a connection, a descriptor.
type Session interface {
	// Lease says how the session is to be kept. It never changes.
	Lease() Lease

	// Renew proves or prolongs the session's life. Nil means that it lives, for
	// Lease.TTL from just before this call. ErrLost means that it has ended; any
	// other error that it is not known, and package distlock tries again until
	// the time runs out. A renewal never revives a session that has ended, and
	// never extends a lease that has another owner.
	Renew(ctx context.Context) error

	// Lost returns a channel that is closed when the backend notices by itself
	// that the session has ended, or nil if it never does.
	Lost() <-chan struct{}

	// Abandon is called at most once, when package distlock has declared the
	// session lost. It must not block. A session with a connection drops it, so
	// that the store frees what hangs on it.
	Abandon()
}

// Lease says how a session is to be kept.
type Lease struct {
	// TTL is how long the session lives after the last successful renewal. Zero
	// means that it doesn't end by the clock.
	TTL time.Duration

	// Every is the pause between renewals. Zero means a third of TTL.
	Every time.Duration

	// Pooled says that the session goes on when nothing hangs on it any more, and
	// will carry later grants: a connection, and not a lease taken for one grant.
	// Package distlock is ready for those then, instead of beginning anew.
	Pooled bool
}

// Undoer is implemented by backends in which a failed Acquire may have been
// granted.
type Undoer interface {
	// Undo makes sure that the attempt r, identified by r.Owner.ID, holds nothing
	// and will not be granted anything later. It returns nil also when there was
	// nothing to undo. It is called again after an error, for a bounded time.
	Undo(ctx context.Context, r Request) error
}

// Inspector is implemented by backends that can tell who holds a resource.
type Inspector interface {
	// Holders returns who holds the resource now, as far as the store and the
	// permissions tell; none means that it is free. Mode Permit asks for the
	// holders of permits, any other mode for those of the lock.
	Holders(ctx context.Context, resource string, mode Mode) ([]Holder, error)
}

// Holder describes somebody who holds a resource. What isn't known is zero.
type Holder struct {
	Owner Owner
	Mode  Mode
	Since time.Time
	Token uint64
}
