package azurelock

import (
	"context"
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/lease"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

// ttl is that of most tests: the emulator doesn't know of fake clocks, and it is
// slow on a busy machine.
const ttl = maxTTL

// locker returns a Locker on the backend.
func locker(t testing.TB, b driver.Backend, o distlock.Options) *distlock.Locker {
	t.Helper()
	if o.TTL == 0 {
		o.TTL = ttl
	}
	l := distlock.New(b, &o)
	t.Cleanup(func() { l.Close() })
	return l
}

// request returns an attempt to get the resource at driver level.
func request(resource string) driver.Request {
	r := driver.Request{Resource: resource, TTL: ttl, Owner: driver.Owner{Host: "host", PID: 1, Program: "prog", Note: "ünï"}}
	rand.Read(r.Owner.ID[:])
	return r
}

func permit(resource string, limit int) driver.Request {
	r := request(resource)
	r.Mode, r.Limit = driver.Permit, limit
	return r
}

func take(t testing.TB, b *Backend, r driver.Request) driver.Grant {
	t.Helper()
	g, err := b.Acquire(t.Context(), r)
	if err != nil {
		t.Fatalf("%q: %v", r.Resource, err)
	}
	return g
}

func release(t testing.TB, g driver.Grant) {
	t.Helper()
	if err := g.Hold.Release(context.Background()); err != nil {
		t.Fatalf("release: %v", err)
	}
}

// free reports whether the resource can be had, and leaves it so.
func free(t testing.TB, b *Backend, resource string) bool {
	t.Helper()
	g, err := b.Acquire(context.Background(), request(resource))
	if err == nil {
		release(t, g)
		return true
	}
	if !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("%q: %v", resource, err)
	}
	return false
}

// freeWithin returns how long it takes until the resource can be had.
func freeWithin(t testing.TB, bound time.Duration, b *Backend, resource string) time.Duration {
	t.Helper()
	start := time.Now()
	for !free(t, b, resource) {
		if time.Since(start) > bound {
			t.Fatalf("%q isn't free within %v", resource, bound)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return time.Since(start)
}

// admin returns what an administrator has: a lease client without the ID.
func admin(t testing.TB, c *blob.Client) *lease.BlobClient {
	t.Helper()
	l, err := lease.NewBlobClient(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func breakLease(t testing.TB, c *blob.Client, period int32) {
	t.Helper()
	if _, err := admin(t, c).BreakLease(context.Background(), &lease.BlobBreakOptions{BreakPeriod: new(period)}); err != nil {
		t.Fatal(err)
	}
}

// state returns the blob's properties as anybody sees them.
func state(t testing.TB, c *blob.Client) blob.GetPropertiesResponse {
	t.Helper()
	p, err := c.GetProperties(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// lostWithin waits until the lock is lost and returns how long that takes.
func lostWithin(t testing.TB, bound time.Duration, l *distlock.Lock) time.Duration {
	t.Helper()
	start := time.Now()
	select {
	case <-l.Done():
		if err := l.Err(); !errors.Is(err, distlock.ErrLost) {
			t.Fatalf("ended with %v", err)
		}
		return time.Since(start)
	case <-time.After(bound + time.Millisecond):
		t.Fatalf("not reported as lost within %v", bound)
		return 0
	}
}
