//go:build linux

package main

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// A test is one thing that is measured.
type test struct {
	name, title string
	text        string // what is done
	processes   int    // or one, for a backend that has no others
	goroutines  int    // of all processes
	figures     []figure
	work        func(ctx context.Context, w *worker) (*result, error)
	reckon      func(r run) map[string]float64
}

var tests = []*test{&uncontended, &names, &hot, &handOver, &hold}

// A unit is how a figure is written.
type unit int

const (
	nanoseconds unit = iota
	perSecond
	count
	fraction
	bytesUsed
)

// A figure is what comes out of a test. One that isn't reckoned isn't shown.
type figure struct {
	name, title string
	unit        unit
	more        bool // is better
	plain       bool // isn't compared with others
	chart       bool
}

// A result is what one worker measured.
type result struct {
	Operations  int64
	Elapsed     int64 // ns
	Allocations int64
	Each        []int64 // operations of each goroutine
	Waits       *histogram
	Samples     []int64 // ns
	Take        int64   // ns
	Release     int64   // ns
	Memory      int64
	Live        int64
	Descriptors int
	Tokens      bool
}

// A run is what all who took part say of one run.
type run struct {
	results       []*result
	before, after observation
	violations    int64
	unordered     int64
}

func (r *run) total(of func(*result) int64) float64 {
	var n int64
	for _, x := range r.results {
		n += of(x)
	}
	return float64(n)
}

func (r *run) rate() float64 {
	return r.total(func(x *result) int64 { return x.Operations }) / (float64(r.results[0].Elapsed) / 1e9)
}

var uncontended = test{
	name: "uncontended", title: "One goroutine, a free lock",
	text:      "Acquire and release the same name again and again. Time and allocations of one such pair.",
	processes: 1, goroutines: 1,
	figures: []figure{
		{name: "time", title: "time", unit: nanoseconds, chart: true},
		{name: "allocations", title: "allocations", unit: count},
	},
	work: workUncontended,
	reckon: func(r run) map[string]float64 {
		x := r.results[0]
		return map[string]float64{
			"time":        float64(x.Elapsed) / float64(x.Operations),
			"allocations": math.Round(100*float64(x.Allocations)/float64(x.Operations)) / 100, // fewer are the runtime's
		}
	},
}

var names = test{
	name: "names", title: "64 goroutines, a free lock each",
	text:      "One process; each goroutine acquires and releases a name of its own. Pairs of all together, and the most connections that the server had at once.",
	processes: 1, goroutines: 64,
	figures: []figure{
		{name: "rate", title: "pairs", unit: perSecond, more: true, chart: true},
		{name: "connections", title: "connections", unit: count},
	},
	work: workNames,
	reckon: func(r run) map[string]float64 {
		m := map[string]float64{"rate": r.rate()}
		if r.after.connections >= 0 {
			m["connections"] = float64(r.after.connections)
		}
		return m
	},
}

// pair is one acquisition and release.
func pair(c client) error {
	if err := c.acquire(); err != nil {
		return err
	}
	return c.release()
}

// warmUp does it for a while, and returns how often in a millisecond.
func (w *worker) warmUp(pair func() error) (int, error) {
	length := w.job.Duration / 10
	n := 0
	for start := time.Now(); time.Since(start) < length; n++ {
		if err := pair(); err != nil {
			return 0, err
		}
	}
	return max(1, int(time.Duration(n)*time.Millisecond/length)), nil
}

func workUncontended(ctx context.Context, w *worker) (*result, error) {
	c, err := w.locker.client(ctx, "inventory-42")
	if err != nil {
		return nil, err
	}
	batch, err := w.warmUp(func() error { return pair(c) })
	if err != nil {
		return nil, err
	}
	if err := w.meet("ready"); err != nil {
		return nil, err
	}
	r := new(result)
	allocated := allocations()
	for start := time.Now(); ; {
		for range batch {
			if err := pair(c); err != nil {
				return nil, err
			}
		}
		r.Operations += int64(batch)
		if elapsed := time.Since(start); elapsed >= w.job.Duration {
			r.Elapsed = int64(elapsed)
			break
		}
	}
	r.Allocations = allocations() - allocated
	return r, nil
}

// together runs do in all goroutines of the worker until the time is over, and
// sets Operations, Each and Elapsed of r.
func (w *worker) together(r *result, do func(goroutine int) error) error {
	var over atomic.Bool
	var all sync.WaitGroup
	var failed firstError
	r.Each = make([]int64, w.job.Goroutines)
	start := time.Now()
	timer := time.AfterFunc(w.job.Duration, func() { over.Store(true) })
	defer timer.Stop()
	for i := range w.job.Goroutines {
		all.Go(func() {
			n := int64(0)
			for ; !over.Load(); n++ {
				if err := do(i); err != nil {
					failed.set(err)
					over.Store(true)
					break
				}
			}
			r.Each[i] = n
		})
	}
	all.Wait()
	r.Elapsed = int64(time.Since(start))
	for _, n := range r.Each {
		r.Operations += n
	}
	return failed.get()
}

// firstError keeps the first of several.
type firstError struct {
	once sync.Once
	err  error
}

func (f *firstError) set(err error) { f.once.Do(func() { f.err = err }) }
func (f *firstError) get() error    { return f.err }

func workNames(ctx context.Context, w *worker) (*result, error) {
	clients, err := w.clients(ctx, func(i int) string { return "inventory-" + itoa(i) }, w.job.Goroutines)
	if err != nil {
		return nil, err
	}
	// In the one and in the other way that it is used, before it counts.
	if _, err := w.warmUp(func() error { return pair(clients[0]) }); err != nil {
		return nil, err
	}
	length := w.job.Duration
	w.job.Duration = length / 10
	if err := w.together(new(result), func(i int) error { return pair(clients[i]) }); err != nil {
		return nil, err
	}
	w.job.Duration = length
	if err := w.meet("ready"); err != nil {
		return nil, err
	}
	r := new(result)
	if err := w.together(r, func(i int) error { return pair(clients[i]) }); err != nil {
		return nil, err
	}
	return r, w.meet("measured")
}
