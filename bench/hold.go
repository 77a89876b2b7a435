//go:build linux

package main

import (
	"context"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

var hold = test{
	name: "hold", title: "Many locks held at once",
	text:      "64 goroutines of one process take locks of as many names as said above, hold them all, and give them back; nobody has locked these names before. First each goroutine takes a lock of a name of its own, and when all have one they give them back: so the connections that serve many locks are open before the times and the client's memory are measured. Memory of the client is its heap and stacks in use after a collection, and of MariaDB what it has resident, which is started anew each time; less what they were before. Live is what of the heap is reachable, for each lock; connections count as far as more of them were opened for more locks. The rest of what is in use lies between that, free for what comes next.",
	processes: 1, goroutines: 64,
	figures: []figure{
		{name: "take", title: "take all", unit: nanoseconds, chart: true},
		{name: "release", title: "release all", unit: nanoseconds},
		{name: "connections", title: "connections", unit: count, chart: true},
		{name: "descriptors", title: "descriptors", unit: count},
		{name: "memory", title: "client memory", unit: bytesUsed, chart: true},
		{name: "live", title: "live, each", unit: bytesUsed, plain: true},
		{name: "server", title: "server memory", unit: bytesUsed, chart: true},
	},
	work: workHold,
	reckon: func(r run) map[string]float64 {
		x := r.results[0]
		m := map[string]float64{
			"take": float64(x.Take), "release": float64(x.Release),
			"memory": float64(x.Memory), "live": float64(x.Live) / float64(x.Operations),
		}
		if r.after.connections >= 0 {
			m["connections"] = float64(r.after.connections)
		} else if x.Descriptors > 0 {
			m["descriptors"] = float64(x.Descriptors)
		}
		if r.before.memory >= 0 && r.after.memory >= 0 {
			m["server"] = float64(r.after.memory - r.before.memory)
		}
		return m
	},
}

func workHold(ctx context.Context, w *worker) (*result, error) {
	clients, err := w.clients(ctx, func(i int) string { return "inventory-" + itoa(i) }, w.job.Names)
	if err != nil {
		return nil, err
	}
	first, err := w.clients(ctx, func(i int) string { return "first-" + itoa(i) }, w.job.Goroutines)
	if err != nil {
		return nil, err
	}
	if err := w.meet("ready"); err != nil {
		return nil, err
	}
	open := descriptors()
	makeThreads(w.job.Goroutines)
	if err := w.openConnections(first); err != nil {
		return nil, err
	}
	before := memory()
	r := &result{Operations: int64(len(clients))}
	if r.Take, err = w.each(clients, client.acquire); err != nil {
		return nil, err
	}
	after := memory()
	r.Memory = int64(after.HeapInuse+after.StackInuse) - int64(before.HeapInuse+before.StackInuse)
	r.Live = int64(after.HeapAlloc) - int64(before.HeapAlloc)
	r.Descriptors = descriptors() - open
	if err := w.meet("measured"); err != nil {
		return nil, err
	}
	r.Release, err = w.each(clients, client.release)
	runtime.KeepAlive(clients)
	return r, err
}

// openConnections takes a lock with each client and gives them back, which opens as
// many connections as the goroutines of the worker use at once. One to Azurite is
// 12 kB, and no part of a lock.
func (w *worker) openConnections(clients []client) error {
	if _, err := w.each(clients, client.acquire); err != nil {
		return err
	}
	_, err := w.each(clients, client.release)
	return err
}

// makeThreads has the runtime make as many threads, as it does for goroutines that
// are in system calls at once. What it has in mind of a thread is 6 kB, and no part
// of a lock.
func makeThreads(n int) {
	var here, all sync.WaitGroup
	here.Add(n)
	for range n {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			here.Done()
			here.Wait()
		})
	}
	all.Wait()
}

// each does it for all clients, in all goroutines of the worker, and returns how
// long it took.
func (w *worker) each(clients []client, do func(client) error) (ns int64, err error) {
	var all sync.WaitGroup
	var next atomic.Int64
	var failed firstError
	start := time.Now()
	for range w.job.Goroutines {
		all.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= int64(len(clients)) {
					return
				}
				if err := do(clients[i]); err != nil {
					failed.set(err)
					return
				}
			}
		})
	}
	all.Wait()
	return int64(time.Since(start)), failed.get()
}

// memory returns what is in use once the garbage is gone.
func memory() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC() // what the first one put to sync.Pools' victims is gone after the second
	runtime.ReadMemStats(&m)
	return m
}

func allocations() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Mallocs)
}

// descriptors counts the open ones of this process.
func descriptors() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}
