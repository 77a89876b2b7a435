//go:build linux

package main

import (
	"fmt"
	"io"
)

// A target is a limit that a figure of ours is to keep.
type target struct {
	backend   *backend
	test      *test
	contender string
	figure    string
	limit     float64
	times     string // what the limit is a multiple of: "floor" or "peer", which is the best of them, or a contender
}

// A limit that is a value hangs on the machine; so there is another one, its ratio
// to the floor, or to the best peer, of the run in which it was set.
var targets = []target{
	{&local, &uncontended, "distlock", "time", 1.3, "moby/locker"},
	{&local, &uncontended, "distlock, cancelable", "time", 1.3, "moby/locker"},
	{&local, &uncontended, "distlock", "allocations", 2, ""},
	{&local, &hot, "distlock", "rate", 500_000, ""},
	{&local, &hot, "distlock", "rate", 0.5 / 3.7, "floor"},
	{&local, &hot, "distlock", "fairness", 0.9, ""},
	{&file, &uncontended, "distlock, no tokens", "time", 1.5, "floor"},
	{&file, &uncontended, "distlock", "time", 3, "floor"},
	{&file, &handOver, "distlock", "p50", 150e3, ""},
	{&file, &handOver, "distlock", "p50", 150.0 / 17, "floor"},
	{&file, &hot, "distlock", "rate", 175_000, ""},
	{&file, &hot, "distlock", "rate", 175.0 / 372, "floor"},
	{&file, &hot, "distlock", "rate", 1, "peer"},
	{&file, &hot, "distlock", "fairness", 0.5, ""},
	{&file, &hot, "distlock", "max", 100e6, ""},
	{&mariaDB, &uncontended, "distlock", "time", 1.15, "floor"},
	{&mariaDB, &uncontended, "distlock, cancelable", "time", 1.15, "floor"},
	{&mariaDB, &names, "distlock", "rate", 100_000, ""},
	{&mariaDB, &names, "distlock", "rate", 100.0 / 36, "floor"},
	{&mariaDB, &names, "distlock, cancelable", "rate", 100.0 / 36, "floor"},
	{&mariaDB, &names, "distlock", "connections", 8, ""},
	{&mariaDB, &hot, "distlock, tokens", "rate", 240_000, ""},
	{&mariaDB, &hot, "distlock, tokens", "rate", 240.0 / 12, "floor"},
	{&mariaDB, &hot, "distlock, tokens", "fairness", 0.5, ""},
	{&mariaDB, &hot, "distlock, tokens", "max", 100e6, ""},
	{&mariaDB, &hot, "distlock, tokens", "unordered", 0, ""},
	{&mariaDB, &handOver, "distlock", "p50", 1.3, "floor"},
	{&mariaDB, &hold, "distlock", "connections", 8, ""},
	{&mariaDB, &hold, "distlock", "take", 150e6, ""},
	{&mariaDB, &hold, "distlock", "take", 0.15 / 0.3, "floor"},
	{&mariaDB, &hold, "distlock", "server", 10e6, ""},
	{&azurite, &uncontended, "distlock", "time", 1.1, "floor"},
}

// writeTargets says of each target whether it was reached. Those of what wasn't
// measured are left out.
func (r *report) writeTargets(w io.Writer, all []target) {
	rows := [][]string{{"target", "floor", "best peer", "distlock", "× floor", "× peer", "reach", "is", "reached"}}
	reached := 0
	for _, g := range all {
		c := g.backend.contender(g.contender)
		f := g.test.figure(g.figure)
		if c == nil {
			continue
		}
		name := g.backend.name + ", " + g.test.name + ", " + f.title + " (" + c.name + ")"
		v, ok := r.value(g.backend, g.test, c, f)
		if !ok {
			if r.outcomes[key{g.backend, g.test, c}] != nil {
				rows = append(rows, []string{name, "–", "–", "failed", "–", "–", "–", "–", "NO"})
			}
			continue
		}
		is, reach, text := v, format(f.unit, g.limit), format(f.unit, v)
		if g.times != "" {
			than, ok := r.reference(&g, c, f)
			if !ok {
				continue
			}
			is, reach, text = v/than, digits(g.limit, 3)+" × "+g.times, digits(v/than, 3)
		}
		sign, holds := "≤ ", is <= g.limit
		if f.more {
			sign, holds = "≥ ", is >= g.limit
		}
		if holds {
			reached++
		}
		rows = append(rows, []string{
			name,
			r.bestCell(g.backend, g.test, c, f, floor), r.bestCell(g.backend, g.test, c, f, peer), format(f.unit, v),
			r.ratio(g.backend, g.test, c, f, floor), r.ratio(g.backend, g.test, c, f, peer),
			sign + reach, text, map[bool]string{true: "yes", false: "NO"}[holds],
		})
	}
	fmt.Fprintf(w, "\n### Targets\n\nReached: %d of %d. One that isn't a multiple hangs on the machine, too.\n\n", reached, len(rows)-1)
	writeTable(w, rows)
}

// reference returns the figure that a target's limit is a multiple of.
func (r *report) reference(g *target, c *contender, f *figure) (float64, bool) {
	for _, of := range []role{floor, peer} {
		if g.times == of.String() {
			v, whose := r.best(g.backend, g.test, f, of, c.cancelable)
			return v, whose != nil && v > 0
		}
	}
	v, ok := r.value(g.backend, g.test, g.backend.contender(g.times), f)
	return v, ok && v > 0
}

func (r *report) bestCell(b *backend, t *test, c *contender, f *figure, of role) string {
	v, whose := r.best(b, t, f, of, c.cancelable)
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
