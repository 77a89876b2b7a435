package distlock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/queue"
)

// A Lock is one holding of a resource, or of several from AcquireAll. It ends
// with Release, or it is lost. Its methods are safe for concurrent use.
//
// A Lock must be released. One that is dropped instead is noticed by the
// garbage collector at some time, reported, and given back; but on locallock only
// if the Locker has a Logger or a Trace.
type Lock struct {
	*holding
	set *lockSet // of AcquireAll, if there is more than one resource
}

// lockSet is what a Lock over several resources consists of.
type lockSet struct{ locks []*Lock }

// A holding is what a Lock stands for. Whatever must not keep a dropped Lock
// from being noticed (the queue, the keeper of its session) refers to the
// holding and never to the Lock.
type holding struct {
	place  queue.Place
	locker *Locker

	mu   sync.Mutex
	err  error // nil: held
	more *details
}

// details are what the simplest of holdings, and the most frequent ones, do
// without. They are made when needed.
type details struct {
	names   string  // of a set; else the name is that of the place
	tenure  *tenure // nil: the queue itself is the lock
	token   uint64  // of the store; without a tenure it is that of the place
	origin  *origin // nil: nobody wants to know
	ending  *ending // nil: it ends in the queue, at once, and may be dropped unseen
	done    chan struct{}
	onEnd   map[*func(error)]struct{}
	upgrade chan struct{} // closed when the upgrade under way has ended
}

// origin is what a Trace and a Logger are told of how a holding came to be.
type origin struct {
	since time.Time
	site  [siteDepth]uintptr
}

// ending is what becomes of a holding that is released, or dropped.
type ending struct {
	cleanup runtime.Cleanup // notices that the Lock was dropped

	through chan struct{} // closed when Release is through, with result; nil: it isn't, and nobody waits
	result  error
}

// closedChan is a closed channel.
var closedChan = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Resource returns the name that was acquired; from AcquireAll, the names, in
// order, separated by commas. That is for people: a name may have commas itself.
func (l *Lock) Resource() string { return l.resource() }

// Err returns nil while the resource is held, [ErrReleased] after Release, and
// an error that matches [ErrLost], and says why, when the lock was lost. It
// looks at the clocks: a lease that ran out while the process was stopped is
// lost from the first call on.
func (l *Lock) Err() error {
	l.checkClocks()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Done returns a channel that is closed when the holding ends, by Release or
// by loss; Err says which. Holding only the channel doesn't keep the Lock
// alive: keep the Lock, or a context from Context.
func (l *Lock) Done() <-chan struct{} {
	l.checkClocks()
	return l.doneChan()
}

// checkClocks notices a lease that has run out without waiting for a timer to fire.
func (l *Lock) checkClocks() {
	if l.set != nil {
		for _, part := range l.set.locks {
			part.checkClocks()
		}
		return
	}
	if l.locker.inProcess {
		return // there is no session to lose
	}
	if t := l.tenure(); t != nil && t.keeper != nil && t.keeper.ttl > 0 && t.keeper.expired() {
		err := fmt.Errorf("%w: the lease of %v ran out", ErrLost, t.keeper.ttl)
		t.keeper.lose(err)
		l.lose(err) // another goroutine may be about to tell it, but the caller asks now
	}
}

// Token returns the fencing token of the holding: a number larger than that of
// every earlier grant of the resource. Send it along with what the lock guards
// and let the receiver refuse smaller ones than it has seen: that protects even
// against a holder that doesn't know yet that it lost the lock. See
// docs/safety.md. Tokens are opaque, but for their order: don't do arithmetic with
// them.
//
// ok is false if the backend, as configured, has no tokens, and for a Lock over
// several resources.
func (l *Lock) Token() (token uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	token = l.tokenLocked()
	return token, token != 0
}

// Context returns a copy of parent that is canceled when the holding ends; its
// cause is then what Err returns. Call cancel when it isn't needed any more.
func (l *Lock) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	remove := l.onEnd(func(err error) { cancel(err) })
	return &lockContext{ctx, l}, func() {
		remove()
		cancel(context.Canceled)
	}
}

// lockContext looks at the clocks whenever it is asked, as Lock.Err does, and
// keeps the lock from being taken for dropped.
type lockContext struct {
	context.Context
	lock *Lock
}

func (c *lockContext) Done() <-chan struct{} {
	c.lock.checkClocks()
	return c.Context.Done()
}

func (c *lockContext) Err() error {
	c.lock.checkClocks()
	return c.Context.Err()
}

// Release gives the resource back. It works whatever became of the context that
// the lock was acquired with, and takes no longer than Options.ReleaseTimeout.
//
// It returns an error that matches [ErrLost] if the lock was lost, and changes
// nothing then; and the store's error if that could not be told. The holding
// has ended in any case; giving it back is tried again in the background for
// as long as the store could still believe in it. Release may be called any
// number of times: all calls return what the first did.
func (l *Lock) Release() error {
	l.checkClocks()
	if l.set != nil {
		return l.releaseSet()
	}
	err := l.release(context.Background())
	runtime.KeepAlive(l) // until then it isn't dropped
	return err
}

func (l *Lock) releaseSet() (err error) {
	l.end(ErrReleased)
	ctx, cancel := context.WithTimeout(context.Background(), l.locker.options.ReleaseTimeout)
	defer cancel()
	var errs []error
	defer func() {
		runtime.KeepAlive(l)
		err = errors.Join(errs...)
	}()
	for _, part := range l.set.locks {
		// Deferred: the last one is released first, and all are though a Trace panics.
		defer func() { errs = append(errs, part.release(ctx)) }()
	}
	return nil
}

// Upgrade turns an upgradeable lock into an exclusive one, without letting go
// of it in between: it waits until the readers have left, and new ones wait
// meanwhile. The lock then has a new and larger token. Upgrading an exclusive
// lock again does nothing.
//
// Of the options it takes Timeout. Its errors are those of Acquire; after any
// but ErrLost and ErrReleased the lock is upgradeable as before. A lock that is
// shared, or a permit, is an error that matches errors.ErrUnsupported. A second
// Upgrade of one lock waits for the one that is under way, also if that was given
// up and the store has yet to be told. A Lock over several resources upgrades them
// in order; if one fails, those before it stay upgraded.
func (l *Lock) Upgrade(ctx context.Context, opts ...AcquireOption) error {
	defer runtime.KeepAlive(l) // until then it isn't dropped
	var r request
	err := r.parse(opts)
	if err == nil && r.mode != driver.Exclusive {
		err = badArgument("Upgrade takes no kind of lock")
	}
	if err != nil {
		return l.locker.fail("upgrade", l.resource(), err)
	}
	r.start()
	if l.set == nil {
		return l.upgrade(ctx, &r)
	}
	for _, part := range l.set.locks {
		if err := part.upgrade(ctx, &r); err != nil {
			return err
		}
	}
	return nil
}

// end ends the holding with err. It reports whether that was the first time, and
// the details, if there are any. All who look or wait are told before it
// returns.
func (h *holding) end(err error) (first bool, m *details) {
	h.mu.Lock()
	m = h.more
	if h.err != nil {
		h.mu.Unlock()
		return false, m
	}
	h.err = err
	var hooks map[*func(error)]struct{}
	if m != nil {
		hooks, m.onEnd = m.onEnd, nil
		if m.done != nil {
			close(m.done)
		}
	}
	h.mu.Unlock()
	for f := range hooks {
		(*f)(err)
	}
	return true, m
}

// lose ends the holding as lost.
func (h *holding) lose(err error) {
	if h.endAsLost(err) {
		h.locker.inBackground(h.afterLoss)
	}
}

// endAsLost tells all who look or wait that the holding is lost. The caller sees
// to afterLoss if that was news.
func (h *holding) endAsLost(err error) bool {
	first, _ := h.end(h.locker.fail("hold", h.resource(), err))
	return first
}

// tenure returns what the holding has of the store, or nil if it has nothing of
// it: not yet, or because the queue itself is the lock.
func (h *holding) tenure() *tenure {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.more == nil {
		return nil
	}
	return h.more.tenure
}

// onEnd arranges for f to be called when the holding ends, or now if it has.
func (h *holding) onEnd(f func(error)) (remove func()) {
	h.mu.Lock()
	if err := h.err; err != nil {
		h.mu.Unlock()
		f(err)
		return func() {}
	}
	m := h.detailsLocked()
	if m.onEnd == nil {
		m.onEnd = make(map[*func(error)]struct{})
	}
	m.onEnd[&f] = struct{}{}
	h.mu.Unlock()
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(m.onEnd, &f)
	}
}

func (h *holding) detailsLocked() *details {
	if h.more == nil {
		h.more = &details{}
	}
	return h.more
}

func (h *holding) doneChan() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return closedChan
	}
	m := h.detailsLocked()
	if m.done == nil {
		m.done = make(chan struct{})
	}
	return m.done
}

// lostErr returns the loss as Release reports it, or nil if there was none.
func (h *holding) lostErr() error {
	if err := h.over(); errors.Is(err, ErrLost) {
		return h.locker.fail("release", h.resource(), err)
	}
	return nil
}

// afterLoss does what must not delay the news of the loss.
func (h *holding) afterLoss() {
	h.locker.queue.Leave(&h.place)
	e := h.event()
	e.Err = h.err
	h.locker.inBackground(func() { h.locker.report("lock lost", h.locker.options.Trace.Lost, e) })
}

func (h *holding) tokenLocked() uint64 {
	if h.locker.inProcess && (h.more == nil || h.more.names == "") {
		return h.place.Token()
	}
	return h.more.token
}

func (h *holding) resource() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.resourceLocked()
}

func (h *holding) resourceLocked() string {
	if h.more != nil && h.more.names != "" {
		return h.more.names
	}
	return h.place.Name()
}

// event returns what a Trace is told of the holding.
func (h *holding) event() Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := Event{Backend: h.locker.name, Resource: h.resourceLocked(), Token: h.tokenLocked()}
	e.Mode, e.Limit = h.place.Kind()
	if m := h.more; m != nil && m.origin != nil {
		e.Duration, e.Site = time.Since(m.origin.since), m.origin.String()
	}
	return e
}

// inQueue is a holding as those see it who look into an in-process store.
type inQueue holding

// Holder describes the holding.
func (q *inQueue) Holder() driver.Holder {
	h := (*holding)(q)
	h.mu.Lock()
	defer h.mu.Unlock()
	d := driver.Holder{Owner: h.locker.owner}
	if m := h.more; m != nil && m.origin != nil {
		d.Since = m.origin.since
	}
	return d
}

// siteDepth is one more than the exported functions that may lie between the
// application and the place that looks for it.
const siteDepth = 2

// newHolding returns a holding that isn't held yet, and remembers who called
// this package for it, if somebody wants to know.
func (l *Locker) newHolding() *holding {
	all := &struct { // one piece, as it is needed as a whole
		holding holding
		details details
		ending  ending
	}{}
	h := &all.holding
	h.locker, h.more = l, &all.details
	h.place.Value = (*inQueue)(h)
	h.more.ending = &all.ending
	if l.watching { // else nobody is told, and it costs as much as all the rest
		h.more.origin = new(origin)
		runtime.Callers(4, h.more.origin.site[:])
	}
	return h
}

// String returns the file:line of the first caller outside of this package.
func (o *origin) String() string {
	frames := runtime.CallersFrames(o.site[:])
	for {
		f, more := frames.Next()
		if f.File != "" && !strings.HasPrefix(f.Function, "github.com/distlock-go/distlock.") {
			return fmt.Sprintf("%s:%d", f.File, f.Line)
		}
		if !more {
			return ""
		}
	}
}
