package drivertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/distlock-go/distlock/driver"
)

var waiting = []clause{
	{name: "P04_wait_zero_answers_at_once", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		t.hold(a, name)
		for _, queue := range []bool{false, true} {
			t.atBest(prompt, "an answer without a wait", func() time.Duration {
				r := t.request(b, name, driver.Exclusive)
				r.Queue = queue
				w := t.start(b, r, 0)
				w.answered(patience, "though it doesn't wait")
				return w.answer.Sub(w.since)
			})
		}
	}},
	{name: "P04_queue_alone_refuses_nobody", run: func(t *trial) {
		b := t.open()
		r := t.request(b, t.resource(), driver.Exclusive)
		r.Queue = true
		t.takeAtOnce(b, r, "with Queue set, though nobody has it or waits")
	}},
	{name: "P04_S08_wait_of_a_microsecond_ends_in_time", run: func(t *trial) { waitEndsInTime(t, time.Microsecond) }},
	{name: "P04_S08_wait_of_a_millisecond_ends_in_time", run: func(t *trial) { waitEndsInTime(t, time.Millisecond) }},
	{name: "P04_S08_wait_of_400ms_ends_in_time", run: func(t *trial) { waitEndsInTime(t, 400*time.Millisecond) }},
	{name: "P04_S08_wait_of_1900ms_ends_in_time", run: func(t *trial) { waitEndsInTime(t, 1900*time.Millisecond) }},
	{name: "P04_S08_wait_of_400ms_is_not_none", run: func(t *trial) { waitIsUsed(t, 400*time.Millisecond) }},
	{name: "P04_S08_wait_of_1900ms_is_no_second", run: func(t *trial) { waitIsUsed(t, 1900*time.Millisecond) }},
	{name: "P03_S04_wait_over_is_ErrHeld", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		t.hold(a, name)
		w := t.start(b, t.request(b, name, driver.Exclusive), 100*time.Millisecond)
		w.answered(patience, "though its time is over")
		if !errors.Is(w.err, driver.ErrHeld) {
			t.Fatalf("a wait whose time is over must end with ErrHeld, not: %v", w.err)
		}
	}},
	{name: "P04_S08_forever_is_a_wait", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		g := t.hold(a, name)
		w := t.wait(b, t.request(b, name, driver.Exclusive), driver.Forever)
		t.release(g)
		w.granted(patience, "after a wait without limit, though it was released")
	}},
	{name: "P18_S28_release_wakes_waiter_of_same_backend", run: func(t *trial) {
		b := t.open()
		releaseWakes(t, b, b)
	}},
	{name: "P18_S28_release_wakes_waiter_of_other_backend", run: func(t *trial) {
		a, b := t.two()
		releaseWakes(t, a, b)
	}},
	{name: "P18_S33_cancelled_waiter_swallows_nothing", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		g := t.hold(a, name)
		first := t.wait(b, t.request(b, name, driver.Exclusive), patience)
		second := t.wait(b, t.request(b, name, driver.Exclusive), patience)
		first.giveUp()
		t.release(g)
		second.granted(t.wakeBound(b), "after a release, with another waiter that had given up before")
	}},
	{name: "P18_S33_queue_forgets_who_gave_up", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		g := t.hold(a, name)
		w := t.wait(b, t.request(b, name, driver.Exclusive), patience)
		w.giveUp()
		t.release(g)
		t.eventually(t.soon(b), "a try with Queue set is granted when all waiters gave up", func() bool {
			r := t.request(b, name, driver.Exclusive)
			r.Queue = true
			_, err := t.try(b, r)
			return err == nil
		})
	}},
	{name: "P05_done_context_fails_when_free", run: func(t *trial) {
		b := t.open()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if g, err := t.ask(ctx, b, t.request(b, t.resource(), driver.Exclusive)); err == nil {
			t.Fatalf("granted though the context was done before: %v", g)
		}
	}},
	{name: "P05_passed_deadline_fails_when_free", run: func(t *trial) {
		b := t.open()
		ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Hour))
		defer cancel()
		if g, err := t.ask(ctx, b, t.request(b, t.resource(), driver.Exclusive)); err == nil {
			t.Fatalf("granted though the deadline had passed before: %v", g)
		}
	}},
	{name: "P05_done_context_leaves_nothing", run: func(t *trial) {
		a, b := t.two()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		r := t.request(a, t.resource(), driver.Exclusive)
		if g, err := t.ask(ctx, a, r); err == nil {
			t.releaseErr(g)
		} else {
			t.undo(a, r, err)
		}
		t.freeWithin(t.soon(b), b, t.request(b, r.Resource, driver.Exclusive), "after an Acquire whose context was done")
	}},
	{name: "P08_S02_cancelled_wait_returns_soon", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		t.hold(a, name)
		t.atBest(prompt, "the return after the context was canceled", func() time.Duration {
			w := t.wait(b, t.request(b, name, driver.Exclusive), driver.Forever)
			canceled := time.Now()
			w.cancel(errGivenUp)
			w.answered(patience, "after its context was canceled")
			return w.answer.Sub(canceled)
		})
	}},
	{name: "P08_S02_deadline_ends_a_wait", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		t.hold(a, name)
		t.atBest(prompt, "the return after the context's deadline", func() time.Duration {
			ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
			defer cancel()
			w := t.startWithin(ctx, b, t.request(b, name, driver.Exclusive), driver.Forever)
			w.answered(patience, "after the context's deadline")
			if w.err == nil {
				t.Fatalf("granted though another has it")
			}
			return w.answer.Sub(w.since) - 200*time.Millisecond
		})
	}},
	{name: "P07_S06_cancelled_wait_is_granted_nothing", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		g := t.hold(a, name)
		w := t.wait(b, t.request(b, name, driver.Exclusive), driver.Forever)
		w.giveUp()
		t.release(g)
		witness := t.open()
		t.staysFree(t.soon(witness), witness, t.request(witness, name, driver.Exclusive), "after its holder released and its waiter gave up")
	}},
	{name: "P07_S06_ended_wait_is_granted_nothing", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		g := t.hold(a, name)
		r := t.request(b, name, driver.Exclusive)
		w := t.start(b, r, 100*time.Millisecond)
		w.answered(patience, "though its time is over")
		t.undo(b, r, w.err)
		t.release(g)
		witness := t.open()
		t.staysFree(t.soon(witness), witness, t.request(witness, name, driver.Exclusive), "after its holder released and its waiter's time was over")
	}},
	{name: "P07_S10_cancel_at_any_point_leaves_nothing", run: cancelAtAnyPoint},
	{name: "P07_S07_failed_tries_cost_nothing", needs: "Resources", alone: true, run: failedTries},
	{name: "P06_S09_cancel_after_grant_ends_nothing", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		ctx, cancel := context.WithCancel(context.Background())
		g, err := t.ask(ctx, a, t.request(a, name, driver.Exclusive))
		if err != nil {
			t.Fatalf("a free resource: %v", err)
		}
		t.keep(g)
		cancel()
		t.throughout(300*time.Millisecond, "held though the context it was acquired with was canceled", func() bool {
			_, err := t.try(b, t.request(b, name, driver.Exclusive))
			return errors.Is(err, driver.ErrHeld)
		})
		t.release(g)
	}},
	{name: "P06_S09_deadline_after_grant_ends_nothing", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		var g driver.Grant
		var over <-chan struct{}
		within := 300 * time.Millisecond
		t.eventually(patience, "a free resource is granted before the deadline", func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), within)
			within = min(2*within, patience/4) // the store may be slow
			t.Cleanup(cancel)
			r := t.request(a, name, driver.Exclusive)
			var err error
			g, err = t.ask(ctx, a, r)
			if err != nil {
				t.undo(a, r, err)
			}
			over = ctx.Done()
			return err == nil
		})
		t.keep(g)
		<-over
		t.throughout(200*time.Millisecond, "held though the deadline of its Acquire passed", func() bool {
			_, err := t.try(b, t.request(b, name, driver.Exclusive))
			return errors.Is(err, driver.ErrHeld)
		})
		t.release(g)
	}},
}

// punctual is how much later than its time a wait may end. It is less than what
// rounding up to full seconds adds.
const punctual = 500 * time.Millisecond

func waitEndsInTime(t *trial, d time.Duration) {
	a, b := t.two()
	name := t.resource()
	t.hold(a, name)
	t.atBest(punctual, fmt.Sprintf("the end of a wait of %v", d), func() time.Duration {
		r := t.request(b, name, driver.Exclusive)
		r.Wait = d
		ctx, cancel := context.WithTimeout(context.Background(), d+patience)
		defer cancel()
		start := time.Now()
		if _, err := t.ask(ctx, b, r); err == nil {
			t.Fatalf("granted though another has it")
		}
		return time.Since(start) - d
	})
}

// waitIsUsed has the resource come free when most of the time is over, but so
// that a wait rounded down to seconds would miss it.
func waitIsUsed(t *trial, d time.Duration) {
	a, b := t.two()
	for deadline := time.Now().Add(patience); ; {
		name := t.resource()
		g := t.hold(a, name)
		w := t.start(b, t.request(b, name, driver.Exclusive), d)
		// The moment of the release is what is tested: it lies before the end.
		time.Sleep(d * 6 / 10)
		t.release(g)
		released := time.Since(w.since)
		w.answered(patience, "after the release")
		switch {
		case w.err == nil:
			return
		case released < d || !errors.Is(w.err, driver.ErrHeld):
			t.Fatalf("a wait of %v was not granted what was free after %v: %v", d, released, w.err)
		case time.Now().After(deadline):
			t.Skip("the store takes too long for a release to come in time")
		}
	}
}

// wakeBound is how long after a release a waiter may sleep on.
func (t *trial) wakeBound(b driver.Backend) time.Duration { return t.soon(b) + 2*b.Info().PollMax }

func releaseWakes(t *trial, a, b driver.Backend) {
	t.atBest(prompt+2*b.Info().PollMax, "the wake-up after the release", func() time.Duration {
		name := t.resource()
		g := t.hold(a, name)
		w := t.wait(b, t.request(b, name, driver.Exclusive), patience)
		t.release(g)
		released := time.Now()
		t.release(w.granted(t.wakeBound(b), "after the release"))
		return w.answer.Sub(released)
	})
}

// cancelAtAnyPoint cancels acquires after delays from none to a little more
// than they take: while another holds, and while nobody does.
func cancelAtAnyPoint(t *trial) {
	points := t.many(50)
	a, b := t.two()
	witness := t.open()
	name := t.resource()
	most := time.Second
	for range 3 {
		start := time.Now()
		t.release(t.hold(a, name))
		most = min(most, max(time.Since(start), time.Millisecond))
	}
	left := countdown(points, 10, slack)
	for _, i := range rand.Perm(points) {
		if !left() {
			break
		}
		var g driver.Grant
		if i%2 == 0 {
			g = t.hold(a, name)
		}
		delay := most * time.Duration(5*i) / time.Duration(4*points)
		w := t.start(b, t.request(b, name, driver.Exclusive), driver.Forever)
		if i > 0 {
			time.Sleep(delay/2 + rand.N(delay/2+1))
		}
		w.giveUp()
		if i%2 == 0 {
			t.release(g)
		}
		t.freeWithin(t.soon(witness), witness, t.request(witness, name, driver.Exclusive), "after an Acquire that was canceled "+delay.String()+" after it began")
	}
}

// failedTries fails a thousand times in three ways.
func failedTries(t *trial) {
	a, b := t.two()
	name := t.resource()
	g := t.hold(a, name)
	fail := func(i int) {
		r := t.request(b, name, driver.Exclusive)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		switch i % 3 {
		case 0:
			cancel()
		case 1:
			r.Wait = 100 * time.Microsecond
		}
		_, err := t.ask(ctx, b, r)
		if err == nil {
			t.Fatalf("granted though another has it")
		}
		t.undo(b, r, err)
	}
	for i := range 10 {
		fail(i) // what is opened once and then kept doesn't count
	}
	before := t.h.Resources(t)
	left := countdown(t.many(1000), 200, slack)
	for i := 0; left(); i++ {
		fail(i)
	}
	t.notMuchMore(before)
	t.release(g)
	// One that was given up may be granted late, and is given back then.
	t.freeWithin(t.soon(b), b, t.request(b, name, driver.Exclusive), "after a thousand tries that failed")
}

// notMuchMore fails the case if there are considerably more resources in use
// than before, for longer than a moment.
func (t *trial) notMuchMore(before map[string]int) {
	t.Helper()
	const slack = 20
	t.eventually(patience, "the resources in use go back to what they were", func() bool {
		for what, n := range t.h.Resources(t) {
			if n > before[what]+slack {
				t.Logf("%s: %d, before %d", what, n, before[what])
				return false
			}
		}
		return true
	})
}
