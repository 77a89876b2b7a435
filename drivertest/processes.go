package drivertest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

// Main is for TestMain of a package whose Harness has Process. In a process
// that the suite has started it serves the suite, with a backend that open
// opens from the environment, and doesn't return. Otherwise it runs the tests.
func Main(m *testing.M, open func() (driver.Backend, error)) {
	if ttl, ok := os.LookupEnv(childVariable); ok {
		if err := serve(os.Stdin, os.Stdout, ttl, open); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// childVariable is set in processes that serve the suite, to the lease to ask
// for.
const childVariable = "DISTLOCK_DRIVERTEST_TTL"

// An order is what a child is told to do.
type order struct {
	Do      string
	Name    string
	File    string
	Timeout time.Duration
	Workers int
}

// A reply is what comes of it. A reply that says Waiting comes before another.
type reply struct {
	Waiting bool
	Held    bool // an Acquire was refused with ErrNotAcquired
	Lost    bool
	Err     string
	Token   uint64
	Count   int
}

// A child carries out orders.
type child struct {
	locks *distlock.Locker
	held  map[string]*distlock.Lock
	quiet atomic.Bool // nobody reads what is said before the order is carried out
	mu    sync.Mutex
	out   *json.Encoder
}

func serve(in io.Reader, out io.Writer, ttl string, open func() (driver.Backend, error)) error {
	lease, err := time.ParseDuration(ttl)
	if err != nil {
		return err
	}
	b, err := open()
	if err != nil {
		return err
	}
	c := &child{held: make(map[string]*distlock.Lock), out: json.NewEncoder(out)}
	c.locks = distlock.New(b, &distlock.Options{TTL: lease, ReleaseTimeout: slack, Trace: &distlock.Trace{
		Waiting: func(context.Context, distlock.Event) {
			if !c.quiet.Load() {
				c.say(reply{Waiting: true})
			}
		},
	}})
	lines := json.NewDecoder(in)
	for {
		var o order
		if err := lines.Decode(&o); err != nil {
			return nil // the suite is gone: so is this process, with what it holds
		}
		c.say(c.obey(o))
	}
}

func (c *child) say(r reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.Encode(r)
}

func (c *child) obey(o order) (r reply) {
	switch o.Do {
	case "acquire":
		l, err := c.locks.Acquire(context.Background(), o.Name, distlock.Timeout(o.Timeout))
		if err != nil {
			return failed(err)
		}
		c.held[o.Name] = l
		r.Token, _ = l.Token()
	case "release":
		if err := c.held[o.Name].Release(); err != nil {
			return failed(err)
		}
	case "count":
		c.quiet.Store(true)
		defer c.quiet.Store(false)
		n, err := c.count(o)
		r.Count = n
		if err != nil {
			r.Err = err.Error()
		}
	case "work":
		go c.work(c.held[o.Name], o.File)
	}
	return r
}

func failed(err error) reply {
	return reply{
		Err: err.Error(), Held: errors.Is(err, distlock.ErrNotAcquired), Lost: errors.Is(err, distlock.ErrLost),
	}
}

// count increments the number in a file, under the lock, until the time is
// over.
func (c *child) count(o order) (int, error) {
	var done atomic.Int64
	deadline := time.Now().Add(o.Timeout)
	errs := make(chan error, o.Workers)
	for range o.Workers {
		go func() {
			var err error
			for first := true; err == nil && (first || time.Now().Before(deadline)); first = false {
				err = c.locks.Do(context.Background(), o.Name, func(context.Context) error { return increment(o.File) })
				if err == nil {
					done.Add(1)
				}
			}
			errs <- err
		}()
	}
	var all []error
	for range o.Workers {
		all = append(all, <-errs)
	}
	return int(done.Load()), errors.Join(all...)
}

func increment(file string) error {
	n, err := number(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, strconv.AppendInt(nil, int64(n+1), 10), 0o600)
}

func number(file string) (int, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(b))
}

// work writes to the file as long as the lock is held, and then says that it
// isn't.
func (c *child) work(l *distlock.Lock, file string) {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	for err == nil && l.Err() == nil {
		_, err = f.WriteString(".")
		time.Sleep(100 * time.Microsecond)
	}
	if err == nil {
		err = l.Err()
	}
	c.say(failed(err))
}

var processes = throughDistlock([]clause{
	{name: "P01_processes_exclude_each_other", needs: "Process", real: true, run: func(t *trial) {
		b := t.open()
		p := t.process()
		name := t.resource()
		p.ask(order{Do: "acquire", Name: name, Timeout: patience}).mustSucceed(t)
		t.held(b, name, "though another process has it")
		p.ask(order{Do: "release", Name: name}).mustSucceed(t)
		t.hold(b, name)
		if r := p.ask(order{Do: "acquire", Name: name}); !r.Held {
			t.Fatalf("another process, though this one has it: %+v", r)
		}
	}},
	{name: "P01_processes_lose_no_update", needs: "Process", real: true, run: func(t *trial) {
		name, file := t.resource(), t.file("0")
		var all []*process
		for range 3 {
			p := t.process()
			p.send(order{Do: "count", Name: name, File: file, Timeout: time.Second, Workers: 3})
			all = append(all, p)
		}
		counted := 0
		for _, p := range all {
			r := p.result(2 * patience)
			r.mustSucceed(t)
			counted += r.Count
		}
		n, err := number(file)
		if err != nil {
			t.Fatalf("what was counted can't be read: %v", err)
		}
		if n != counted || n == 0 {
			t.Errorf("%d of %d updates by three processes are left", n, counted)
		}
	}},
	{name: "P14_token_grows_over_processes", needs: "Process tokens", real: true, run: func(t *trial) {
		here := t.locker(nil)
		p, q := t.process(), t.process()
		name := t.resource()
		var l ladder
		for range 3 {
			for _, p := range []*process{p, q} {
				r := p.ask(order{Do: "acquire", Name: name, Timeout: patience})
				r.mustSucceed(t)
				l.next(t, r.Token, "of another process")
				p.ask(order{Do: "release", Name: name}).mustSucceed(t)
			}
			lock := t.lock(here, name)
			token, _ := lock.Token()
			l.next(t, token, "after those of other processes")
			t.unlock(lock)
		}
	}},
	{name: "P15_killed_holder_is_replaced", needs: "Process", real: true, run: func(t *trial) {
		b := t.open()
		p := t.process()
		name := t.resource()
		p.ask(order{Do: "acquire", Name: name, Timeout: patience}).mustSucceed(t)
		p.kill()
		bound := t.lossBound(b) + t.h.ttl(b.Info())
		t.freeWithin(bound, b, t.request(b, name, driver.Exclusive), "after its holder's process was killed")
	}},
	{name: "P07_killed_waiter_leaves_nothing", needs: "Process", real: true, run: func(t *trial) {
		a, b := t.two()
		p := t.process()
		name := t.resource()
		g := t.hold(a, name)
		p.send(order{Do: "acquire", Name: name, Timeout: time.Hour})
		if r := p.reply(2 * patience); !r.Waiting {
			t.Fatalf("another process doesn't wait for what this one has: %+v", r)
		}
		time.Sleep(settled) // until it has asked a second time
		p.kill()
		t.release(g)
		bound := t.lossBound(b) + t.h.ttl(b.Info())
		t.staysFree(bound, b, t.request(b, name, driver.Exclusive), "after its holder released and its waiter's process was killed")
	}},
	{name: "P11_S23_stopped_holder_keeps_it", needs: "Process", real: true, run: func(t *trial) {
		b := t.open()
		if b.Info().MaxTTL > 0 {
			t.Skip("the backend's holdings hang on leases")
		}
		p := t.process()
		name := t.resource()
		p.ask(order{Do: "acquire", Name: name, Timeout: patience}).mustSucceed(t)
		goOn := p.stop()
		t.throughout(2*time.Second, "held though its holder's process is stopped", func() bool {
			_, err := t.try(b, t.request(b, name, driver.Exclusive))
			return errors.Is(err, driver.ErrHeld)
		})
		goOn()
		p.ask(order{Do: "release", Name: name}).mustSucceed(t)
	}},
	{name: "P11_S23_stopped_holder_learns_first", needs: "Process leases", real: true, run: func(t *trial) {
		b := t.open()
		p := t.process()
		name, file := t.resource(), t.file("")
		p.ask(order{Do: "acquire", Name: name, Timeout: patience}).mustSucceed(t)
		p.ask(order{Do: "work", Name: name, File: file}).mustSucceed(t)
		t.eventually(slack, "the holder works", func() bool { return t.size(file) > 0 })
		goOn := p.stop()
		ttl := t.h.ttl(b.Info())
		bound := ttl + ttl/4 + slack
		next, err := t.persist(t.Context(), b, t.request(b, name, driver.Exclusive), bound)
		if err != nil {
			t.Fatalf("not free %v after its holder's process was stopped: %v", bound, err)
		}
		t.keep(next)
		before := t.size(file)
		goOn()
		if r := p.result(ttl + slack); !r.Lost {
			t.Errorf("the holder doesn't see the loss: %+v", r)
		}
		// One piece of work may have been under way between the look at the lock and
		// the write.
		if more := t.size(file) - before; more > 1 {
			t.Errorf("the holder wrote %d times after another had got the lock", more)
		}
	}},
})

func (t *trial) file(content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatalf("%v", err)
	}
	return file
}

func (t *trial) size(file string) int64 {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return info.Size()
}

func (r reply) mustSucceed(t *trial) {
	t.Helper()
	if r.Err != "" {
		t.Fatalf("in another process: %s", r.Err)
	}
}

// A process is another one that runs this test binary.
type process struct {
	trial   *trial
	cmd     *exec.Cmd
	orders  *json.Encoder
	replies chan reply // closed when the process has ended
	ended   chan struct{}
	said    *bytes.Buffer // on its standard error; complete once it ended
}

// process starts another process. It is killed at the end of the case.
func (t *trial) process() *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatalf("%v", err)
	}
	p := &process{trial: t, replies: make(chan reply, 10), ended: make(chan struct{}), said: new(bytes.Buffer)}
	// If TestMain doesn't call Main, the process must not run the tests once more.
	p.cmd = exec.Command(exe, "-test.run=^$")
	p.cmd.Env = append(os.Environ(), t.h.Process(t)...)
	p.cmd.Env = append(p.cmd.Env, childVariable+"="+t.childTTL().String())
	p.cmd.Stderr = p.said
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatalf("%v", err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatalf("%v", err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("%v", err)
	}
	p.orders = json.NewEncoder(in)
	go func() {
		defer close(p.ended)
		defer close(p.replies)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var r reply
			if json.Unmarshal(lines.Bytes(), &r) == nil {
				p.replies <- r
			}
		}
		p.cmd.Wait() // it was killed, or said why it failed
	}()
	t.Cleanup(p.kill)
	return p
}

func (t *trial) childTTL() time.Duration {
	b := t.open()
	return t.h.ttl(b.Info())
}

func (p *process) send(o order) {
	p.trial.Helper()
	if err := p.orders.Encode(o); err != nil {
		p.trial.Fatalf("another process takes no orders: %v", err)
	}
}

// reply returns the next reply, which must come within the bound.
func (p *process) reply(bound time.Duration) reply {
	t := p.trial
	t.Helper()
	select {
	case r, ok := <-p.replies:
		if !ok {
			t.Fatalf("another process ended by itself; does TestMain call drivertest.Main? It said: %s", strings.TrimSpace(p.said.String()))
		}
		return r
	case <-time.After(bound):
		t.Fatalf("another process doesn't answer within %v", bound)
	}
	return reply{}
}

// result returns the next reply that isn't about waiting.
func (p *process) result(bound time.Duration) reply {
	p.trial.Helper()
	for {
		if r := p.reply(bound); !r.Waiting {
			return r
		}
	}
}

func (p *process) ask(o order) reply {
	p.trial.Helper()
	p.send(o)
	return p.result(2 * patience)
}

// kill kills the process and waits for its end.
func (p *process) kill() {
	p.cmd.Process.Kill()
	for range p.replies { // what it said last keeps it from ending
	}
	<-p.ended
}

// stop stops the process until resume is called, or skips the case.
func (p *process) stop() (goOn func()) {
	t := p.trial
	t.Helper()
	if !canStop {
		t.Skip("this system can't stop a process")
	}
	if err := stop(p.cmd.Process); err != nil {
		t.Fatalf("stop: %v", err)
	}
	return func() {
		t.Helper()
		if err := resume(p.cmd.Process); err != nil {
			t.Fatalf("resume: %v", err)
		}
	}
}
