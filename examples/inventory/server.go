package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/distlock-go/distlock"
	_ "github.com/distlock-go/distlock/filelock" // a blank import for each kind of store
)

const (
	resource = "inventory:42"

	// patience is how long an order waits for its turn. After that the buyer is
	// asked to come back later, so that requests don't pile up.
	patience = 50 * time.Millisecond

	// payment is how long the payment takes: the time between reading the stock
	// and writing it, in which everything may change.
	payment = 2 * time.Millisecond
)

// A shop sells units of one product. How many are left is in a file, which
// other processes read and write too.
type shop struct {
	stockPath string
	locks     *distlock.Locker // nil: each for itself
}

// serve sells until ctx ends or standard input does, which is how a server
// learns that the process that started it is gone. It writes its address to
// standard output. The lock URL may be empty: then there is no lock.
func serve(ctx context.Context, stockPath, lockURL string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()

	s := &shop{stockPath: stockPath}
	if lockURL != "" {
		locks, err := distlock.Open(ctx, lockURL, &distlock.Options{Logger: slog.Default()})
		if err != nil {
			return err
		}
		defer locks.Close()
		s.locks = locks
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /buy", s.buy)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())

	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return server.Shutdown(ending)
}

var errSoldOut = errors.New("sold out")

func (s *shop) buy(w http.ResponseWriter, r *http.Request) {
	err := s.exclusively(r.Context(), s.sellOne)
	switch {
	case err == nil:
		w.WriteHeader(http.StatusOK)
	case errors.Is(err, errSoldOut):
		http.Error(w, "sold out", http.StatusGone)
	case errors.Is(err, distlock.ErrNotAcquired):
		http.Error(w, "busy, try again", http.StatusTooManyRequests)
	default:
		slog.Error("sale failed", "err", err)
		http.Error(w, "internal error", http.StatusInternalServerError)
	}
}

// exclusively calls f while no other process does.
func (s *shop) exclusively(ctx context.Context, f func(ctx context.Context) error) error {
	if s.locks == nil {
		return f(ctx)
	}
	return s.locks.Do(ctx, resource, f, distlock.Timeout(patience))
}

// sellOne reads the stock, takes payment, and writes the stock.
func (s *shop) sellOne(ctx context.Context) error {
	left, err := readStock(s.stockPath)
	if err != nil {
		return err
	}
	if left == 0 {
		return errSoldOut
	}
	time.Sleep(payment)
	if err := ctx.Err(); err != nil {
		return err // the lock was lost, or the buyer is gone: nothing was sold
	}
	return writeStock(s.stockPath, left-1)
}

func readStock(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// writeStock replaces the file in one step, so that nobody ever reads half a
// number. That isn't enough to keep the number right, as the sale without the
// lock shows.
func writeStock(path string, units int) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, units)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
