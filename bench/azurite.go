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
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/lease"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/azurelock"
)

var azurite = backend{
	name: "azurite", title: "Azure Blob Storage (Azurite)",
	start: startAzurite,
	contenders: []*contender{
		{
			name: "bare SDK calls", role: floor, note: "acquire and release of a lease on a blob that exists, with Microsoft's SDK", module: "github.com/Azure/azure-sdk-for-go/sdk/storage/azblob", tests: []string{"uncontended"},
			open: func(_ context.Context, p place) (locker, error) {
				c, err := openContainer(p)
				return &leases{c}, err
			},
		},
		azureLocks("distlock", "azurelock", azurelock.Options{}),
		azureLocks("distlock, tokens", "azurelock with Fencing, which takes two requests more", azurelock.Options{Fencing: true}),
	},
}

func azureLocks(name, note string, o azurelock.Options) *contender {
	return &contender{name: name, role: ours, note: note, tests: []string{"uncontended"}, open: func(_ context.Context, p place) (locker, error) {
		c, err := openContainer(p)
		if err != nil {
			return nil, err
		}
		return usual(distlock.New(azurelock.New(c, &o), nil)), nil
	}}
}

func openContainer(p place) (*container.Client, error) {
	credential, err := container.NewSharedKeyCredential(p.User, p.Secret)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 64, DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext}
	return container.NewClientWithSharedKeyCredential("http://"+p.Address+"/"+p.User+"/"+p.Name, credential,
		&container.ClientOptions{ClientOptions: policy.ClientOptions{Transport: &http.Client{Transport: transport}}})
}

// leases is the floor.
type leases struct{ c *container.Client }

func (l *leases) client(ctx context.Context, name string) (client, error) {
	_, err := l.c.NewBlockBlobClient(name).Upload(ctx, streaming.NopCloser(strings.NewReader("")), nil)
	return &leaseClient{ctx: ctx, blob: l.c.NewBlobClient(name)}, err
}

func (l *leases) close() error { return nil }

type leaseClient struct {
	noTokens

	ctx   context.Context
	blob  *blob.Client
	lease *lease.BlobClient
}

func (c *leaseClient) acquire() (err error) {
	if c.lease, err = lease.NewBlobClient(c.blob, nil); err != nil {
		return err
	}
	_, err = c.lease.AcquireLease(c.ctx, 30, nil)
	return err
}

func (c *leaseClient) release() error {
	_, err := c.lease.ReleaseLease(c.ctx, nil)
	return err
}
