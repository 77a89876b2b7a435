package distlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

// instant grants at once, each on a session of its own, as files do.
type instant struct{ bound time.Duration }

type instantHold struct{ _ int }

func (b instant) Info() driver.Info {
	return driver.Info{Name: "instant", Modes: driver.ModesOf(driver.Exclusive), AnswersWithin: b.bound}
}

func (instant) Acquire(context.Context, driver.Request) (driver.Grant, error) {
	h := &instantHold{}
	return driver.Grant{Hold: h, Session: h, Token: 1}, nil
}

func (instant) Close() error                       { return nil }
func (*instantHold) Release(context.Context) error { return nil }
func (*instantHold) Lease() driver.Lease           { return driver.Lease{Every: 5 * time.Second} }
func (*instantHold) Renew(context.Context) error   { return nil }
func (*instantHold) Lost() <-chan struct{}         { return nil }
func (*instantHold) Abandon()                      {}

// What it takes to lock in a store is bounded, whoever the store is: no channel, context
// or timer is made that nobody has asked for.
func TestAllocationsBesideTheStores(t *testing.T) {
	l := distlock.New(instant{100 * time.Millisecond}, nil)
	defer l.Close()
	ctx := t.Context()
	n := testing.AllocsPerRun(1000, func() {
		lock, err := l.Acquire(ctx, "a", distlock.Timeout(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.Release(); err != nil {
			t.Fatal(err)
		}
	})
	if n > 8 { // one of them is the store's
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkOverhead is what this package adds to the calls of a backend.
func BenchmarkOverhead(b *testing.B) {
	for _, c := range []struct {
		name  string
		bound time.Duration
	}{{"bounded", 100 * time.Millisecond}, {"unbounded", 0}} {
		b.Run(c.name, func(b *testing.B) {
			l := distlock.New(instant{c.bound}, nil)
			defer l.Close()
			b.ReportAllocs()
			for b.Loop() {
				lock, err := l.Acquire(b.Context(), "a", distlock.Timeout(time.Minute))
				if err != nil {
					b.Fatal(err)
				}
				if err := lock.Release(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
