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
	if err := l.checkArguments(resource, r); err != nil {
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
		err = wordQueueError(ctx, r, a, err)
	}
	return a, err
}

func wordQueueError(ctx context.Context, r *request, a queue.Admission, err error) error {
	switch {
	case errors.Is(err, queue.ErrTimeout) && a.Answered && !a.Contended:
		within := r.timeout
		if within == 0 {
			within = loneAnswer
		}
		return notAcquired(fmt.Sprintf(" within %v: others of this process came first", within))
	case errors.Is(err, queue.ErrTimeout):
		return timedOut(r, a.Contended)
	case errors.Is(err, queue.ErrClosed):
		return ErrClosed
	default:
		return ended(ctx, a.Contended)
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
	patience := loneAnswer
	if !l.queue.EnterFree(&h.place, resource, r.mode, r.limit, l.gate) {
		came := time.Now()
		if admission, err = l.enter(ctx, h, resource, r, waiting); err != nil {
			return false, err
		}
		patience = max(patience-time.Since(came), leastAnswer)
	}
	returned := false
	defer func() {
		if !returned { // Trace.Waiting panicked
			l.queue.Leave(&h.place)
		}
	}()
	passed, err = l.askFromPlace(ctx, h, r, admission, patience, waiting)
	returned = true
	return passed, err
}

// askFromPlace is acquireFromStore from the place in the queue that h has. After
// an error it hasn't any more, or not for long.
func (l *Locker) askFromPlace(ctx context.Context, h *holding, r *request, admission queue.Admission, patience time.Duration, waiting func()) (passed bool, err error) {
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
		locker: l, h: h, r: *r, waiting: waiting, contended: admission.Contended, patience: patience,
		req: driver.Request{
			Resource: h.place.Name(), Mode: r.mode, Limit: r.limit, TTL: l.options.TTL, Owner: l.newOwner(),
		},
	}
	refusal, _ := admission.Note.(answer)
	for {
		o := q.ask(ctx, refusal)
		switch {
		case o.pending != nil:
			pending, req := o.pending, q.req // all of o and q would be kept for it
			l.inBackground(func() { l.reclaim(pending, h, req) })
			return false, o.failure
		case o.refused():
			l.queue.Retire(&h.place, o.answer)
			return false, o.failure
		case o.failure != nil:
			l.queue.Leave(&h.place)
			if !o.definite() {
				req := q.req
				l.inBackground(func() { l.undo(req) })
			}
			return false, o.failure
		}
		refusal = answer{}
		t := newTenure(o.grant.Hold, h, r)
		if t.token, err = fencingToken(o.grant.Token); err == nil {
			err = l.stopped(ctx, q.contended)
		}
		if err != nil {
			l.giveUp(t, h)
			return false, err
		}
		if l.attach(t, o.grant.Session, o.sent) {
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

// An acquisition is what is asked of the store for one holding, again and again if
// need be: to grant it, or to upgrade it.
type acquisition struct {
	locker    *Locker
	h         *holding
	r         request         // a copy: the caller's stays on its stack
	req       driver.Request  // of the question that is being asked
	upgrader  driver.Upgrader // of the hold that is to be upgraded; nil: one is to be granted
	contended bool            // the resource was seen to be held
	patience  time.Duration   // for the answer to a single try
	waiting   func()          // of the Trace; or nil
}

// put puts the question.
func (q *acquisition) put(ctx context.Context) answer {
	l := q.locker
	a := answer{sent: l.now()}
	if q.upgrader != nil {
		a.grant.Token, a.err = q.upgrader.Upgrade(ctx, q.req.Wait)
		return a
	}
	a.grant, a.err = l.backend.Acquire(ctx, q.req)
	if a.err == nil && a.grant.Hold == nil {
		a.err = errNothing
	}
	if !a.grant.Sent.IsZero() {
		a.sent = l.now().at(a.grant.Sent)
	}
	return a
}

// held notes that the resource is held.
func (q *acquisition) held() {
	if q.upgrader == nil {
		q.locker.queue.Contend(&q.h.place)
	}
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
func (l *Locker) share(t *tenure, h *holding, w way) (held bool, err error) {
	token, ok := t.admit(h, w)
	if !ok {
		if w == succeed && t.keeper != nil {
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

// refused reports whether the resource is held by another.
func (a answer) refused() bool { return errors.Is(a.err, driver.ErrHeld) }

// definite reports whether it is known that the store granted nothing.
func (a answer) definite() bool {
	return a.refused() || errors.Is(a.err, errors.ErrUnsupported) || errors.Is(a.err, ErrDeadlock)
}

// An outcome is what comes of asking.
type outcome struct {
	answer                // the last one, or none
	pending <-chan answer // gives it, if it wasn't waited for; else nil
	failure error         // what the caller is told; nil: it was granted
}

// ask asks the store until it grants, fails, or the time or ctx is over. The first
// question doesn't wait, so that contention is always seen. If the store refused
// somebody else a moment ago, that is before, and stands for the first answer; else
// before is zero.
func (q *acquisition) ask(ctx context.Context, before answer) (o outcome) {
	l, r := q.locker, &q.r
	inherited := before.err != nil && l.pollMin > 0
	if inherited {
		o.answer = before
	} else {
		limit := max(r.left(), leastAnswer)
		if r.timeout == 0 {
			limit = q.patience
		}
		if o = q.askOnce(ctx, 0, limit); !o.refused() {
			return o
		}
	}
	began := time.Now()
	q.held()
	least, most := l.pollMin, l.pollMax
	if least <= 0 {
		least = shortestPause
	}
	if most <= 0 {
		most = time.Second
	}
	pause := max(l.pace.begin(q.req.Resource, least), o.pause)
	polling := l.pollMin > 0
	defer func() {
		if polling && o.pending == nil {
			l.pace.note(q.req.Resource, time.Since(began), o.failure == nil, least, most)
		}
	}()
	for ; ; polling = true {
		left := r.left()
		if left <= 0 {
			o.failure = timedOut(r, true)
			return o
		}
		if polling {
			nap, enough := jitter(pause), false
			if inherited {
				nap, enough = l.restOfPause(nap, o.sent, left)
			}
			if o.failure = l.pause(ctx, true, min(nap, left)); o.failure != nil {
				return o
			}
			if enough {
				continue
			}
			pause = min(2*pause, most)
			left = r.left()
		}
		// The backend knows the time, and answers by then.
		limit := min(left, driver.Forever-leastAnswer) + leastAnswer
		if o = q.askOnce(ctx, left, limit); !o.refused() {
			return o
		}
		o.pause, inherited = pause, false
	}
}

// restOfPause returns what is left of a pause after a question that somebody else
// asked, and whether that one is as good as a last try, because it went out so shortly
// before the time is over.
func (l *Locker) restOfPause(pause time.Duration, sent reading, left time.Duration) (rest time.Duration, enough bool) {
	age := l.now().since(sent)
	rest = max(pause-age, 0)
	return rest, rest >= left && age+left <= leastAnswer
}

// askOnce puts one question, which may wait for so long, and waits for the answer
// until limit has passed.
func (q *acquisition) askOnce(ctx context.Context, wait, limit time.Duration) outcome {
	l := q.locker
	q.req.Wait, q.req.Queue = wait, q.r.timeout != 0
	if wait == 0 && l.bound > 0 && q.upgrader == nil && l.prompt.Has(q.r.mode) {
		return q.askHere(ctx, limit)
	}
	// The question has a context of its own, which ends when nobody waits for the
	// answer any more, unless that comes soon: a grant must not depend on the
	// caller's.
	asking, cancel := ctx, func(error) {}
	if ctx.Done() != nil {
		asking = context.WithoutCancel(ctx)
	}
	if wait == 0 && l.inTime(ctx, limit) {
		return l.outcomeOf(q.put(asking))
	}
	if wait > 0 || l.bound == 0 {
		asking, cancel = context.WithCancelCause(asking)
	}
	answers := make(chan answer, 1)
	question := *q // which stays on its caller's stack
	go func() { answers <- question.put(asking) }()
	var over <-chan time.Time
	if limit != driver.Forever {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		over = timer.C
	}
	var err error
	select {
	case a := <-answers:
		cancel(nil)
		return l.outcomeOf(a)
	case <-ctx.Done():
		err = ended(ctx, q.contended)
	case <-l.gate.Done():
		err = ErrClosed
	case <-over:
		err = timedOut(&q.r, q.contended)
	}
	cancel(err)
	return outcome{pending: answers, failure: err}
}

// askHere is askOnce for a backend that returns by itself when the caller is to be told
// something. It may be given the caller's context, since a grant outlives that.
func (q *acquisition) askHere(ctx context.Context, limit time.Duration) outcome {
	asking := ctx
	if limit < q.locker.bound-leastAnswer {
		var cancel context.CancelFunc
		asking, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	o := q.locker.outcomeOf(q.put(asking))
	if o.failure == nil || o.definite() || errors.Is(o.failure, ErrClosed) || asking.Err() == nil {
		return o
	}
	o.failure = timedOut(&q.r, q.contended)
	text := fmt.Sprintf("not acquired within %v", q.r.timeout)
	if ctx.Err() != nil {
		o.failure = ended(ctx, q.contended)
		text = o.failure.Error()
	}
	if !errors.Is(o.err, context.Cause(asking)) { // it has more to say
		o.failure = &reason{text + ": " + o.err.Error(), []error{o.failure, o.err}}
	}
	return o
}

// outcomeOf returns what comes of an answer.
func (l *Locker) outcomeOf(a answer) outcome {
	o := outcome{answer: a, failure: a.err}
	if a.err == nil || a.definite() {
		return o
	}
	if l.gate.Closed() {
		o.failure = ErrClosed // and perhaps the backend is, and says so
	}
	if unsettled := (*driver.UnsettledError)(nil); errors.As(a.err, &unsettled) {
		pending := make(chan answer, 1)
		pending <- a
		o.pending = pending
	}
	return o
}

// inTime reports whether the backend answers by itself before the caller has to be
// told something. A caller who can be interrupted has to be told soon.
func (l *Locker) inTime(ctx context.Context, limit time.Duration) bool {
	brief := ctx.Done() == nil || l.bound <= leastAnswer
	return l.bound > 0 && brief && limit >= l.bound-leastAnswer
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
