//go:build linux

package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// A report is what came out of all runs.
type report struct {
	settings *settings
	machine  string
	date     time.Time
	backends []*backend // those whose store was there
	missing  []string   // and the others
	versions map[*backend]string
	outcomes map[key]*outcome
}

type key struct {
	backend   *backend
	test      *test
	contender *contender
}

// An outcome has a value of each figure for each time that it was measured.
type outcome struct {
	values map[string][]float64
	errs   []error
}

func newOutcome() *outcome { return &outcome{values: make(map[string][]float64)} }

func (o *outcome) add(values map[string]float64, err error) {
	if err != nil {
		o.errs = append(o.errs, err)
	}
	for name, v := range values {
		o.values[name] = append(o.values[name], v)
	}
}

func (o *outcome) medians() map[string]float64 {
	m := make(map[string]float64)
	for name, values := range o.values {
		m[name] = median(values)
	}
	return m
}

func newReport(s *settings) *report {
	return &report{
		settings: s, machine: machine(), date: time.Now(),
		versions: make(map[*backend]string), outcomes: make(map[key]*outcome),
	}
}

func (r *report) add(b *backend, t *test, c *contender, values map[string]float64, err error) {
	k := key{b, t, c}
	if r.outcomes[k] == nil {
		r.outcomes[k] = newOutcome()
	}
	r.outcomes[k].add(values, err)
}

// value returns the median of the repeats.
func (r *report) value(b *backend, t *test, c *contender, f *figure) (float64, bool) {
	o := r.outcomes[key{b, t, c}]
	if o == nil || len(o.values[f.name]) == 0 {
		return 0, false
	}
	return median(o.values[f.name]), true
}

// best returns the best median of the contenders of a role, and whose it is. Of
// those it takes the ones that are cancelable or not as wanted, if there are any.
func (r *report) best(b *backend, t *test, f *figure, of role, cancelable bool) (best float64, whose *contender) {
	for _, c := range contendersOf(b, t) {
		v, ok := r.value(b, t, c, f)
		if c.role != of || !ok {
			continue
		}
		switch {
		case whose == nil, c.cancelable == whose.cancelable && better(f, v, best), c.cancelable != whose.cancelable && c.cancelable == cancelable:
			best, whose = v, c
		}
	}
	return best, whose
}

func better(f *figure, a, b float64) bool {
	if f.more {
		return a > b
	}
	return a < b
}

// failures returns what went wrong, a line for each.
func (r *report) failures() []string {
	var lines []string
	for _, b := range r.backends {
		for _, t := range r.settings.tests {
			for _, c := range contendersOf(b, t) {
				if o := r.outcomes[key{b, t, c}]; o != nil {
					for i, err := range o.errs {
						lines = append(lines, fmt.Sprintf("%s, %s, %s (%d): %v", b.name, t.name, c.name, i+1, err))
					}
				}
			}
		}
	}
	return lines
}

// write writes the report in Markdown. Charts are linked to in a folder, if it
// isn't empty.
func (r *report) write(w io.Writer, charts string) {
	fmt.Fprintf(w, "Run on %s. %s.\n", r.date.UTC().Format("2 January 2006"), r.machine)
	s := r.settings
	fmt.Fprintf(w, "\nRepeats: %d. Each figure is their median, with the least and the most in brackets. ", s.repeats)
	fmt.Fprintf(w, "In a repeat each contender has %v for each test of free locks (turns: %d, and the median of these is taken), %v for the one name, %v for hand-overs, and %s locks to hold.\n",
		s.duration, s.short, s.hot, s.handOver, thousands(float64(s.names)))
	for _, m := range r.missing {
		fmt.Fprintf(w, "\nLeft out: %s.\n", m)
	}
	fmt.Fprintf(w, "\n### What is measured\n\n")
	for _, t := range s.tests {
		fmt.Fprintf(w, "- **%s.** %s\n", t.title, t.text)
	}
	for _, b := range r.backends {
		fmt.Fprintf(w, "\n### %s\n\n", b.title)
		if v := r.versions[b]; v != "" {
			fmt.Fprintf(w, "%s.\n\n", v)
		}
		for _, c := range b.contenders {
			role := c.role.String()
			if c.module != "" {
				role += ", " + strings.TrimSpace(c.module+" "+module(c.module))
			}
			fmt.Fprintf(w, "- **%s** (%s): %s\n", c.name, role, c.note)
		}
		if charts != "" {
			fmt.Fprintf(w, "\n![%s](%s/%s.svg)\n", b.title, charts, b.name)
		}
		for _, t := range s.tests {
			if len(contendersOf(b, t)) > 0 {
				r.writeTest(w, b, t)
			}
		}
	}
	if failures := r.failures(); len(failures) > 0 {
		fmt.Fprintf(w, "\n### Failed\n\n")
		for _, f := range failures {
			fmt.Fprintf(w, "- %s\n", f)
		}
	}
}

func (r *report) writeTest(w io.Writer, b *backend, t *test) {
	var shown []*figure
	for i := range t.figures {
		for _, c := range contendersOf(b, t) {
			if _, ok := r.value(b, t, c, &t.figures[i]); ok {
				shown = append(shown, &t.figures[i])
				break
			}
		}
	}
	head := []string{b.title}
	ratios := []string{"× floor / × best peer"}
	var compared []*figure
	for _, f := range shown {
		head = append(head, f.title)
		if !f.plain {
			ratios, compared = append(ratios, f.title), append(compared, f)
		}
	}
	rows, ratioRows := [][]string{head}, [][]string{ratios}
	for _, c := range contendersOf(b, t) {
		row, ratioRow := []string{c.name}, []string{c.name}
		for _, f := range shown {
			row = append(row, r.cell(b, t, c, f))
		}
		for _, f := range compared {
			ratioRow = append(ratioRow, r.ratio(b, t, c, f, floor)+" / "+r.ratio(b, t, c, f, peer))
		}
		rows, ratioRows = append(rows, row), append(ratioRows, ratioRow)
	}
	fmt.Fprintf(w, "\n#### %s\n\n", t.title)
	if n := r.settings.held(b); t == &hold && n < r.settings.names {
		fmt.Fprintf(w, "Fewer here: %s.\n\n", thousands(float64(n)))
	}
	writeTable(w, rows)
	fmt.Fprintln(w)
	writeTable(w, ratioRows)
}

func (r *report) cell(b *backend, t *test, c *contender, f *figure) string {
	o := r.outcomes[key{b, t, c}]
	if o == nil || len(o.values[f.name]) == 0 {
		if o != nil && len(o.errs) > 0 {
			return "failed"
		}
		return "–"
	}
	values := o.values[f.name]
	least, most := values[0], values[0]
	for _, v := range values {
		least, most = min(least, v), max(most, v)
	}
	text := format(f.unit, median(values))
	if low, high := format(f.unit, least), format(f.unit, most); low != high {
		text += " (" + low + " … " + high + ")"
	}
	return text
}

// ratio returns how many times the best figure of a role c's is.
func (r *report) ratio(b *backend, t *test, c *contender, f *figure, of role) string {
	v, ok := r.value(b, t, c, f)
	best, whose := r.best(b, t, f, of, c.cancelable)
	if !ok || whose == nil || best == 0 {
		return "–"
	}
	return digits(v/best, 3)
}

// writeTable writes a table in Markdown, in columns that line up. The first row
// is its head.
func writeTable(w io.Writer, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	for n, row := range rows {
		for i, cell := range row {
			space := strings.Repeat(" ", widths[i]-len([]rune(cell)))
			if i == 0 {
				fmt.Fprint(w, "| ", cell, space, " |")
			} else {
				fmt.Fprint(w, " ", space, cell, " |")
			}
		}
		fmt.Fprintln(w)
		if n == 0 {
			for i, width := range widths {
				if i == 0 {
					fmt.Fprint(w, "|", strings.Repeat("-", width+2), "|")
				} else {
					fmt.Fprint(w, strings.Repeat("-", width+1), ":|")
				}
			}
			fmt.Fprintln(w)
		}
	}
}

// format writes a figure with three digits.
func format(u unit, v float64) string {
	switch u {
	case nanoseconds:
		for _, s := range []struct {
			size float64
			unit string
		}{{1e9, " s"}, {1e6, " ms"}, {1e3, " µs"}} {
			if v >= 0.9995*s.size {
				return digits(v/s.size, 3) + s.unit
			}
		}
		return digits(v, 3) + " ns"
	case perSecond:
		return thousands(round(v, 3)) + "/s"
	case fraction:
		return digits(100*v, 2) + " %"
	case bytesUsed:
		switch size := math.Abs(v); {
		case size < 1e3:
			return digits(v, 3) + " B"
		case size < 1e5:
			return digits(v/1e3, 3) + " kB"
		}
		return digits(v/1e6, 3) + " MB"
	default:
		if v >= 10 || math.Abs(v-math.Round(v)) < 0.005 {
			return thousands(v)
		}
		return digits(v, 2)
	}
}

// round rounds to so many digits.
func round(v float64, n int) float64 {
	if v == 0 {
		return 0
	}
	scale := math.Pow(10, float64(n-1)-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

// digits writes v with so many digits, but all of those before the point.
func digits(v float64, n int) string {
	r := round(v, n)
	if r == 0 {
		return "0"
	}
	decimals := max(0, n-1-int(math.Floor(math.Log10(math.Abs(r)))))
	if decimals == 0 {
		return thousands(math.Round(v))
	}
	return strconv.FormatFloat(r, 'f', min(decimals, 3), 64)
}

// thousands writes a number with its thousands marked, without a fraction.
func thousands(v float64) string {
	text := strconv.FormatFloat(v, 'f', 0, 64)
	sign := ""
	if strings.HasPrefix(text, "-") {
		sign, text = "-", text[1:]
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return sign + text
}
