package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain lets the test binary be the servers too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		if err := run(context.Background(), os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Unsetenv("INVENTORY_LOCKS")
	os.Exit(m.Run())
}

var small = sale{processes: 4, buyers: 16, stock: 20, orders: 60}

func TestSaleWithLock(t *testing.T) {
	dir := t.TempDir()
	got, err := small.hold(t.Context(), filepath.Join(dir, "stock"), lockURL(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Log(got)
	if got.sold != int64(small.stock) || got.left != 0 {
		t.Errorf("%d sold, %d left, want all %d sold and none left", got.sold, got.left, small.stock)
	}
}

// For the stock to come out right without the lock, 16 buyers at once would have
// to come one after the other by chance, as on a busy machine.
func TestSaleWithoutLock(t *testing.T) {
	for range attempts {
		got, err := small.hold(t.Context(), filepath.Join(t.TempDir(), "stock"), "")
		if err != nil {
			t.Fatal(err)
		}
		t.Log(got)
		if got.sold > int64(small.stock) {
			return
		}
	}
	t.Errorf("not oversold in %d attempts, so this example shows nothing", attempts)
}

const attempts = 10

func TestDemonstration(t *testing.T) {
	for n := 1; ; n++ {
		var out strings.Builder
		if err := demonstrate(t.Context(), &out, small); err != nil {
			t.Fatal(err)
		}
		t.Log(out.String())
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 3 || !strings.Contains(lines[2], ": exact") {
			t.Fatalf("demonstration says: %s", &out)
		}
		if strings.Contains(lines[1], "oversold") {
			return
		}
		if n == attempts {
			t.Fatalf("not oversold in %d attempts: %s", n, &out)
		}
	}
}

// A backend that isn't linked in must not look like a shop without a lock.
func TestUnknownBackend(t *testing.T) {
	_, err := small.hold(t.Context(), filepath.Join(t.TempDir(), "stock"), "nosuch://host")
	if err == nil {
		t.Error("no error for a URL that nothing is registered for")
	}
}

// No process is left behind when the demonstration is interrupted.
func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	many := small
	many.stock, many.orders = 1_000_000, 1_000_000
	time.AfterFunc(100*time.Millisecond, cancel)
	dir := t.TempDir()
	_, err := many.hold(ctx, filepath.Join(dir, "stock"), lockURL(dir)) // which waits for them
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
