//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"time"
)

// workerVariable is set in the environment of a process that is one.
const workerVariable = "DISTLOCK_BENCH_WORKER"

// A job is what a worker is told to do.
type job struct {
	Backend, Contender, Test string

	Place      place
	Shared     string // path of the shared memory
	Index      int    // of this worker
	Goroutines int
	Names      int
	Duration   time.Duration
	Busy       time.Duration // about so long, at most, who hands over is
}

// A message is what a worker says.
type message struct {
	Step   string // it waits to go on, with the others
	Result *result
	Err    string
}

// An order lets a worker go on.
type order struct {
	At int64 // by the monotonic clock
}

// A worker is one process of a run.
type worker struct {
	job    job
	locker locker
	shared *sharedMemory
	in     *json.Decoder
	out    *json.Encoder
}

// ballast is memory that a worker has as a service has it. With an empty heap
// the collector would run a hundred times a second, and measured would be whom it
// stops then.
const ballast = 64 << 20

// serve does the one job that comes in, and says what came of it.
func serve(in io.Reader, out io.Writer) error {
	w := &worker{in: json.NewDecoder(in), out: json.NewEncoder(out)}
	heap := make([]byte, ballast)
	r, err := w.do()
	runtime.KeepAlive(heap)
	if err != nil {
		return w.out.Encode(message{Err: err.Error()})
	}
	return w.out.Encode(message{Result: r})
}

func (w *worker) do() (r *result, err error) {
	if err := w.in.Decode(&w.job); err != nil {
		return nil, err
	}
	var c *contender
	for _, b := range backends {
		if b.name == w.job.Backend {
			c = b.contender(w.job.Contender)
		}
	}
	if c == nil {
		return nil, fmt.Errorf("no contender %q of backend %q", w.job.Contender, w.job.Backend)
	}
	// Nobody else has one that can be canceled: the driver of MySQL watches it in a
	// goroutine that it wakes twice for each statement.
	ctx := context.Background()
	if c.cancelable {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
	}
	if w.shared, err = share(w.job.Shared); err != nil {
		return nil, err
	}
	if w.locker, err = c.open(ctx, w.job.Place); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.locker.close()) }()
	for _, t := range tests {
		if t.name == w.job.Test {
			return t.work(ctx, w)
		}
	}
	return nil, fmt.Errorf("no test %q", w.job.Test)
}

// meet waits until all workers of the run have come here, and then for the
// moment at which all go on.
func (w *worker) meet(step string) error {
	if err := w.out.Encode(message{Step: step}); err != nil {
		return err
	}
	var o order
	if err := w.in.Decode(&o); err != nil {
		return err
	}
	time.Sleep(time.Duration(o.At - monotonic()))
	return nil
}

func (w *worker) clients(ctx context.Context, name func(i int) string, n int) ([]client, error) {
	all := make([]client, n)
	for i := range all {
		var err error
		if all[i], err = w.locker.client(ctx, name(i)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func itoa(n int) string { return strconv.Itoa(n) }
