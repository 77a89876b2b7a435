package distlock

import (
	"context"
	"time"

	"github.com/distlock-go/distlock/driver"
)

// Trace is a set of functions that are told what happens to locks. Any of them
// may be nil. What happens in a call (Acquiring, Waiting, Acquired, Upgraded,
// Released) is told by the goroutine that makes it, the rest by others. They are
// called from many goroutines at once, never under a lock of this package. They
// should return soon, and must not call Locker.Close, which waits for them.
type Trace struct {
	// Acquiring is called when Acquire begins to work, after its arguments were
	// checked. The context that it returns is the one that Waiting and Acquired
	// are given and that the backend's calls inherit their values from.
	Acquiring func(ctx context.Context, e Event) context.Context

	// Waiting is called once, when the resource turns out to be held.
	Waiting func(ctx context.Context, e Event)

	// Acquired is called when Acquire ends: with a lock if e.Err is nil, else
	// without. e.Duration is how long it took.
	Acquired func(ctx context.Context, e Event)

	// Upgraded is called when Upgrade ends, like Acquired.
	Upgraded func(ctx context.Context, e Event)

	// Released is called when a lock was given back, or could not be, with e.Err.
	// e.Duration is how long it was held.
	Released func(e Event)

	// Lost is called after a lock was lost and its holder was told. e.Err says
	// why, e.Duration how long it was held.
	Lost func(e Event)

	// RenewalFailed is called when a session could not be renewed. It will be
	// tried again until e.Duration has passed; then its locks are lost.
	RenewalFailed func(e Event)

	// Dropped is called when a lock was dropped without Release and the garbage
	// collector found it. e.Site is where it was acquired. It is given back.
	Dropped func(e Event)

	// CleanupFailed is called when something could not be given back that no
	// caller waits for any more: a grant that came too late, a lock whose Release
	// failed before. It may stay in the store until its lease or session ends.
	CleanupFailed func(e Event)
}

// Event is what a [Trace] is told. What doesn't apply is zero.
type Event struct {
	Backend  string
	Resource string
	Mode     driver.Mode
	Limit    int           // permits of a semaphore
	Token    uint64        // fencing token
	Duration time.Duration // see the functions of Trace
	Passed   bool          // handed over within the process, without a trip to the store
	Site     string        // file:line of the call that acquired
	Err      error
}
