package drivertest

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"time"

	"github.com/distlock-go/distlock/driver"
)

var sessions = []clause{
	{name: "P12_lease_makes_sense", run: func(t *trial) {
		b := t.open()
		g := t.hold(b, t.resource())
		info := b.Info()
		if info.MinTTL < 0 || info.MaxTTL < info.MinTTL || info.MaxTTL > 0 && info.MinTTL == 0 {
			t.Errorf("leases from %v to %v can't be asked for", info.MinTTL, info.MaxTTL)
		}
		if g.Session == nil {
			if info.MaxTTL > 0 {
				t.Errorf("the backend has leases, but its grant has no session")
			}
			return
		}
		lease := g.Session.Lease()
		switch {
		case lease.TTL < 0 || lease.Every < 0:
			t.Errorf("negative: %+v", lease)
		case lease.TTL > 0 && lease.Every >= lease.TTL:
			t.Errorf("renewals come too late for the lease: %+v", lease)
		case lease.TTL == 0 && lease.Every == 0 && g.Session.Lost() == nil:
			t.Errorf("a session that is neither renewed nor reports its end: its loss would never show")
		}
		if again := g.Session.Lease(); again != lease {
			t.Errorf("Lease changed from %+v to %+v", lease, again)
		}
	}},
	{name: "P13_session_is_comparable", run: func(t *trial) {
		g := t.hold(t.open(), t.resource())
		if g.Session != nil && !reflect.TypeOf(g.Session).Comparable() {
			t.Fatalf("the session is of type %T, which can't be compared", g.Session)
		}
	}},
	{name: "P13_session_that_is_a_hold_is_no_others", run: func(t *trial) {
		b := t.open()
		g, beside := t.hold(b, t.resource()), t.hold(b, t.resource())
		if g.Session != nil && any(g.Session) == any(g.Hold) && beside.Session == g.Session {
			t.Fatalf("the hold of one grant is the session of another, too")
		}
	}},
	{name: "P12_renew_is_nil_while_held", run: func(t *trial) {
		b := t.open()
		g := t.get(b, t.request(b, t.resource(), driver.Exclusive))
		if g.Session == nil {
			t.Skip("the backend's grants have no session")
		}
		for range 5 {
			if err := t.renew(g.Session); err != nil {
				t.Fatalf("Renew of a session that nothing has happened to: %v", err)
			}
		}
	}},
	{name: "P13_no_loss_is_reported_while_held", run: func(t *trial) {
		g := t.hold(t.open(), t.resource())
		if g.Session == nil || g.Session.Lost() == nil {
			t.Skip("the backend's sessions don't report their end by themselves")
		}
		select {
		case <-g.Session.Lost():
			t.Fatalf("Lost is closed though nothing has happened to the session")
		case <-time.After(300 * time.Millisecond):
		}
	}},
	{name: "P13_session_is_what_ends_together", needs: "Sever", run: func(t *trial) {
		a, b := t.two()
		name, other := t.resource(), t.resource()
		r := t.request(a, name, driver.Exclusive)
		g := t.get(a, r)
		beside := t.hold(a, other)
		t.h.Sever(t, a, r, g)
		t.take(b, t.request(b, name, driver.Exclusive))
		if beside.Session != g.Session {
			t.held(b, other, "though only another session was ended")
			if err := t.renew(beside.Session); err != nil {
				t.Fatalf("Renew, after another session was ended: %v", err)
			}
			return
		}
		t.freeWithin(t.lossBound(b), b, t.request(b, other, driver.Exclusive), "after the end of the session that it shares with another")
	}},
	{name: "P11_S21_loss_is_reported", needs: "Sever", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		r := t.request(a, name, driver.Exclusive)
		g := t.get(a, r)
		if g.Session == nil {
			t.Fatalf("Harness.Sever is set, but the grant has no session")
		}
		t.h.Sever(t, a, r, g)
		t.reportsLoss(a, g, "after Harness.Sever")
		t.freeWithin(t.lossBound(b), b, t.request(b, name, driver.Exclusive), "after its session was ended")
	}},
	{name: "P11_S22_renew_of_what_another_has_is_ErrLost", needs: "Sever", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		r := t.request(a, name, driver.Exclusive)
		g := t.get(a, r)
		t.h.Sever(t, a, r, g)
		t.take(b, t.request(b, name, driver.Exclusive))
		t.renewIsErrLost(a, g, "while another holds the resource")
	}},
	{name: "P11_lost_stays_lost", needs: "Sever", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		r := t.request(a, name, driver.Exclusive)
		g := t.get(a, r)
		t.h.Sever(t, a, r, g)
		t.freeWithin(t.lossBound(b), b, t.request(b, name, driver.Exclusive), "after its session was ended")
		t.renewIsErrLost(a, g, "after another had the resource")
		for range 3 {
			if err := t.renew(g.Session); err == nil {
				t.Fatalf("Renew brought a session back that it had reported as lost")
			}
			t.free(b, t.request(b, name, driver.Exclusive), "after Renew of a session that was lost")
		}
	}},
	{name: "P11_S11_renew_after_loss_spares_next_holder", needs: "Sever", run: func(t *trial) {
		a, b := t.two()
		witness := t.open()
		name := t.resource()
		r := t.request(a, name, driver.Exclusive)
		g := t.get(a, r)
		t.h.Sever(t, a, r, g)
		next := t.take(b, t.request(b, name, driver.Exclusive))
		t.renew(g.Session)
		t.held(witness, name, "after the holder before, who had lost it, renewed")
		if next.Session != nil {
			if err := t.renew(next.Session); err != nil {
				t.Fatalf("Renew of the next holder, after one of the holder before: %v", err)
			}
		}
		t.release(next)
	}},
	{name: "P13_abandon_frees_what_hangs_on_it", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		g := t.get(a, t.request(a, name, driver.Exclusive))
		if g.Session == nil || g.Session.Lease().TTL > 0 {
			t.Skip("the backend's sessions end by the clock, or not at all")
		}
		g.Session.Abandon()
		t.freeWithin(t.lossBound(b), b, t.request(b, name, driver.Exclusive), "after its session was abandoned")
	}},
	{name: "P13_abandon_does_not_block", needs: "Sever", run: func(t *trial) {
		a := t.open()
		name := t.resource()
		r := t.request(a, name, driver.Exclusive)
		g := t.get(a, r)
		t.h.Sever(t, a, r, g)
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			g.Session.Abandon()
		}()
		select {
		case <-returned:
		case <-time.After(slack):
			t.Fatalf("Abandon blocks for more than %v", slack)
		}
	}},
	{name: "P12_S20_renew_after_release_brings_nothing_back", run: func(t *trial) {
		a, b := t.two()
		for range 5 {
			name := t.resource()
			g := t.get(a, t.request(a, name, driver.Exclusive))
			if g.Session == nil {
				t.Skip("the backend's grants have no session")
			}
			t.release(g)
			t.renew(g.Session)
			t.free(b, t.request(b, name, driver.Exclusive), "after Release and a Renew that came later")
		}
	}},
	{name: "P12_S20_renew_beside_release_brings_nothing_back", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		for range t.many(50) {
			g := t.get(a, t.request(a, name, driver.Exclusive))
			if g.Session == nil {
				t.Skip("the backend's grants have no session")
			}
			t.together(2, func(i int) {
				if i == 0 {
					t.renew(g.Session)
					return
				}
				time.Sleep(rand.N(200 * time.Microsecond))
				t.releaseErr(g)
			})
			t.free(b, t.request(b, name, driver.Exclusive), "after a Release with a Renew beside it")
		}
	}},
	{name: "P11_lease_lasts_for_its_TTL", needs: "leases", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		start := time.Now()
		g := t.get(a, t.request(a, name, driver.Exclusive))
		if !g.Sent.IsZero() {
			start = g.Sent
		}
		t.takeExpired(b, name, g)
		if held, ttl := time.Since(start), g.Session.Lease().TTL; held < ttl {
			t.Fatalf("another got it %v after the request went out, within the lease of %v", held, ttl)
		}
	}},
	{name: "P15_lease_of_the_dead_runs_out", needs: "leases", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		t.takeExpired(b, name, t.get(a, t.request(a, name, driver.Exclusive)))
	}},
	{name: "P12_renewed_lease_stays", needs: "leases", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		g := t.hold(a, name)
		if g.Session == nil {
			t.Fatalf("the backend has leases, but its grant has no session")
		}
		t.throughout(g.Session.Lease().TTL*5/2, "held while its lease is renewed in time", func() bool {
			_, err := t.try(b, t.request(b, name, driver.Exclusive))
			return errors.Is(err, driver.ErrHeld)
		})
		t.release(g)
	}},
	{name: "P11_renew_after_expiry_is_ErrLost", needs: "leases", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		g := t.get(a, t.request(a, name, driver.Exclusive))
		t.takeExpired(b, name, g)
		t.renewIsErrLost(a, g, "when another has got the resource after the lease ran out")
	}},
	{name: "P11_S11_renew_after_expiry_spares_next_holder", needs: "leases", run: func(t *trial) {
		a, b := t.two()
		witness := t.open()
		name := t.resource()
		g := t.get(a, t.request(a, name, driver.Exclusive))
		next := t.takeExpired(b, name, g)
		t.renew(g.Session)
		t.held(witness, name, "after the holder before, whose lease had run out, renewed")
		t.release(next)
	}},
	{name: "P11_renew_after_expiry_revives_nothing", needs: "leases", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		g := t.get(a, t.request(a, name, driver.Exclusive))
		t.release(t.takeExpired(b, name, g))
		t.renew(g.Session)
		t.free(b, t.request(b, name, driver.Exclusive), "after a holder whose lease had run out renewed")
	}},
	{name: "P11_sent_is_when_the_request_went_out", needs: "leases", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		g := t.hold(a, name)
		ttl := g.Session.Lease().TTL
		w := t.wait(b, t.request(b, name, driver.Exclusive), driver.Forever)
		time.Sleep(ttl / 2) // the wait must be long enough to matter
		released := time.Now()
		t.release(g)
		next := w.granted(t.wakeBound(b), "after the release")
		t.keep(next)
		switch {
		case next.Sent.After(w.answer):
			t.Fatalf("Sent is %v after the grant", next.Sent.Sub(w.answer))
		case next.Sent.IsZero() && w.asked.Before(released.Add(-ttl/4)):
			t.Fatalf("Sent is zero, so that %v of a lease of %v count as used up by waiting", released.Sub(w.asked), ttl)
		case !next.Sent.IsZero() && next.Sent.Before(w.since):
			t.Fatalf("Sent is %v before Acquire was called", w.since.Sub(next.Sent))
		}
	}},
}

// renewIsErrLost fails the case if Renew returns something else; in time it may
// be another error, as long as it isn't known.
func (t *trial) renewIsErrLost(b driver.Backend, g driver.Grant, when string) {
	t.Helper()
	if g.Session == nil {
		t.Fatalf("a holding ended, but its grant has no session")
	}
	t.eventually(t.lossBound(b), "Renew returns ErrLost "+when, func() bool {
		err := t.renew(g.Session)
		if err == nil {
			t.Fatalf("Renew returned nil %s", when)
		}
		return errors.Is(err, driver.ErrLost)
	})
}
