package azurelock

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/lease"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

// The floor are the two calls of the SDK without which it can't be done.
func BenchmarkAcquireRelease(b *testing.B) {
	c := azurite(b).container(b)
	ctx := context.Background()
	release(b, take(b, New(c, nil), request("a")))
	b.Run("floor", func(b *testing.B) {
		client := c.NewBlobClient("a")
		for b.Loop() {
			var id driver.ID
			rand.Read(id[:])
			l, err := lease.NewBlobClient(client, &lease.BlobClientOptions{LeaseID: new(id.String())})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := l.AcquireLease(ctx, 30, nil); err != nil {
				b.Fatal(err)
			}
			if _, err := l.ReleaseLease(ctx, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	for name, o := range map[string]*Options{"distlock": nil, "fencing": {Fencing: true}} {
		b.Run(name, func(b *testing.B) {
			l := distlock.New(New(c, o), nil)
			defer l.Close()
			for b.Loop() {
				lock, err := l.Acquire(ctx, "a")
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

// Many goroutines, each with a resource of its own.
func BenchmarkParallel(b *testing.B) {
	c := azurite(b).container(b)
	var n atomic.Int64
	b.Run("floor", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			name := fmt.Sprint("floor", n.Add(1))
			release(b, take(b, New(c, nil), request(name)))
			client := c.NewBlobClient(name)
			for pb.Next() {
				l, err := lease.NewBlobClient(client, nil)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := l.AcquireLease(context.Background(), 30, nil); err != nil {
					b.Error(err)
				}
				if _, err := l.ReleaseLease(context.Background(), nil); err != nil {
					b.Error(err)
				}
			}
		})
	})
	b.Run("distlock", func(b *testing.B) {
		l := distlock.New(New(c, nil), nil)
		defer l.Close()
		b.RunParallel(func(pb *testing.PB) {
			name := fmt.Sprint("lock", n.Add(1))
			for pb.Next() {
				lock, err := l.Acquire(context.Background(), name)
				if err != nil {
					b.Error(err)
					return
				}
				lock.Release()
			}
		})
	})
}

// The same two, turn by turn and now one and now the other first, so that both
// have the same share of what else the machine does.
func BenchmarkRatio(b *testing.B) {
	c := azurite(b).container(b)
	ctx := context.Background()
	locker := distlock.New(New(c, nil), nil)
	defer locker.Close()
	client := c.NewBlobClient("a")
	release(b, take(b, New(c, nil), request("a")))
	var times [2][]time.Duration
	floor := func() error {
		var id driver.ID
		rand.Read(id[:])
		l, err := lease.NewBlobClient(client, &lease.BlobClientOptions{LeaseID: new(id.String())})
		if err == nil {
			_, err = l.AcquireLease(ctx, 30, nil)
		}
		if err == nil {
			_, err = l.ReleaseLease(ctx, nil)
		}
		return err
	}
	ours := func() error {
		lock, err := locker.Acquire(ctx, "a")
		if err == nil {
			err = lock.Release()
		}
		return err
	}
	both := [2]func() error{floor, ours}
	for n := 0; b.Loop(); n++ {
		for i := range both {
			i = (i + n) % 2
			start := time.Now()
			if err := both[i](); err != nil {
				b.Fatal(err)
			}
			times[i] = append(times[i], time.Since(start))
		}
	}
	var median [2]float64
	for i := range times {
		slices.Sort(times[i])
		median[i] = float64(times[i][len(times[i])/2])
	}
	b.ReportMetric(median[0], "floor-ns")
	b.ReportMetric(median[1], "distlock-ns")
	b.ReportMetric(median[1]/median[0], "ratio")
}
