//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

var handOver = test{
	name: "handover", title: "Hand-over between two processes",
	text:      "Two processes of one goroutine take turns. Who holds the lock is at work until the other waits for it, and 2 to 12 ms more, on Azure 2 to 102 ms, at random, since some ask at fixed times. Measured is from just before Release in the one until Acquire has returned in the other.",
	processes: 2, goroutines: 2,
	figures: []figure{
		{name: "p50", title: "p50", unit: nanoseconds, chart: true},
		{name: "p99", title: "p99", unit: nanoseconds},
	},
	work: workHandOver,
	reckon: func(r run) map[string]float64 {
		var all []int64
		for _, x := range r.results {
			all = append(all, x.Samples...)
		}
		if len(all) == 0 {
			return nil
		}
		return map[string]float64{"p50": float64(percentile(all, 50)), "p99": float64(percentile(all, 99))}
	},
}

// busy is for how long who hands over is at work, about and at most: longer than
// the pause of who asks again.
const busy = 10 * time.Millisecond

func workHandOver(ctx context.Context, w *worker) (*result, error) {
	c, err := w.locker.client(ctx, "inventory-42")
	if err != nil {
		return nil, err
	}
	if err := pairInTurn(w, c); err != nil {
		return nil, err
	}
	m, id := w.shared, uint64(w.job.Index+1)
	r := new(result)
	end := monotonic() + int64(w.job.Duration)
	for round := int64(w.job.Index); ; round += 2 {
		if err := until(func() bool { return m.round.Load() >= round || m.ending.Load() }); err != nil {
			return nil, err
		}
		if m.round.Load() < round {
			return r, nil
		}
		m.waiting.Store(round + 1)
		if err := c.acquire(); err != nil {
			return nil, err
		}
		if at := monotonic(); round > 0 {
			r.Samples = append(r.Samples, at-m.released.Load())
		}
		m.enter(id, c)
		m.round.Store(round + 1)
		last := m.ending.Load()
		if !last {
			// Only somebody else who holds it too can end it meanwhile.
			if err := until(func() bool { return m.waiting.Load() >= round+2 || m.ending.Load() }); err != nil {
				return nil, err
			}
			work(2*time.Millisecond + rand.N(w.job.Busy))
			if last = monotonic() >= end; last {
				m.ending.Store(true)
			}
		}
		m.leave(id)
		m.released.Store(monotonic())
		if err := c.release(); err != nil {
			return nil, err
		}
		if last {
			return r, nil
		}
	}
}

// pairInTurn lets each process lock once alone, so that connections are there.
func pairInTurn(w *worker, c client) error {
	if err := pair(c); err != nil {
		return err
	}
	return w.meet("ready")
}

// work keeps a processor busy.
func work(d time.Duration) {
	for end := monotonic() + int64(d); monotonic() < end; {
		continue
	}
}

// until waits for something that another process does, without keeping a
// processor from it.
func until(done func() bool) error {
	for deadline := monotonic() + int64(time.Minute); !done(); time.Sleep(200 * time.Microsecond) {
		if monotonic() > deadline {
			return fmt.Errorf("the other process did nothing for a minute")
		}
	}
	return nil
}
