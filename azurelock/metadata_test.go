package azurelock

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

func TestTokensSurvive(t *testing.T) {
	t.Parallel()
	e := azurite(t)
	c := e.container(t)
	b := New(c, &Options{Fencing: true})
	var last uint64
	next := func(what string) {
		t.Helper()
		g := take(t, b, request("a"))
		if g.Token <= last {
			t.Errorf("token %d %s, after %d", g.Token, what, last)
		}
		if g.Token >= 1<<53 {
			t.Errorf("token %d is more than a float64 can tell apart", g.Token)
		}
		last = g.Token
		release(t, g)
	}
	client := c.NewBlockBlobClient("a")
	next("of a new blob")
	next("of an old one")
	if _, err := client.Delete(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	next("of a blob that was deleted")
	if _, err := client.Upload(t.Context(), nothing{strings.NewReader("x")}, nil); err != nil {
		t.Fatal(err)
	}
	next("of a blob that was overwritten") // which Medallion.Threading does when two create it
	set := func(value string) {
		if _, err := client.SetMetadata(t.Context(), map[string]*string{tokenKey: new(value)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	set("1")
	next("of a blob that was set back")
	far := last + 1<<40
	set(strconv.FormatUint(far, 10))
	last = far
	next("of a count that is ahead of the clock")
	for _, bad := range []string{"x", "-1", "1.5", "99999999999999999999999", "18446744073709551615", "9223372036854775807"} {
		set(bad)
		if g, err := b.Acquire(t.Context(), request("a")); err == nil {
			t.Errorf("token %d after %q", g.Token, bad)
		} else if !strings.Contains(err.Error(), "smaller token") || !strings.Contains(err.Error(), "remove distlock_token") {
			t.Error(err)
		}
		breakLease(t, client.BlobClient(), 0)
	}
	if _, err := client.SetMetadata(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	last = 0 // which was ahead of the clock
	next("of a count that was removed, as the error said")
}

func TestClockOfTokens(t *testing.T) {
	second := time.Unix(1_800_000_000, 0)
	token := func(stored string, date time.Time, local time.Time) uint64 {
		p := &properties{date: &date, metadata: map[string]*string{}}
		if stored != "" {
			p.metadata["DISTLOCK_Token"] = &stored
		}
		n, err := p.nextToken(local)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	base := uint64(1_800_000_000) << 20
	for _, c := range []struct {
		stored string
		local  time.Duration
		want   uint64
	}{
		{"", 0, base},
		{"", 5 * time.Microsecond, base + 5},
		{"", -time.Hour, base},                // our clock is behind the service's
		{"", time.Hour, base + 999_999},       // ahead
		{"7", 5 * time.Microsecond, base + 5}, // the clock went on
		{strconv.FormatUint(base+5, 10), 5 * time.Microsecond, base + 6},
		{strconv.FormatUint(base<<1, 10), 0, base<<1 + 1},
	} {
		if got := token(c.stored, second, second.Add(c.local)); got != c.want {
			t.Errorf("%q at %v: %d, want %d", c.stored, c.local, got, c.want)
		}
	}
	if a, b := token("", second, second.Add(time.Hour)), token("", second.Add(time.Second), second); a >= b {
		t.Errorf("%d, and a second later %d", a, b)
	}
}

// What others wrote into the metadata stays.
func TestOthersMetadata(t *testing.T) {
	t.Parallel()
	withFakeClock(t, func(t *testing.T, e *emulator) {
		c := e.container(t)
		client := c.NewBlockBlobClient("a")
		if _, err := client.Upload(t.Context(), nothing{strings.NewReader("x")}, &blockblob.UploadOptions{
			Metadata: map[string]*string{"theirs": new("1"), medallionMarker: new("2")},
		}); err != nil {
			t.Fatal(err)
		}
		release(t, take(t, New(c, &Options{Fencing: true, HolderNote: true}), request("a")))
		p := &properties{metadata: state(t, client.BlobClient()).Metadata}
		for key, want := range map[string]string{"theirs": "1", medallionMarker: "2"} {
			if got := deref(p.get(key)); got != want {
				t.Errorf("%s: %q", key, got)
			}
		}
		if p.get(tokenKey) == nil || p.get(holderKey) == nil {
			t.Errorf("%v", p.metadata)
		}
	})
}

// With DeleteOnRelease a blob is deleted if it was created for that, by us or by
// Medallion.Threading, which marks it; without, never. What Medallion itself
// does is not tested: there is no .NET here.
func TestDeleteOnRelease(t *testing.T) {
	t.Parallel()
	withFakeClock(t, func(t *testing.T, e *emulator) {
		c := e.container(t)
		exists := func(name string) bool {
			_, err := c.NewBlobClient(name).GetProperties(context.Background(), nil)
			return err == nil
		}
		upload := func(name string, marked bool) {
			o := &blockblob.UploadOptions{}
			if marked {
				o.Metadata = map[string]*string{medallionMarker: new(time.Now().Format(time.RFC3339))}
			}
			if _, err := c.NewBlockBlobClient(name).Upload(context.Background(), nothing{strings.NewReader("")}, o); err != nil {
				t.Fatal(err)
			}
		}
		deleting, keeping := New(c, &Options{DeleteOnRelease: true}), New(c, nil)
		for _, s := range []struct {
			name   string
			b      *Backend
			before string // "", "plain", "marked"
			left   bool
		}{
			{"a", deleting, "", false},
			{"b", deleting, "marked", false},
			{"c", deleting, "plain", true},
			{"d", keeping, "", true},
			{"e", keeping, "marked", true},
			{"f", keeping, "plain", true},
			{"g", New(c, &Options{DeleteOnRelease: true, HolderNote: true}), "marked", false},
		} {
			if s.before != "" {
				upload(s.name, s.before == "marked")
			}
			g := take(t, s.b, request(s.name))
			if free(t, deleting, s.name) || free(t, keeping, s.name) {
				t.Errorf("%s is free", s.name)
			}
			release(t, g)
			if got := exists(s.name); got != s.left {
				t.Errorf("%+v: exists: %t", s, got)
			}
			if err := g.Hold.Release(t.Context()); err != nil {
				t.Errorf("%s, again: %v", s.name, err)
			}
			if !free(t, s.b, s.name) {
				t.Errorf("%s is held", s.name)
			}
		}
		// A snapshot keeps the blob from being deleted: it is released all the same.
		g := take(t, deleting, request("h"))
		if _, err := c.NewBlobClient("h").CreateSnapshot(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		release(t, g)
		if !exists("h") || !free(t, keeping, "h") {
			t.Error("h is gone, or held")
		}
		// The holder's blob can't be deleted by others.
		g = take(t, deleting, request("i"))
		if _, err := c.NewBlobClient("i").Delete(t.Context(), nil); err == nil {
			t.Error("deleted without the lease")
		}
		release(t, g)
		// A reply to the deletion is lost.
		p := newProxy(t)
		b := New(client(t, e.endpoint(), containerOf(c), p.through), &Options{DeleteOnRelease: true})
		g = take(t, b, request("j"))
		first := true
		p.set(func(o string) fault {
			drop := o == "delete" && first
			if drop {
				first = false
			}
			return fault{drop: drop}
		})
		if err := g.Hold.Release(t.Context()); err != nil {
			t.Errorf("deleted, but: %v", err)
		}
		if p.count("delete") != 2 {
			t.Error(p.operations())
		}
	})
}

func TestHolders(t *testing.T) {
	t.Parallel()
	withFakeClock(t, func(t *testing.T, e *emulator) {
		c := e.container(t)
		noting, silent := New(c, &Options{HolderNote: true, Fencing: true}), New(c, nil)
		holders := func(mode driver.Mode) []driver.Holder {
			t.Helper()
			h, err := silent.Holders(t.Context(), "a", mode)
			if err != nil {
				t.Fatal(err)
			}
			return h
		}
		if h := holders(driver.Exclusive); len(h) != 0 {
			t.Errorf("%+v", h)
		}
		r := request("a")
		g := take(t, noting, r)
		h := holders(driver.Exclusive)
		if len(h) != 1 || h[0].Owner != r.Owner || h[0].Token != g.Token || h[0].Mode != driver.Exclusive || time.Since(h[0].Since) > time.Minute || h[0].Since.IsZero() {
			t.Errorf("%+v, want %+v with token %d", h, r.Owner, g.Token)
		}
		release(t, g)
		if h := holders(driver.Exclusive); len(h) != 0 {
			t.Errorf("%+v", h)
		}
		// The note that is left is not of this one.
		g = take(t, silent, request("a"))
		if h := holders(driver.Exclusive); len(h) != 1 || h[0].Owner != (driver.Owner{}) || h[0].Token != 0 {
			t.Errorf("%+v", h)
		}
		release(t, g)

		one, other := permit("a", 3), permit("a", 3)
		release(t, take(t, noting, permit("a", 3)))
		take(t, noting, one)
		take(t, silent, other)
		h = holders(driver.Permit)
		known := 0
		for _, h := range h {
			if h.Owner == one.Owner {
				known++
			}
		}
		if len(h) != 2 || known != 1 || len(holders(driver.Exclusive)) != 0 {
			t.Errorf("%+v", h)
		}
		// As people get it.
		l := locker(t, noting, distlock.Options{Note: "n"})
		lock, err := l.TryAcquire(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		got, err := l.Holders(t.Context(), "b")
		if err != nil || len(got) != 1 || got[0].Owner.PID == 0 || got[0].Owner.Note != "n" {
			t.Errorf("%+v, %v", got, err)
		}
		lock.Release()
		if _, err := OnBlob(c.NewBlobClient("missing"), nil).Holders(t.Context(), "x", driver.Exclusive); err == nil {
			t.Error("nobody holds what doesn't exist, and nobody can")
		}
		gone := New(client(t, e.endpoint(), "gone", nil), nil)
		if _, err := gone.Holders(t.Context(), "x", driver.Exclusive); err == nil || errors.Is(err, driver.ErrHeld) {
			t.Errorf("%v", err)
		}
	})
}

func TestNoteIsShort(t *testing.T) {
	long := strings.Repeat("漢", 5000)
	n := note(driver.Owner{Host: long, Program: long, Note: long}, time.Now())
	if len(n) > 6000 {
		t.Errorf("%d bytes", len(n))
	}
	h, id := (&properties{metadata: map[string]*string{"Distlock_Holder": &n}}).noted()
	if id != (driver.ID{}).String() || !strings.HasPrefix(long, h.Owner.Host) || len(h.Owner.Host) < 400 {
		t.Errorf("%+v", h)
	}
	for _, s := range []string{"", "lease=", "%zz", "pid=x"} {
		if _, id := (&properties{metadata: map[string]*string{holderKey: &s}}).noted(); id != "" {
			t.Errorf("%q", s)
		}
	}
}

// A blob that somebody puts in the place of the one that an attempt created,
// before the attempt leases it, isn't the attempt's to delete.
func TestReplacedBeforeItIsLeased(t *testing.T) {
	t.Parallel()
	withFakeClock(t, func(t *testing.T, e *emulator) {
		c := e.container(t)
		p := newProxy(t)
		gate := make(chan struct{})
		p.on("acquire", fault{before: gate})
		b := New(client(t, e.endpoint(), containerOf(c), p.through), &Options{DeleteOnRelease: true})
		grants := make(chan driver.Grant, 1)
		go func() {
			defer close(grants)
			g, err := b.Acquire(context.Background(), request("a"))
			if err != nil {
				t.Error(err)
				return
			}
			grants <- g
		}()
		for p.count("acquire") == 0 {
			time.Sleep(time.Millisecond)
		}
		release(t, take(t, New(c, &Options{DeleteOnRelease: true}), request("a"))) // which deletes it
		if _, err := c.NewBlockBlobClient("a").Upload(t.Context(), nothing{strings.NewReader("theirs")}, nil); err != nil {
			t.Fatal(err)
		}
		close(gate)
		g, ok := <-grants
		if !ok {
			t.FailNow()
		}
		release(t, g)
		if got := *state(t, c.NewBlobClient("a")).ContentLength; got == 0 {
			t.Error("overwritten")
		}
	})
}
