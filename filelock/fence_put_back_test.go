//go:build unix

package filelock

import (
	"context"
	"os"
	"testing"

	"github.com/distlock-go/distlock/driver"
)

// A fence that was put back as it was some time ago.
func TestFencePutBack(t *testing.T) {
	b, err := New(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	take := func() uint64 {
		g, err := b.Acquire(context.Background(), request(driver.Exclusive, "a"))
		if err != nil {
			t.Fatal(err)
		}
		g.Hold.Release(context.Background())
		return g.Token
	}
	take()
	fence := b.path("a", fenceSuffix)
	old, err := os.ReadFile(fence)
	if err != nil {
		t.Fatal(err)
	}
	var last uint64
	for range 100 {
		last = take()
	}
	if err := os.WriteFile(fence, old, 0o644); err != nil {
		t.Fatal(err)
	}
	if n := take(); n <= last {
		t.Errorf("token %d after %d", n, last)
	}
}
