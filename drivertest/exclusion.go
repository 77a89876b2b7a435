package drivertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/distlock-go/distlock/driver"
)

var exclusion = []clause{
	{name: "P01_exclusive_excludes_same_backend", run: func(t *trial) {
		b := t.open()
		name := t.resource()
		t.hold(b, name)
		t.held(b, name, "though this very backend value holds it")
	}},
	{name: "P01_exclusive_excludes_other_backend", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		t.hold(a, name)
		t.held(b, name, "though another backend holds it")
	}},
	{name: "P01_S12_one_holder_at_any_time", run: oneHolder},
	{name: "P02_nil_error_comes_with_a_hold", run: func(t *trial) {
		b := t.open()
		name := t.resource()
		r := t.request(b, name, driver.Exclusive)
		if g, err := t.try(b, r); err != nil || g.Hold == nil {
			t.Fatalf("a free resource: Hold %v, error %v", g.Hold, err)
		}
		if g, err := t.try(b, t.request(b, name, driver.Exclusive)); err == nil && g.Hold == nil {
			t.Fatalf("a held resource: neither a Hold nor an error")
		}
	}},
	{name: "P02_error_comes_without_a_hold", run: func(t *trial) {
		b := t.open()
		name := t.resource()
		t.hold(b, name)
		if g, err := t.try(b, t.request(b, name, driver.Exclusive)); err != nil && (g.Hold != nil || g.Session != nil) {
			t.Fatalf("a Grant together with the error %v", err)
		}
	}},
	{name: "P03_S04_contention_is_ErrHeld", run: func(t *trial) {
		b := t.open()
		name := t.resource()
		t.hold(b, name)
		_, err := t.try(b, t.request(b, name, driver.Exclusive))
		if err != nil && !errors.Is(err, driver.ErrHeld) {
			t.Fatalf("contention must be ErrHeld, not: %v", err)
		}
	}},
	{name: "P03_S04_failure_is_not_ErrHeld", run: func(t *trial) {
		b := t.open()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := t.ask(ctx, b, t.request(b, t.resource(), driver.Exclusive)); errors.Is(err, driver.ErrHeld) {
			t.Fatalf("nobody holds it, but with a context that is done: %v", err)
		}
	}},
	{name: "P03_S04_closed_is_not_ErrHeld", run: func(t *trial) {
		b := t.openUnclosed()
		t.close(b)
		if _, err := t.try(b, t.request(b, t.resource(), driver.Exclusive)); errors.Is(err, driver.ErrHeld) {
			t.Fatalf("nobody holds it, but after Close: %v", err)
		}
	}},
	{name: "P03_crossed_waits_end_and_keep_what_is_held", run: func(t *trial) {
		a, b := t.two()
		one, two := t.resource(), t.resource()
		t.hold(a, one)
		t.hold(b, two)
		const wait = 300 * time.Millisecond
		first := t.start(a, t.request(a, two, driver.Exclusive), wait)
		second := t.start(b, t.request(b, one, driver.Exclusive), wait)
		for _, w := range []*waiter{first, second} {
			w.answered(wait+patience, "though its time is over")
			if !errors.Is(w.err, driver.ErrHeld) && !errors.Is(w.err, driver.ErrDeadlock) {
				t.Errorf("a wait that can't succeed, as the other waits for this one, must end with ErrHeld or ErrDeadlock, not: %v", w.err)
			}
		}
		witness := t.open()
		t.held(witness, one, "after its holder waited in vain for another")
		t.held(witness, two, "after its holder waited in vain for another")
	}},
	{name: "P10_S13_resource_can_be_had_again", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		for range 20 {
			t.release(t.takeAtOnce(a, t.request(a, name, driver.Exclusive), "though it was released"))
			t.release(t.takeAtOnce(a, t.request(a, name, driver.Exclusive), "though this backend released it"))
			t.release(t.takeAtOnce(b, t.request(b, name, driver.Exclusive), "though another backend released it"))
		}
	}},
	{name: "P20_thousand_held_at_once", run: func(t *trial) {
		a, b := t.two()
		base := t.resource()
		name := func(i int) string { return fmt.Sprintf("%s/%d", base, i) }
		var next atomic.Int64
		left := countdown(t.many(1000), 50, t.gathering(a))
		t.together(8, func(int) {
			for left() && !t.Failed() {
				t.hold(a, name(int(next.Add(1))-1))
			}
		})
		for range 10 {
			t.held(b, name(rand.N(int(next.Load()))), "though it is one of the thousand that another holds")
		}
	}},
	{name: "P25_acquire_after_close_fails", run: func(t *trial) {
		b := t.openUnclosed()
		name := t.resource()
		t.release(t.hold(b, name))
		t.close(b)
		if g, err := t.try(b, t.request(b, name, driver.Exclusive)); err == nil {
			t.Fatalf("granted after Close: %v", g)
		}
	}},
	{name: "P25_close_leaves_others_alone", run: func(t *trial) {
		a, b := t.openUnclosed(), t.open()
		witness := t.open()
		name := t.resource()
		t.release(t.hold(a, name))
		g := t.hold(b, name)
		t.close(a)
		t.held(witness, name, "though only another backend was closed")
		t.release(g)
	}},
	{name: "P15_S14_closing_ends_sessions", run: func(t *trial) {
		a, b := t.openUnclosed(), t.open()
		name := t.resource()
		g := t.get(a, t.request(a, name, driver.Exclusive))
		t.close(a)
		if g.Session == nil {
			t.Skip("the backend's grants have no session")
		}
		r := t.request(b, name, driver.Exclusive)
		t.freeWithin(g.Session.Lease().TTL+t.lossBound(b), b, r, "after its holder's backend was closed")
	}},
	{name: "P26_errors_keep_secrets", run: func(t *trial) {
		b := t.openUnclosed()
		name := t.resource()
		g := t.hold(b, name)
		t.try(b, t.request(b, name, driver.Exclusive))
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		t.ask(ctx, b, t.request(b, name, driver.Exclusive))
		t.saw(g.Hold.Release(ctx))
		t.release(g)
		t.close(b)
		t.try(b, t.request(b, name, driver.Exclusive))
	}},
}

// oneHolder has many goroutines over several backends take turns, and looks for
// two that hold at once and for updates that got lost.
func oneHolder(t *trial) {
	const workers = 12
	backends := []driver.Backend{t.open(), t.open(), t.open()}
	name := t.resource()
	var inside, overlaps, counter, left, done atomic.Int64
	left.Store(int64(t.many(1200)))
	deadline := time.Now().Add(3 * time.Second)
	t.together(workers, func(i int) {
		b := backends[i%len(backends)]
		for time.Now().Before(deadline) && !t.Failed() && left.Add(-1) >= 0 {
			g := t.take(b, t.request(b, name, driver.Exclusive))
			if inside.Add(1) > 1 {
				overlaps.Add(1)
			}
			before := counter.Load()
			runtime.Gosched()
			counter.Store(before + 1)
			done.Add(1)
			inside.Add(-1)
			t.release(g)
		}
	})
	if n := overlaps.Load(); n > 0 {
		t.Errorf("%d times two held it at once", n)
	}
	if lost := done.Load() - counter.Load(); lost > 0 {
		t.Errorf("%d of %d updates were lost", lost, done.Load())
	}
}
