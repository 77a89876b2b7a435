//go:build linux

// Command bench compares distlock with what a lock costs at least, and with
// other libraries, side by side on servers of its own.
//
//	go run ./bench -backends file,mariadb -tests hot
//
// It prints its report in Markdown, and what it is doing to stderr. Each run of
// a test has processes of its own, and the contenders take turns.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	var err error
	if os.Getenv(workerVariable) != "" {
		err = serve(os.Stdin, os.Stdout)
	} else {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = bench(ctx, os.Args[1:], os.Stdout, os.Stderr)
		stop()
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func bench(ctx context.Context, args []string, out, progress io.Writer) (err error) {
	s, docs, err := parse(args, progress)
	if err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "distlock-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(s.dir)
	r, err := runAll(ctx, s, progress)
	if err != nil {
		return err
	}
	charts := ""
	if docs != "" {
		charts = "benchmarks"
	}
	var text bytes.Buffer
	r.write(&text, charts)
	if s.targets {
		r.writeTargets(&text, targets)
	}
	fmt.Fprintf(out, "%s", text.Bytes())
	if docs != "" {
		err = r.save(docs, text.Bytes())
	}
	if n := len(r.failures()); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d runs failed, see above", n))
	}
	return err
}

func parse(args []string, out io.Writer) (s *settings, docs string, err error) {
	s = new(settings)
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(out)
	which := flags.String("backends", listOf(backends, func(b *backend) string { return b.name }), "backends, with commas")
	what := flags.String("tests", listOf(tests, func(t *test) string { return t.name }), "tests, with commas")
	flags.IntVar(&s.repeats, "repeats", 3, "how often all is done")
	flags.DurationVar(&s.duration, "duration", time.Second, "length of the tests uncontended and names, for each contender and repeat")
	flags.IntVar(&s.short, "turns", 5, "how often the contenders take turns in that")
	flags.DurationVar(&s.hot, "hot", 5*time.Second, "length of the test hot")
	flags.DurationVar(&s.handOver, "handover", 2*time.Second, "length of the test handover")
	flags.IntVar(&s.names, "hold", 5000, "locks to hold at once")
	flags.StringVar(&docs, "o", "", "folder whose benchmarks.md gets the report, and whose folder benchmarks the charts: docs")
	flags.BoolVar(&s.targets, "targets", false, "say at the end which targets are reached")
	if err := flags.Parse(args); err != nil {
		return nil, "", err
	}
	if flags.NArg() > 0 {
		return nil, "", fmt.Errorf("unknown arguments %q", flags.Args())
	}
	if min(s.repeats, s.names, s.short) < 1 || min(s.duration, s.hot, s.handOver) <= 0 {
		return nil, "", errors.New("repeats, turns, hold and the lengths must be more than 0")
	}
	if s.backends, err = pick(*which, "backend", backends, func(b *backend) string { return b.name }); err != nil {
		return nil, "", err
	}
	s.tests, err = pick(*what, "test", tests, func(t *test) string { return t.name })
	return s, docs, err
}

func listOf[T any](all []T, name func(T) string) string {
	var l []string
	for _, x := range all {
		l = append(l, name(x))
	}
	return strings.Join(l, ",")
}

// pick returns those that a list names, in their usual order.
func pick[T any](list, kind string, all []T, name func(T) string) ([]T, error) {
	wanted := strings.Split(list, ",")
	var picked []T
	for _, x := range all {
		if i := slices.Index(wanted, name(x)); i >= 0 {
			picked = append(picked, x)
			wanted = slices.Delete(wanted, i, i+1)
		}
	}
	if len(wanted) > 0 {
		return nil, fmt.Errorf("no %s %q: there are %s", kind, wanted[0], listOf(all, name))
	}
	return picked, nil
}

// What save replaces in benchmarks.md is between these.
const (
	beginMark = "<!-- make bench writes from here -->\n"
	endMark   = "<!-- to here -->\n"
)

// save puts the report into the page that has a place for it, and draws the
// charts.
func (r *report) save(docs string, text []byte) error {
	page := filepath.Join(docs, "benchmarks.md")
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, ok := bytes.Cut(old, []byte(beginMark))
	_, after, ok2 := bytes.Cut(rest, []byte(endMark))
	if !ok || !ok2 {
		return fmt.Errorf("%s: the lines %q and %q are missing, between which the report goes", page, beginMark, endMark)
	}
	if err := os.MkdirAll(filepath.Join(docs, "benchmarks"), 0o755); err != nil {
		return err
	}
	for _, b := range r.backends {
		var chart bytes.Buffer
		writeChart(&chart, b.title, r.panels(b))
		if err := os.WriteFile(filepath.Join(docs, "benchmarks", b.name+".svg"), chart.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(page, slices.Concat(before, []byte(beginMark), []byte("\n"), text, []byte("\n"), []byte(endMark), after), 0o644)
}
