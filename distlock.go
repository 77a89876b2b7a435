package distlock

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/program"
	"github.com/distlock-go/distlock/internal/queue"
)

// A Locker hands out locks on the resources of one backend. Its methods are
// safe for concurrent use. A process needs one for each store: the goroutines
// that wait for one resource through one Locker cost the store one waiter.
type Locker struct {
	backend   driver.Backend
	inProcess bool // there is nothing behind the queue
	name      string
	modes     driver.Modes
	pollMin   time.Duration // 0: the backend waits by itself
	pollMax   time.Duration
	pace      pace
	leases    bool
	bound     time.Duration // of the backend's answers; 0: none
	prompt    driver.Modes  // in which the backend returns when the context ends
	options   Options
	watching  bool  // somebody is told of dropped locks
	bad       error // what is wrong with the options
	owner     driver.Owner
	attempts  atomic.Uint64

	queue *queue.Queue
	gate  *queue.Gate

	keepersMu sync.Mutex
	keepers   map[driver.Session]*keeper // that of a hold's own session only once it is lost, or over and still being renewed
	schedule  schedule

	busy     atomic.Int64 // pieces of work that Close waits for
	idleMu   sync.Mutex
	idle     chan struct{} // closed when busy is 0; nil if nobody waits for it
	finished chan struct{} // closed when nothing may be asked of the backend any more

	closed   chan struct{} // closed when Close is through
	closeErr error
}

// New returns a Locker on b. It does no I/O and can't fail: invalid options are
// reported by the first Acquire. The Locker owns b from here on and closes it
// with Close.
func New(b driver.Backend, o *Options) *Locker {
	info := b.Info()
	l := &Locker{
		backend: b,
		name:    info.Name,
		modes:   info.Modes,
		pollMin: info.PollMin,
		pollMax: info.PollMax,
		leases:  info.MaxTTL > 0,
		bound:   info.AnswersWithin,
		prompt:  info.Interruptible,
		keepers: make(map[driver.Session]*keeper),

		finished: make(chan struct{}),
		closed:   make(chan struct{}),
	}
	l.options, l.bad = o.withDefaults(info)
	l.watching = o != nil && (o.Logger != nil || o.Trace != nil)
	if l.queue, l.inProcess = queue.Of(b); !l.inProcess {
		l.queue = queue.New(true)
	}
	l.gate = l.queue.NewGate()
	l.schedule.ring = l.lookAfterKeepers
	l.owner = driver.Owner{PID: os.Getpid(), Program: program.Name(), Note: l.options.Note}
	l.owner.Host, _ = os.Hostname() // for people's eyes; nothing depends on it
	rand.Read(l.owner.ID[:8])
	return l
}

// newOwner returns an owner with an ID of its own: half is this Locker's, half
// counts.
func (l *Locker) newOwner() driver.Owner {
	o := l.owner
	binary.BigEndian.PutUint64(o.ID[8:], l.attempts.Add(1))
	return o
}

// Acquire waits until it holds the resource, an arbitrary non-empty string of
// valid UTF-8, and returns the lock. How long it waits is bounded by [Timeout]
// and ctx; neither bounds how long the lock may be held.
//
// Errors are *[Error] and match
//
//   - [ErrNotAcquired] if the timeout passed,
//   - ctx.Err() and context.Cause(ctx) if ctx ended, and ErrNotAcquired too if
//     the resource was seen to be held,
//   - [ErrBadArgument] if an argument or option is invalid,
//   - errors.ErrUnsupported if the backend doesn't have this kind of lock,
//   - [ErrDeadlock] if the store says that waiting would never end,
//   - [ErrClosed] if the Locker was closed;
//   - any other is the store's own, reachable by errors.As.
//
// After an error nothing is held. A lock is never re-entrant: to acquire what
// the caller holds already waits, or fails, like any other.
func (l *Locker) Acquire(ctx context.Context, resource string, opts ...AcquireOption) (*Lock, error) {
	var r request
	if err := r.parse(opts); err != nil {
		return nil, l.fail("acquire", resource, err)
	}
	return l.acquire(ctx, resource, &r)
}

// TryAcquire is Acquire with Timeout(0): it takes the resource if it is free.
func (l *Locker) TryAcquire(ctx context.Context, resource string, opts ...AcquireOption) (*Lock, error) {
	var r request
	err := r.parse(opts)
	if err == nil && r.timeout != driver.Forever && r.timeout != 0 {
		err = badArgument("TryAcquire with a timeout of %v: it doesn't wait; use Acquire", r.timeout)
	}
	if err != nil {
		return nil, l.fail("acquire", resource, err)
	}
	r.timeout = 0
	return l.acquire(ctx, resource, &r)
}

// AcquireAll acquires several resources, all or none, as one lock: in sorted
// order, so that two callers can't wait for each other, and each once, however
// often it is named. The timeout is for all of them together. The lock is lost
// as soon as one of them is, and has no token.
func (l *Locker) AcquireAll(ctx context.Context, resources []string, opts ...AcquireOption) (*Lock, error) {
	names := slices.Clone(resources)
	slices.Sort(names)
	names = slices.Compact(names)
	var r request
	err := r.parse(opts)
	if err == nil && len(names) == 0 {
		err = badArgument("no resources")
	}
	for _, name := range names {
		if err == nil {
			err = l.checkArguments(name, &r)
		}
	}
	if err != nil {
		return nil, l.fail("acquire", strings.Join(names, ","), err)
	}
	if len(names) == 1 {
		return l.acquire(ctx, names[0], &r)
	}
	r.start()
	set := &Lock{
		holding: &holding{locker: l, more: &details{names: strings.Join(names, ",")}},
		set:     &lockSet{},
	}
	complete := false
	defer func() {
		if !complete { // also if a Trace panicked
			l.releaseSoon(set)
		}
	}()
	for _, name := range names {
		part, err := l.acquire(ctx, name, &r)
		if err != nil {
			return nil, err
		}
		set.set.locks = append(set.set.locks, part)
		whole := set.holding // a part that referred to the Lock would keep it from being dropped
		part.onEnd(func(err error) { whole.end(err) })
	}
	if err := set.Err(); err != nil {
		return nil, l.fail("acquire", set.resource(), err)
	}
	complete = true
	return set, nil
}

// soon is how long it takes at most to release in a store that works.
const soon = 100 * time.Millisecond

// releaseSoon releases what AcquireAll got, and waits for it no longer than a
// store that works takes. Failures are retried and reported like those of any
// release.
func (l *Locker) releaseSoon(set *Lock) {
	done := make(chan struct{})
	l.inBackground(func() {
		defer close(done)
		_ = set.Release()
	})
	timer := time.NewTimer(soon)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// Do calls fn while it holds the resource. The context of fn is canceled when
// the lock is lost. The lock is released when fn returns, panics, or ends the
// goroutine. Do returns Acquire's error if fn was not called; else fn's error,
// joined with the loss of the lock, if it was lost, or Release's error.
func (l *Locker) Do(ctx context.Context, resource string, fn func(ctx context.Context) error, opts ...AcquireOption) (err error) {
	lock, err := l.Acquire(ctx, resource, opts...)
	if err != nil {
		return err
	}
	defer func() {
		if released := lock.Release(); released != nil {
			err = errors.Join(err, released)
		}
	}()
	held, cancel := lock.Context(ctx)
	defer cancel()
	return fn(held)
}

// Holders returns who holds the resource now, as far as the store and its
// permissions tell; none if it is free. It takes one option, Semaphore, which asks
// for the holders of permits. It is for people: what it says may be over when it is
// read. It knows whom the store granted the resource to: who got it from there within
// that process has a token that is a little larger.
//
// The error matches errors.ErrUnsupported if the backend can't tell.
func (l *Locker) Holders(ctx context.Context, resource string, opts ...AcquireOption) ([]driver.Holder, error) {
	l.begin()
	defer l.end()
	holders, err := l.holders(ctx, resource, opts)
	if err != nil {
		return nil, l.fail("inspect", resource, err)
	}
	return holders, nil
}

func (l *Locker) holders(ctx context.Context, resource string, opts []AcquireOption) ([]driver.Holder, error) {
	var r request
	if err := r.parse(opts); err != nil {
		return nil, err
	}
	switch {
	case r.timeout != driver.Forever:
		return nil, badArgument("Holders with a timeout of %v: it takes none; give its context a deadline", r.timeout)
	case r.mode == driver.Shared || r.mode == driver.Upgradeable:
		return nil, badArgument("Holders of %s locks only: it takes no kind but Semaphore, and tells of the others together", r.mode)
	}
	if err := l.checkArguments(resource, &r); err != nil {
		return nil, err
	}
	inspector, ok := l.backend.(driver.Inspector)
	if !ok {
		return nil, &reason{"this backend can't tell who holds a resource", []error{errors.ErrUnsupported}}
	}
	holders, err := inspector.Holders(ctx, resource, r.mode)
	for i := 0; i < len(holders) && err == nil && !l.inProcess; i++ {
		holders[i].Token, err = fencingToken(holders[i].Token)
	}
	return holders, err
}

// Close releases all locks, wakes all waiters with [ErrClosed], and closes the
// backend. Who is just asking a backend that bounds its answers by itself is woken by
// the answer, or when the backend is closed. Close returns when all that is done and
// what was given up in the background is cleaned up, or after Options.ReleaseTimeout;
// but the backend is given a second to close in any case. Later calls return what the
// first did.
func (l *Locker) Close() error {
	if l.gate.Close() {
		l.closeErr = l.close()
		close(l.closed)
	}
	<-l.closed
	return l.closeErr
}

func (l *Locker) close() error {
	whole, cancel := context.WithTimeout(context.Background(), l.options.ReleaseTimeout)
	defer cancel()
	// What is left of it is for those who give up then, and say so.
	ctx, cancel := context.WithTimeout(whole, l.options.ReleaseTimeout-l.options.ReleaseTimeout/10)
	defer cancel()
	var errs []error
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, p := range l.queue.All() {
		// A place that isn't granted yet gives itself back when it is, as its
		// goroutine finds the gate closed.
		q, ok := p.Value.(*inQueue)
		h := (*holding)(q)
		if !ok || h.locker != l || !h.granted() {
			continue
		}
		all.Go(func() {
			if err := h.release(ctx); err != nil && !errors.Is(err, ErrLost) {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	all.Wait()
	l.waitUntilIdle(ctx)
	l.stopKeeping(ctx)
	close(l.finished)
	l.waitUntilIdle(whole)
	if err := l.closeBackend(whole); err != nil {
		errs = append(errs, l.fail("close", "", err))
	}
	return errors.Join(errs...)
}

// closeBackend closes the backend, and waits for it until ctx ends, but for a second
// at least: a call that hangs in the store may be in its way.
func (l *Locker) closeBackend(ctx context.Context) error {
	result := make(chan error, 1)
	go func() { result <- l.backend.Close() }()
	deadline, _ := ctx.Deadline()
	timer := time.NewTimer(max(time.Until(deadline), time.Second))
	defer timer.Stop()
	select {
	case err := <-result:
		return err
	case <-timer.C:
		return errNoAnswer
	}
}

// checkArguments reports what is wrong with the arguments of a call.
func (l *Locker) checkArguments(resource string, r *request) error {
	switch {
	case l.bad != nil:
		return l.bad
	case resource == "":
		return badArgument("empty resource")
	case !utf8.ValidString(resource):
		return badArgument("the resource is not valid UTF-8")
	case !l.modes.Has(r.mode):
		return &reason{"no " + r.mode.String() + " locks on this backend", []error{errors.ErrUnsupported}}
	case l.gate.Closed():
		return ErrClosed
	}
	return nil
}

// fail returns err as the result of an operation on a resource. What is an *Error
// already, as the end of a holding is, has a better one and keeps that.
func (l *Locker) fail(op, resource string, err error) error {
	if e, ok := err.(*Error); ok { //nolint:errorlint // one further inside is about something else
		resource, err = e.Resource, e.Err
	}
	return &Error{Op: op, Backend: l.name, Resource: resource, Err: err}
}

// report tells Trace and Logger what no caller is told. Close waits for whoever
// calls it; what comes still later, from a call that hung in the store, nobody is told.
func (l *Locker) report(what string, trace func(Event), e Event) {
	select {
	case <-l.closed:
		return
	default:
	}
	if trace != nil {
		trace(e)
	}
	if l.options.Logger == nil {
		return
	}
	attrs := []any{"backend", e.Backend, "resource", abbreviate(e.Resource)}
	if e.Site != "" {
		attrs = append(attrs, "acquired at", e.Site)
	}
	if e.Err != nil {
		attrs = append(attrs, "err", e.Err)
	}
	l.options.Logger.Warn("distlock: "+what, attrs...)
}

// begin makes Close wait until end is called.
func (l *Locker) begin() { l.busy.Add(1) }

func (l *Locker) end() {
	if l.busy.Add(-1) > 0 {
		return
	}
	l.idleMu.Lock()
	defer l.idleMu.Unlock()
	if l.idle != nil && l.busy.Load() == 0 {
		close(l.idle)
		l.idle = nil
	}
}

// inBackground runs f in a goroutine that Close waits for.
func (l *Locker) inBackground(f func()) {
	l.begin()
	go func() {
		defer l.end()
		f()
	}()
}

// waitUntilIdle waits until all work is done, or ctx.
func (l *Locker) waitUntilIdle(ctx context.Context) {
	idle := make(chan struct{})
	l.idleMu.Lock()
	l.idle = idle // before the look: whoever ends after that sees it
	busy := l.busy.Load() > 0
	l.idleMu.Unlock()
	if !busy {
		return
	}
	select {
	case <-idle:
	case <-ctx.Done():
	}
}
