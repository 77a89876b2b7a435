package azurelock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/heldtest"
)

// Every request is billed.
func TestRequests(t *testing.T) {
	t.Parallel()
	withFakeClock(t, func(t *testing.T, e *emulator) {
		for _, c := range []struct {
			what        string
			o           Options
			mode        driver.Mode
			first, next []string
		}{
			{"plain", Options{}, driver.Exclusive, []string{"create", "acquire", "release"}, []string{"acquire", "release"}},
			{"fencing", Options{Fencing: true}, driver.Exclusive, []string{"create", "acquire", "set", "release"}, []string{"acquire", "look", "set", "release"}},
			{"note", Options{HolderNote: true}, driver.Exclusive, []string{"create", "acquire", "set", "release"}, []string{"acquire", "look", "set", "release"}},
			{"both", Options{Fencing: true, HolderNote: true}, driver.Exclusive, []string{"create", "acquire", "set", "release"}, []string{"acquire", "look", "set", "release"}},
			{"deleting", Options{DeleteOnRelease: true}, driver.Exclusive, []string{"create", "acquire", "delete"}, []string{"create", "acquire", "delete"}},
			{"permit", Options{}, driver.Permit, []string{"create", "acquire", "release"}, []string{"acquire", "release"}},
			{"permit, fencing", Options{Fencing: true}, driver.Permit, []string{"create", "acquire", "look", "create", "look", "set", "release"}, []string{"acquire", "look", "set", "release"}},
		} {
			p := newProxy(t)
			b := New(client(t, e.endpoint(), containerOf(e.container(t)), p.through), &c.o)
			round := func(resource string) []string {
				before := len(p.operations())
				r := request(resource)
				if c.mode == driver.Permit {
					r = permit(resource, 1)
				}
				release(t, take(t, b, r))
				return p.operations()[before:]
			}
			for _, resource := range []string{"a", "b"} {
				if got := round(resource); !slices.Equal(got, c.first) {
					t.Errorf("%s, first use: %v, want %v", c.what, got, c.first)
				}
				for range 2 {
					if got := round(resource); !slices.Equal(got, c.next) {
						t.Errorf("%s: %v, want %v", c.what, got, c.next)
					}
				}
			}
			if c.mode == driver.Permit || c.o.DeleteOnRelease {
				continue
			}
			// Another process finds out about the first blob, and then expects the others.
			b = New(b.container, &c.o)
			if got := round("a"); len(got) != len(c.next)+1 {
				t.Errorf("%s, elsewhere: %v", c.what, got)
			}
			if got := round("b"); !slices.Equal(got, c.next) {
				t.Errorf("%s, elsewhere: %v, want %v", c.what, got, c.next)
			}
		}
	})
}

// A lock that is held costs a request each third of its lease.
func TestRequestsWhileHeld(t *testing.T) {
	t.Parallel()
	withFakeClock(t, func(t *testing.T, e *emulator) {
		p := newProxy(t)
		l := locker(t, New(client(t, e.endpoint(), containerOf(e.container(t)), p.through), nil), distlock.Options{})
		lock, err := l.TryAcquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(ttl)
		if n := p.count("renew"); n < 2 || n > 3 {
			t.Errorf("%d renewals in %v", n, ttl)
		}
		if err := lock.Release(); err != nil {
			t.Fatal(err)
		}
		n := len(p.operations())
		time.Sleep(ttl / 2)
		if got := p.operations()[n:]; len(got) > 0 {
			t.Errorf("after the release: %v", got)
		}
	})
}

// A lock that is held costs memory: less than a KiB, package distlock's part and that of
// the keys in its tables included, whatever the blob says.
func TestHeldLocksAreSmall(t *testing.T) {
	e := azurite(t)
	for _, o := range []Options{{}, {Fencing: true, HolderNote: true}, {DeleteOnRelease: true}} {
		held, err := heldtest.Take(t.Context(), locker(t, New(e.container(t), &o), distlock.Options{}), 500, 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d bytes each, %d goroutines more", held.Each, held.Goroutines)
		if held.Each >= 1024 {
			t.Errorf("%+v: a lock that is held takes %d bytes", o, held.Each)
		}
		if _, err := held.Release(); err != nil {
			t.Error(err)
		}
	}
}

// A thousand are held at once, of names that are nearly alike.
func TestThousandNames(t *testing.T) {
	t.Parallel()
	withFakeClock(t, func(t *testing.T, e *emulator) {
		c := e.container(t)
		b, witness := New(c, nil), New(c, nil)
		const n, abreast = 1000, 2
		name := func(i int) string { return fmt.Sprint("name", i) }
		var all sync.WaitGroup
		for first := range abreast {
			all.Go(func() {
				for i := first; i < n; i += abreast {
					if _, err := b.Acquire(t.Context(), request(name(i))); err != nil {
						t.Errorf("%s, while those before are held: %v", name(i), err)
						return
					}
				}
			})
		}
		all.Wait()
		for i := n - 10; i < n; i++ { // the first may have run out, if the emulator is very slow
			if free(t, witness, name(i)) {
				t.Errorf("%s is free", name(i))
			}
		}
	})
}

// However many wait, the process asks once a second, or as often as MaxPoll says,
// and once more when the time is over, also if that is the same for all.
func TestThousandWaiters(t *testing.T) {
	t.Parallel()
	withFakeClock(t, func(t *testing.T, e *emulator) {
		name := containerOf(e.container(t))
		holder := New(client(t, e.endpoint(), name, nil), nil)
		g := take(t, holder, request("a"))
		defer release(t, g)
		const most = 4 // requests a second
		for _, maxPoll := range []time.Duration{0, 4 * time.Second} {
			p := newProxy(t)
			var mu sync.Mutex
			var at []time.Time
			p.set(func(string) fault {
				mu.Lock()
				defer mu.Unlock()
				at = append(at, time.Now())
				return fault{}
			})
			b := New(client(t, e.endpoint(), name, p.through), &Options{MaxPoll: maxPoll})
			b.existing.guess = true // so that it isn't created first
			l := locker(t, b, distlock.Options{})
			const wait = 6 * time.Second
			var all sync.WaitGroup
			start := time.Now()
			for range 1000 {
				all.Go(func() {
					_, err := l.Acquire(context.Background(), "a", distlock.Timeout(wait))
					if !errors.Is(err, distlock.ErrNotAcquired) {
						t.Errorf("%v", err)
					}
				})
			}
			all.Wait()
			if took := time.Since(start); took != wait {
				t.Errorf("a wait of %v took %v", wait, took)
			}
			mu.Lock()
			asked := slices.Clone(at)
			mu.Unlock()
			for i := range asked {
				n := 0
				for _, other := range asked[i:] {
					if other.Sub(asked[i]) < time.Second {
						n++
					}
				}
				if n > most {
					t.Errorf("MaxPoll %v: %d requests within a second, %v after the start", maxPoll, n, asked[i].Sub(start))
				}
			}
			last := asked[len(asked)-1].Sub(start)
			if last < wait-200*time.Millisecond {
				t.Errorf("MaxPoll %v: the last try was after %v of %v", maxPoll, last, wait)
			}
			t.Logf("MaxPoll %v: 1000 waiters, %d requests in %v", maxPoll, len(asked), wait)
		}
	})
}
