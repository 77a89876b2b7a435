package drivertest

import (
	"context"

	"github.com/distlock-go/distlock/driver"
)

var inspecting = []clause{
	{name: "Inspect_shows_who_holds", alone: true, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		i := t.inspector(b)
		r := t.request(a, name, driver.Exclusive)
		g := t.take(a, r)
		holders := t.holders(i, name, driver.Exclusive)
		if len(holders) != 1 {
			t.Fatalf("one holds it exclusively, but shown are %d", len(holders))
		}
		h, o := holders[0], holders[0].Owner
		if o.ID != (driver.ID{}) && o.ID != r.Owner.ID ||
			o.Host != "" && o.Host != r.Owner.Host ||
			o.PID != 0 && o.PID != r.Owner.PID ||
			o.Program != "" && o.Program != r.Owner.Program ||
			o.Note != "" && o.Note != r.Owner.Note {
			t.Errorf("shown is the holder %+v, not %+v", o, r.Owner)
		}
		if h.Mode != driver.Exclusive {
			t.Errorf("shown is mode %v, not exclusive", h.Mode)
		}
		if h.Token != 0 && h.Token != g.Token {
			t.Errorf("shown is token %d, not %d", h.Token, g.Token)
		}
	}},
	{name: "Inspect_shows_nobody_when_free", alone: true, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		i := t.inspector(b)
		if holders := t.holders(i, name, driver.Exclusive); len(holders) != 0 {
			t.Fatalf("nobody ever held it, but shown are %+v", holders)
		}
		t.release(t.hold(a, name))
		if holders := t.holders(i, name, driver.Exclusive); len(holders) != 0 {
			t.Fatalf("it was released, but shown are %+v", holders)
		}
	}},
	{name: "Inspect_shows_all_readers", alone: true, modes: withShared, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		i := t.inspector(b)
		t.take(a, t.request(a, name, driver.Shared))
		t.take(b, t.request(b, name, driver.Shared))
		holders := t.holders(i, name, driver.Shared)
		if len(holders) == 0 {
			t.Fatalf("two read, but nobody is shown")
		}
		for _, h := range holders {
			if h.Mode != driver.Shared {
				t.Errorf("shown is a holder in mode %v, not shared", h.Mode)
			}
		}
	}},
	{name: "Inspect_keeps_permits_and_locks_apart", alone: true, modes: withPermits, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		i := t.inspector(b)
		t.take(a, t.permit(a, name, 2))
		if holders := t.holders(i, name, driver.Exclusive); len(holders) != 0 {
			t.Errorf("a permit is taken, but as holders of the lock are shown %+v", holders)
		}
		if holders := t.holders(i, name, driver.Permit); len(holders) != 1 {
			t.Errorf("one permit is taken, but shown are %+v", holders)
		}
	}},
}

// inspector returns the backend as a driver.Inspector, or skips the case.
func (t *trial) inspector(b driver.Backend) driver.Inspector {
	i, ok := b.(driver.Inspector)
	if !ok {
		t.Skip("the backend is no driver.Inspector")
	}
	return i
}

func (t *trial) holders(i driver.Inspector, resource string, mode driver.Mode) []driver.Holder {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	holders, err := i.Holders(ctx, resource, mode)
	t.saw(err)
	if err != nil {
		t.Fatalf("Holders: %v", err)
	}
	return holders
}
