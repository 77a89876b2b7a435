package distlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/queue"
)

const (
	// leastAnswer is how long the first try may take, however short the timeout:
	// a try that isn't given time to be answered is none.
	leastAnswer = 100 * time.Millisecond

	// loneAnswer is the same for a single try, which has no other limit.
	loneAnswer = 5 * time.Second

	// shortestPause is between two questions, unless the backend knows better.
	shortestPause = 10 * time.Millisecond
)

// errNoAnswer is the store's error if the store gives none.
var errNoAnswer = errors.New("the store did not answer in time: is it reachable, and healthy?")

// errNothing is a mistake of the backend that must not pass for a lock.
var errNothing = errors.New("the backend returned neither a holding nor an error")

// acquire is what Acquire and its kin come down to.
func (l *Locker) acquire(ctx context.Context, resource string, r *request) (*Lock, error) {
	if err := l.check(resource, r); err != nil {
		return nil, l.fail("acquire", resource, err)
	}
	if ctx.Err() != nil {
		return nil, l.fail("acquire", resource, ended(ctx, false))
	}
	if l.inProcess && !l.watching {
		return l.acquireInProcess(ctx, resource, r)
	}

	trace := l.options.Trace
	e := Event{Backend: l.name, Resource: resource, Mode: r.mode, Limit: r.limit}
	start := time.Now()
	if trace.Acquiring != nil {
		ctx = trace.Acquiring(ctx, e)
	}
	var waiting func()
	if trace.Waiting != nil {
		ctx, e := ctx, e
		waiting = func() { trace.Waiting(ctx, e) }
	}
	h := l.newHolding()
	var err error
	if l.inProcess {
		err = l.enterInProcess(ctx, h, resource, r, waiting)
	} else {
		r.startAt(start)
		e.Passed, err = l.acquireFromStore(ctx, h, resource, r, waiting)
	}
	var lock *Lock
	if err == nil {
		lock = &Lock{holding: h}
		h.watchFor(lock)
	} else {
		err = l.fail("acquire", resource, err)
		e.Err = err
	}
	if trace.Acquired != nil {
		e.Duration = time.Since(start)
		if lock != nil {
			e.Token, _ = lock.Token()
		}
		l.tellAcquired(ctx, e, lock)
	}
	return lock, err
}

func (l *Locker) tellAcquired(ctx context.Context, e Event, lock *Lock) {
	told := false
	defer func() {
		if !told && lock != nil { // it panicked, and nobody will get the lock
			_ = lock.Release()
		}
	}()
	l.options.Trace.Acquired(ctx, e)
	told = true
}

// acquireInProcess is acquire for an in-process store and nobody who watches:
// it allocates once.
func (l *Locker) acquireInProcess(ctx context.Context, resource string, r *request) (*Lock, error) {
	both := &struct {
		lock    Lock
		holding holding
	}{holding: holding{locker: l}}
	both.lock.holding = &both.holding
	both.holding.place.Value = (*inQueue)(&both.holding)
	if l.queue.EnterFree(&both.holding.place, resource, r.mode, r.limit, l.gate) {
		return &both.lock, nil
	}
	if err := l.enterInProcess(ctx, &both.holding, resource, r, nil); err != nil {
		return nil, l.fail("acquire", resource, err)
	}
	return &both.lock, nil
}

func (l *Locker) enterInProcess(ctx context.Context, h *holding, resource string, r *request, waiting func()) error {
	a, err := l.enter(ctx, h, resource, r, waiting)
	if err != nil {
		return err
	}
	if a.Contended {
		err = l.stopped(ctx, true)
	}
	if err == nil && h.more != nil { // else nobody watches: it began when the queue admitted it
		err = h.begin(nil, 0)
	}
	if err != nil {
		l.queue.Leave(&h.place)
	}
	return err
}

// enter takes the holding's place in the queue and words the queue's errors.
func (l *Locker) enter(ctx context.Context, h *holding, resource string, r *request, waiting func()) (queue.Admission, error) {
	q := queue.Request{
		Name: resource, Mode: r.mode, Limit: r.limit, Wait: r.left(), Gate: l.gate, Waiting: waiting,
	}
	if r.timeout == 0 {
		q.Try, q.Wait = true, loneAnswer
	}
	if waiting != nil {
		q.Orphaned = func(baton any) { l.passOrGiveUp(baton.(*tenure), h) }
	}
	a, err := l.queue.Enter(ctx, &h.place, q)
	if err != nil {
		err = wordQueueError(ctx, r, a.Contended, err)
	}
	return a, err
}

func wordQueueError(ctx context.Context, r *request, contended bool, err error) error {
	switch {
	case errors.Is(err, queue.ErrTimeout):
		return timedOut(r, contended)
	case errors.Is(err, queue.ErrClosed):
		return ErrClosed
	default:
		return ended(ctx, contended)
	}
}

// timedOut is the error of a timeout that passed.
func timedOut(r *request, contended bool) error {
	switch {
	case r.timeout == 0 && contended:
		return notAcquired(": held by another")
	case r.timeout == 0:
		return errNoAnswer
	case contended:
		return notAcquired(fmt.Sprintf(" within %v: held by another", r.timeout))
	default:
		return notAcquired(fmt.Sprintf(" within %v: the store did not answer", r.timeout))
	}
}

// acquireFromStore makes h a holding of the store, and reports whether it was
// passed on by the holder before.
func (l *Locker) acquireFromStore(ctx context.Context, h *holding, resource string, r *request, waiting func()) (passed bool, err error) {
	l.begin()
	defer l.end()
	var admission queue.Admission
	if !l.queue.EnterFree(&h.place, resource, r.mode, r.limit, l.gate) {
		if admission, err = l.enter(ctx, h, resource, r, waiting); err != nil {
			return false, err
		}
	}
	returned := false
	defer func() {
		if !returned { // Trace.Waiting panicked
			l.queue.Leave(&h.place)
		}
	}()
	passed, err = l.askFromPlace(ctx, h, resource, r, admission, waiting)
	returned = true
	return passed, err
}

// askFromPlace is acquireFromStore from the place in the queue that h has. After
// an error it hasn't any more, or not for long.
func (l *Locker) askFromPlace(ctx context.Context, h *holding, resource string, r *request, admission queue.Admission, waiting func()) (passed bool, err error) {
	if t, ok := admission.Baton.(*tenure); ok {
		if err := l.stopped(ctx, true); err != nil {
			l.passOrGiveUp(t, h)
			return false, err
		}
		if held, err := l.share(t, h, succeed); held || err != nil {
			return held, err
		}
	} else if t := l.joint(h, r); t != nil && l.mayGoOn(t) {
		if err := l.stopped(ctx, admission.Contended); err != nil {
			l.queue.Leave(&h.place)
			return false, err
		}
		if held, err := l.share(t, h, join); held || err != nil {
			return held, err
		}
	}
	q := &acquisition{
		locker: l, h: h, waiting: waiting, contended: admission.Contended,
		req: driver.Request{
			Resource: resource, Mode: r.mode, Limit: r.limit, TTL: l.options.TTL, Owner: l.newOwner(),
		},
	}
	refusal, _ := admission.Note.(answer)
	for {
		a, pending, err := l.ask(ctx, r, q.contended, refusal, q)
		if pending != nil {
			l.inBackground(func() { l.reclaim(pending, h, q.req) })
			return false, err
		}
		if err != nil {
			if errors.Is(a.err, driver.ErrHeld) {
				l.queue.Retire(&h.place, a)
				return false, err
			}
			l.queue.Leave(&h.place)
			if !a.definite() {
				l.inBackground(func() { l.undo(q.req) })
			}
			return false, err
		}
		refusal = answer{}
		t := newTenure(a.grant.Hold, h, r)
		if t.token, err = fencingToken(a.grant.Token); err == nil {
			err = l.stopped(ctx, q.contended)
		}
		if err != nil {
			l.giveUp(t, h)
			return false, err
		}
		if l.attach(t, a.grant.Session, a.sent) {
			return false, l.beginTenure(h, t, t.token)
		}
		// The session ended between the store's answer and here.
		if r.left() <= 0 {
			l.giveUp(t, h)
			return false, fmt.Errorf("%w: the session ended while it was granted", ErrLost)
		}
		if err := l.giveBackFirst(ctx, r, q.contended, t, h); err != nil {
			return false, err
		}
		if err := l.pause(ctx, q.contended, min(jitter(shortestPause), r.left())); err != nil {
			l.queue.Leave(&h.place)
			return false, err
		}
		q.req.Owner = l.newOwner() // what is still done about the grant before must not hit the next
	}
}

// An acquisition is what is asked of the store for one holding.
type acquisition struct {
	locker    *Locker
	h         *holding
	req       driver.Request
	contended bool   // the resource was seen to be held
	waiting   func() // of the Trace; or nil
}

func (q *acquisition) put(ctx context.Context, wait time.Duration, queue bool) (driver.Grant, error) {
	req := q.req
	req.Wait, req.Queue = wait, queue
	g, err := q.locker.backend.Acquire(ctx, req)
	if err == nil && g.Hold == nil {
		err = errNothing
	}
	return g, err
}

func (q *acquisition) resource() string { return q.req.Resource }

func (q *acquisition) refused() {
	q.locker.queue.Contend(&q.h.place)
	if !q.contended && q.waiting != nil {
		q.waiting()
	}
	q.contended = true
}

// joint returns the tenure that other readers of the resource have, if h is to be
// one more.
func (l *Locker) joint(h *holding, r *request) *tenure {
	if r.mode != driver.Shared {
		return nil
	}
	t, _ := l.queue.Joint(&h.place).(*tenure)
	return t
}

// share makes h a holder of a tenure that another holding had, or has. If it
// reports false without an error, the tenure is gone, and the place in the queue is
// still h's to ask the store from.
func (l *Locker) share(t *tenure, h *holding, c claim) (held bool, err error) {
	token, ok := t.admit(h, c)
	if !ok {
		if c == succeed && t.keeper != nil {
			// The tenure is nobody's now: its session must not be found to live after all.
			t.keeper.lose(t.keeper.ranOut())
		}
		return false, nil
	}
	err = l.beginTenure(h, t, token)
	return err == nil, err
}

// beginTenure makes h, which is among the holders of t, a holding, and lets the
// next in the queue go on.
func (l *Locker) beginTenure(h *holding, t *tenure, token uint64) error {
	if err := h.begin(t, token); err != nil {
		if last, _ := t.leave(h); last {
			l.giveUp(t, h)
		} else {
			l.queue.Leave(&h.place)
		}
		return err
	}
	l.queue.Settle(&h.place, t)
	return nil
}

// begin makes h a holding: from here on Close releases it. The error says why it
// is over already.
func (h *holding) begin(t *tenure, token uint64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case errors.Is(h.err, ErrLost):
		return h.err
	case h.err != nil || h.locker.gate.Closed():
		return ErrClosed
	}
	m := h.more
	m.tenure, m.token = t, token
	if h.locker.watching {
		m.origin.since = time.Now()
	}
	return nil
}

// stopped returns the error of an acquire that must not succeed any more.
func (l *Locker) stopped(ctx context.Context, contended bool) error {
	switch {
	case l.gate.Closed():
		return ErrClosed
	case ctx.Err() != nil:
		return ended(ctx, contended)
	}
	return nil
}

// An answer is what the store says to one question.
type answer struct {
	grant driver.Grant
	sent  reading // just before the question that was answered went out
	err   error
	pause time.Duration // until the next question, if it is to be asked again
}

// definite reports whether it is known that the store granted nothing.
func (a answer) definite() bool {
	return errors.Is(a.err, driver.ErrHeld) || errors.Is(a.err, errors.ErrUnsupported) || errors.Is(a.err, ErrDeadlock)
}

// A question is one call of the backend, which may be made again and again.
type question interface {
	put(ctx context.Context, wait time.Duration, queue bool) (driver.Grant, error)
	refused() // it was, and will be asked again
	resource() string
}

// ask asks the store until it grants, fails, or the time or ctx is over. The
// first try doesn't wait, so that contention is always seen. What the store told
// somebody else a moment ago, before, if that isn't zero, stands for it. If the
// last question is unanswered when ask returns, its answer will come through
// pending, and the error says why it wasn't waited for.
func (l *Locker) ask(ctx context.Context, r *request, contended bool, before answer, q question) (a answer, pending <-chan answer, err error) {
	inherited := before.err != nil && l.pollMin > 0
	if inherited {
		a = before
	} else {
		limit := max(r.left(), leastAnswer)
		if r.timeout == 0 {
			limit = loneAnswer
		}
		a, pending, err = l.askOnce(ctx, r, contended, limit, q, 0, r.timeout != 0)
		if pending != nil || !errors.Is(a.err, driver.ErrHeld) {
			return a, pending, err
		}
	}
	began := time.Now()
	q.refused()
	least, most := l.pollMin, l.pollMax
	if least <= 0 {
		least = shortestPause
	}
	if most <= 0 {
		most = time.Second
	}
	pause := max(l.pace.begin(q.resource(), least), a.pause)
	polling := l.pollMin > 0
	defer func() {
		if polling && pending == nil {
			l.pace.note(q.resource(), time.Since(began), err == nil, least, most)
		}
	}()
	for ; ; polling = true {
		left := r.left()
		if left <= 0 {
			return a, nil, timedOut(r, true)
		}
		if polling {
			nap := jitter(pause)
			if inherited {
				age := l.now().since(a.sent)
				nap = max(nap-age, 0)
				if nap >= left && age+left <= leastAnswer {
					// A last try would come right after that of the one before.
					err := l.pause(ctx, true, left)
					if err == nil {
						err = timedOut(r, true)
					}
					return a, nil, err
				}
			}
			if err := l.pause(ctx, true, min(nap, left)); err != nil {
				return a, nil, err
			}
			pause = min(2*pause, most)
			left = r.left()
		}
		// The backend knows the time, and answers by then.
		limit := min(left, driver.Forever-leastAnswer) + leastAnswer
		a, pending, err = l.askOnce(ctx, r, true, limit, q, left, true)
		if pending != nil || !errors.Is(a.err, driver.ErrHeld) {
			return a, pending, err
		}
		a.pause, inherited = pause, false
	}
}

// askOnce puts one question and waits for the answer until limit has passed.
func (l *Locker) askOnce(ctx context.Context, r *request, contended bool, limit time.Duration, q question, wait time.Duration, queue bool) (a answer, pending <-chan answer, err error) {
	// The question has a context of its own, which ends when nobody waits for the
	// answer any more, unless that comes soon: a grant must not depend on the
	// caller's.
	asking, cancel := ctx, func(error) {}
	if ctx.Done() != nil {
		asking = context.WithoutCancel(ctx)
	}
	if wait == 0 && l.inTime(ctx, limit) {
		a := l.put(asking, q, wait, queue)
		return a, nil, a.err
	}
	if wait > 0 || l.bound == 0 {
		asking, cancel = context.WithCancelCause(asking)
	}
	answers := make(chan answer, 1)
	go func() { answers <- l.put(asking, q, wait, queue) }()
	var over <-chan time.Time
	if limit != driver.Forever {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case a := <-answers:
		cancel(nil)
		return a, nil, a.err
	case <-ctx.Done():
		err = ended(ctx, contended)
	case <-l.gate.Done():
		err = ErrClosed
	case <-over:
		err = timedOut(r, contended)
	}
	cancel(err)
	return answer{}, answers, err
}

// put puts the question.
func (l *Locker) put(ctx context.Context, q question, wait time.Duration, queue bool) answer {
	a := answer{sent: l.now()}
	a.grant, a.err = q.put(ctx, wait, queue)
	if !a.grant.Sent.IsZero() {
		a.sent = l.now().at(a.grant.Sent)
	}
	return a
}

// inTime reports whether the backend answers by itself before the caller has to be
// told something. A caller who can be interrupted has to be told soon.
func (l *Locker) inTime(ctx context.Context, limit time.Duration) bool {
	soon := ctx.Done() == nil || l.bound <= leastAnswer
	return l.bound > 0 && soon && limit >= l.bound-leastAnswer
}

// giveBackFirst gives back a tenure that is of no use, so that the store can be
// asked anew from the same place in the queue. After an error the place is given
// up as well.
func (l *Locker) giveBackFirst(ctx context.Context, r *request, contended bool, t *tenure, h *holding) error {
	done := make(chan struct{})
	l.inBackground(func() {
		defer close(done)
		l.giveBack(context.Background(), t, h, nil)
	})
	var over <-chan time.Time
	if left := r.left(); left != driver.Forever {
		timer := time.NewTimer(left)
		defer timer.Stop()
		over = timer.C
	}
	var err error
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		err = ended(ctx, contended)
	case <-l.gate.Done():
		err = ErrClosed
	case <-over:
		err = timedOut(r, contended)
	}
	l.inBackground(func() {
		<-done
		l.queue.Leave(&h.place)
	})
	return err
}

// pause sleeps for d, unless something ends the wait before.
func (l *Locker) pause(ctx context.Context, contended bool, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ended(ctx, contended)
	case <-l.gate.Done():
		return ErrClosed
	}
}
