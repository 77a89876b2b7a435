package azurelock

import (
	"context"
	"encoding/hex"
	"errors"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/lease"
	"github.com/distlock-go/distlock/driver"
)

// Holders returns who holds the resource; see [driver.Inspector]. Without
// Options.Fencing or HolderNote at the holder's end it is only known that
// somebody does. It costs two requests, and for permits one and one for each
// that is taken.
func (b *Backend) Holders(ctx context.Context, resource string, mode driver.Mode) ([]driver.Holder, error) {
	if err := b.check(resource, mode, false); err != nil {
		return nil, err
	}
	if mode == driver.Permit {
		return b.permitHolders(ctx, resource)
	}
	c := b.single
	if c == nil {
		c = b.target(b.BlobName(resource)).blob
	}
	p, err := b.look(ctx, c, "")
	if b.single == nil && bloberror.HasCode(err, bloberror.BlobNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	h, held, err := b.holder(ctx, c, p, driver.Exclusive)
	if err != nil || !held {
		return nil, err
	}
	return []driver.Holder{h}, nil
}

// holder returns who holds the blob that is like p.
func (b *Backend) holder(ctx context.Context, c *blob.Client, p *properties, mode driver.Mode) (h driver.Holder, held bool, err error) {
	if p.state != lease.StateTypeLeased && p.state != lease.StateTypeBreaking {
		return h, false, nil
	}
	h, id := p.noted()
	if id != "" {
		// The note may be that of an earlier holder, if the present one leaves none.
		// The service doesn't tell the ID, but compares it.
		_, err = b.look(ctx, c, id)
		switch {
		case bloberror.HasCode(err, bloberror.LeaseIDMismatchWithBlobOperation):
			h = driver.Holder{}
		case bloberror.HasCode(err, bloberror.LeaseNotPresentWithBlobOperation, bloberror.LeaseLost, bloberror.BlobNotFound):
			return driver.Holder{}, false, nil
		case err != nil:
			return driver.Holder{}, false, err
		}
	}
	h.Mode = mode
	return h, true, nil
}

func (b *Backend) permitHolders(ctx context.Context, resource string) ([]driver.Holder, error) {
	prefix := permitsName(resource) + "/"
	pager := b.container.NewListBlobsFlatPager(&container.ListBlobsFlatOptions{
		Prefix: &prefix, Include: container.ListBlobsInclude{Metadata: true},
	})
	var holders []driver.Holder
	for pager.More() {
		var page container.ListBlobsFlatResponse
		_, err := exchange(ctx, acquireTries, func(ctx context.Context) error {
			var err error
			page, err = pager.NextPage(ctx)
			return err
		})
		if err != nil {
			return nil, explain(err)
		}
		for _, item := range page.Segment.BlobItems {
			if item.Name == nil || item.Properties == nil || strings.HasSuffix(*item.Name, "/fence") {
				continue
			}
			p := &properties{metadata: item.Metadata, state: deref(item.Properties.LeaseState)}
			h, held, err := b.holder(ctx, b.target(*item.Name).blob, p, driver.Permit)
			if err != nil {
				return nil, err
			}
			if held {
				holders = append(holders, h)
			}
		}
	}
	return holders, nil
}

// parseID is the inverse of driver.ID.String.
func parseID(s string) (id driver.ID, err error) {
	raw, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(raw) != len(id) {
		return id, errors.New("no ID")
	}
	copy(id[:], raw)
	return id, nil
}
