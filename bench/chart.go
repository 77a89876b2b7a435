//go:build linux

package main

import (
	"fmt"
	"html"
	"io"
	"slices"
)

// A panel is one figure of one test.
type panel struct {
	title, note string
	unit        unit
	bars        []bar
}

type bar struct {
	name               string
	role               role
	value, least, most float64
}

// panels returns what the chart of a backend shows.
func (r *report) panels(b *backend) []panel {
	var all []panel
	for _, t := range r.settings.tests {
		for i := range t.figures {
			f := &t.figures[i]
			if !f.chart {
				continue
			}
			p := panel{title: t.title + ": " + f.title, note: "less is better", unit: f.unit}
			if f.more {
				p.note = "more is better"
			}
			for _, c := range contendersOf(b, t) {
				if v, ok := r.value(b, t, c, f); ok {
					values := r.outcomes[key{b, t, c}].values[f.name]
					p.bars = append(p.bars, bar{c.name, c.role, v, slices.Min(values), slices.Max(values)})
				}
			}
			if len(p.bars) > 0 {
				all = append(all, p)
			}
		}
	}
	return all
}

// writeChart draws bars, which begin at zero, with a line from the least to the
// most of the repeats.
func writeChart(w io.Writer, title string, panels []panel) {
	const (
		width, left, right = 860, 300, 720 // bars are from left to right
		row, thick         = 24, 14
		above, below       = 46, 18 // the bars of a panel
		head               = 64
	)
	height := head
	for _, p := range panels {
		height += above + row*len(p.bars) + below
	}
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-label="%s">`+"\n", width, height, width, height, html.EscapeString(title))
	// Without a background, in colours that can be read on white and on black, also
	// by what knows no media queries.
	fmt.Fprint(w, `<style>
text { font: 13px system-ui, sans-serif; fill: #6e7781 }
.h1 { font-size: 18px; font-weight: 600 } .h2 { font-size: 14px; font-weight: 600 } .note { font-size: 12px }
.floor { fill: #8c959f } .ours { fill: #2f7fe0 } .peer { fill: #d08b35 }
line { stroke: #6e7781; stroke-width: 1.5 } .axis { stroke: #8c959f; stroke-width: 1 }
@media (prefers-color-scheme: dark) { text { fill: #b4bcc6 } line { stroke: #d0d7de } }
</style>
`)
	fmt.Fprintf(w, `<text class="h1" x="16" y="28">%s</text>`+"\n", html.EscapeString(title))
	x := 16
	for _, legend := range []struct{ class, text string }{{"floor", "floor"}, {"ours", "distlock"}, {"peer", "peer"}} {
		fmt.Fprintf(w, `<rect class="%s" x="%d" y="41" width="12" height="12"/><text class="note" x="%d" y="51">%s</text>`+"\n", legend.class, x, x+18, legend.text)
		x += 90
	}
	fmt.Fprintf(w, `<text class="note" x="%d" y="51">bar: median; line: least to most of the repeats</text>`+"\n", x)
	y := head
	for _, p := range panels {
		fmt.Fprintf(w, `<text class="h2" x="16" y="%d">%s <tspan class="note" font-weight="400">(%s, %s)</tspan></text>`+"\n", y+28, html.EscapeString(p.title), unitName(p.unit), p.note)
		most := 0.0
		for _, b := range p.bars {
			most = max(most, b.most)
		}
		at := func(v float64) float64 {
			if most == 0 {
				return left
			}
			return left + max(0, v)/most*(right-left)
		}
		y += above
		for i, b := range p.bars {
			top := y + i*row
			class := [...]string{floor: "floor", ours: "ours", peer: "peer"}[b.role]
			fmt.Fprintf(w, `<text x="%d" y="%d" text-anchor="end">%s</text>`, left-8, top+12, html.EscapeString(b.name))
			fmt.Fprintf(w, `<rect class="%s" x="%d" y="%d" width="%.1f" height="%d"/>`, class, left, top, max(1, at(b.value)-left), thick)
			if b.most > b.least {
				fmt.Fprintf(w, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`, at(b.least), top+thick/2, at(b.most), top+thick/2)
			}
			fmt.Fprintf(w, `<text x="%.1f" y="%d">%s</text>`+"\n", max(at(b.value), at(b.most))+8, top+12, format(p.unit, b.value))
		}
		y += row * len(p.bars)
		fmt.Fprintf(w, `<line class="axis" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", left, y-row*len(p.bars)-4, left, y-4)
		y += below
	}
	fmt.Fprintln(w, "</svg>")
}

func unitName(u unit) string {
	return [...]string{nanoseconds: "time", perSecond: "per second", count: "number", fraction: "per cent", bytesUsed: "MB"}[u]
}
