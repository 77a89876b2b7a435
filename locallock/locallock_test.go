package locallock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/heldtest"
	"github.com/distlock-go/distlock/locallock"
)

func open(t *testing.T, url string) *distlock.Locker {
	t.Helper()
	l, err := distlock.Open(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestURLsShareOneStore(t *testing.T) {
	one, other := open(t, "local:"), open(t, "local:")
	lock, err := one.TryAcquire(t.Context(), t.Name())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.TryAcquire(t.Context(), t.Name()); !errors.Is(err, distlock.ErrNotAcquired) {
		t.Fatalf("held through another Locker: got %v, want ErrNotAcquired", err)
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	if err := one.Close(); err != nil {
		t.Fatal(err)
	}
	lock, err = other.TryAcquire(t.Context(), t.Name())
	if err != nil {
		t.Fatalf("after the other Locker was closed: %v", err)
	}
	lock.Release()
}

func TestNewStoresAreApart(t *testing.T) {
	one, other := distlock.New(locallock.New(), nil), distlock.New(locallock.New(), nil)
	for _, l := range []*distlock.Locker{one, other} {
		if _, err := l.TryAcquire(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestURLWithMoreIsRefused(t *testing.T) {
	for _, url := range []string{"local:x", "local:/x", "local://host", "local:?ttl=3s", "local:#f", "local://u:pw@h"} {
		_, err := distlock.Open(t.Context(), url, nil)
		if !errors.Is(err, distlock.ErrBadArgument) || strings.Contains(err.Error(), "pw") {
			t.Errorf("%s: got %v, want ErrBadArgument", url, err)
		}
	}
}

func TestUncontendedAllocatesAtMostTwice(t *testing.T) {
	l := distlock.New(locallock.New(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	least := math.Inf(1)
	for range 5 { // what goes on beside it counts too
		least = min(least, testing.AllocsPerRun(1000, func() { acquireRelease(t, ctx, l, "inventory:42") }))
	}
	if least > 2 {
		t.Errorf("Acquire and Release allocate %v times, want at most 2", least)
	}
}

func TestHoldersAreThisProcess(t *testing.T) {
	b := locallock.New()
	l := distlock.New(b, &distlock.Options{Note: "stocktaking", Trace: &distlock.Trace{}})
	lock, err := l.Acquire(t.Context(), "a", distlock.Shared())
	if err != nil {
		t.Fatal(err)
	}
	token, _ := lock.Token()
	if _, err := b.Acquire(t.Context(), driver.Request{Resource: "a", Mode: driver.Permit, Limit: 1}); err != nil {
		t.Fatal(err)
	}
	holders, err := l.Holders(t.Context(), "a")
	if err != nil || len(holders) != 1 {
		t.Fatalf("got %v, %v, want one holder", holders, err)
	}
	h := holders[0]
	if h.Owner.PID != os.Getpid() || h.Owner.Note != "stocktaking" || h.Mode != driver.Shared || h.Token != token ||
		time.Since(h.Since) > time.Hour {
		t.Errorf("got %+v", h)
	}
	if permits, err := l.Holders(t.Context(), "a", distlock.Semaphore(1)); err != nil || len(permits) != 1 {
		t.Errorf("got %v, %v, want one holder of a permit", permits, err)
	}
	lock.Release()
	if holders, err := l.Holders(t.Context(), "a"); err != nil || len(holders) != 0 {
		t.Errorf("after Release: got %v, %v, want none", holders, err)
	}
}

func TestHeldLocksAreSmall(t *testing.T) {
	const n = 100_000
	held, err := heldtest.Take(t.Context(), open(t, "local:"), n, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes each, %d goroutines more", held.Each, held.Goroutines)
	if held.Each >= 1024 {
		t.Errorf("a lock that is held takes %d bytes", held.Each)
	}
	if left, err := held.Release(); err != nil || left > n*64 {
		t.Errorf("%d bytes are left of %d names: %v", left, n, err)
	}
}

func Example() {
	locks := distlock.New(locallock.New(), nil)
	defer locks.Close()

	err := locks.Do(context.Background(), "inventory:42", func(ctx context.Context) error {
		fmt.Println("stock deducted")
		return nil
	})
	fmt.Println(err)
	// Output:
	// stock deducted
	// <nil>
}

// faulty is a backend that does something else than the one it is made of.
type faulty struct{ *locallock.Backend }

var errFaulty = errors.New("faulty")

func (faulty) Acquire(context.Context, driver.Request) (driver.Grant, error) {
	return driver.Grant{}, errFaulty
}

func TestEmbeddedBackendIsAsked(t *testing.T) {
	l := distlock.New(faulty{locallock.New()}, nil)
	defer l.Close()
	if _, err := l.Acquire(t.Context(), "a"); !errors.Is(err, errFaulty) {
		t.Errorf("got %v", err)
	}
}
