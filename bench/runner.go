//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// settings are the flags.
type settings struct {
	backends []*backend
	tests    []*test
	repeats  int
	duration time.Duration // of a run, but for
	hot      time.Duration
	handOver time.Duration
	names    int  // to hold
	short    int  // turns of the tests that can be short
	targets  bool // say which are reached
	dir      string
}

func (s *settings) length(t *test) time.Duration {
	switch t {
	case &hot:
		return s.hot
	case &handOver:
		return s.handOver
	}
	return s.duration / time.Duration(s.turns(t))
}

// turns returns how often the contenders take turns in one repeat. Where a run
// says much in little time they do it often, so that the machine's moods hit all.
func (s *settings) turns(t *test) int {
	if t == &uncontended || t == &names {
		return s.short
	}
	return 1
}

// held returns how many locks of a backend are held at once.
func (s *settings) held(b *backend) int {
	if b.names > 0 {
		return min(s.names, b.names)
	}
	return s.names
}

// limit is how much longer than its measuring a run may take.
const limit = 2 * time.Minute

// runAll measures all contenders, in turns, and returns what came out. What
// fails is noted, and the rest goes on.
func runAll(ctx context.Context, s *settings, progress io.Writer) (*report, error) {
	rep := newReport(s)
	stores := make(map[*backend]store)
	defer func() {
		for _, st := range stores {
			st.close()
		}
	}()
	runs := 0
	for _, b := range s.backends {
		fmt.Fprintf(progress, "starting %s\n", b.name)
		st, err := b.start(ctx)
		if err != nil {
			fmt.Fprintf(progress, "WARNING: %s is left out: %v\n", b.name, err)
			rep.missing = append(rep.missing, fmt.Sprintf("%s: %v", b.title, err))
			continue
		}
		stores[b] = st
		rep.backends = append(rep.backends, b)
		rep.versions[b] = st.version()
		for _, t := range s.tests {
			runs += s.repeats * len(contendersOf(b, t))
		}
	}
	began, done := time.Now(), 0
	for repeat := range s.repeats {
		for _, b := range rep.backends {
			for _, t := range s.tests {
				all := contendersOf(b, t)
				turns := make(map[*contender]*outcome)
				for turn := range s.turns(t) {
					for i := range all {
						c := all[(i+turn+repeat)%len(all)] // nobody is always the first
						values, err := measure(ctx, s, stores[b], b, t, c)
						if ctx.Err() != nil {
							return nil, context.Cause(ctx)
						}
						if turns[c] == nil {
							turns[c] = newOutcome()
						}
						turns[c].add(values, err)
					}
				}
				for _, c := range all {
					values, err := turns[c].medians(), errors.Join(turns[c].errs...)
					rep.add(b, t, c, values, err)
					done++
					fmt.Fprintf(progress, "%4d/%d %4.0fs  %s, %s, %s: %s\n", done, runs, time.Since(began).Seconds(), b.name, t.name, c.name, brief(t, values, err))
				}
			}
		}
	}
	return rep, nil
}

// sound returns what the watch has found.
func (r *run) sound() error {
	if r.violations+r.unordered == 0 {
		return nil
	}
	return fmt.Errorf("a holder wasn't alone %d times, and a token not larger than the last %d times", r.violations, r.unordered)
}

func contendersOf(b *backend, t *test) []*contender {
	var all []*contender
	for _, c := range b.contenders {
		if c.does(t.name) {
			all = append(all, c)
		}
	}
	return all
}

// brief says the first figure, or what went wrong.
func brief(t *test, values map[string]float64, err error) string {
	if err != nil {
		return "FAILED: " + err.Error()
	}
	f := t.figures[0]
	return f.title + " " + format(f.unit, values[f.name])
}

// measure makes one run: it starts the workers, keeps them in step, and asks
// what they measured.
func measure(ctx context.Context, s *settings, st store, b *backend, t *test, c *contender) (values map[string]float64, err error) {
	p, err := st.prepare(ctx, t.name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.length(t)+limit)
	defer cancel()
	path := filepath.Join(s.dir, "shared")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	m, err := share(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.unmap()) }()

	processes := t.processes
	if b.alone {
		processes = 1
	}
	goroutines := t.goroutines / processes
	if c.serial {
		goroutines = 1
	}
	workers := make([]*process, 0, processes)
	defer func() {
		cancel()
		for _, w := range workers {
			_ = w.cmd.Wait() // what went wrong is known from what it said
		}
	}()
	for i := range processes {
		w, err := startWorker(ctx, job{
			Backend: b.name, Contender: c.name, Test: t.name, Place: p, Shared: path, Index: i,
			Goroutines: goroutines, Names: s.held(b), Duration: s.length(t), Busy: max(busy, b.pause),
		})
		if err != nil {
			return nil, err
		}
		workers = append(workers, w)
	}
	r := run{before: nothing, after: nothing}
	for {
		step := ""
		for _, w := range workers {
			said, err := w.hear()
			switch {
			case err != nil:
				return nil, err
			case said.Result != nil:
				r.results = append(r.results, said.Result)
			default:
				step = said.Step
			}
		}
		switch step {
		case "ready":
			r.before, err = st.observe(ctx)
		case "measured":
			r.after, err = st.observe(ctx)
		default:
			r.violations, r.unordered = m.violations.Load(), m.unordered.Load()
			return t.reckon(r), r.sound()
		}
		if err != nil {
			return nil, err
		}
		at := monotonic() + int64(10*time.Millisecond)
		for _, w := range workers {
			if err := w.in.Encode(order{at}); err != nil {
				return nil, err
			}
		}
	}
}

// A process is a worker as its parent sees it.
type process struct {
	cmd *exec.Cmd
	in  *json.Encoder
	out *json.Decoder
	err bytes.Buffer
}

func startWorker(ctx context.Context, j job) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, program)}
	p.cmd.Env = append(os.Environ(), workerVariable+"=1")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.Stderr = &p.err
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.in, p.out = json.NewEncoder(in), json.NewDecoder(out)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	return p, p.in.Encode(j)
}

// hear waits for what the worker says next.
func (p *process) hear() (message, error) {
	var m message
	if err := p.out.Decode(&m); err != nil {
		ended := p.cmd.Wait()
		return m, fmt.Errorf("a process said nothing more: %w, %w: %.2000s", err, ended, p.err.Bytes())
	}
	if m.Err != "" {
		return m, errors.New(m.Err)
	}
	return m, nil
}
