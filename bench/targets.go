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
	against   against
}

// against says what a limit is a multiple of.
type against int

const (
	itself against = iota // the limit is a value
	theFloor
	thePeer
)

// Where a value was asked for, which hangs on the machine, its ratio to the
// floor of the run in which it was set is asked for, too.
var targets = []target{
	{&local, &uncontended, "distlock", "time", 1.3, thePeer},
	{&local, &uncontended, "distlock", "allocations", 2, itself},
	{&local, &hot, "distlock", "rate", 500_000, itself},
	{&local, &hot, "distlock", "rate", 0.5 / 3.7, theFloor},
	{&local, &hot, "distlock", "fairness", 0.9, itself},
	{&file, &uncontended, "distlock, no tokens", "time", 1.5, theFloor},
	{&file, &uncontended, "distlock", "time", 3, theFloor},
	{&file, &handOver, "distlock", "p50", 150e3, itself},
	{&file, &handOver, "distlock", "p50", 150.0 / 17, theFloor},
	{&file, &hot, "distlock", "rate", 175_000, itself},
	{&file, &hot, "distlock", "rate", 175.0 / 372, theFloor},
	{&file, &hot, "distlock", "fairness", 0.5, itself},
	{&file, &hot, "distlock", "max", 100e6, itself},
	{&mariaDB, &uncontended, "distlock", "time", 1.15, theFloor},
	{&mariaDB, &names, "distlock", "rate", 100_000, itself},
	{&mariaDB, &names, "distlock", "rate", 100.0 / 36, theFloor},
	{&mariaDB, &names, "distlock", "connections", 8, itself},
	{&mariaDB, &hot, "distlock, tokens", "rate", 240_000, itself},
	{&mariaDB, &hot, "distlock, tokens", "rate", 240.0 / 12, theFloor},
	{&mariaDB, &hot, "distlock, tokens", "fairness", 0.5, itself},
	{&mariaDB, &hot, "distlock, tokens", "max", 100e6, itself},
	{&mariaDB, &hot, "distlock, tokens", "unordered", 0, itself},
	{&mariaDB, &handOver, "distlock", "p50", 1.3, theFloor},
	{&mariaDB, &hold, "distlock", "connections", 8, itself},
	{&mariaDB, &hold, "distlock", "take", 150e6, itself},
	{&mariaDB, &hold, "distlock", "take", 0.5, theFloor},
	{&mariaDB, &hold, "distlock", "server", 10e6, itself},
	{&azurite, &uncontended, "distlock", "time", 1.1, theFloor},
}

// writeTargets says of each target whether it was reached. Those whose test
// wasn't run are left out.
func (r *report) writeTargets(w io.Writer) {
	rows := [][]string{{"target", "floor", "best peer", "distlock", "× floor", "× peer", "reach", "holds"}}
	for _, g := range targets {
		c := g.backend.contender(g.contender)
		f := g.test.figure(g.figure)
		if c == nil {
			continue
		}
		v, ok := r.value(g.backend, g.test, c, f)
		if !ok {
			continue
		}
		least, _ := r.best(g.backend, g.test, f, floor)
		rival, _ := r.best(g.backend, g.test, f, peer)
		limit, reach := g.limit, format(f.unit, g.limit)
		switch g.against {
		case theFloor:
			limit, reach = g.limit*least, digits(g.limit, 3)+" × floor"
		case thePeer:
			limit, reach = g.limit*rival, digits(g.limit, 3)+" × peer"
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
