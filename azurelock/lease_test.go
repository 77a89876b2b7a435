package azurelock

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/lease"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

func must(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		panic(err)
	}
	return d
}

// What an administrator can do to a lease: the holder sees it at the next
// renewal, a third of the lease later at most.
func TestInterference(t *testing.T) {
	t.Parallel()
	for what, interfere := range map[string]func(t *testing.T, c *container.Client, b *blob.Client, id string){
		"broken at once": func(t *testing.T, _ *container.Client, b *blob.Client, _ string) { breakLease(t, b, 0) },
		"broken with a period": func(t *testing.T, _ *container.Client, b *blob.Client, _ string) {
			breakLease(t, b, 60)
		},
		"changed": func(t *testing.T, _ *container.Client, b *blob.Client, id string) {
			l, err := lease.NewBlobClient(b, &lease.BlobClientOptions{LeaseID: &id})
			if err == nil {
				_, err = l.ChangeLease(context.Background(), request("").Owner.ID.String(), nil)
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		"blob deleted": func(t *testing.T, _ *container.Client, b *blob.Client, id string) {
			if _, err := b.Delete(context.Background(), &blob.DeleteOptions{AccessConditions: underLease(id, nil)}); err != nil {
				t.Fatal(err)
			}
		},
		"container deleted": func(t *testing.T, c *container.Client, _ *blob.Client, _ string) {
			if _, err := c.Delete(context.Background(), nil); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			withFakeClock(t, func(t *testing.T, e *emulator) {
				c := e.container(t)
				b := New(c, &Options{HolderNote: true})
				l := locker(t, b, distlock.Options{})
				lock, err := l.TryAcquire(t.Context(), "a")
				if err != nil {
					t.Fatal(err)
				}
				holders, err := b.Holders(t.Context(), "a", driver.Exclusive)
				if err != nil || len(holders) != 1 {
					t.Fatalf("%v, %v", holders, err)
				}
				interfere(t, c, c.NewBlobClient("a"), holders[0].Owner.ID.String())
				took := lostWithin(t, ttl/3, lock)
				t.Logf("lost after %v: %v", took, lock.Err())
				if err := lock.Release(); !errors.Is(err, distlock.ErrLost) {
					t.Errorf("release: %v", err)
				}
				if what == "broken with a period" {
					if free(t, b, "a") {
						t.Error("free before the break period is over")
					}
				}
			})
		})
	}
}

// A release that comes before the next renewal is told, too.
func TestReleaseOfWhatIsGone(t *testing.T) {
	t.Parallel()
	withFakeClock(t, func(t *testing.T, e *emulator) {
		c := e.container(t)
		b := New(c, nil)
		g := take(t, b, request("a"))
		breakLease(t, c.NewBlobClient("a"), 0)
		next := take(t, b, request("a"))
		if err := g.Hold.Release(t.Context()); !errors.Is(err, driver.ErrLost) {
			t.Errorf("%v", err)
		}
		if free(t, b, "a") {
			t.Error("the next holder's lease is gone")
		}
		release(t, next)

		g = take(t, b, request("b"))
		if _, err := c.NewBlobClient("b").Delete(t.Context(), &blob.DeleteOptions{AccessConditions: underLease(g.Hold.(*hold).id.String(), nil)}); err != nil {
			t.Fatal(err)
		}
		if err := g.Hold.Release(t.Context()); !errors.Is(err, driver.ErrLost) {
			t.Errorf("%v", err)
		}
	})
}

// The service would renew a lease that ran out, if nobody took it since. It is
// never asked.
func TestExpiredLeaseIsLeftAlone(t *testing.T) {
	t.Parallel()
	withFakeClock(t, func(t *testing.T, e *emulator) {
		p := newProxy(t)
		b := New(client(t, e.endpoint(), containerOf(e.container(t)), p.through), nil)
		g := take(t, b, request("a"))
		time.Sleep(ttl)
		n := len(p.operations())
		if err := g.Session.Renew(t.Context()); !errors.Is(err, driver.ErrLost) {
			t.Errorf("renew: %v", err)
		}
		if err := g.Hold.Release(t.Context()); !errors.Is(err, driver.ErrLost) {
			t.Errorf("release: %v", err)
		}
		if got := p.operations()[n:]; len(got) > 0 {
			t.Errorf("after the end of the lease: %v", got)
		}
	})
}

// The wall clock is believed if it says that more time passed: the monotonic one
// stands still in suspend.
func TestClocks(t *testing.T) {
	now := time.Now()
	h := &hold{ttl: ttl, renewed: now}
	if _, over, _ := h.state(); over {
		t.Error("over at once")
	}
	h = &hold{ttl: ttl, renewed: now.Add(-ttl)}
	if _, over, err := h.state(); !over || !errors.Is(err, driver.ErrLost) {
		t.Error("not over when the lease is")
	}
	// Without a monotonic reading only the wall clock counts.
	h = &hold{ttl: ttl, renewed: now.Add(-ttl).Round(0)}
	if _, over, _ := h.state(); !over {
		t.Error("not over when the wall clock says so")
	}
}

// A lease length between seconds is rounded up in the service, and believed as
// it was asked for.
func TestFractionsOfSeconds(t *testing.T) {
	var asked []string
	b := New(client(t, "http://scripted.invalid", "c", func(http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			if operation(r) == "acquire" {
				asked = append(asked, header(r, "x-ms-lease-duration"))
			}
			return &http.Response{StatusCode: http.StatusCreated, Header: http.Header{"X-Ms-Lease-Id": {leaseID(r)}}, Body: http.NoBody, Request: r}, nil
		})
	}), nil)
	for _, ttl := range []time.Duration{15 * time.Second, 15*time.Second + time.Millisecond, 16*time.Second - 1} {
		r := request("a")
		r.TTL = ttl
		if got := take(t, b, r).Session.Lease().TTL; got != ttl {
			t.Errorf("%v is believed to be %v", ttl, got)
		}
	}
	if want := []string{"15", "16", "16"}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q seconds, want %q", asked, want)
	}
}

// A loss that the clock says, and not the service, is followed by a release when
// the lease is over, so that no renewal that is on its way brings it back.
func TestAbandonedLeaseIsReleased(t *testing.T) {
	t.Parallel()
	withFakeClock(t, func(t *testing.T, e *emulator) {
		p := newProxy(t)
		b := New(client(t, e.endpoint(), containerOf(e.container(t)), p.through), nil)
		for _, resource := range []string{"a", "b"} {
			g := take(t, b, request(resource))
			h := g.Hold.(*hold)
			if resource == "b" {
				h.lost = true // the service said so
			} else {
				h.set(func() { h.renewed = time.Now().Add(300*time.Millisecond - ttl) })
			}
			g.Session.Abandon()
			if free(t, b, resource) {
				t.Errorf("%s was set free before its time", resource)
			}
			time.Sleep(299 * time.Millisecond)
			if free(t, b, resource) {
				t.Errorf("%s was set free before its time", resource)
			}
			time.Sleep(2 * time.Millisecond)
			if got := free(t, b, resource); got != (resource == "a") {
				t.Errorf("%s, when its time is over: free: %t", resource, got)
			}
		}
	})
}

func TestOnBlob(t *testing.T) {
	t.Parallel()
	withFakeClock(t, func(t *testing.T, e *emulator) {
		c := e.container(t)
		data := c.NewBlockBlobClient("data.json")
		const content = `{"stock": 1}`
		if _, err := data.Upload(t.Context(), nothing{strings.NewReader(content)}, nil); err != nil {
			t.Fatal(err)
		}
		for _, o := range []*Options{nil, {Fencing: true}} {
			b := OnBlob(data.BlobClient(), o)
			if holders, err := b.Holders(t.Context(), "who asks doesn't name it", driver.Exclusive); err != nil || len(holders) != 0 {
				t.Errorf("%v, %v", holders, err)
			}
			g := take(t, b, request("any name"))
			if _, err := b.Acquire(t.Context(), request("another")); !errors.Is(err, distlock.ErrBadArgument) {
				t.Errorf("two resources on one blob: %v", err)
			}
			if _, err := b.Acquire(t.Context(), permit("any name", 2)); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("%v", err)
			}
			if _, err := OnBlob(data.BlobClient(), nil).Acquire(t.Context(), request("what others call it")); !errors.Is(err, driver.ErrHeld) {
				t.Errorf("%v", err)
			}
			// It is the same blob as that of the resource of its name.
			if free(t, New(c, nil), "data.json") {
				t.Error("free")
			}
			holders, err := b.Holders(t.Context(), "any name", driver.Exclusive)
			if err != nil || len(holders) != 1 {
				t.Errorf("%v, %v", holders, err)
			}
			if _, err := data.Upload(t.Context(), nothing{strings.NewReader("")}, nil); !bloberror.HasCode(err, bloberror.LeaseIDMissing) {
				t.Errorf("written without the lease: %v", err)
			}
			release(t, g)
		}
		if got := *state(t, data.BlobClient()).ContentLength; got != int64(len(content)) {
			t.Errorf("%d bytes are left", got)
		}
		// The holder's own writes need the ID of the lease.
		l := locker(t, OnBlob(data.BlobClient(), &Options{HolderNote: true}), distlock.Options{})
		lock, err := l.TryAcquire(t.Context(), "data")
		if err != nil {
			t.Fatal(err)
		}
		holders, err := l.Holders(t.Context(), "data")
		if err != nil || len(holders) != 1 {
			t.Fatalf("%v, %v", holders, err)
		}
		if _, err := data.Upload(t.Context(), nothing{strings.NewReader("new")}, &blockblob.UploadOptions{
			AccessConditions: underLease(holders[0].Owner.ID.String(), nil),
		}); err != nil {
			t.Errorf("written by the holder: %v", err)
		}
		if err := lock.Release(); err != nil {
			t.Error(err)
		}
		if _, err := OnBlob(c.NewBlobClient("missing"), nil).Acquire(t.Context(), request("x")); err == nil || !strings.Contains(err.Error(), "doesn't exist") {
			t.Errorf("%v", err)
		}
	})
}
