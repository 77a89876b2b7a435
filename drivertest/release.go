package drivertest

import (
	"context"
	"errors"
	"time"

	"github.com/distlock-go/distlock/driver"
)

var releasing = []clause{
	{name: "P09_released_is_free_at_once", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		for range 10 {
			t.release(t.hold(a, name))
			t.free(b, t.request(b, name, driver.Exclusive), "after Release had returned")
		}
	}},
	{name: "P09_release_frees_only_its_resource", run: func(t *trial) {
		a, b := t.two()
		name, other := t.resource(), t.resource()
		g := t.hold(a, name)
		t.hold(a, other)
		t.release(g)
		t.held(b, other, "though only another resource was released")
	}},
	{name: "P09_S15_release_twice_is_nil", run: func(t *trial) {
		b := t.open()
		g := t.hold(b, t.resource())
		t.release(g)
		if err := t.releaseErr(g); err != nil {
			t.Fatalf("the second Release of one Hold: %v", err)
		}
	}},
	{name: "P09_S11_second_release_spares_next_holder", run: func(t *trial) {
		for _, pair := range [][2]driver.Backend{{t.open(), t.open()}, {t.open(), nil}} {
			a, b := pair[0], pair[1]
			if b == nil {
				b = a
			}
			name := t.resource()
			g := t.hold(a, name)
			t.release(g)
			next := t.hold(b, name)
			t.releaseErr(g)
			witness := t.open()
			t.held(witness, name, "after the holder before had released a second time")
			t.release(next)
		}
	}},
	{name: "P10_S13_failed_release_can_be_repeated", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		g := t.hold(a, name)
		t.drop(g)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		t.saw(g.Hold.Release(ctx)) // it may fail or succeed
		if err := t.releaseErr(g); err != nil && !errors.Is(err, driver.ErrLost) {
			t.Fatalf("Release, after one whose context was done: %v", err)
		}
		t.freeWithin(t.soon(b), b, t.request(b, name, driver.Exclusive), "after a Release that failed and one that didn't")
		t.freeWithin(t.soon(a), a, t.request(a, name, driver.Exclusive), "for the backend whose Release had failed")
	}},
	{name: "P09_release_after_loss_is_ErrLost", needs: "Sever", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		r := t.request(a, name, driver.Exclusive)
		g := t.get(a, r)
		t.h.Sever(t, a, r, g)
		t.take(b, t.request(b, name, driver.Exclusive))
		if err := t.releaseErr(g); !errors.Is(err, driver.ErrLost) {
			t.Fatalf("Release of what was lost must be ErrLost, not: %v", err)
		}
	}},
	{name: "P09_S11_release_after_loss_spares_next_holder", needs: "Sever", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		r := t.request(a, name, driver.Exclusive)
		g := t.get(a, r)
		t.h.Sever(t, a, r, g)
		next := t.take(b, t.request(b, name, driver.Exclusive))
		t.releaseErr(g)
		witness := t.open()
		t.held(witness, name, "after the holder before, who had lost it, released")
		t.release(next)
	}},
	{name: "P09_S11_release_after_expiry_is_ErrLost", needs: "leases", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		g := t.get(a, t.request(a, name, driver.Exclusive))
		t.takeExpired(b, name, g)
		if err := t.releaseErr(g); !errors.Is(err, driver.ErrLost) {
			t.Fatalf("Release of what another got after the lease had run out must be ErrLost, not: %v", err)
		}
	}},
	{name: "P09_S11_release_after_expiry_spares_next_holder", needs: "leases", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		g := t.get(a, t.request(a, name, driver.Exclusive))
		next := t.takeExpired(b, name, g)
		t.releaseErr(g)
		witness := t.open()
		t.held(witness, name, "after the holder before, whose lease had run out, released")
		t.release(next)
	}},
	{name: "P10_S32_backend_works_on_after_loss", needs: "Sever", run: func(t *trial) {
		b := t.open()
		name := t.resource()
		r := t.request(b, name, driver.Exclusive)
		g := t.get(b, r)
		t.h.Sever(t, b, r, g)
		t.eventually(t.lossBound(b), "a resource that was never held can be had after another was lost", func() bool {
			r := t.request(b, t.resource(), driver.Exclusive)
			g, err := t.try(b, r)
			if err != nil {
				t.undo(b, r, err)
				return false
			}
			return t.releaseErr(g) == nil
		})
		t.freeWithin(t.lossBound(b), b, t.request(b, name, driver.Exclusive), "for the backend that lost it")
	}},
	{name: "P10_S32_backend_survives_a_restart", needs: "Restart", alone: true, run: func(t *trial) {
		b := t.open()
		name := t.resource()
		t.release(t.hold(b, name))
		t.h.Restart(t)
		t.eventually(patience, "a backend works on after the store was restarted", func() bool {
			r := t.request(b, name, driver.Exclusive)
			g, err := t.try(b, r)
			if err != nil {
				t.undo(b, r, err)
				return false
			}
			return t.releaseErr(g) == nil
		})
	}},
	{name: "P11_S21_restart_keeps_or_reports", needs: "Restart", alone: true, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		g := t.hold(a, name)
		t.h.Restart(t)
		if g.Session == nil {
			t.held(b, name, "though it has no session that could end")
			return
		}
		var taken bool
		t.eventually(patience, "the store answers again", func() bool {
			r := t.request(b, name, driver.Exclusive)
			_, err := t.try(b, r)
			taken = err == nil
			if err != nil {
				t.undo(b, r, err)
			}
			return taken || errors.Is(err, driver.ErrHeld)
		})
		if taken {
			t.reportsLoss(a, g, "after a restart that freed it")
		}
	}},
}

// takeExpired waits until the grant's lease has run out and another gets the
// resource.
func (t *trial) takeExpired(b driver.Backend, name string, g driver.Grant) driver.Grant {
	t.Helper()
	if g.Session == nil {
		t.Fatalf("the backend has leases, but its grant has no session")
	}
	bound := g.Session.Lease().TTL + expirySlack(g)
	next, err := t.persist(t.Context(), b, t.request(b, name, driver.Exclusive), bound)
	if err != nil {
		t.Fatalf("%q is not free %v after the last sign of life of its holder, with a lease of %v: %v", name, bound, g.Session.Lease().TTL, err)
	}
	t.keep(next)
	return next
}

// expirySlack is how much longer than its lease a dead holder may keep others
// out.
func expirySlack(g driver.Grant) time.Duration { return slack + g.Session.Lease().TTL/4 }

// reportsLoss fails the case if the session doesn't own up to its end in time.
func (t *trial) reportsLoss(b driver.Backend, g driver.Grant, why string) {
	t.Helper()
	if g.Session == nil {
		t.Fatalf("a holding ended %s, but its grant has no session", why)
	}
	t.eventually(t.lossBound(b), "Renew returns ErrLost, or Lost is closed, "+why, func() bool {
		select {
		case <-g.Session.Lost():
			return true
		default:
			return errors.Is(t.renew(g.Session), driver.ErrLost)
		}
	})
}
