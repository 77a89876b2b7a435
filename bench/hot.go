//go:build linux

package main

import (
	"context"
	"slices"
	"time"
)

var hot = test{
	name: "hot", title: "One name for 64 goroutines",
	text:      "2 processes of 32 goroutines, or 1 of 64 for what is in process, acquire and release the same name as fast as they get it. The waits are those of Acquire, whether it had to wait or not. Of the goroutines, the one with the fewest acquisitions is compared with the one with the most; of the processes, the one with fewer has the given share. Each holder looks whether it is alone, and whether its token, if there is one, is larger than the last.",
	processes: 2, goroutines: 64,
	figures: []figure{
		{name: "rate", title: "acquisitions", unit: perSecond, more: true, chart: true},
		{name: "p50", title: "wait p50", unit: nanoseconds},
		{name: "p99", title: "p99", unit: nanoseconds},
		{name: "max", title: "max", unit: nanoseconds},
		{name: "fairness", title: "fewest ÷ most", unit: count, more: true, chart: true},
		{name: "share", title: "smaller share", unit: fraction, more: true, plain: true},
		{name: "violations", title: "not alone", unit: count, plain: true},
		{name: "unordered", title: "tokens out of order", unit: count, plain: true},
	},
	work:   workHot,
	reckon: reckonHot,
}

func workHot(ctx context.Context, w *worker) (*result, error) {
	n := w.job.Goroutines
	clients, err := w.clients(ctx, func(int) string { return "inventory-42" }, n)
	if err != nil {
		return nil, err
	}
	waits := make([]tally, n)
	r := &result{Waits: newHistogram()}
	if err := w.meet("ready"); err != nil {
		return nil, err
	}
	err = w.together(r, func(i int) error {
		c, id := clients[i], uint64(w.job.Index*n+i+1)
		start := time.Now()
		if err := c.acquire(); err != nil {
			return err
		}
		waits[i].add(int64(time.Since(start)))
		w.shared.enter(id, c)
		if i == 0 && !r.Tokens {
			_, r.Tokens = c.token()
		}
		w.shared.leave(id)
		return c.release()
	})
	for i := range waits {
		r.Waits.merge(waits[i].histogram())
	}
	return r, err
}

func reckonHot(r run) map[string]float64 {
	waits := newHistogram()
	var each, shares []int64
	for _, x := range r.results {
		waits.merge(x.Waits)
		each = append(each, x.Each...)
		shares = append(shares, x.Operations)
	}
	m := map[string]float64{
		"rate":       r.rate(),
		"p50":        float64(waits.percentile(50)),
		"p99":        float64(waits.percentile(99)),
		"max":        float64(waits.Max),
		"fairness":   float64(slices.Min(each)) / float64(max(1, slices.Max(each))),
		"violations": float64(r.violations),
	}
	if len(shares) > 1 {
		m["share"] = float64(slices.Min(shares)) / max(1, r.total(func(x *result) int64 { return x.Operations }))
	}
	if r.results[0].Tokens {
		m["unordered"] = float64(r.unordered)
	}
	return m
}
