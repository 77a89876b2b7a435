package drivertest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock-go/distlock/driver"
)

const (
	// prompt is the most that anything may take, at best, that should happen at
	// once. It allows for a distant store.
	prompt = 2 * time.Second

	// slack is how much more a machine may take that is slow, or stands still for a
	// while.
	slack = 20 * time.Second

	// patience is how long the suite waits for what must happen at some time.
	patience = time.Minute

	// settled is how long a call must have been out without an answer to count as
	// waiting.
	settled = 50 * time.Millisecond
)

// A trial is one run of one case.
type trial struct {
	*recorder
	h      *Harness
	number uint64 // of this run, in this process
	names  atomic.Int64

	stateMu  sync.Mutex
	packages map[string]bool // of the backends
	keepers  map[driver.Session]*keeper
	closed   map[driver.Backend]bool // by the case itself
}

func newTrial(r *recorder, h *Harness, number uint64) *trial {
	return &trial{
		recorder: r, h: h, number: number,
		packages: map[string]bool{modulePath: true},
		keepers:  make(map[driver.Session]*keeper),
		closed:   make(map[driver.Backend]bool),
	}
}

// modulePath is that of package distlock and its neighbours.
var modulePath = strings.TrimSuffix(reflect.TypeFor[driver.Info]().PkgPath(), "/driver")

// isOurs reports whether the stack, of a goroutine profile, is inside this
// module or the package of a backend.
func (t *trial) isOurs(stack string) bool {
	if !strings.Contains(stack, "#\t") {
		return true // it has yet to run, and is anybody's
	}
	t.stateMu.Lock()
	defer t.stateMu.Unlock()
	for p := range t.packages {
		if strings.Contains(stack, "\t"+p) || strings.Contains(stack, " "+p) {
			return true
		}
	}
	return false
}

// open returns a new backend on the store.
func (t *trial) open() driver.Backend {
	t.Helper()
	b := t.openUnclosed()
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return b
}

// openUnclosed is open for cases that close the backend themselves.
func (t *trial) openUnclosed() driver.Backend {
	t.Helper()
	b := t.h.Open(t)
	if b == nil {
		t.Fatalf("Harness.Open returned nil")
	}
	typ := reflect.TypeOf(b)
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	t.stateMu.Lock()
	defer t.stateMu.Unlock()
	t.packages[typ.PkgPath()] = true
	return b
}

// close closes a backend of openUnclosed. What was granted through it is its own
// business from then on.
func (t *trial) close(b driver.Backend) {
	t.Helper()
	t.stateMu.Lock()
	t.closed[b] = true
	t.stateMu.Unlock()
	err := b.Close()
	t.saw(err)
	if err != nil {
		t.Fatalf("Close: %v", err)
	}
}

func (t *trial) isClosed(b driver.Backend) bool {
	t.stateMu.Lock()
	defer t.stateMu.Unlock()
	return t.closed[b]
}

// many returns how often to do what is to be done n times.
func (t *trial) many(n int) int {
	if t.h.brief {
		return n/20 + 1
	}
	return n
}

// countdown returns a function that is true n times; on a slow store, where that
// takes longer than within, not so often, but least times.
func countdown(n, least int, within time.Duration) (left func() bool) {
	var done atomic.Int64
	deadline := time.Now().Add(within)
	return func() bool {
		i := int(done.Add(1))
		return i <= n && (i <= least || time.Now().Before(deadline))
	}
}

// gathering is how long a case may take to get all that it then holds at once: who
// has leases must be able to renew them all in a third of one.
func (t *trial) gathering(b driver.Backend) time.Duration {
	if ttl := t.h.ttl(b.Info()); ttl > 0 {
		return min(slack, ttl/3)
	}
	return slack
}

// two returns two backends on the store.
func (t *trial) two() (a, b driver.Backend) {
	t.Helper()
	return t.open(), t.open()
}

// once is different for each run of the test binary, so that what an earlier
// run left in the store disturbs none.
var once = rand.Text()[:8]

// resource returns a name that nobody else uses.
func (t *trial) resource() string {
	return fmt.Sprintf("drivertest/%s/%s/%d/%d", once, t.name, t.number, t.names.Add(1))
}

// soon is how long the suite waits for what must be given back. It is shorter than
// a lease, which would set it free as well.
func (t *trial) soon(b driver.Backend) time.Duration {
	if ttl := t.h.ttl(b.Info()); ttl > 0 {
		return min(slack, ttl*2/3)
	}
	return slack
}

// lossBound is how long the suite waits for a loss to show.
func (t *trial) lossBound(b driver.Backend) time.Duration { return t.h.lossBound() + t.soon(b) }

// request returns a new attempt to get the resource.
func (t *trial) request(b driver.Backend, resource string, mode driver.Mode) driver.Request {
	r := driver.Request{
		Resource: resource, Mode: mode, TTL: t.h.ttl(b.Info()),
		Owner: driver.Owner{PID: os.Getpid(), Program: filepath.Base(os.Args[0]), Note: "drivertest"},
	}
	r.Owner.Host, _ = os.Hostname() // as package distlock does
	rand.Read(r.Owner.ID[:])
	if mode == driver.Permit {
		r.Limit = 1
	}
	return r
}

// permit returns a new attempt to get one of limit permits.
func (t *trial) permit(b driver.Backend, resource string, limit int) driver.Request {
	r := t.request(b, resource, driver.Permit)
	r.Limit = limit
	return r
}

// try asks once, without waiting.
func (t *trial) try(b driver.Backend, r driver.Request) (driver.Grant, error) {
	r.Wait = 0
	return t.ask(t.Context(), b, r)
}

// ask asks once. What is granted is released at the end of the case.
func (t *trial) ask(ctx context.Context, b driver.Backend, r driver.Request) (driver.Grant, error) {
	g, err := b.Acquire(ctx, r)
	t.saw(err)
	if err == nil && g.Hold != nil {
		t.Cleanup(func() {
			t.drop(g)
			if t.isClosed(b) {
				return
			}
			ctx, cancel := context.WithTimeout(context.Background(), slack)
			defer cancel()
			// Most are released already; what can't be must not outlive the case.
			g.Hold.Release(ctx)
		})
	}
	return g, err
}

// saw checks an error for secrets.
func (t *trial) saw(err error) {
	if err == nil {
		return
	}
	for _, s := range t.h.Secrets {
		if strings.Contains(err.Error(), s) {
			t.Errorf("an error text holds the secret %q", s)
		}
	}
}

// undo does for a failed attempt what package distlock does.
func (t *trial) undo(b driver.Backend, r driver.Request, err error) {
	t.Helper()
	if unsettled := (*driver.UnsettledError)(nil); errors.As(err, &unsettled) {
		t.settled(unsettled)
		return
	}
	u, ok := b.(driver.Undoer)
	if !ok || errors.Is(err, driver.ErrHeld) || errors.Is(err, errors.ErrUnsupported) || errors.Is(err, driver.ErrDeadlock) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	t.eventually(patience, "Undo succeeds", func() bool { return u.Undo(ctx, r) == nil })
}

// settled waits until nothing is left of a call.
func (t *trial) settled(err *driver.UnsettledError) {
	t.Helper()
	select {
	case <-err.Settled:
	case <-time.After(patience):
		t.Fatalf("not settled %v after: %v", patience, err)
	}
}

// persist asks for at most wait, again after each early ErrHeld, as package
// distlock does.
func (t *trial) persist(ctx context.Context, b driver.Backend, r driver.Request, wait time.Duration) (driver.Grant, error) {
	g, _, err := t.persistent(ctx, b, r, wait)
	return g, err
}

// persistent is persist that also returns when the last question was asked.
func (t *trial) persistent(ctx context.Context, b driver.Backend, r driver.Request, wait time.Duration) (g driver.Grant, asked time.Time, err error) {
	start := time.Now()
	pause := max(b.Info().PollMin, time.Millisecond)
	for {
		r.Wait = wait
		if wait != driver.Forever {
			r.Wait = max(0, wait-time.Since(start))
		}
		asked = time.Now()
		g, err = t.ask(ctx, b, r)
		if !errors.Is(err, driver.ErrHeld) || r.Wait == 0 {
			return g, asked, err
		}
		select {
		case <-time.After(min(pause, r.Wait)):
		case <-ctx.Done():
			return driver.Grant{}, asked, context.Cause(ctx)
		}
		pause = min(2*pause, max(b.Info().PollMax, 100*time.Millisecond))
	}
}

// get gets what is free or soon will be, and lets it lie: its lease runs out.
func (t *trial) get(b driver.Backend, r driver.Request) driver.Grant {
	t.Helper()
	g, err := t.persist(t.Context(), b, r, patience)
	if err != nil {
		t.Fatalf("%s could not be had: %v", describe(r), err)
	}
	if g.Hold == nil {
		t.Fatalf("%s: a nil error without a Hold", describe(r))
	}
	return g
}

// take is get, and keeps the lease.
func (t *trial) take(b driver.Backend, r driver.Request) driver.Grant {
	t.Helper()
	g := t.get(b, r)
	t.keep(g)
	return g
}

// hold takes the resource exclusively.
func (t *trial) hold(b driver.Backend, resource string) driver.Grant {
	t.Helper()
	return t.take(b, t.request(b, resource, driver.Exclusive))
}

// takeAtOnce takes what must be free, with one try.
func (t *trial) takeAtOnce(b driver.Backend, r driver.Request, why string) driver.Grant {
	t.Helper()
	g, err := t.try(b, r)
	if err != nil || g.Hold == nil {
		t.Fatalf("%s could not be had at once %s: %v", describe(r), why, err)
	}
	t.keep(g)
	return g
}

// release releases what is held.
func (t *trial) release(g driver.Grant) {
	t.Helper()
	t.drop(g)
	if err := t.releaseErr(g); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

func (t *trial) releaseErr(g driver.Grant) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := g.Hold.Release(ctx)
	t.saw(err)
	return err
}

// renew renews the session once.
func (t *trial) renew(s driver.Session) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := s.Renew(ctx)
	t.saw(err)
	return err
}

// refused fails the case if the request is not answered with ErrHeld.
func (t *trial) refused(b driver.Backend, r driver.Request, why string) {
	t.Helper()
	g, err := t.try(b, r)
	switch {
	case err == nil:
		if g.Hold != nil {
			t.releaseErr(g)
		}
		t.Fatalf("%s was granted %s", describe(r), why)
	case !errors.Is(err, driver.ErrHeld):
		t.Fatalf("%s, %s, must be refused with ErrHeld, but is with: %v", describe(r), why, err)
	}
}

// held fails the case if the resource can be had exclusively.
func (t *trial) held(witness driver.Backend, resource, why string) {
	t.Helper()
	t.refused(witness, t.request(witness, resource, driver.Exclusive), why)
}

// free fails the case if the request isn't granted at once. It leaves nothing.
func (t *trial) free(b driver.Backend, r driver.Request, why string) {
	t.Helper()
	t.release(t.takeAtOnce(b, r, why))
}

// freeWithin fails the case if the resource isn't free within bound.
func (t *trial) freeWithin(bound time.Duration, witness driver.Backend, r driver.Request, why string) {
	t.Helper()
	start := time.Now()
	g, err := t.persist(t.Context(), witness, r, bound)
	if err != nil {
		t.Fatalf("%s is not free %v %s: %v", describe(r), time.Since(start).Round(time.Millisecond), why, err)
	}
	t.releaseErr(g)
}

// staysFree fails the case if the resource isn't free within the bound each time
// that it is asked for: a ghost may be late.
func (t *trial) staysFree(bound time.Duration, witness driver.Backend, r driver.Request, why string) {
	t.Helper()
	for range 5 {
		t.freeWithin(bound, witness, r, why)
		time.Sleep(settled)
	}
}

func describe(r driver.Request) string {
	name := r.Resource
	if len(name) > 100 {
		name = strings.ToValidUTF8(name[:100], "") + "…"
	}
	if r.Mode == driver.Permit {
		return fmt.Sprintf("a permit of %d of %q", r.Limit, name)
	}
	return fmt.Sprintf("%q in mode %v", name, r.Mode)
}

// eventually waits until the condition is true, and fails the case if it isn't
// within the bound.
func (t *trial) eventually(bound time.Duration, what string, condition func() bool) {
	t.Helper()
	pause := time.Millisecond
	for deadline := time.Now().Add(bound); !condition(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", bound, what)
		}
		time.Sleep(pause)
		pause = min(2*pause, 50*time.Millisecond)
	}
}

// atBest calls f, which returns how late something was, and fails the case if it is
// always later than the bound: a slow machine is late once, or for a while.
func (t *trial) atBest(bound time.Duration, what string, f func() (late time.Duration)) {
	t.Helper()
	best := f()
	for deadline, n := time.Now().Add(patience), 1; best > bound; n++ {
		if n >= 3 && time.Now().After(deadline) {
			t.Fatalf("%s: %v late at best, in %d attempts, want at most %v", what, best, n, bound)
		}
		best = min(best, f())
	}
}

// throughout fails the case if the condition ceases to be true within d.
func (t *trial) throughout(d time.Duration, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(d); ; time.Sleep(d / 20) {
		if !condition() {
			t.Fatalf("no longer so: %s", what)
		}
		if time.Now().After(deadline) {
			return
		}
	}
}

// together calls f in n goroutines, with their numbers, and waits for all.
func (t *trial) together(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			defer t.catch()
			f(i)
		})
	}
	all.Wait()
}

// A keeper keeps a session with a lease alive.
type keeper struct {
	holds  map[driver.Hold]bool // what hangs on it
	cancel context.CancelFunc
	ended  chan struct{}
}

// keepable reports whether the grant can be lost by the clock. Sessions of
// types that can't be compared are another case's finding.
func keepable(g driver.Grant) bool {
	return g.Session != nil && g.Session.Lease().TTL > 0 &&
		reflect.TypeOf(g.Session).Comparable() && reflect.TypeOf(g.Hold).Comparable()
}

// keep renews the grant's session until the grant is dropped.
func (t *trial) keep(g driver.Grant) {
	if !keepable(g) {
		return
	}
	t.stateMu.Lock()
	defer t.stateMu.Unlock()
	if k := t.keepers[g.Session]; k != nil {
		k.holds[g.Hold] = true
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	k := &keeper{holds: map[driver.Hold]bool{g.Hold: true}, cancel: cancel, ended: make(chan struct{})}
	t.keepers[g.Session] = k
	go func() {
		defer close(k.ended)
		lease := g.Session.Lease()
		every := lease.Every
		if every <= 0 {
			every = lease.TTL / 3
		}
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(every):
				g.Session.Renew(ctx) // what becomes of it is the case's to find out
			}
		}
	}()
}

// drop stops keeping the grant's session for it.
func (t *trial) drop(g driver.Grant) {
	if !keepable(g) {
		return
	}
	t.stateMu.Lock()
	k := t.keepers[g.Session]
	if k == nil || !k.holds[g.Hold] {
		t.stateMu.Unlock()
		return
	}
	delete(k.holds, g.Hold)
	last := len(k.holds) == 0
	if last {
		delete(t.keepers, g.Session)
	}
	t.stateMu.Unlock()
	if last {
		k.cancel()
		<-k.ended
	}
}

// A waiter is a call that waits for a resource.
type waiter struct {
	trial   *trial
	request driver.Request
	backend driver.Backend
	cancel  context.CancelCauseFunc
	done    chan struct{}
	grant   driver.Grant
	err     error
	since   time.Time // the first question
	asked   time.Time // the last one
	answer  time.Time // of the last one
}

// wait starts to wait for what somebody else has, and returns when it is known
// that the call does wait.
func (t *trial) wait(b driver.Backend, r driver.Request, d time.Duration) *waiter {
	t.Helper()
	t.refused(b, r, "though another has it")
	w := t.start(b, r, d)
	select {
	case <-w.done:
		t.Fatalf("%s: waiting ended though nothing had changed: %v", describe(r), w.err)
	case <-time.After(settled):
	}
	return w
}

// start starts to ask for the resource.
func (t *trial) start(b driver.Backend, r driver.Request, d time.Duration) *waiter {
	return t.startWithin(context.Background(), b, r, d)
}

func (t *trial) startWithin(ctx context.Context, b driver.Backend, r driver.Request, d time.Duration) *waiter {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &waiter{trial: t, backend: b, request: r, cancel: cancel, done: make(chan struct{}), since: time.Now()}
	t.Cleanup(func() { cancel(nil) })
	go func() {
		defer close(w.done)
		w.grant, w.asked, w.err = t.persistent(ctx, b, r, d)
		w.answer = time.Now()
	}()
	return w
}

// answered waits for the answer, and fails the case if there is none within the
// bound.
func (w *waiter) answered(bound time.Duration, why string) {
	t := w.trial
	t.Helper()
	select {
	case <-w.done:
	case <-time.After(bound):
		t.Fatalf("%s: no answer %v %s", describe(w.request), bound, why)
	}
}

// granted waits for the grant.
func (w *waiter) granted(bound time.Duration, why string) driver.Grant {
	t := w.trial
	t.Helper()
	w.answered(bound, why)
	if w.err != nil || w.grant.Hold == nil {
		t.Fatalf("%s was not granted %s: %v", describe(w.request), why, w.err)
	}
	return w.grant
}

// giveUp cancels the call and sees to it that nothing remains of it, as package
// distlock does.
func (w *waiter) giveUp() {
	t := w.trial
	t.Helper()
	w.cancel(errGivenUp)
	w.answered(patience, "after its context ended")
	if w.err == nil {
		t.releaseErr(w.grant)
	} else {
		t.undo(w.backend, w.request, w.err)
	}
}

var errGivenUp = errors.New("the caller gave up")
