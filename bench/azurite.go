//go:build linux

package main

import (
	"context"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/lease"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/azurelock"
)

const sdkModule = "github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"

// pollPause is how long the hand-written poller waits.
const pollPause = 100 * time.Millisecond

var azurite = backend{
	name: "azurite", title: "Azure Blob Storage (Azurite)",
	names: 500, pause: pollPause,
	start: startAzurite,
	contenders: []*contender{
		{
			name: "bare SDK calls", role: floor, note: "acquire and release of a lease on a blob that exists, with Microsoft's SDK", module: sdkModule, tests: []string{"uncontended", "names", "hold"},
			open: func(_ context.Context, p place) (locker, error) { return openLeases(p, 0) },
		},
		{
			name: "poller, 100 ms", role: peer, note: "the same calls, as people write it by hand: while another has the lease, acquire again and again, with a pause of 100 ms. Nobody can do without a pause, so there is no floor", module: sdkModule, tests: []string{"hot", "handover"},
			open: func(_ context.Context, p place) (locker, error) { return openLeases(p, pollPause) },
		},
		azureLocks("distlock", "azurelock, which makes the blobs that it needs", azurelock.Options{}),
		azureLocks("distlock, tokens", "azurelock with Fencing, which takes two requests more", azurelock.Options{Fencing: true}),
	},
}

func azureLocks(name, note string, o azurelock.Options) *contender {
	return &contender{name: name, role: ours, note: note, tests: []string{"uncontended", "names", "hot", "handover", "hold"}, open: func(_ context.Context, p place) (locker, error) {
		c, err := openContainer(p, newTransport())
		if err != nil {
			return nil, err
		}
		return locks{distlock.New(azurelock.New(c, &o), nil)}, nil
	}}
}

// newTransport returns one that keeps a connection for each goroutine.
func newTransport() *http.Transport {
	return &http.Transport{MaxIdleConnsPerHost: 64, DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext}
}

func openContainer(p place, t *http.Transport) (*container.Client, error) {
	credential, err := container.NewSharedKeyCredential(p.User, p.Secret)
	if err != nil {
		return nil, err
	}
	return container.NewClientWithSharedKeyCredential("http://"+p.Address+"/"+p.User+"/"+p.Name, credential,
		&container.ClientOptions{ClientOptions: policy.ClientOptions{Transport: &http.Client{Transport: t}}})
}

// leases are the bare calls.
type leases struct {
	c     *container.Client
	pause time.Duration // until the next try, if another has it; 0: that is an error
}

func openLeases(p place, pause time.Duration) (locker, error) {
	c, err := openContainer(p, newTransport())
	return &leases{c, pause}, err
}

func (l *leases) client(ctx context.Context, name string) (client, error) {
	_, err := l.c.NewBlockBlobClient(name).Upload(ctx, streaming.NopCloser(strings.NewReader("")), nil)
	if err != nil && !bloberror.HasCode(err, bloberror.LeaseIDMissing) { // another process has leased it already
		return nil, err
	}
	c, err := lease.NewBlobClient(l.c.NewBlobClient(name), nil) // with an ID of its own
	return &leaseClient{ctx: ctx, lease: c, pause: l.pause}, err
}

func (l *leases) close() error { return nil }

type leaseClient struct {
	noTokens

	ctx   context.Context
	lease *lease.BlobClient
	pause time.Duration
}

func (c *leaseClient) acquire() error {
	for {
		_, err := c.lease.AcquireLease(c.ctx, 60, nil)
		if c.pause == 0 || !bloberror.HasCode(err, bloberror.LeaseAlreadyPresent) {
			return err
		}
		time.Sleep(c.pause)
	}
}

func (c *leaseClient) release() error {
	_, err := c.lease.ReleaseLease(c.ctx, nil)
	return err
}
