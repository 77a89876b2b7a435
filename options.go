package distlock

import (
	"log/slog"
	"time"

	"github.com/distlock-go/distlock/driver"
)

// Options tune a [Locker]. The zero value of each field is its default, and nil
// Options are all defaults.
type Options struct {
	// TTL is the lease to ask for on backends that lease: how long the resource
	// stays taken when its holder dies. It is renewed after each third, and lost
	// a tenth before its end if that fails. Default 30 s, or what comes next to it
	// among the leases that the backend can do. Backends whose locks hang on a
	// connection or a file have no use for it.
	TTL time.Duration

	// ReleaseTimeout bounds Release, and Close, but for what [Locker.Close] says of the
	// backend. Default 5 s.
	ReleaseTimeout time.Duration

	// Logger gets what no caller is told otherwise, on level Warn: locks that
	// were lost or dropped, renewals and clean-ups that failed. Nil is silent.
	Logger *slog.Logger

	// Trace is told everything. Nil is none.
	Trace *Trace

	// HandoffCount is how many times a holding may be passed on within this Locker
	// without a trip to the store: to the next waiter, or to one more reader. After
	// that the store is asked again, and other processes get their turn. Holdings that
	// others may have at the same time (permits of more than one, readers, an
	// upgradeable lock) are passed on only where there are no tokens. Default 64; at
	// most 1023; negative is never. It does nothing on locallock, where the queue is
	// the lock.
	HandoffCount int

	// HandoffTime is how long after it came from the store a holding may still be
	// passed on. Default 20 ms. It does nothing on locallock either.
	HandoffTime time.Duration

	// Note is shown to people who look who holds a resource, where the store has
	// room for it.
	Note string
}

const (
	defaultTTL            = 30 * time.Second
	defaultReleaseTimeout = 5 * time.Second
	defaultHandoffCount   = 64
	defaultHandoffTime    = 20 * time.Millisecond
)

// withDefaults returns o with its zero fields set, and what is wrong with it.
func (o *Options) withDefaults(info driver.Info) (Options, error) {
	var full Options
	if o != nil {
		full = *o
	}
	for _, d := range []struct {
		name  string
		field *time.Duration
		value time.Duration
	}{
		{"TTL", &full.TTL, defaultTTL},
		{"ReleaseTimeout", &full.ReleaseTimeout, defaultReleaseTimeout},
		{"HandoffTime", &full.HandoffTime, defaultHandoffTime},
	} {
		if *d.field < 0 {
			return full, badArgument("negative Options.%s: %v", d.name, *d.field)
		}
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	switch {
	case full.HandoffCount == 0:
		full.HandoffCount = defaultHandoffCount
	case full.HandoffCount > mostHandoffs:
		return full, badArgument("Options.HandoffCount of %d: at most %d", full.HandoffCount, mostHandoffs)
	}
	if full.Trace == nil {
		full.Trace = &Trace{}
	}
	if info.MaxTTL > 0 && (o == nil || o.TTL == 0) {
		full.TTL = min(max(full.TTL, info.MinTTL), info.MaxTTL)
	}
	if info.MaxTTL > 0 && (full.TTL < info.MinTTL || full.TTL > info.MaxTTL) {
		return full, badArgument("Options.TTL of %v: this backend leases for %v to %v", full.TTL, info.MinTTL, info.MaxTTL)
	}
	return full, nil
}

// AcquireOption modifies one call of Acquire or its kin.
type AcquireOption struct {
	kind  optionKind
	value int64
}

type optionKind uint8

const (
	optionNone optionKind = iota
	optionTimeout
	optionShared
	optionUpgradeable
	optionSemaphore
)

// Timeout is how long to wait for the resource. 0 is one try: the answer is
// the store's, now. Without the option Acquire waits as long as its context
// lives. The last of several counts; a negative one is an error.
//
// The time covers everything: connecting, waiting for a pool, waiting for the
// lock. It is measured here and is exact on every backend, but that the first
// try, which is always made, is given 100 ms to be answered even if the timeout
// is shorter, and a single try (0) five seconds, after which the store counts as
// broken.
func Timeout(d time.Duration) AcquireOption { return AcquireOption{optionTimeout, int64(d)} }

// Shared asks for a reader's lock: there may be many at once, but none beside
// an exclusive one. The default is exclusive.
func Shared() AcquireOption { return AcquireOption{optionShared, 0} }

// Upgradeable asks for a lock that exists once, may stand beside shared ones,
// and can become exclusive with [Lock.Upgrade].
func Upgradeable() AcquireOption { return AcquireOption{optionUpgradeable, 0} }

// Semaphore asks for one of the given number of permits. All users of a name
// must pass the same number. Semaphores are a name space of their own: the
// semaphore "a" and the lock "a" have nothing to do with each other. Below 1 is
// an error.
func Semaphore(permits int) AcquireOption { return AcquireOption{optionSemaphore, int64(permits)} }

// request is what the options of one call add up to.
type request struct {
	mode     driver.Mode
	limit    int
	timeout  time.Duration // driver.Forever: none given
	deadline time.Time     // when timeout is over; zero: the clock isn't running
}

// parse sets r to what the options say.
func (r *request) parse(opts []AcquireOption) error {
	r.timeout = driver.Forever
	kinds := 0
	for i := range opts {
		switch o := &opts[i]; o.kind {
		case optionTimeout:
			if o.value < 0 {
				return badArgument("negative timeout: %v (for no limit, leave the option out)", time.Duration(o.value))
			}
			r.timeout = time.Duration(o.value)
			continue
		case optionShared:
			r.mode = driver.Shared
		case optionUpgradeable:
			r.mode = driver.Upgradeable
		case optionSemaphore:
			if o.value < 1 {
				return badArgument("semaphore with %d permits: at least 1 is needed", o.value)
			}
			r.mode, r.limit = driver.Permit, int(o.value)
		default:
			return badArgument("empty AcquireOption")
		}
		kinds++
	}
	if kinds > 1 {
		return badArgument("more than one of Shared, Upgradeable and Semaphore")
	}
	return nil
}

// left returns how much of the time to wait is left now.
func (r *request) left() time.Duration {
	if r.deadline.IsZero() {
		return r.timeout
	}
	return max(0, time.Until(r.deadline))
}

// start starts the clock of the timeout, if it isn't running already. Until
// then all of the time is left; who needs the time once only can do without.
func (r *request) start() { r.startAt(time.Now()) }

func (r *request) startAt(t time.Time) {
	if r.timeout != driver.Forever && r.deadline.IsZero() {
		r.deadline = t.Add(r.timeout)
	}
}
