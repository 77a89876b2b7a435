// Command inventory shows what a lock is for: several processes sell units of
// one product from one file, over HTTP, first without a lock and then with one.
//
//	go run ./examples/inventory
//
// The lock is a file in a temporary directory. INVENTORY_LOCKS may name another
// store, of those whose packages server.go imports.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "inventory:", err)
		os.Exit(1)
	}
}

// run is either the demonstration or, as "serve", one of the servers that it
// starts.
func run(ctx context.Context, args []string) error {
	if len(args) == 3 && args[0] == "serve" {
		return serve(ctx, args[1], args[2])
	}
	if len(args) > 0 {
		return fmt.Errorf("unknown arguments %q: none are needed", args)
	}
	return demonstrate(ctx, os.Stdout, sale{processes: 4, buyers: 16, stock: 50, orders: 200})
}

// demonstrate holds the sale without the lock and with it.
func demonstrate(ctx context.Context, w io.Writer, s sale) error {
	dir, err := os.MkdirTemp("", "inventory")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fmt.Fprintf(w, "%d units in stock; %d buyers send %d orders to %d processes.\n", s.stock, s.buyers, s.orders, s.processes)
	for _, way := range []struct{ name, lockURL string }{
		{"without the lock", ""},
		{"with the lock", lockURL(dir)},
	} {
		result, err := s.hold(ctx, filepath.Join(dir, "stock"), way.lockURL)
		if err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
		fmt.Fprintf(w, "%-17s %s\n", way.name+":", result)
	}
	return nil
}

// lockURL returns the URL of the store for the locks.
func lockURL(dir string) string {
	if url := os.Getenv("INVENTORY_LOCKS"); url != "" {
		return url
	}
	path := filepath.ToSlash(filepath.Join(dir, "locks"))
	if path[0] != '/' {
		path = "/" + path // C:/...
	}
	return "file://" + path
}
