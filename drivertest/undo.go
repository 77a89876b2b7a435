package drivertest

import (
	"context"
	"errors"
	"time"

	"github.com/distlock-go/distlock/driver"
)

var undoing = []clause{
	{name: "P07_S01_undo_frees_what_was_granted", run: func(t *trial) {
		a, b := t.two()
		u := t.undoer(a)
		for _, m := range []driver.Mode{driver.Exclusive, driver.Shared, driver.Upgradeable, driver.Permit} {
			if !a.Info().Modes.Has(m) {
				continue
			}
			r := t.request(a, t.resource(), m)
			t.get(a, r)
			t.undone(u, r)
			witness := t.request(b, r.Resource, driver.Exclusive)
			if m == driver.Permit {
				witness = t.permit(b, r.Resource, 1)
			}
			t.freeWithin(t.soon(b), b, witness, "after Undo of the attempt that had got it")
		}
	}},
	{name: "P07_S01_undo_by_another_backend", run: func(t *trial) {
		a, b := t.two()
		u := t.undoer(b)
		r := t.request(a, t.resource(), driver.Exclusive)
		if g := t.get(a, r); g.Session != nil && g.Session.Lease().TTL == 0 {
			t.Skip("the backend's sessions are connections; what hangs on one ends with it")
		}
		t.undone(u, r)
		t.freeWithin(t.soon(b), b, t.request(b, r.Resource, driver.Exclusive), "after Undo through another backend")
	}},
	{name: "P07_undo_of_nothing_is_nil", run: func(t *trial) {
		b := t.open()
		r := t.request(b, t.resource(), driver.Exclusive)
		t.undone(t.undoer(b), r)
	}},
	{name: "P07_undo_twice_is_nil", run: func(t *trial) {
		b := t.open()
		r := t.request(b, t.resource(), driver.Exclusive)
		t.get(b, r)
		t.undone(t.undoer(b), r)
		t.undone(t.undoer(b), r)
	}},
	{name: "P07_undo_spares_others", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		t.hold(a, name)
		for _, u := range []driver.Undoer{t.undoer(b), t.undoer(a)} {
			t.undone(u, t.request(a, name, driver.Exclusive))
			t.held(b, name, "after Undo of another attempt")
		}
	}},
	{name: "P07_undo_spares_the_next_holder", run: func(t *trial) {
		a, b := t.two()
		u := t.undoer(a)
		r := t.request(a, t.resource(), driver.Exclusive)
		t.release(t.get(a, r))
		t.hold(b, r.Resource)
		t.undone(u, r)
		witness := t.open()
		t.held(witness, r.Resource, "after Undo of an attempt whose holding was released before")
	}},
}

// undoer returns the backend as a driver.Undoer, or skips the case.
func (t *trial) undoer(b driver.Backend) driver.Undoer {
	u, ok := b.(driver.Undoer)
	if !ok {
		t.Skip("the backend is no driver.Undoer")
	}
	return u
}

func (t *trial) undone(u driver.Undoer, r driver.Request) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := u.Undo(ctx, r); err != nil {
		t.Fatalf("Undo: %v", err)
	}
}

var silence = []clause{
	{name: "P08_S02_acquire_returns_when_the_store_is_mute", needs: "Mute", run: func(t *trial) {
		a := t.open()
		speak := t.h.Mute(t, a)
		defer speak()
		t.atBest(prompt, "the return after the context ended, while the store is mute", func() time.Duration {
			ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
			defer cancel()
			w := t.startWithin(ctx, a, t.request(a, t.resource(), driver.Exclusive), 0)
			w.answered(patience, "after the context ended, while the store is mute")
			if w.err == nil || errors.Is(w.err, driver.ErrHeld) {
				t.Fatalf("an answer of a store that is mute: %v", w.err)
			}
			return w.answer.Sub(w.since) - 500*time.Millisecond
		})
	}},
	{name: "P08_S02_answers_within_what_it_says", needs: "Mute bound", run: func(t *trial) {
		a := t.open()
		g := t.hold(a, t.resource())
		r := t.request(a, t.resource(), driver.Exclusive)
		speak := t.h.Mute(t, a)
		defer speak()
		type outcome struct {
			what string
			err  error
		}
		answers := make(chan outcome, 2)
		go func() {
			_, err := t.ask(context.Background(), a, r)
			answers <- outcome{"Acquire", err}
		}()
		go func() { answers <- outcome{"Release", g.Hold.Release(context.Background())} }()
		bound := time.After(a.Info().AnswersWithin + slack)
		for range 2 {
			select {
			case o := <-answers:
				if o.err == nil || errors.Is(o.err, driver.ErrHeld) {
					t.Fatalf("%s: an answer of a store that is mute: %v", o.what, o.err)
				}
			case <-bound:
				t.Fatalf("no return within AnswersWithin of %v, while the store is mute", a.Info().AnswersWithin)
			}
		}
	}},
	{name: "P08_S02_interruptible_returns_and_settles", needs: "Mute interruptible bound", run: func(t *trial) {
		a, b := t.two()
		t.release(t.hold(a, t.resource())) // so that there is a connection to be mute on
		for _, m := range []driver.Mode{driver.Exclusive, driver.Shared, driver.Upgradeable, driver.Permit} {
			if !a.Info().Interruptible.Has(m) {
				continue
			}
			var left *driver.UnsettledError
			var r driver.Request
			t.atBest(prompt, "the return after the context was canceled, while the store is mute", func() time.Duration {
				r = t.request(a, t.resource(), m)
				speak := t.h.Mute(t, a)
				defer speak()
				ctx, cancel := context.WithCancel(context.Background())
				time.AfterFunc(300*time.Millisecond, cancel)
				start := time.Now()
				g, err := t.ask(ctx, a, r)
				took := time.Since(start)
				if err == nil || errors.Is(err, driver.ErrHeld) {
					t.Fatalf("an answer of a store that is mute: %v, %v", g, err)
				}
				if !errors.As(err, &left) {
					left = nil
				}
				return took - 300*time.Millisecond
			})
			if left != nil {
				t.settled(left)
			}
			t.freeWithin(prompt, b, r, "after it was settled")
		}
	}},
	{name: "P07_S01_lost_answer_leaves_nothing", needs: "Mute", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		t.release(t.hold(a, t.resource())) // so that there is a connection to be mute on
		speak := t.h.Mute(t, a)
		defer speak()
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		r := t.request(a, name, driver.Exclusive)
		g, err := t.ask(ctx, a, r)
		speak()
		if err == nil {
			t.Fatalf("granted by a store that is mute: %v", g)
		}
		t.undo(a, r, err)
		t.freeWithin(t.soon(b), b, t.request(b, name, driver.Exclusive), "after an Acquire whose answer was lost")
	}},
	{name: "P10_lost_answer_to_release_can_be_repeated", needs: "Mute", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		g := t.get(a, t.request(a, name, driver.Exclusive))
		speak := t.h.Mute(t, a)
		defer speak()
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		t.saw(g.Hold.Release(ctx))
		speak()
		t.eventually(t.soon(b), "Release succeeds, after one whose answer was lost", func() bool {
			err := t.releaseErr(g)
			return err == nil || errors.Is(err, driver.ErrLost)
		})
		t.freeWithin(t.soon(b), b, t.request(b, name, driver.Exclusive), "after it was released twice")
	}},
	{name: "P12_renewal_that_got_no_answer_is_not_a_loss", needs: "Mute leases", run: func(t *trial) {
		a := t.open()
		g := t.get(a, t.request(a, t.resource(), driver.Exclusive))
		speak := t.h.Mute(t, a)
		defer speak()
		ctx, cancel := context.WithTimeout(context.Background(), g.Session.Lease().TTL/6)
		defer cancel()
		if err := g.Session.Renew(ctx); err == nil || errors.Is(err, driver.ErrLost) {
			t.Fatalf("Renew must not know what the store doesn't say, but: %v", err)
		}
		speak()
		t.eventually(g.Session.Lease().TTL, "Renew is nil again, after one that got no answer", func() bool {
			return t.renew(g.Session) == nil
		})
	}},
}
