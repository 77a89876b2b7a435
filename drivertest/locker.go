package drivertest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

// lockers are the promises to users, as far as a backend can break them.
var lockers = throughDistlock([]clause{
	{name: "P01_lockers_exclude_each_other", run: func(t *trial) {
		a, b := t.locker(nil), t.locker(nil)
		name := t.resource()
		t.lock(a, name)
		t.taken(b, name, "though another Locker has it")
		t.taken(a, name, "though this very Locker has it")
	}},
	{name: "P01_S12_lockers_take_turns", run: lockersTakeTurns},
	{name: "P03_S04_locker_contention_is_ErrNotAcquired", run: func(t *trial) {
		a, b := t.locker(nil), t.locker(nil)
		name := t.resource()
		t.lock(a, name)
		for _, opts := range [][]distlock.AcquireOption{{distlock.Timeout(0)}, {distlock.Timeout(50 * time.Millisecond)}} {
			l, err := b.Acquire(t.Context(), name, opts...)
			if l != nil || !errors.Is(err, distlock.ErrNotAcquired) {
				t.Fatalf("the lock %v and the error %v, want no lock and ErrNotAcquired", l, err)
			}
			var e *distlock.Error
			if !errors.As(err, &e) || e.Op != "acquire" || e.Resource != name {
				t.Fatalf("the error %v is not the *distlock.Error of an acquire of %q", err, name)
			}
		}
	}},
	{name: "P03_S04_locker_tells_why_its_context_ended", run: func(t *trial) {
		a, b := t.locker(nil), t.locker(announcing)
		name := t.resource()
		t.lock(a, name)
		ctx, cancel := context.WithCancelCause(t.Context())
		waits := t.waitFor(ctx, b, name)
		cancel(errGivenUp)
		_, err := waits.answered(patience, "after its context was canceled")
		for _, target := range []error{context.Canceled, errGivenUp, distlock.ErrNotAcquired} {
			if !errors.Is(err, target) {
				t.Errorf("a wait whose context ended must match %q, but is: %v", target, err)
			}
		}
	}},
	{name: "P04_S08_locker_timeout_ends_in_time", run: func(t *trial) {
		a, b := t.locker(nil), t.locker(nil)
		name := t.resource()
		t.lock(a, name)
		for _, d := range []time.Duration{0, time.Microsecond, time.Millisecond, 400 * time.Millisecond} {
			t.atBest(prompt, fmt.Sprintf("the end of Timeout(%v)", d), func() time.Duration {
				start := time.Now()
				_, err := b.Acquire(t.Context(), name, distlock.Timeout(d))
				took := time.Since(start)
				if !errors.Is(err, distlock.ErrNotAcquired) {
					t.Fatalf("Timeout(%v): %v", d, err)
				}
				if took < d {
					t.Fatalf("Timeout(%v) took %v", d, took)
				}
				return took - d
			})
		}
	}},
	{name: "P06_S09_locker_context_ends_no_holding", run: func(t *trial) {
		a, b := t.locker(nil), t.locker(nil)
		name := t.resource()
		ctx, cancel := context.WithCancel(t.Context())
		l, err := a.Acquire(ctx, name)
		if err != nil {
			t.Fatalf("Acquire of what is free: %v", err)
		}
		t.Cleanup(func() { l.Release() })
		cancel()
		t.throughout(300*time.Millisecond, "held though the context it was acquired with was canceled", func() bool {
			_, err := b.TryAcquire(t.Context(), name)
			return errors.Is(err, distlock.ErrNotAcquired) && l.Err() == nil
		})
		t.unlock(l)
	}},
	{name: "P07_S06_locker_cancelled_wait_leaves_nothing", run: func(t *trial) {
		a, b := t.locker(nil), t.locker(announcing)
		name := t.resource()
		l := t.lock(a, name)
		ctx, cancel := context.WithCancel(t.Context())
		waits := t.waitFor(ctx, b, name)
		cancel()
		waits.answered(patience, "after its context was canceled")
		t.unlock(l)
		witness := t.open()
		t.staysFree(t.soon(witness), witness, t.request(witness, name, driver.Exclusive), "after its holder released and its waiter gave up")
	}},
	{name: "P07_S01_locker_lost_answer_leaves_nothing", needs: "Mute", run: func(t *trial) {
		backend := t.openUnclosed()
		a, b := t.lockerOn(backend, nil), t.locker(nil)
		name := t.resource()
		t.unlock(t.lock(a, t.resource())) // so that there is a connection to be mute on
		speak := t.h.Mute(t, backend)
		defer speak()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if l, err := a.Acquire(ctx, name); err == nil {
			t.Fatalf("acquired from a store that is mute: %v", l)
		}
		speak()
		t.unlock(t.lockWithin(t.soon(backend), b, name, "after an Acquire whose answer was lost"))
	}},
	{name: "P08_S02_locker_returns_when_the_store_is_mute", needs: "Mute", run: func(t *trial) {
		backend := t.openUnclosed()
		a := t.lockerOn(backend, nil)
		speak := t.h.Mute(t, backend)
		defer speak()
		t.atBest(prompt, "the return after the context ended", func() time.Duration {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			start := time.Now()
			_, err := a.Acquire(ctx, t.resource())
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, distlock.ErrNotAcquired) {
				t.Fatalf("no contention was seen, the deadline passed, but: %v", err)
			}
			return time.Since(start) - 300*time.Millisecond
		})
	}},
	{name: "P09_S11_locker_release_of_the_lost_is_ErrLost", needs: "Sever", run: func(t *trial) {
		tap := &tap{Backend: t.openUnclosed()}
		a, b := t.lockerOn(tap, nil), t.locker(nil)
		name := t.resource()
		l := t.lock(a, name)
		tap.sever(t)
		next := t.lockWithin(t.lossBound(tap), b, name, "after its holder's session was ended")
		if err := l.Release(); !errors.Is(err, distlock.ErrLost) {
			t.Fatalf("Release of what was lost must be ErrLost, not: %v", err)
		}
		t.taken(t.locker(nil), name, "after the holder before, who had lost it, released")
		t.unlock(next)
	}},
	{name: "P13_S21_locker_announces_the_loss", needs: "Sever", run: func(t *trial) {
		var told atomic.Int64
		trace := &distlock.Trace{Lost: func(distlock.Event) { told.Add(1) }}
		tap := &tap{Backend: t.openUnclosed()}
		a := t.lockerOn(tap, trace)
		name := t.resource()
		l := t.lock(a, name)
		ctx, cancel := l.Context(t.Context())
		defer cancel()
		lease := tap.sever(t)
		bound := t.h.lossBound() + slack + lease.Every + lease.TTL
		select {
		case <-l.Done():
		case <-time.After(bound):
			t.Fatalf("Done isn't closed %v after the session was ended", bound)
		}
		if !errors.Is(l.Err(), distlock.ErrLost) {
			t.Errorf("Err of a lock that was lost: %v", l.Err())
		}
		select {
		case <-ctx.Done():
		case <-time.After(patience):
			t.Fatalf("the lock's context isn't done %v after the lock was lost", patience)
		}
		if cause := context.Cause(ctx); !errors.Is(cause, distlock.ErrLost) {
			t.Errorf("the cause of the lock's context is: %v", cause)
		}
		if err := l.Release(); !errors.Is(err, distlock.ErrLost) {
			t.Errorf("Release of a lock that was lost: %v", err)
		}
		t.eventually(patience, "Trace.Lost is called", func() bool { return told.Load() > 0 })
		time.Sleep(settled)
		if n := told.Load(); n != 1 {
			t.Errorf("Trace.Lost was called %d times", n)
		}
	}},
	{name: "P11_S23_loss_comes_before_the_next_grant", needs: "leases", run: func(t *trial) {
		tap := &tap{Backend: t.openUnclosed(), deaf: true}
		a, b := t.lockerOn(tap, nil), t.locker(nil)
		name := t.resource()
		l := t.lock(a, name)
		bound := 2*t.h.ttl(tap.Info()) + slack
		next := t.lockWithin(bound, b, name, "though its holder could not renew the lease")
		if err := l.Err(); !errors.Is(err, distlock.ErrLost) {
			t.Fatalf("another has got it, but its holder's Err is: %v", err)
		}
		t.unlock(next)
	}},
	{name: "P12_locker_keeps_its_lease", needs: "leases", run: func(t *trial) {
		a, b := t.locker(nil), t.locker(nil)
		name := t.resource()
		l := t.lock(a, name)
		t.throughout(t.h.ttl(t.open().Info())*5/2, "held for longer than its lease", func() bool {
			_, err := b.TryAcquire(t.Context(), name)
			return errors.Is(err, distlock.ErrNotAcquired) && l.Err() == nil
		})
		t.unlock(l)
	}},
	{name: "P14_locker_tokens_grow", needs: "tokens", run: func(t *trial) {
		both := []*distlock.Locker{t.locker(nil), t.locker(nil)}
		name := t.resource()
		var last atomic.Uint64
		var left atomic.Int64
		left.Store(int64(t.many(300)))
		deadline := time.Now().Add(2 * time.Second)
		t.together(8, func(i int) {
			for left.Add(-1) >= 0 && time.Now().Before(deadline) && !t.Failed() {
				l := t.lock(both[i%2], name)
				token, ok := l.Token()
				if before := last.Swap(token); !ok || before >= token {
					t.Errorf("token %d (%t) of the later holder, after %d", token, ok, before)
				}
				t.unlock(l)
			}
		})
	}},
	{name: "P16_S17_dropped_lock_is_reported_and_freed", real: true, run: func(t *trial) {
		dropped := make(chan distlock.Event, 1)
		backend := t.openUnclosed()
		a := t.lockerOn(backend, &distlock.Trace{Dropped: func(e distlock.Event) { dropped <- e }})
		b := t.locker(nil)
		name := t.resource()
		func() {
			if _, err := a.Acquire(t.Context(), name); err != nil {
				t.Fatalf("Acquire of what is free: %v", err)
			}
		}()
		t.eventually(patience, "Trace.Dropped is called", func() bool {
			runtime.GC()
			select {
			case e := <-dropped:
				if e.Resource != name || !strings.Contains(e.Site, "locker.go") {
					t.Errorf("reported is the drop of %q, acquired at %q", e.Resource, e.Site)
				}
				return true
			default:
				return false
			}
		})
		t.unlock(t.lockWithin(t.soon(backend), b, name, "after its lock was dropped"))
	}},
	{name: "P18_locker_serves_in_order", run: func(t *trial) {
		const n = 10
		holder := t.locker(nil)
		queued := make(chan struct{}, 2*n)
		a := t.locker(&distlock.Trace{Waiting: func(context.Context, distlock.Event) { queued <- struct{}{} }})
		name := t.resource()
		l := t.lock(holder, name)
		order := make(chan int, n)
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				defer t.catch()
				l := t.lock(a, name)
				order <- i
				t.unlock(l)
			})
			select {
			case <-queued:
			case <-time.After(patience):
				t.Fatalf("waiter %d doesn't wait", i)
			}
		}
		time.Sleep(settled) // until the first has asked the store once more
		t.unlock(l)
		all.Wait()
		for want := range n {
			select {
			case got := <-order:
				if got != want {
					t.Fatalf("waiter %d was served in the place of waiter %d", got, want)
				}
			default:
				t.Fatalf("waiter %d was not served", want)
			}
		}
	}},
	{name: "P18_S33_locker_cancelled_waiter_swallows_nothing", run: func(t *trial) {
		holder, a := t.locker(nil), t.locker(announcing)
		name := t.resource()
		l := t.lock(holder, name)
		ctx, cancel := context.WithCancel(t.Context())
		first := t.waitFor(ctx, a, name)
		second := t.waitFor(t.Context(), a, name)
		cancel()
		first.answered(patience, "after its context was canceled")
		time.Sleep(settled) // until the second has asked the store in its stead
		t.unlock(l)
		got, err := second.answered(patience, "after a release, with another waiter that had given up before")
		if err != nil {
			t.Fatalf("Acquire, after another waiter had given up: %v", err)
		}
		t.unlock(got)
	}},
	{name: "P20_S30_many_waiters_cost_little", needs: "Resources", alone: true, run: func(t *trial) {
		n := t.many(300)
		holder, a := t.locker(nil), t.locker(announcing)
		name := t.resource()
		l := t.lock(holder, name)
		t.taken(a, name, "though another Locker has it")
		before := t.h.Resources(t)
		ctx, cancel := context.WithCancel(t.Context())
		var waits []*attempt
		for range n {
			waits = append(waits, t.waitFor(ctx, a, name))
		}
		t.notMuchMore(before)
		cancel()
		for _, w := range waits {
			w.answered(patience, "after its context was canceled")
		}
		t.unlock(l)
	}},
	{name: "P20_S34_names_are_forgotten", alone: true, real: true, run: func(t *trial) {
		a := t.locker(nil)
		base := t.resource() + strings.Repeat("x", 4000)
		use := func(from, to int) {
			for i := from; i < to; i++ {
				l, err := a.Acquire(t.Context(), fmt.Sprintf("%s%d", base, i))
				if err != nil {
					t.Fatalf("Acquire of what is free: %v", err)
				}
				t.unlock(l)
			}
		}
		use(0, 100)
		before := heap()
		const n = 2000
		use(100, 100+n)
		for collections := 0; heap() >= before+n*2000; collections++ {
			if collections == 40 {
				t.Fatalf("the memory for two thousand names is not given back")
			}
			time.Sleep(settled)
		}
	}},
	{name: "P21_do_ends_with_the_lock", needs: "Sever", run: func(t *trial) {
		tap := &tap{Backend: t.openUnclosed()}
		a := t.lockerOn(tap, nil)
		name := t.resource()
		errWork := errors.New("the work failed")
		err := a.Do(t.Context(), name, func(ctx context.Context) error {
			lease := tap.sever(t)
			select {
			case <-ctx.Done():
			case <-time.After(t.h.lossBound() + slack + lease.Every + lease.TTL):
				t.Errorf("the context isn't done though the lock was lost")
			}
			return errWork
		})
		if !errors.Is(err, distlock.ErrLost) || !errors.Is(err, errWork) {
			t.Errorf("Do must return the loss and the function's error, but returned: %v", err)
		}
	}},
	{name: "P21_do_releases_however_it_ends", run: func(t *trial) {
		a, b := t.locker(nil), t.locker(nil)
		name := t.resource()
		for how, fn := range map[string]func(context.Context) error{
			"returned": func(context.Context) error { return nil },
			"panicked": func(context.Context) error { panic("on purpose") },
			"ended":    func(context.Context) error { runtime.Goexit(); return nil },
		} {
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				defer func() { recover() }()
				a.Do(t.Context(), name, fn)
			}()
			<-ended
			l, err := b.TryAcquire(t.Context(), name)
			if err != nil {
				t.Fatalf("not free after the function of Do had %s: %v", how, err)
			}
			t.unlock(l)
		}
	}},
	{name: "P22_all_or_nothing", run: func(t *trial) {
		backend := t.openUnclosed()
		a, b := t.lockerOn(backend, nil), t.locker(nil)
		base := t.resource()
		names := []string{base + "c", base + "a", base + "b", base + "a"}
		l := t.lock(b, base+"c")
		if all, err := a.AcquireAll(t.Context(), names, distlock.Timeout(500*time.Millisecond)); !errors.Is(err, distlock.ErrNotAcquired) {
			t.Fatalf("AcquireAll of what another has a part of: %v, %v", all, err)
		}
		for _, s := range names[1:] {
			t.unlock(t.lockWithin(t.soon(backend), b, s, "though AcquireAll failed"))
		}
		t.unlock(l)
		all, err := a.AcquireAll(t.Context(), names, distlock.Timeout(patience))
		if err != nil {
			t.Fatalf("AcquireAll of what is free: %v", err)
		}
		t.taken(b, base+"b", "though AcquireAll has it")
		t.unlock(all)
		l, err = b.TryAcquire(t.Context(), base+"a")
		if err != nil {
			t.Fatalf("a part of what was released: %v", err)
		}
		t.unlock(l)
	}},
	{name: "P23_locker_readers_and_writers", modes: withShared, run: func(t *trial) {
		a, b := t.locker(nil), t.locker(nil)
		name := t.resource()
		one := t.lock(a, name, distlock.Shared())
		two := t.lock(b, name, distlock.Shared())
		t.taken(b, name, "though there are readers")
		t.unlock(one)
		t.taken(a, name, "though there is a reader")
		t.unlock(two)
		w := t.lock(a, name)
		t.taken(b, name, "though there is a writer", distlock.Shared())
		t.unlock(w)
	}},
	{name: "P23_writer_is_not_starved", modes: withShared, run: func(t *trial) {
		a := t.locker(nil)
		name := t.resource()
		stop := make(chan struct{})
		var readers sync.WaitGroup
		stopReaders := sync.OnceFunc(func() { close(stop); readers.Wait() })
		defer stopReaders()
		var read atomic.Int64
		for range 3 {
			readers.Go(func() {
				defer t.catch()
				for {
					select {
					case <-stop:
						return
					default:
					}
					l := t.lock(a, name, distlock.Shared())
					read.Add(1)
					time.Sleep(5 * time.Millisecond) // three readers overlap: there is always one
					t.unlock(l)
				}
			})
		}
		t.eventually(patience, "readers come and go", func() bool { return read.Load() > 10 })
		t.unlock(t.lockWithin(patience, a, name, "beside readers that come and go"))
	}},
	{name: "P23_locker_semaphore_keeps_its_limit", modes: withPermits, run: func(t *trial) {
		a, b := t.locker(nil), t.locker(nil)
		name := t.resource()
		one := t.lock(a, name, distlock.Semaphore(2))
		t.lock(b, name, distlock.Semaphore(2))
		t.taken(a, name, "though all permits are taken", distlock.Semaphore(2))
		t.taken(b, name, "though all permits are taken", distlock.Semaphore(2))
		t.lock(a, name)
		t.unlock(one)
		t.unlock(one)
		t.lock(b, name, distlock.Semaphore(2))
		t.taken(a, name, "though all permits are taken; one was released twice before", distlock.Semaphore(2))
	}},
	{name: "P23_locker_upgrades", modes: withShared | withUpgradeable, run: func(t *trial) {
		a, b := t.locker(nil), t.locker(nil)
		name := t.resource()
		reader := t.lock(b, name, distlock.Shared())
		l := t.lock(a, name, distlock.Upgradeable())
		before, _ := l.Token()
		if err := l.Upgrade(t.Context(), distlock.Timeout(500*time.Millisecond)); !errors.Is(err, distlock.ErrNotAcquired) {
			t.Fatalf("Upgrade beside a reader: %v", err)
		}
		t.taken(b, name, "though an upgrade that ended without success must keep it upgradeable", distlock.Upgradeable())
		t.unlock(reader)
		// On a slow machine the one before may still be under way.
		t.eventually(patience, "Upgrade succeeds after the reader left", func() bool {
			err := l.Upgrade(t.Context(), distlock.Timeout(patience))
			if err != nil {
				t.Logf("Upgrade: %v", err)
			}
			return err == nil
		})
		if after, ok := l.Token(); ok && after <= before {
			t.Errorf("token %d of Upgrade, not larger than %d", after, before)
		}
		t.taken(b, name, "though another was upgraded", distlock.Shared())
		t.unlock(l)
	}},
	{name: "P25_close_releases_and_wakes", run: func(t *trial) {
		a, b := t.locker(announcing), t.locker(nil)
		mine, theirs := t.resource(), t.resource()
		held := t.lock(a, mine)
		t.lock(b, theirs)
		waits := t.waitFor(t.Context(), a, theirs)
		if err := a.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
		if _, err := waits.answered(patience, "after Close"); !errors.Is(err, distlock.ErrClosed) {
			t.Errorf("a wait that Close ended must be ErrClosed, but is: %v", err)
		}
		if held.Err() == nil {
			t.Errorf("a lock is still held after Close")
		}
		l, err := b.TryAcquire(t.Context(), mine)
		if err != nil {
			t.Fatalf("Close did not release: %v", err)
		}
		t.unlock(l)
	}},
})

// foundation is the case that package distlock stands on: it would run into the
// missing Hold.
const foundation = "P02_nil_error_comes_with_a_hold"

// throughDistlock marks cases that are put to package distlock, on the backend.
func throughDistlock(cases []clause) []clause {
	for i := range cases {
		cases[i].distlock = true
	}
	return cases
}

// locker returns a Locker on a backend of its own.
func (t *trial) locker(trace *distlock.Trace) *distlock.Locker {
	t.Helper()
	return t.lockerOn(t.openUnclosed(), trace)
}

func (t *trial) lockerOn(b driver.Backend, trace *distlock.Trace) *distlock.Locker {
	l := distlock.New(b, &distlock.Options{TTL: t.h.ttl(b.Info()), ReleaseTimeout: slack, Trace: trace})
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("Locker.Close: %v", err)
		}
	})
	return l
}

// lock acquires what is free or soon will be.
func (t *trial) lock(l *distlock.Locker, name string, opts ...distlock.AcquireOption) *distlock.Lock {
	t.Helper()
	lock, err := l.Acquire(t.Context(), name, append(opts, distlock.Timeout(patience))...)
	t.saw(err)
	if err != nil {
		t.Fatalf("it could not be had: %v", err)
	}
	t.Cleanup(func() { lock.Release() })
	return lock
}

// lockWithin acquires what must be free within the bound.
func (t *trial) lockWithin(bound time.Duration, l *distlock.Locker, name, why string) *distlock.Lock {
	t.Helper()
	lock, err := l.Acquire(t.Context(), name, distlock.Timeout(bound))
	if err != nil {
		t.Fatalf("not free within %v %s: %v", bound, why, err)
	}
	t.Cleanup(func() { lock.Release() })
	return lock
}

func (t *trial) unlock(l *distlock.Lock) {
	t.Helper()
	if err := l.Release(); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// taken fails the case if the name can be had.
func (t *trial) taken(l *distlock.Locker, name, why string, opts ...distlock.AcquireOption) {
	t.Helper()
	lock, err := l.TryAcquire(t.Context(), name, opts...)
	if err == nil {
		lock.Release()
		t.Fatalf("acquired %s", why)
	}
	if !errors.Is(err, distlock.ErrNotAcquired) {
		t.Fatalf("not refused with ErrNotAcquired %s, but with: %v", why, err)
	}
}

// An attempt is an Acquire under way.
type attempt struct {
	trial *trial
	done  chan struct{}
	lock  *distlock.Lock
	err   error
}

// waitFor starts to wait for what another has, and returns when the wait has
// begun.
func (t *trial) waitFor(ctx context.Context, l *distlock.Locker, name string) *attempt {
	t.Helper()
	w := &attempt{trial: t, done: make(chan struct{})}
	waiting := make(chan struct{})
	ctx = context.WithValue(ctx, waitingKey{}, waiting)
	go func() {
		defer close(w.done)
		w.lock, w.err = l.Acquire(ctx, name)
		if w.err == nil {
			t.Cleanup(func() { w.lock.Release() })
		}
	}()
	select {
	case <-w.done:
		t.Fatalf("a wait for what another has ended at once: %v", w.err)
	case <-time.After(patience):
		t.Fatalf("after %v it is not known to wait", patience)
	case <-waiting:
	}
	time.Sleep(settled / 5) // the store was asked once, and is now asked to wait
	return w
}

// announcing tells waitFor that a call has begun to wait.
var announcing = &distlock.Trace{Waiting: func(ctx context.Context, _ distlock.Event) {
	if waiting, ok := ctx.Value(waitingKey{}).(chan struct{}); ok {
		close(waiting)
	}
}}

type waitingKey struct{}

func (w *attempt) answered(bound time.Duration, why string) (*distlock.Lock, error) {
	t := w.trial
	t.Helper()
	select {
	case <-w.done:
	case <-time.After(bound):
		t.Fatalf("Acquire has not returned %v %s", bound, why)
	}
	t.saw(w.err)
	return w.lock, w.err
}

// lockersTakeTurns is oneHolder through the public API, hand-off included.
func lockersTakeTurns(t *trial) {
	both := []*distlock.Locker{t.locker(nil), t.locker(nil)}
	name := t.resource()
	var inside, left atomic.Int64
	left.Store(int64(t.many(600)))
	deadline := time.Now().Add(3 * time.Second)
	t.together(12, func(i int) {
		for left.Add(-1) >= 0 && time.Now().Before(deadline) && !t.Failed() {
			l := t.lock(both[i%2], name)
			if inside.Add(1) > 1 {
				t.Errorf("two hold it at once")
			}
			runtime.Gosched()
			inside.Add(-1)
			t.unlock(l)
		}
	})
}

// heap returns how much memory is in use.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools kept
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A tap lets a case see the driver's grants behind a Locker. If it is deaf,
// renewals don't get through.
type tap struct {
	driver.Backend
	deaf bool

	mu      sync.Mutex
	request driver.Request // the last one that was granted
	grant   driver.Grant
}

func (p *tap) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := p.Backend.Acquire(ctx, r)
	if err != nil {
		return g, err
	}
	p.mu.Lock()
	p.request, p.grant = r, g
	p.mu.Unlock()
	if p.deaf {
		g.Session = deaf{g.Session}
	}
	return g, nil
}

// sever ends the session of the last grant and returns how it was kept.
func (p *tap) sever(t *trial) driver.Lease {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.h.Sever(t, p.Backend, p.request, p.grant)
	return p.grant.Session.Lease()
}

type deaf struct{ driver.Session }

func (deaf) Renew(context.Context) error { return errUnreachable }

var errUnreachable = errors.New("the store can't be reached")
