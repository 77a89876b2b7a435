// Package azurelock locks with leases on blobs in Azure Blob Storage.
//
//	import _ "github.com/distlock-go/distlock/azurelock"
//
//	locks, err := distlock.Open(ctx, "azblob://container?account=NAME", nil)
//
// or, with a client that the program has already,
//
//	locks := distlock.New(azurelock.New(client, nil), nil)
//
// # Requirements
//
// A container in a storage account, on Azure, in a sovereign cloud, or in the
// emulator Azurite. Container and account are the caller's to create, unless
// [Options.CreateContainer] says otherwise. Immutability policies on the
// container get in the way of [Options.Fencing], [Options.HolderNote] and
// [Options.DeleteOnRelease]; the rest works with them.
//
// What the credential must be allowed to do, and what that is called in a role
// and in a SAS:
//
//	always                    blobs/write (leases are writes), blobs/read    w, c
//	Fencing, HolderNote       blobs/read, blobs/write                        r, w
//	DeleteOnRelease           blobs/read, blobs/delete                       r, d
//	CreateContainer           containers/write                               account SAS only
//	Holders of permits        blobs/read (list)                              r, l
//
// The role Storage Blob Data Contributor has all of it.
//
// The URL is azblob://container. Its parameters are account, endpoint (the
// blob service's, where it is not https://ACCOUNT.blob.core.windows.net), blob
// (see [OnBlob]), max_poll, fencing, holder_note, delete_on_release and
// create_container. Secrets come from the environment and never from the URL:
// AZURE_STORAGE_CONNECTION_STRING, if the URL names neither account nor
// endpoint; else the account (AZURE_STORAGE_ACCOUNT, if the URL has none) with
// AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or, without either, what
// azidentity.NewDefaultAzureCredential finds within 4.5 seconds.
//
// # How it locks
//
// A resource is a blob, see [Backend.BlobName]; the lock is a lease on it for
// Options.TTL of package distlock, 15 to 60 seconds, rounded up to full ones.
// The lease ID is the ID of the attempt, so that an attempt that is repeated
// because its answer was lost recognizes its own success. A blob that doesn't
// exist is created, empty, on condition that there is none. Nothing is ever
// overwritten, and what the blob holds doesn't matter.
//
//	Acquire and Release                       2 requests
//	the first time, when the blob is created  3
//	while held                                1 each third of the lease
//	Fencing, HolderNote or both               2 more (1 if the blob is created)
//	DeleteOnRelease                           3, created and deleted each time
//
// Whether a blob exists that it hasn't yet used a process can only guess, and
// does so by the one before; a wrong guess costs a request.
//
// Every request is billed as one of Azure's "other operations", but for the
// creation of a blob, a write, and the deletion, which is free.
//
// Medallion.Threading (.NET) leases the same blob, so that services of both
// kinds exclude each other. It deletes blobs that it created, which it tells by
// their metadata; blobs created by this package are kept, by both, unless
// [Options.DeleteOnRelease] is set, which makes this package do and expect the
// same as Medallion.
//
// A semaphore of n permits is n blobs below __distlock__/permits/, tried from a
// random one on; a try that fails costs n requests. After four seconds it is
// given up, although one that wasn't asked for may be free.
//
// # Waiting
//
// The service can't tell anybody that a lease came free. A process asks, with
// one request for each resource that it waits for however many goroutines wait,
// after pauses that grow from 0.2 s to [Options.MaxPoll], jittered by half. For a
// resource that it waited for before they begin with half of what that took, 25
// ms at least. There is no order between processes.
//
// # Loss
//
// A killed process's lock comes free when its lease runs out. A lock is lost if
// it can't be renewed for nine tenths of the lease, counted from before the last
// request that succeeded was sent, and at the next renewal if the lease was
// broken or changed, or the blob or container deleted. A lease that was broken
// keeps others out for the break period; the holder learns of it up to a third
// of the lease later: to interrupt a holder, break with a period of more than
// that. Azure would let a lease that ran out be renewed as long as nobody else
// took it; this package never asks for it.
//
// Requests are given up when they can't be of use any more, and an Acquire that
// was canceled is given half a second to be answered, since the answer costs less
// than finding out. When no answer came at all, the lease is released at once,
// and again three times over two seconds, in case the request is still on its
// way. One that is delivered later than that (some proxy held it up) takes the
// resource for one lease, and for nobody; so does the first try of an Acquire that
// was granted at its second, if it is delivered after the release.
//
// # Tokens
//
// With [Options.Fencing] a number in the blob's metadata, distlock_token, is
// written under the lease, on condition that the metadata didn't change since
// they were read. It is the service's time in seconds, times 2^20, plus the
// microseconds of this host's clock, and larger than the one before in any case. So
// a blob that was deleted, overwritten, or set back by a geo-failover goes on
// with larger numbers, unless that happened within the very second of the last
// grant. Permits of a semaphore share one number, in a blob of its own.
//
// # Limits
//
// Shared and upgradeable locks are not supported. A lease has one holder; all
// that readers could add to it is a list in the metadata, which would have to be
// kept by processes that die, on their clocks: that is no lease.
//
// Metadata of others is preserved, but for the case of its names, which Go's
// HTTP library changes; the service doesn't tell cases apart.
//
// In accounts with a hierarchical namespace a blob can't have the name of a
// directory: resources "a" and "a/b" exclude each other's existence there, with an
// error. Geo-redundant accounts replicate with delay: after a failover that was
// not planned, locks taken in the last minutes may be free although their
// holders still trust them for up to the rest of the lease. The secondary is
// never asked.
package azurelock

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

// The service takes leases of these lengths, and infinite ones, which would
// never come free if their holder died.
// https://learn.microsoft.com/rest/api/storageservices/lease-blob
const (
	minTTL = 15 * time.Second
	maxTTL = 60 * time.Second
)

const (
	firstPoll      = 200 * time.Millisecond
	defaultMaxPoll = time.Second
	leastMaxPoll   = 50 * time.Millisecond
)

// Options tune a [Backend]. Nil and the zero value are the defaults.
type Options struct {
	// MaxPoll is how long a waiting process pauses between its questions, on
	// average, once it has waited for some seconds. Default 1 s, at least 50 ms.
	// Every question is a request that is billed.
	MaxPoll time.Duration

	// Fencing gives every grant a token, for two more requests. It can't be had
	// together with DeleteOnRelease: the count would go with the blob.
	Fencing bool

	// HolderNote leaves word in the blob's metadata of who holds it: host, process,
	// program, since when. It costs two more requests, or none beside Fencing,
	// which writes the note anyhow; for permits two in any case.
	HolderNote bool

	// DeleteOnRelease deletes a blob instead of releasing its lease, if its
	// metadata say that it was created for that: by a backend with this option,
	// or by Medallion.Threading. A blob that can't be deleted (no right to, a
	// snapshot, a policy) is released and kept. In accounts with soft delete each
	// deleted blob is kept, and billed, for the retention time.
	DeleteOnRelease bool

	// CreateContainer creates the container when it turns out to be missing.
	CreateContainer bool
}

// Backend leases blobs in one container, or one blob. Its methods are safe for
// concurrent use.
type Backend struct {
	container *container.Client // nil: only the one blob
	single    *blob.Client
	maxName   int // in UTF-16 code units
	o         Options
	info      driver.Info
	bad       error // what is wrong with the arguments of New
	existing  existence

	mu       sync.Mutex
	closed   bool
	name     string // of the single blob's resource
	outcomes map[driver.ID]outcome
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Undoer    = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
)

// New returns a backend on the blobs of a container. It does no I/O; options
// that can't be had are reported by the first Acquire, with an error that
// matches distlock.ErrBadArgument. How the client retries doesn't matter: it
// isn't let to.
func New(c *container.Client, o *Options) *Backend {
	b := newBackend(o)
	b.info.Modes |= driver.ModesOf(driver.Permit)
	if c == nil {
		b.bad = badArgument("the container client is nil")
		return b
	}
	b.container = c
	b.maxName = 1024
	if strings.HasPrefix(c.URL(), "http://127.0.0.1:10000/devstoreaccount1") {
		b.maxName = 256 // as Medallion.Threading has it
	}
	return b
}

// OnBlob returns a backend that has one lock: a lease on the given blob, which
// must exist, whatever its type and content. It is never created or deleted, so
// that of the options CreateContainer and DeleteOnRelease are refused. Use it to
// keep others from writing the data themselves: the service refuses writes to a
// leased blob that come without the lease's ID. That goes for the holder's own
// writes, too. The ID is that of the Owner whom Locker.Holders reports, if
// Options.HolderNote or Fencing is set; these write to the blob's metadata, and
// so change its ETag.
//
// The first Acquire names the resource as it likes; the backend takes no other
// name from then on, since distinct resources have to be distinct locks. It has
// no semaphores.
func OnBlob(c *blob.Client, o *Options) *Backend {
	b := newBackend(o)
	b.single = c
	switch {
	case c == nil:
		b.bad = badArgument("the blob client is nil")
	case b.bad == nil && (b.o.DeleteOnRelease || b.o.CreateContainer):
		b.bad = badArgument("a given blob with DeleteOnRelease or CreateContainer: it is neither created nor deleted")
	}
	return b
}

func newBackend(o *Options) *Backend {
	b := &Backend{
		existing: existence{seed: maphash.MakeSeed(), known: make(map[uint64]struct{})},
		outcomes: make(map[driver.ID]outcome),
	}
	if o != nil {
		b.o = *o
	}
	switch {
	case b.o.MaxPoll < 0:
		b.bad = badArgument("negative Options.MaxPoll: %v", b.o.MaxPoll)
	case b.o.MaxPoll > 0 && b.o.MaxPoll < leastMaxPoll:
		b.bad = badArgument("Options.MaxPoll of %v: less than %v, and each question is billed", b.o.MaxPoll, leastMaxPoll)
	case b.o.Fencing && b.o.DeleteOnRelease:
		b.bad = badArgument("Options.Fencing with DeleteOnRelease: the count would go with the blob")
	}
	if b.o.MaxPoll <= 0 {
		b.o.MaxPoll = defaultMaxPoll
	}
	b.info = driver.Info{
		Name:    "azblob",
		Modes:   driver.ModesOf(driver.Exclusive),
		MinTTL:  minTTL,
		MaxTTL:  maxTTL,
		PollMin: min(firstPoll, b.o.MaxPoll),
		PollMax: b.o.MaxPoll,
	}
	return b
}

func badArgument(format string, args ...any) error {
	return fmt.Errorf("%w: %w", distlock.ErrBadArgument, fmt.Errorf(format, args...))
}

// Info describes the backend.
func (b *Backend) Info() driver.Info { return b.info }

// Close makes later calls of Acquire fail. The client is the caller's.
func (b *Backend) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return nil
}

var errClosed = fmt.Errorf("the backend was closed: %w", fs.ErrClosed)

// check reports why the request can't be sent. If it is to take a lease, it
// names the single blob's resource.
func (b *Backend) check(resource string, mode driver.Mode, take bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.bad != nil:
		return b.bad
	case !b.info.Modes.Has(mode):
		return fmt.Errorf("%w: no %v locks on blob leases", errors.ErrUnsupported, mode)
	case b.closed:
		return errClosed
	case b.single == nil || b.name == "" && !take:
		return nil
	case b.name != "" && b.name != resource:
		return badArgument("the blob was locked as %q before: a backend on one blob has one resource", b.name)
	}
	b.name = resource
	return nil
}

// A target is a blob to lease.
type target struct {
	name  string
	blob  *blob.Client
	block *blockblob.Client // nil: it isn't ours to create
	seen  *properties       // when we last looked or wrote; nil: never
}

// candidates returns the number of blobs of which any will do.
func (b *Backend) candidates(r driver.Request) int {
	if r.Mode == driver.Permit {
		return r.Limit
	}
	return 1
}

// candidate returns one of them.
func (b *Backend) candidate(r driver.Request, i int) target {
	switch {
	case b.single != nil:
		return target{blob: b.single}
	case r.Mode == driver.Permit:
		return b.target(permitName(r.Resource, i))
	}
	return b.target(b.BlobName(r.Resource))
}

func (b *Backend) target(name string) target {
	block := b.container.NewBlockBlobClient(name)
	return target{name: name, blob: block.BlobClient(), block: block}
}

// blob returns a client for the blob of a target.
func (b *Backend) blob(name string) *blob.Client {
	if b.single != nil {
		return b.single
	}
	return b.container.NewBlobClient(name)
}

// An outcome is what is known of an attempt that failed, for Undo.
type outcome struct {
	doubt doubt
	blob  *blob.Client // that the doubt is about
	until time.Time    // when it is over, once somebody began to watch; else zero
}

// doubt is how far it is unknown whether the service did what it was asked.
type doubt int

const (
	none     doubt = iota // it did nothing, and won't
	answered              // it may have, but won't any more
	silent                // it may have, or may yet: the request may be on its way
	// Beyond that, one more for each further request that may be on its way.
)

// and returns what is left open by two requests.
func (d doubt) and(other doubt) doubt {
	if d >= silent && other >= silent {
		return d + other - silent + 1
	}
	return max(d, other)
}

// mostOutcomes bounds what is remembered for an Undo that never comes.
const mostOutcomes = 4096

func (b *Backend) remember(id driver.ID, o outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.outcomes) >= mostOutcomes {
		for other := range b.outcomes {
			delete(b.outcomes, other)
			break
		}
	}
	b.outcomes[id] = o
}

func (b *Backend) recall(id driver.ID) (o outcome, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o, known = b.outcomes[id]
	return o, known
}

func (b *Backend) forget(id driver.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.outcomes, id)
}

// A request that got no answer is watched for so long, with these pauses, the
// last again and again.
const watched = 1750 * time.Millisecond

var undoPauses = []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second}

// Undo releases what the attempt may hold; see [driver.Undoer]. If its request
// got no answer at all, Undo watches for two seconds whether it arrives.
func (b *Backend) Undo(ctx context.Context, r driver.Request) error {
	if err := b.check(r.Resource, r.Mode, false); err != nil && !errors.Is(err, errClosed) {
		return nil //nolint:nilerr // nothing was ever sent
	}
	o, known := b.recall(r.Owner.ID)
	switch {
	case !known:
		for i := range b.candidates(r) {
			if _, err := b.free(ctx, b.candidate(r, i).blob, r.Owner.ID); err != nil {
				return err
			}
		}
	case o.doubt != none:
		if err := b.settle(ctx, &o, r.Owner.ID); err != nil {
			b.remember(r.Owner.ID, o) // the next call goes on from here
			return err
		}
	}
	b.forget(r.Owner.ID)
	return nil
}

// settle sees to it that the doubt is over. A lease that is found may be that of
// one request, with another still on its way.
func (b *Backend) settle(ctx context.Context, o *outcome, id driver.ID) error {
	if o.until.IsZero() {
		o.until = time.Now().Add(watched)
	}
	for i := 0; ; i++ {
		over := !time.Now().Before(o.until)
		was, err := b.free(ctx, o.blob, id)
		if err != nil {
			return err
		}
		if was && o.doubt >= silent {
			o.doubt-- // to answered, when it was the last
		}
		if o.doubt < silent || over {
			return nil
		}
		pause := min(undoPauses[min(i, len(undoPauses)-1)], time.Until(o.until))
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// free releases the lease with the ID, and reports whether there was one.
func (b *Backend) free(ctx context.Context, c *blob.Client, id driver.ID) (was bool, err error) {
	_, err = endLease(ctx, releaseTries, c, id)
	switch {
	case err == nil:
		return true, nil
	case meansGone(err):
		return false, nil
	}
	return false, explain(err)
}

// redactURL cuts off what may hold a signature.
func redactURL(u string) string {
	before, _, cut := strings.Cut(u, "?")
	if parsed, err := url.Parse(before); err == nil && parsed.User != nil {
		parsed.User = nil
		before = parsed.String()
	}
	if cut {
		return before + "?REDACTED"
	}
	return before
}
