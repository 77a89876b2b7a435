package azurelock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/lease"
	"github.com/distlock-go/distlock/driver"
)

// The metadata of a blob that mean something here. Names are compared without
// regard to case.
const (
	tokenKey  = "distlock_token"
	holderKey = "distlock_holder"

	// medallionMarker is on blobs that are to be deleted on release; see
	// https://github.com/madelson/DistributedLock.
	medallionMarker = "__DistributedLock"
)

// properties are what a blob is like at some moment.
type properties struct {
	etag     *azcore.ETag
	date     *time.Time // by the service's clock
	metadata map[string]*string
	state    lease.StateType
}

func (p *properties) get(key string) *string {
	for k, v := range p.metadata {
		if strings.EqualFold(k, key) {
			return v
		}
	}
	return nil
}

// marked reports whether the blob was created to be deleted.
func (p *properties) marked() bool { return p.get(medallionMarker) != nil }

// with returns the metadata with one value changed.
func (p *properties) with(key, value string) *properties {
	m := maps.Clone(p.metadata)
	if m == nil {
		m = make(map[string]*string)
	}
	for k := range m {
		if strings.EqualFold(k, key) {
			delete(m, k)
		}
	}
	m[key] = &value
	return &properties{etag: p.etag, date: p.date, metadata: m}
}

// nextToken returns a token larger than the blob's, and no smaller than the
// clock. The clock of the service counts seconds; what is smaller is taken from
// ours, as far as it agrees.
func (p *properties) nextToken(local time.Time) (uint64, error) {
	var last uint64
	if s := p.get(tokenKey); s != nil {
		var err error
		if last, err = strconv.ParseUint(*s, 10, 63); err != nil || last == math.MaxInt64 {
			return 0, fmt.Errorf("the blob's metadata hold no number for %s that can be counted on, and a smaller token than before must not be given out: "+
				"remove %[1]s from them; the count then starts at the service's clock", tokenKey)
		}
	}
	if p.date == nil {
		return last + 1, nil
	}
	const second = 1_000_000
	s := p.date.Unix()
	fraction := min(max(0, local.UnixMicro()-s*second), second-1)
	return max(last+1, uint64(s)<<20|uint64(fraction)), nil
}

// annotate writes what the options ask for under the lease, and returns the
// token.
func (b *Backend) annotate(ctx context.Context, t *target, r driver.Request) (token uint64, err error) {
	counts := b.o.Fencing && r.Mode != driver.Permit // the blob itself
	if counts || b.o.HolderNote {
		token, err = b.write(ctx, t, r.Owner.ID.String(), note(r.Owner, time.Now()), counts)
	}
	if err == nil && b.o.Fencing && !counts {
		token, err = b.countPermit(ctx, r.Resource)
	}
	return token, err
}

// countPermit returns the next token of the permits. Their fence is written under no
// lease; the condition alone orders those who count.
func (b *Backend) countPermit(ctx context.Context, resource string) (uint64, error) {
	for {
		t := b.target(permitFence(resource))
		token, err := b.write(ctx, &t, "", "", true)
		if !bloberror.HasCode(err, bloberror.BlobNotFound) {
			return token, err
		}
		_, err = b.create(ctx, t.block)
		if errors.Is(err, driver.ErrHeld) {
			// That is said of the fence, and the permit is ours.
			return 0, fmt.Errorf("somebody has a lease on %s, the blob that counts the permits: break the lease", t.name)
		}
		if err != nil {
			return 0, err
		}
	}
}

// mostWrites is how often the metadata are read anew because somebody else wrote
// them meanwhile. Under a lease nobody does.
const mostWrites = 50

// write writes the metadata on condition that they are as they were seen, and
// returns the new token, or 0 if it isn't to count.
func (b *Backend) write(ctx context.Context, t *target, id, note string, count bool) (token uint64, err error) {
	for i := range mostWrites {
		if t.seen == nil {
			if t.seen, err = b.look(ctx, t.blob, id); err != nil {
				return 0, err
			}
		}
		p := t.seen
		if count {
			if token, err = p.nextToken(time.Now()); err != nil {
				return 0, err
			}
			p = p.with(tokenKey, strconv.FormatUint(token, 10))
		}
		if note != "" {
			p = p.with(holderKey, note)
		}
		var set blob.SetMetadataResponse
		_, err = exchange(ctx, acquireTries, func(ctx context.Context) error {
			var err error
			set, err = t.blob.SetMetadata(ctx, p.metadata, &blob.SetMetadataOptions{AccessConditions: underLease(id, p)})
			return err
		})
		if err == nil {
			p.etag, p.date = set.ETag, set.Date
			t.seen = p
			return token, nil
		}
		if !bloberror.HasCode(err, bloberror.ConditionNotMet) {
			return 0, explain(err)
		}
		t.seen = nil
		if err := sleep(ctx, rand.N(time.Duration(i+1)*5*time.Millisecond)); err != nil {
			return 0, err
		}
	}
	return 0, fmt.Errorf("the blob's metadata change all the time: %w", explain(err))
}

// look asks for the blob's properties, under the lease with the ID unless that is
// empty.
func (b *Backend) look(ctx context.Context, c *blob.Client, id string) (*properties, error) {
	var p blob.GetPropertiesResponse
	_, err := exchange(ctx, acquireTries, func(ctx context.Context) error {
		var err error
		p, err = c.GetProperties(ctx, &blob.GetPropertiesOptions{AccessConditions: underLease(id, nil)})
		return err
	})
	if err != nil {
		return nil, explain(err)
	}
	return &properties{etag: p.ETag, date: p.Date, metadata: p.Metadata, state: deref(p.LeaseState)}, nil
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// note returns what is left for people who look who holds the resource: a form
// that is ASCII, as metadata have to be, and short, as they share 8 KiB.
func note(o driver.Owner, since time.Time) string {
	const most = 500
	v := url.Values{
		"lease": {o.ID.String()},
		"since": {since.UTC().Format(time.RFC3339Nano)},
		"pid":   {strconv.Itoa(o.PID)},
	}
	for key, value := range map[string]string{"host": o.Host, "program": o.Program, "note": o.Note} {
		if len(value) > most {
			value = strings.ToValidUTF8(value[:most], "")
		}
		if value != "" {
			v.Set(key, value)
		}
	}
	return v.Encode()
}

// noted returns the holder that the metadata tell of, and the ID of his lease;
// "" if they don't.
func (p *properties) noted() (h driver.Holder, id string) {
	v, err := url.ParseQuery(deref(p.get(holderKey)))
	if err != nil || v.Get("lease") == "" {
		return h, ""
	}
	h.Owner = driver.Owner{Host: v.Get("host"), Program: v.Get("program"), Note: v.Get("note")}
	h.Owner.PID, _ = strconv.Atoi(v.Get("pid")) // of what isn't known, nothing is said
	h.Owner.ID, _ = parseID(v.Get("lease"))
	h.Since, _ = time.Parse(time.RFC3339Nano, v.Get("since"))
	h.Token, _ = strconv.ParseUint(deref(p.get(tokenKey)), 10, 64)
	return h, v.Get("lease")
}
