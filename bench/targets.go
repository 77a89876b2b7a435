//go:build linux

package main

import (
	"io"
)

// A target is what a figure of ours has to reach.
type target struct {
	backend   *backend
	test      *test
	contender string
	figure    string
	limit     float64
	times     string // the contender whose figure the limit is a multiple of
}

// Where a value was asked for, which hangs on the machine, its ratio to the
// floor of the run in which it was set is asked for, too.
var targets = []target{
	{&local, &uncontended, "distlock", "time", 1.3, "moby/locker"},
	{&local, &uncontended, "distlock", "allocations", 2, ""},
	{&local, &hot, "distlock", "rate", 500_000, ""},
	{&local, &hot, "distlock", "rate", 0.5 / 3.7, "sync.Mutex"},
	{&local, &hot, "distlock", "fairness", 0.9, ""},
	{&file, &uncontended, "distlock, no tokens", "time", 1.5, "flock(2)"},
	{&file, &uncontended, "distlock", "time", 3, "flock(2)"},
	{&file, &handOver, "distlock", "p50", 150e3, ""},
	{&file, &handOver, "distlock", "p50", 150.0 / 17, "flock(2)"},
	{&file, &hot, "distlock", "rate", 175_000, ""},
	{&file, &hot, "distlock", "rate", 175.0 / 372, "flock(2)"},
	{&file, &hot, "distlock", "fairness", 0.5, ""},
	{&file, &hot, "distlock", "max", 100e6, ""},
	{&mariaDB, &uncontended, "distlock", "time", 1.15, "bare, 1 connection"},
	{&mariaDB, &names, "distlock", "rate", 100_000, ""},
	{&mariaDB, &names, "distlock", "rate", 100.0 / 36, "bare, 1 connection each"},
	{&mariaDB, &names, "distlock", "connections", 8, ""},
	{&mariaDB, &hot, "distlock, tokens", "rate", 240_000, ""},
	{&mariaDB, &hot, "distlock, tokens", "rate", 240.0 / 12, "bare, 1 connection each"},
	{&mariaDB, &hot, "distlock, tokens", "fairness", 0.5, ""},
	{&mariaDB, &hot, "distlock, tokens", "max", 100e6, ""},
	{&mariaDB, &hot, "distlock, tokens", "unordered", 0, ""},
	{&mariaDB, &handOver, "distlock", "p50", 1.3, "bare, 1 connection each"},
	{&mariaDB, &hold, "distlock", "connections", 8, ""},
	{&mariaDB, &hold, "distlock", "take", 150e6, ""},
	{&mariaDB, &hold, "distlock", "take", 0.5, "bare, 1 connection"},
	{&mariaDB, &hold, "distlock", "server", 10e6, ""},
	{&azurite, &uncontended, "distlock", "time", 1.1, "bare SDK calls"},
}

// writeTargets says of each target whether it was reached. Those whose test
// wasn't run are left out.
func (r *report) writeTargets(w io.Writer, all []target) {
	rows := [][]string{{"target", "floor", "best peer", "distlock", "× floor", "× peer", "reach", "holds"}}
	for _, g := range all {
		c := g.backend.contender(g.contender)
		f := g.test.figure(g.figure)
		if c == nil {
			continue
		}
		v, ok := r.value(g.backend, g.test, c, f)
		if !ok {
			continue
		}
		limit, reach := g.limit, format(f.unit, g.limit)
		if g.times != "" {
			than, ok := r.value(g.backend, g.test, g.backend.contender(g.times), f)
			if !ok {
				continue
			}
			limit, reach = g.limit*than, digits(g.limit, 3)+" × "+g.times
		}
		sign, holds := "≤ ", v <= limit
		if f.more {
			sign, holds = "≥ ", v >= limit
		}
		rows = append(rows, []string{
			g.backend.name + ", " + g.test.name + ", " + f.title + " (" + c.name + ")",
			r.bestCell(g.backend, g.test, f, floor), r.bestCell(g.backend, g.test, f, peer), format(f.unit, v),
			r.ratio(g.backend, g.test, c, f, floor), r.ratio(g.backend, g.test, c, f, peer),
			sign + reach, map[bool]string{true: "yes", false: "NO"}[holds],
		})
	}
	writeTable(w, rows)
}

func (r *report) bestCell(b *backend, t *test, f *figure, of role) string {
	v, whose := r.best(b, t, f, of)
	if whose == nil {
		return "–"
	}
	return format(f.unit, v)
}

func (t *test) figure(name string) *figure {
	for i := range t.figures {
		if t.figures[i].name == name {
			return &t.figures[i]
		}
	}
	return nil
}
