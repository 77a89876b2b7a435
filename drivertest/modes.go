package drivertest

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/distlock-go/distlock/driver"
)

var (
	withShared      = driver.ModesOf(driver.Shared)
	withPermits     = driver.ModesOf(driver.Permit)
	withUpgradeable = driver.ModesOf(driver.Upgradeable)
)

var modes = []clause{
	{name: "P24_missing_mode_is_ErrUnsupported", run: func(t *trial) {
		b := t.open()
		missing := 0
		for _, m := range []driver.Mode{driver.Exclusive, driver.Shared, driver.Upgradeable, driver.Permit} {
			if b.Info().Modes.Has(m) {
				continue
			}
			missing++
			if _, err := t.try(b, t.request(b, t.resource(), m)); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("mode %v, which Info doesn't have, must be refused with errors.ErrUnsupported, not: %v", m, err)
			}
		}
		if missing == 0 {
			t.Skip("the backend has all modes")
		}
	}},

	{name: "P23_readers_share_over_backends", modes: withShared, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		t.take(a, t.request(a, name, driver.Shared))
		t.takeAtOnce(b, t.request(b, name, driver.Shared), "beside a reader of another backend")
	}},
	{name: "P23_readers_share_within_a_backend", modes: withShared, run: func(t *trial) {
		b := t.open()
		name := t.resource()
		t.take(b, t.request(b, name, driver.Shared))
		t.takeAtOnce(b, t.request(b, name, driver.Shared), "beside a reader of the same backend")
	}},
	{name: "P23_reader_excludes_writer", modes: withShared, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		t.take(a, t.request(a, name, driver.Shared))
		t.held(b, name, "though another backend reads")
		t.held(a, name, "though the same backend reads")
	}},
	{name: "P23_writer_excludes_reader", modes: withShared, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		t.hold(a, name)
		t.refused(b, t.request(b, name, driver.Shared), "though another backend writes")
		t.refused(a, t.request(a, name, driver.Shared), "though the same backend writes")
	}},
	{name: "P23_S12_reader_leaves_the_other_readers", modes: withShared, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		first := t.take(a, t.request(a, name, driver.Shared))
		second := t.take(a, t.request(a, name, driver.Shared))
		t.release(first)
		t.held(b, name, "though one of two readers is left")
		t.release(second)
		t.free(b, t.request(b, name, driver.Exclusive), "after the last of two readers had left")
	}},
	{name: "P23_S15_reader_leaves_once", modes: withShared, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		first := t.take(a, t.request(a, name, driver.Shared))
		t.take(a, t.request(a, name, driver.Shared))
		t.release(first)
		t.releaseErr(first)
		t.held(b, name, "though one of two readers is left; the other released twice")
	}},
	{name: "P23_S28_last_reader_wakes_writer", modes: withShared, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		first := t.take(a, t.request(a, name, driver.Shared))
		second := t.take(b, t.request(b, name, driver.Shared))
		w := t.wait(b, t.request(b, name, driver.Exclusive), patience)
		t.release(first)
		t.release(second)
		w.granted(t.wakeBound(b), "after the last reader had left")
	}},
	{name: "P23_S28_writer_wakes_all_readers", modes: withShared, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		g := t.hold(a, name)
		first := t.wait(b, t.request(b, name, driver.Shared), patience)
		second := t.wait(b, t.request(b, name, driver.Shared), patience)
		t.release(g)
		first.granted(t.wakeBound(b), "after the writer had left")
		second.granted(t.wakeBound(b), "after the writer had left, beside another reader")
	}},

	{name: "P23_all_permits_can_be_had", modes: withPermits, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		for i := range 4 {
			from := []driver.Backend{a, a, b, b}[i]
			t.takeAtOnce(from, t.permit(from, name, 4), "though not all are taken")
		}
	}},
	{name: "P23_no_more_permits_than_there_are", modes: withPermits, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		for range 3 {
			t.take(a, t.permit(a, name, 3))
		}
		t.refused(a, t.permit(a, name, 3), "though this very backend has all")
		t.refused(b, t.permit(b, name, 3), "though another backend has all")
	}},
	{name: "P23_one_permit_is_a_lock", modes: withPermits, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		g := t.take(a, t.permit(a, name, 1))
		t.refused(b, t.permit(b, name, 1), "though it is taken")
		t.release(g)
		t.free(b, t.permit(b, name, 1), "after it was released")
	}},
	{name: "P23_released_permit_can_be_had", modes: withPermits, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		g := t.take(a, t.permit(a, name, 2))
		t.take(a, t.permit(a, name, 2))
		for range 5 {
			t.release(g)
			g = t.takeAtOnce(b, t.permit(b, name, 2), "though one was released")
		}
	}},
	{name: "P23_S15_permit_comes_back_once", modes: withPermits, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		g := t.take(a, t.permit(a, name, 2))
		t.take(a, t.permit(a, name, 2))
		t.release(g)
		t.releaseErr(g)
		t.takeAtOnce(b, t.permit(b, name, 2), "after a release")
		t.refused(b, t.permit(b, name, 2), "though both are taken; one was released twice before")
	}},
	{name: "P23_S28_permit_wakes_waiter", modes: withPermits, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		g := t.take(a, t.permit(a, name, 2))
		t.take(a, t.permit(a, name, 2))
		w := t.wait(b, t.permit(b, name, 2), patience)
		t.release(g)
		w.granted(t.wakeBound(b), "after one was released")
	}},
	{name: "P23_permits_stay_within_their_limit", modes: withPermits, run: permitsInUse},
	{name: "P23_semaphore_is_not_the_lock", modes: withPermits, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		t.take(a, t.permit(a, name, 1))
		t.takeAtOnce(b, t.request(b, name, driver.Exclusive), "though only a permit of that name is taken")
		other := t.resource()
		t.hold(a, other)
		t.takeAtOnce(b, t.permit(b, other, 1), "though only the lock of that name is held")
	}},
	{name: "P23_S36_permits_are_no_lock_of_another_name", modes: withPermits, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		for range 2 {
			t.take(a, t.permit(a, name, 2))
		}
		for _, between := range []string{".", "/", ":", "#", "-", "_", "", " ", ".permit-", "/permit/", ":permit:", "-permit-", ".permits", "permit", "semaphore:"} {
			for _, number := range []string{"", "0", "1", "2"} {
				if s := between + number; s != "" {
					t.takeAtOnce(b, t.request(b, name+s, driver.Exclusive), "though only permits of "+name+" are taken")
				}
			}
			if between != "" {
				t.takeAtOnce(b, t.request(b, between+name, driver.Exclusive), "though only permits of "+name+" are taken")
			}
		}
	}},
	{name: "P15_permit_of_the_dead_comes_back", modes: withPermits, needs: "Sever", run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		r := t.permit(a, name, 2)
		g := t.get(a, r)
		t.take(b, t.permit(b, name, 2))
		t.h.Sever(t, a, r, g)
		t.freeWithin(t.lossBound(b), b, t.permit(b, name, 2), "after its holder's session was ended")
		t.take(b, t.permit(b, name, 2))
		t.refused(b, t.permit(b, name, 2), "though both are taken, one of them after a loss")
	}},

	{name: "P23_upgradeable_stands_beside_readers", modes: withUpgradeable | withShared, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		t.take(a, t.request(a, name, driver.Shared))
		t.takeAtOnce(b, t.request(b, name, driver.Upgradeable), "beside a reader")
		t.takeAtOnce(a, t.request(a, name, driver.Shared), "beside an upgradeable holding")
		t.takeAtOnce(b, t.request(b, name, driver.Shared), "beside an upgradeable holding of the same backend")
	}},
	{name: "P23_upgradeable_exists_once", modes: withUpgradeable, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		t.take(a, t.request(a, name, driver.Upgradeable))
		t.refused(b, t.request(b, name, driver.Upgradeable), "though another backend has it upgradeable")
		t.refused(a, t.request(a, name, driver.Upgradeable), "though the same backend has it upgradeable")
	}},
	{name: "P23_upgradeable_excludes_writer", modes: withUpgradeable, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		t.take(a, t.request(a, name, driver.Upgradeable))
		t.held(b, name, "though another has it upgradeable")
	}},
	{name: "P23_writer_excludes_upgradeable", modes: withUpgradeable, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		t.hold(a, name)
		t.refused(b, t.request(b, name, driver.Upgradeable), "though another writes")
	}},
	{name: "P23_upgraded_excludes_reader", modes: withUpgradeable | withShared, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		g := t.take(a, t.request(a, name, driver.Upgradeable))
		if _, err := t.upgrade(g, patience); err != nil {
			t.Fatalf("Upgrade with nobody beside: %v", err)
		}
		t.refused(b, t.request(b, name, driver.Shared), "though another was upgraded")
		t.held(b, name, "though another was upgraded")
	}},
	{name: "P23_upgraded_is_released_wholly", modes: withUpgradeable, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		for range 3 {
			g := t.take(a, t.request(a, name, driver.Upgradeable))
			if _, err := t.upgrade(g, patience); err != nil {
				t.Fatalf("Upgrade with nobody beside: %v", err)
			}
			t.release(g)
			t.free(b, t.request(b, name, driver.Upgradeable), "after the upgraded holding was released")
			t.free(b, t.request(b, name, driver.Exclusive), "after the upgraded holding was released")
		}
	}},
	{name: "P23_upgrade_waits_for_readers", modes: withUpgradeable | withShared, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		reader := t.take(b, t.request(b, name, driver.Shared))
		g := t.take(a, t.request(a, name, driver.Upgradeable))
		upgrade := t.startUpgrade(g, patience)
		select {
		case err := <-upgrade:
			t.Fatalf("Upgrade ended though there is a reader: %v", err)
		case <-time.After(4 * settled):
		}
		t.release(reader)
		select {
		case err := <-upgrade:
			if err != nil {
				t.Fatalf("Upgrade, after the reader had left: %v", err)
			}
		case <-time.After(t.wakeBound(a)):
			t.Fatalf("Upgrade still waits %v after the reader left", t.wakeBound(a))
		}
		t.refused(b, t.request(b, name, driver.Shared), "though another was upgraded")
	}},
	{name: "P23_upgrade_that_must_wait_is_ErrHeld", modes: withUpgradeable | withShared, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		t.take(b, t.request(b, name, driver.Shared))
		g := t.take(a, t.request(a, name, driver.Upgradeable))
		for _, wait := range []time.Duration{0, 50 * time.Millisecond} {
			if _, err := t.upgrade(g, wait); !errors.Is(err, driver.ErrHeld) {
				t.Fatalf("Upgrade for %v beside a reader must end with ErrHeld, not: %v", wait, err)
			}
		}
	}},
	{name: "P23_S16_failed_upgrade_keeps_the_holding", modes: withUpgradeable | withShared, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		reader := t.take(b, t.request(b, name, driver.Shared))
		g := t.take(a, t.request(a, name, driver.Upgradeable))
		t.upgrade(g, 50*time.Millisecond)
		t.refused(b, t.request(b, name, driver.Upgradeable), "though an upgrade that ended without success must keep it upgradeable")
		t.release(reader)
		if _, err := t.upgrade(g, patience); err != nil {
			t.Fatalf("Upgrade, after one whose time was over: %v", err)
		}
		t.refused(b, t.request(b, name, driver.Shared), "though another was upgraded at the second try")
	}},
	{name: "P23_S16_cancelled_upgrade_keeps_the_holding", modes: withUpgradeable | withShared, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		reader := t.take(b, t.request(b, name, driver.Shared))
		g := t.take(a, t.request(a, name, driver.Upgradeable))
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			_, err := upgradeWithin(ctx, g, driver.Forever)
			ended <- err
		}()
		select {
		case err := <-ended:
			t.Fatalf("Upgrade ended though there is a reader: %v", err)
		case <-time.After(settled):
		}
		cancel()
		select {
		case err := <-ended:
			if err == nil {
				t.Fatalf("Upgrade succeeded though there is a reader")
			}
		case <-time.After(patience):
			t.Fatalf("Upgrade returned not within %v after its context was canceled", patience)
		}
		t.refused(b, t.request(b, name, driver.Upgradeable), "though an upgrade that was canceled must keep it upgradeable")
		t.release(reader)
		t.held(b, name, "though an upgrade that was canceled must keep it upgradeable")
		t.release(g)
		t.free(b, t.request(b, name, driver.Exclusive), "after an upgradeable holding, whose upgrade was canceled, was released")
	}},
	{name: "P23_failed_upgrade_lets_readers_in_again", modes: withUpgradeable | withShared, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		t.take(b, t.request(b, name, driver.Shared))
		g := t.take(a, t.request(a, name, driver.Upgradeable))
		t.upgrade(g, 50*time.Millisecond)
		t.freeWithin(t.soon(b), b, t.request(b, name, driver.Shared), "after an upgrade that ended without success")
	}},
	{name: "P23_upgrade_never_lets_go", modes: withUpgradeable | withShared, run: func(t *trial) {
		a, b := t.two()
		name := t.resource()
		for range 5 {
			reader := t.take(b, t.request(b, name, driver.Shared))
			g := t.take(a, t.request(a, name, driver.Upgradeable))
			writer := t.wait(b, t.request(b, name, driver.Exclusive), patience)
			upgrade := t.startUpgrade(g, patience)
			select {
			case <-time.After(settled):
			case err := <-upgrade:
				t.Fatalf("Upgrade ended though there is a reader: %v", err)
			}
			t.release(reader)
			select {
			case err := <-upgrade:
				if err != nil {
					t.Fatalf("Upgrade, after the reader had left: %v", err)
				}
			case <-writer.done:
				t.Fatalf("a waiting writer got in while an upgradeable holding was upgraded")
			case <-time.After(t.wakeBound(a)):
				t.Fatalf("Upgrade still waits %v after the reader left", t.wakeBound(a))
			}
			t.release(g)
			t.release(writer.granted(t.wakeBound(b), "after the upgraded holding was released"))
		}
	}},
}

// upgradeWithin upgrades as package distlock does: again after each early
// ErrHeld.
func upgradeWithin(ctx context.Context, g driver.Grant, wait time.Duration) (uint64, error) {
	u, ok := g.Hold.(driver.Upgrader)
	if !ok {
		return 0, errors.New("the backend has mode upgradeable, but its hold is no driver.Upgrader")
	}
	start := time.Now()
	for {
		left := wait
		if wait != driver.Forever {
			left = max(0, wait-time.Since(start))
		}
		token, err := u.Upgrade(ctx, left)
		if !errors.Is(err, driver.ErrHeld) || left == 0 {
			return token, err
		}
		select {
		case <-time.After(min(left, 10*time.Millisecond)):
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

func (t *trial) upgrade(g driver.Grant, wait time.Duration) (uint64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	token, err := upgradeWithin(ctx, g, wait)
	t.saw(err)
	return token, err
}

func (t *trial) startUpgrade(g driver.Grant, wait time.Duration) <-chan error {
	ended := make(chan error, 1)
	go func() {
		_, err := t.upgrade(g, wait)
		ended <- err
	}()
	return ended
}

// permitsInUse has many goroutines take permits, and counts how many are in use
// at once.
func permitsInUse(t *trial) {
	const limit, workers = 3, 9
	backends := []driver.Backend{t.open(), t.open()}
	name := t.resource()
	var inUse, most, left atomic.Int64
	left.Store(int64(t.many(300)))
	deadline := time.Now().Add(2 * time.Second)
	t.together(workers, func(i int) {
		b := backends[i%len(backends)]
		for left.Add(-1) >= 0 && time.Now().Before(deadline) && !t.Failed() {
			g := t.take(b, t.permit(b, name, limit))
			n := inUse.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			runtime.Gosched()
			inUse.Add(-1)
			t.release(g)
		}
	})
	if m := most.Load(); m > limit {
		t.Errorf("%d of %d permits in use at once", m, limit)
	}
}
