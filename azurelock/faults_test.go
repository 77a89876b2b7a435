package azurelock

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

// distorted runs f with a backend behind a proxy, and one beside it.
func distorted(t *testing.T, o *Options, f func(t *testing.T, p *proxy, b, witness *Backend)) {
	t.Helper()
	withFakeClock(t, func(t *testing.T, e *emulator) {
		c := e.container(t)
		p := newProxy(t)
		b := New(client(t, e.endpoint(), containerOf(c), p.through), o)
		release(t, take(t, b, request("a"))) // so that the blob exists
		f(t, p, b, New(c, o))
	})
}

func TestAcquireWhoseReplyIsLost(t *testing.T) {
	t.Parallel()
	t.Run("once", func(t *testing.T) {
		t.Parallel()
		distorted(t, nil, func(t *testing.T, p *proxy, b, witness *Backend) {
			first := true
			p.set(func(o string) fault {
				drop := first && o == "acquire"
				first = false
				return fault{drop: drop}
			})
			// The second try recognizes the success of the first by the lease ID.
			g := take(t, b, request("a"))
			if p.count("acquire") != 3 {
				t.Errorf("%v", p.operations())
			}
			if free(t, witness, "a") {
				t.Error("it is free")
			}
			release(t, g)
		})
	})
	t.Run("always", func(t *testing.T) {
		t.Parallel()
		distorted(t, nil, func(t *testing.T, p *proxy, b, witness *Backend) {
			p.on("acquire", fault{drop: true})
			l := locker(t, b, distlock.Options{})
			_, err := l.Acquire(t.Context(), "a")
			if err == nil || errors.Is(err, distlock.ErrNotAcquired) {
				t.Errorf("%v", err)
			}
			t.Logf("free after %v", freeWithin(t, 2*time.Second, witness, "a"))
		})
	})
	t.Run("held until the caller gave up", func(t *testing.T) {
		t.Parallel()
		distorted(t, nil, func(t *testing.T, p *proxy, b, witness *Backend) {
			p.on("acquire", fault{after: p.stops})
			l := locker(t, b, distlock.Options{})
			start := time.Now()
			_, err := l.Acquire(t.Context(), "a", distlock.Timeout(500*time.Millisecond))
			if took := time.Since(start); !errors.Is(err, distlock.ErrNotAcquired) || took != 500*time.Millisecond {
				t.Errorf("%v after %v", err, took)
			}
			t.Logf("free after %v", freeWithin(t, 2*time.Second, witness, "a"))
		})
	})
	t.Run("held for a while", func(t *testing.T) {
		t.Parallel()
		distorted(t, nil, func(t *testing.T, p *proxy, b, witness *Backend) {
			c := make(chan struct{})
			p.on("acquire", fault{after: c})
			time.AfterFunc(700*time.Millisecond, func() { close(c) })
			l := locker(t, b, distlock.Options{})
			ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
			defer cancel()
			if _, err := l.Acquire(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
			if took := freeWithin(t, 2*time.Second, witness, "a"); took < 300*time.Millisecond {
				t.Errorf("it was released after %v, before the answer came", took)
			}
			if n := p.count("release"); n != 2 {
				t.Errorf("%d releases: the answer was waited for, one is enough", n-1)
			}
		})
	})
}

// The request itself is on its way while the attempt is undone.
func TestAcquireThatArrivesLate(t *testing.T) {
	t.Parallel()
	distorted(t, nil, func(t *testing.T, p *proxy, b, witness *Backend) {
		c := make(chan struct{})
		p.on("acquire", fault{before: c})
		l := locker(t, b, distlock.Options{})
		if _, err := l.Acquire(t.Context(), "a", distlock.Timeout(200*time.Millisecond)); !errors.Is(err, distlock.ErrNotAcquired) {
			t.Errorf("%v", err)
		}
		// By now the attempt is given up; half a second later it is undone the first time.
		time.Sleep(grace + 400*time.Millisecond)
		close(c)
		time.Sleep(time.Millisecond) // for it to arrive
		t.Logf("free after %v", freeWithin(t, 2*time.Second, witness, "a"))
	})
}

// Neither of two tries got an answer. The first is found, and the second arrives
// after that.
func TestBothTriesArriveLate(t *testing.T) {
	t.Parallel()
	distorted(t, nil, func(t *testing.T, p *proxy, b, witness *Backend) {
		first, second := make(chan struct{}), make(chan struct{})
		n := 0
		p.set(func(o string) fault {
			if o != "acquire" {
				return fault{}
			}
			if n++; n == 1 {
				return fault{before: first, after: p.stops}
			}
			return fault{before: second, after: p.stops}
		})
		l := locker(t, b, distlock.Options{})
		if _, err := l.Acquire(t.Context(), "a", distlock.Timeout(acquireTries[0]+500*time.Millisecond)); !errors.Is(err, distlock.ErrNotAcquired) {
			t.Errorf("%v", err)
		}
		if n := p.count("acquire"); n != 3 {
			t.Fatalf("%d tries", n-1)
		}
		close(first)
		time.Sleep(grace + 400*time.Millisecond)
		if !free(t, witness, "a") {
			t.Error("the first isn't undone")
		}
		close(second)
		time.Sleep(time.Millisecond) // for it to arrive
		t.Logf("free after %v", freeWithin(t, 2*time.Second, witness, "a"))
	})
}

// The watch for a late request goes on where the call before ended.
func TestShortReleaseTimeout(t *testing.T) {
	t.Parallel()
	distorted(t, nil, func(t *testing.T, p *proxy, b, _ *Backend) {
		p.on("acquire", fault{before: p.stops})
		l := locker(t, b, distlock.Options{ReleaseTimeout: 300 * time.Millisecond})
		if _, err := l.Acquire(t.Context(), "a", distlock.Timeout(200*time.Millisecond)); !errors.Is(err, distlock.ErrNotAcquired) {
			t.Errorf("%v", err)
		}
		time.Sleep(grace + 4*time.Second)
		n := p.count("release")
		time.Sleep(time.Minute)
		if m := p.count("release"); n < 4 || n > 12 || m != n {
			t.Errorf("%d releases, and %d later", n, m-n)
		}
	})
}

func TestRenewalWhoseReplyIsLost(t *testing.T) {
	t.Parallel()
	distorted(t, nil, func(t *testing.T, p *proxy, b, witness *Backend) {
		l := locker(t, b, distlock.Options{})
		lock, err := l.TryAcquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		// Two in three get no answer, or none in time: the lease lives all the same.
		n := 0
		p.set(func(o string) fault {
			if o != "renew" {
				return fault{}
			}
			n++
			switch n % 3 {
			case 1:
				return fault{drop: true}
			case 2:
				return fault{after: p.stops}
			}
			return fault{}
		})
		time.Sleep(10 * ttl)
		if err := lock.Err(); err != nil {
			t.Error(err)
		}
		if free(t, witness, "a") {
			t.Error("it is free")
		}
		if err := lock.Release(); err != nil {
			t.Error(err)
		}
	})
}

// The network is gone for longer than the lease: the holder is told before the
// lease ends in the service.
func TestHalfOpen(t *testing.T) {
	t.Parallel()
	distorted(t, nil, func(t *testing.T, p *proxy, b, witness *Backend) {
		l := locker(t, b, distlock.Options{})
		lock, err := l.TryAcquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		late := make(chan struct{})
		p.set(func(string) fault { return fault{before: late} })
		if lost := lostWithin(t, ttl, lock); lost != ttl/10*9 {
			t.Errorf("lost after %v of %v", lost, ttl)
		}
		if err := lock.Release(); !errors.Is(err, distlock.ErrLost) {
			t.Errorf("release: %v", err)
		}
		time.Sleep(ttl/10 + time.Second)
		if p.count("release") != 2 || free(t, witness, "a") {
			t.Errorf("%v", p.operations())
		}
		// What was kept arrives now, renewals of a lease that is over among it.
		close(late)
		time.Sleep(time.Millisecond)
		if !free(t, witness, "a") {
			t.Error("a late renewal brought the lease back")
		}
	})
}

func TestReleaseWhoseReplyIsLost(t *testing.T) {
	t.Parallel()
	for what, f := range map[string]func(p *proxy) fault{
		"cut":  func(*proxy) fault { return fault{drop: true} },
		"held": func(p *proxy) fault { return fault{after: p.stops} },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			distorted(t, nil, func(t *testing.T, p *proxy, b, witness *Backend) {
				l := locker(t, b, distlock.Options{})
				lock, err := l.TryAcquire(t.Context(), "a")
				if err != nil {
					t.Fatal(err)
				}
				first := true
				p.set(func(o string) fault {
					if o == "release" && first {
						first = false
						return f(p)
					}
					return fault{}
				})
				// The second try is told 409: there is no such lease, as it was released.
				if err := lock.Release(); err != nil {
					t.Error(err)
				}
				if n := p.count("release"); n != 3 {
					t.Errorf("%d releases", n-1)
				}
				if !free(t, witness, "a") {
					t.Error("it is held")
				}
			})
		})
	}
	t.Run("and somebody else has it", func(t *testing.T) {
		t.Parallel()
		distorted(t, nil, func(t *testing.T, p *proxy, b, witness *Backend) {
			g := take(t, b, request("a"))
			p.on("release", fault{after: p.stops})
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if err := g.Hold.Release(ctx); err == nil {
				t.Error("nil, without an answer")
			}
			p.set(nil)
			next := take(t, witness, request("a"))
			if err := g.Hold.Release(t.Context()); err != nil {
				t.Errorf("it was released, but: %v", err)
			}
			if free(t, b, "a") {
				t.Error("the next holder's lease is gone")
			}
			release(t, next)
		})
	})
}

// Half the service's answers are 503, as when an account is throttled.
func TestBusyService(t *testing.T) {
	t.Parallel()
	distorted(t, &Options{Fencing: true}, func(t *testing.T, p *proxy, b, _ *Backend) {
		n := 0
		p.set(func(string) fault {
			if n++; n%2 == 0 {
				return fault{status: 503}
			}
			return fault{}
		})
		for range 3 {
			release(t, take(t, b, request("a")))
		}
	})
}

// A store that can't be reached is not a resource that is held.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := locker(t, New(client(t, "http://127.0.0.1:1/"+account, "c", nil), nil), distlock.Options{})
		start := time.Now()
		_, err := l.Acquire(t.Context(), "a")
		var op *net.OpError
		if !errors.As(err, &op) || errors.Is(err, distlock.ErrNotAcquired) || time.Since(start) > 2*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// A step after the lease fails: the lease doesn't stay.
func TestFailureAfterTheLease(t *testing.T) {
	t.Parallel()
	for what, f := range map[string]func(p *proxy) fault{
		"refused": func(*proxy) fault { return fault{status: 403} },
		"cut":     func(*proxy) fault { return fault{drop: true} },
		"held":    func(p *proxy) fault { return fault{after: p.stops} },
	} {
		for _, step := range []string{"look", "set"} {
			t.Run(what+" "+step, func(t *testing.T) {
				t.Parallel()
				distorted(t, &Options{Fencing: true}, func(t *testing.T, p *proxy, b, witness *Backend) {
					p.on(step, f(p))
					l := locker(t, b, distlock.Options{})
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					if _, err := l.Acquire(ctx, "a"); err == nil {
						t.Error("granted without a token")
					}
					freeWithin(t, 2*time.Second, witness, "a")
				})
			})
		}
	}
}

// Without fault, but with many who use the same blob and create it at once.
func TestRaceToCreate(t *testing.T) {
	t.Parallel()
	withFakeClock(t, func(t *testing.T, e *emulator) {
		name := containerOf(e.container(t))
		for _, o := range []Options{{}, {DeleteOnRelease: true}, {Fencing: true}} {
			grants := make(chan driver.Grant, 16)
			failures := make(chan error, 16)
			for range 16 {
				b := New(client(t, e.endpoint(), name, nil), &o)
				go func() {
					g, err := b.Acquire(context.Background(), request("race"))
					if err == nil {
						grants <- g
					}
					failures <- err
				}()
			}
			for range 16 {
				if err := <-failures; err != nil && !errors.Is(err, driver.ErrHeld) {
					t.Errorf("%+v: %v", o, err)
				}
			}
			if len(grants) != 1 {
				t.Fatalf("%+v: %d grants", o, len(grants))
			}
			release(t, <-grants)
		}
	})
}
