package drivertest

import (
	"sync/atomic"
	"time"

	"github.com/distlock-go/distlock/driver"
)

var tokens = []clause{
	{name: "P14_tokens_are_as_declared", run: func(t *trial) {
		b := t.open()
		for _, m := range []driver.Mode{driver.Exclusive, driver.Shared, driver.Upgradeable, driver.Permit} {
			if !b.Info().Modes.Has(m) {
				continue
			}
			g := t.take(b, t.request(b, t.resource(), m))
			if got := g.Token != 0; got != t.h.Tokens {
				t.Errorf("mode %v: token %d, but Harness.Tokens is %t", m, g.Token, t.h.Tokens)
			}
			if g.Token >= 1<<53 {
				t.Errorf("mode %v: token %d leaves no room for the count of hand-offs", m, g.Token)
			}
		}
	}},
	{name: "P14_token_grows_over_releases", needs: "tokens", run: func(t *trial) {
		b := t.open()
		name := t.resource()
		var l ladder
		for range 10 {
			g := t.hold(b, name)
			l.next(t, g.Token, "after a release")
			t.release(g)
		}
	}},
	{name: "P14_token_grows_over_backends", needs: "tokens", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		var l ladder
		for range 5 {
			for _, b := range []driver.Backend{a, a, b} {
				g := t.hold(b, name)
				l.next(t, g.Token, "over several backends")
				t.release(g)
			}
		}
	}},
	{name: "P14_token_grows_over_closed_backends", needs: "tokens", run: func(t *trial) {
		name := t.resource()
		var l ladder
		for range 3 {
			b := t.openUnclosed()
			g := t.hold(b, name)
			l.next(t, g.Token, "after all backends before were closed")
			t.release(g)
			t.close(b)
		}
	}},
	{name: "P14_token_grows_from_reader_to_reader", needs: "tokens", modes: driver.ModesOf(driver.Shared), run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		var l ladder
		for range 3 {
			l.next(t, t.take(a, t.request(a, name, driver.Shared)).Token, "though both read")
			l.next(t, t.take(b, t.request(b, name, driver.Shared)).Token, "though both read")
		}
	}},
	{name: "P14_token_grows_over_shared_and_exclusive", needs: "tokens", modes: driver.ModesOf(driver.Shared), run: func(t *trial) {
		tokenGrowsOver(t, driver.Exclusive, driver.Shared)
	}},
	{name: "P14_token_grows_over_upgradeable_and_exclusive", needs: "tokens", modes: driver.ModesOf(driver.Upgradeable), run: func(t *trial) {
		tokenGrowsOver(t, driver.Exclusive, driver.Upgradeable)
	}},
	{name: "P14_token_grows_from_permit_to_permit", needs: "tokens", modes: driver.ModesOf(driver.Permit), run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		var l ladder
		for range 3 {
			one := t.take(a, t.permit(a, name, 2))
			l.next(t, one.Token, "of another permit")
			two := t.take(b, t.permit(b, name, 2))
			l.next(t, two.Token, "of another permit")
			t.release(one)
			t.release(two)
		}
	}},
	{name: "P14_token_grows_over_upgrade", needs: "tokens", modes: driver.ModesOf(driver.Upgradeable), run: func(t *trial) {
		b := t.open()
		name := t.resource()
		var l ladder
		g := t.take(b, t.request(b, name, driver.Upgradeable))
		l.next(t, g.Token, "")
		token, err := t.upgrade(g, patience)
		if err != nil {
			t.Fatalf("Upgrade: %v", err)
		}
		l.next(t, token, "of Upgrade")
		t.release(g)
		l.next(t, t.hold(b, name).Token, "after one of Upgrade")
	}},
	{name: "P14_token_grows_over_loss", needs: "tokens Sever", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		var l ladder
		for range 2 {
			r := t.request(a, name, driver.Exclusive)
			g := t.get(a, r)
			l.next(t, g.Token, "after a loss")
			t.h.Sever(t, a, r, g)
			next := t.take(b, t.request(b, name, driver.Exclusive))
			l.next(t, next.Token, "after a loss")
			t.release(next)
		}
	}},
	{name: "P14_token_grows_over_expiry", needs: "tokens leases", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		var l ladder
		g := t.get(a, t.request(a, name, driver.Exclusive))
		l.next(t, g.Token, "")
		l.next(t, t.takeExpired(b, name, g).Token, "after a lease ran out")
	}},
	{name: "P14_token_grows_over_restart", needs: "tokens Restart", alone: true, run: func(t *trial) {
		a := t.openUnclosed()
		name := t.resource()
		g := t.hold(a, name)
		var l ladder
		l.next(t, g.Token, "")
		t.release(g)
		t.close(a)
		t.h.Restart(t)
		b := t.open()
		var next driver.Grant
		t.eventually(patience, "the store grants again after a restart", func() bool {
			r := t.request(b, name, driver.Exclusive)
			var err error
			if next, err = t.try(b, r); err != nil {
				t.undo(b, r, err)
			}
			return err == nil
		})
		l.next(t, next.Token, "after a restart of the store")
	}},
	{name: "P14_token_order_is_holding_order", needs: "tokens", run: func(t *trial) {
		backends := []driver.Backend{t.open(), t.open()}
		name := t.resource()
		var last atomic.Uint64
		var left atomic.Int64
		left.Store(int64(t.many(400)))
		deadline := time.Now().Add(2 * time.Second)
		t.together(8, func(i int) {
			b := backends[i%len(backends)]
			for left.Add(-1) >= 0 && time.Now().Before(deadline) && !t.Failed() {
				g := t.hold(b, name)
				if before := last.Swap(g.Token); before >= g.Token {
					t.Errorf("token %d of the later holder, after %d", g.Token, before)
				}
				t.release(g)
			}
		})
	}},
}

// ladder checks that tokens grow.
type ladder struct{ last uint64 }

func (l *ladder) next(t *trial, token uint64, why string) {
	t.Helper()
	if token <= l.last {
		t.Fatalf("token %d %s, not larger than %d", token, why, l.last)
	}
	l.last = token
}

func tokenGrowsOver(t *trial, modes ...driver.Mode) {
	a, b := t.two()
	name := t.resource()
	var l ladder
	for range 3 {
		for _, m := range modes {
			for _, b := range []driver.Backend{a, b} {
				g := t.take(b, t.request(b, name, m))
				l.next(t, g.Token, "in mode "+m.String())
				t.release(g)
			}
		}
	}
}
