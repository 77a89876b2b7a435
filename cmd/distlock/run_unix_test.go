//go:build unix

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/distlock-go/distlock"
)

// Whoever runs the tests in the background may have had signals ignored, which
// distlock would then ignore too. What is caught here isn't, in what is started.
func init() {
	unignoreSignals = func() {
		for s := unix.Signal(1); s < 32; s++ {
			if signal.Ignored(s) {
				signal.Notify(make(chan os.Signal, 1), s)
			}
		}
	}
}

// sh returns the arguments that run a script under the lock "r" of a store.
func sh(url, script string, flags ...string) []string {
	return slices.Concat([]string{"run", "--url", url}, flags, []string{"r", "--", "sh", "-c", script})
}

func TestExitCode(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain := write("plain", "#!/bin/sh\n", 0o644)
	script := write("script", "exit 9\n", 0o755)
	lost := write("lost", "#!/no/such/interpreter\n", 0o755)
	url := newURL(t)
	for _, test := range []struct {
		want    int
		command []string
	}{
		{0, []string{"true"}},
		{1, []string{"false"}},
		{3, []string{"sh", "-c", "exit 3"}},
		{255, []string{"sh", "-c", "exit 255"}},
		{75, []string{"sh", "-c", "exit 75"}},
		{128 + 15, []string{"sh", "-c", "kill $$"}},
		{128 + 9, []string{"sh", "-c", "kill -9 $$"}},
		{128 + 2, []string{"sh", "-c", "kill -2 $$"}},
		{9, []string{script}},
		{127, []string{"no-such-command"}},
		{127, []string{"/no/such/command"}},
		{127, []string{lost}},
		{127, []string{""}},
		{126, []string{plain}},
		{126, []string{"plain"}},
		{126, []string{dir}},
	} {
		args := slices.Concat([]string{"run", "--url", url, "r", "--"}, test.command)
		code, out, errs := outcome(t, args, env("PATH="+os.Getenv("PATH")+":"+dir))
		if code != test.want || out != "" {
			t.Errorf("%q: exit code %d, want %d; stdout %q, stderr %q", test.command, code, test.want, out, errs)
		}
		says := test.want == exitCannotExecute || test.want == exitNotFound
		if says != strings.HasPrefix(errs, "distlock: ") || strings.Count(errs, "\n") > 1 {
			t.Errorf("%q: stderr %q", test.command, errs)
		}
		wantFree(t, url)
	}
	// Without --, and with flags of the command's own.
	code, out, _ := outcome(t, []string{"run", "--url", url, "r", "echo", "-n", "--", "x"})
	if code != 0 || out != "-- x\n" {
		t.Errorf("without --: exit code %d, stdout %q", code, out)
	}
}

// No lock is taken for a command that can't run.
func TestLookUpFirst(t *testing.T) {
	url := newURL(t)
	hold(t, url)
	code, _, errs := outcome(t, []string{"run", "--url", url, "r", "--", "no-such-command"})
	if code != exitNotFound {
		t.Errorf("exit code %d, stderr %q", code, errs)
	}
}

func TestStoreBroken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := outcome(t, sh("file://"+file, "echo ran"))
	if code != exitStore || out != "" || !strings.HasPrefix(errs, "distlock: ") || strings.Count(errs, "\n") != 1 {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, out, errs)
	}
}

// A store that accepts a connection and says nothing gets no more than the time
// there is.
func TestStoreSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // connections stay in its backlog
	least := time.Hour
	for n := 0; n < 5 && least > 3*time.Second; n++ { // the machine may be busy
		start := time.Now()
		code, out, errs := outcome(t, sh("mysql://user:secret@"+l.Addr().String()+"/db", "echo ran", "--timeout", "300ms"))
		if code != exitStore || out != "" || !strings.Contains(errs, "did not answer") || strings.Contains(errs, "secret") {
			t.Errorf("exit code %d, stdout %q, stderr %q", code, out, errs)
		}
		least = min(least, time.Since(start))
	}
	if least > 3*time.Second {
		t.Errorf("it took %v at best", least)
	}
}

func TestNotAcquired(t *testing.T) {
	url := newURL(t)
	release := hold(t, url)
	for _, flags := range [][]string{{"-n"}, {"--no-wait"}, {"--timeout", "0"}, {"--timeout", "300ms"}, {"-n", "--shared"}} {
		begun := time.Now()
		code, out, errs := outcome(t, sh(url, "echo ran", flags...))
		if code != exitNotAcquired || out != "" || !strings.HasPrefix(errs, "distlock: ") || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q", flags, code, out, errs)
		}
		if flags[len(flags)-1] == "300ms" && time.Since(begun) < 300*time.Millisecond {
			t.Errorf("%q: gave up after %v", flags, time.Since(begun))
		}
	}
	// It says the time that was given, and not what the opening has left of it, if it
	// has left something.
	var errs string
	if !slices.ContainsFunc([]string{"0.05s", "0.50s", "5.00s"}, func(given string) bool {
		_, _, errs = outcome(t, sh(url, "echo ran", "--timeout", given))
		return strings.Contains(errs, `distlock: "r" not acquired within `+given+`: held by another; to wait longer, set --timeout; `)
	}) {
		t.Errorf("stderr %q", errs)
	}
	// With -v it says who has it, if it gets to know that in time.
	want := fmt.Sprintf("pid %d (%s of the test), exclusive, since ", os.Getpid(), filepath.Base(os.Args[0]))
	eventually(t, want, func() bool {
		_, _, errs = outcome(t, sh(url, "echo ran", "-n", "-v"))
		return strings.Contains(errs, want)
	})
	release()
	wantFree(t, url)
}

func TestKinds(t *testing.T) {
	url := newURL(t)
	hold(t, url, distlock.Shared())
	for _, test := range []struct {
		want  int
		flags []string
	}{
		{0, []string{"-n", "--shared"}},
		{exitNotAcquired, []string{"-n"}},
		{0, []string{"-n", "--semaphore", "2"}},
	} {
		if code, _, errs := outcome(t, sh(url, "true", test.flags...)); code != test.want {
			t.Errorf("%q: exit code %d, want %d; stderr %q", test.flags, code, test.want, errs)
		}
	}
	hold(t, url, distlock.Semaphore(2))
	if code, _, errs := outcome(t, sh(url, "true", "-n", "--semaphore", "2")); code != 0 {
		t.Errorf("second permit: exit code %d; stderr %q", code, errs)
	}
	hold(t, url, distlock.Semaphore(2))
	if code, _, errs := outcome(t, sh(url, "true", "-n", "--semaphore", "2")); code != exitNotAcquired {
		t.Errorf("third permit of two: exit code %d; stderr %q", code, errs)
	}
}

func TestDefaultURL(t *testing.T) {
	resource := fmt.Sprintf("test of distlock, pid %d", os.Getpid())
	code, out, errs := outcome(t, []string{"run", resource, "--", program, "run", "-n", resource, "--", "echo", "ran"})
	if code != exitNotAcquired || out != "" || !strings.Contains(errs, "not acquired") {
		t.Errorf("within itself: exit code %d, stdout %q, stderr %q", code, out, errs)
	}
	url := newURL(t)
	hold(t, url)
	if code, _, errs := outcome(t, []string{"run", "-n", "r", "--", "echo", "ran"}, env(envURL+"="+url)); code != exitNotAcquired {
		t.Errorf("with %s: exit code %d, stderr %q", envURL, code, errs)
	}
	if code, _, errs := outcome(t, []string{"run", "r", "--", "echo", "ran"}, env(envURL+"=")); code != exitUsage || !strings.Contains(errs, "$"+envURL+" is set, but empty") {
		t.Errorf("with %s empty: exit code %d, stderr %q", envURL, code, errs)
	}
}

func TestEnvironment(t *testing.T) {
	url := newURL(t)
	last := uint64(0)
	for range 3 {
		code, out, errs := outcome(t, sh(url, `echo "$DISTLOCK_RESOURCE $DISTLOCK_TOKEN"`), env(envToken+"=999999999", envResource+"=outer"))
		token, err := strconv.ParseUint(strings.TrimSpace(strings.TrimPrefix(out, "r ")), 10, 64)
		if code != 0 || err != nil || token <= last {
			t.Fatalf("exit code %d, stdout %q after token %d, stderr %q", code, out, last, errs)
		}
		last = token
	}
	t.Setenv(envToken, "1")
	t.Setenv(envResource, "outer")
	r := &runner{resource: "r"}
	if env := r.environ(0, false); slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, envToken) }) ||
		!slices.Contains(env, envResource+"=r") || slices.Contains(env, envResource+"=outer") {
		t.Errorf("without a token: %q", env)
	}
}

// The child has our files themselves, the standard ones and any other.
func TestFiles(t *testing.T) {
	in, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if _, err := in.WriteString("first\nsecond\n"); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := start(t, sh(newURL(t), "echo out; echo err >&2; echo three >&3; cat"), func(c *exec.Cmd) {
		if _, err := in.Seek(int64(len("first\n")), 0); err != nil {
			t.Fatal(err)
		}
		c.Stdin = in
		c.ExtraFiles = []*os.File{w}
	})
	w.Close()
	p.wantCode(t, 0)
	if out, errs, three := p.stdout.all(t), p.stderr.all(t), linesOf(r).all(t); out != "out\nsecond\n" || errs != "err\n" || three != "three\n" {
		t.Errorf("stdout %q, stderr %q, descriptor 3 %q", out, errs, three)
	}
}

func TestVerbose(t *testing.T) {
	url := newURL(t)
	holder := start(t, sh(url, "echo ready; read line", "-v"))
	holder.stdout.until(t, "ready")
	host, _ := os.Hostname()
	want := fmt.Sprintf(`distlock: waiting for "r": held by host %s, pid %d (distlock run sh), exclusive, since `, host, holder.Process.Pid)
	var waiter *process
	eventually(t, want, func() bool { // it says less if it doesn't get to know that in time
		if waiter != nil {
			_ = waiter.Process.Kill()
		}
		waiter = start(t, sh(url, "true", "-v"))
		return strings.HasPrefix(waiter.stderr.until(t, "waiting for"), want)
	})
	holder.stdin.Close()
	holder.wantCode(t, 1) // read saw the end of its input
	waiter.stderr.until(t, `distlock: acquired "r" after `)
	waiter.stderr.until(t, `distlock: released "r"`)
	waiter.wantCode(t, 0)
	if out := waiter.stdout.all(t); out != "" {
		t.Errorf("stdout %q", out)
	}
	errs := holder.stderr.all(t)
	if !strings.Contains(errs, "token ") || strings.Contains(errs, "waiting") {
		t.Errorf("the holder's stderr: %q", errs)
	}
}

// Signals that reach distlock reach all of the child's process group.
func TestForwardSignals(t *testing.T) {
	url := newURL(t)
	p := start(t, sh(url, `
		for s in HUP INT QUIT USR1 USR2 ALRM WINCH CONT TSTP; do trap "echo got $s" $s; done
		trap "echo got TERM; exit 7" TERM
		echo ready
		while :; do sleep 0.01; done`))
	p.stdout.until(t, "ready")
	for _, s := range []unix.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGINT, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGWINCH, unix.SIGCONT, unix.SIGTERM,
	} {
		if err := p.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		p.stdout.until(t, "got "+strings.TrimPrefix(unix.SignalName(s), "SIG"))
	}
	p.wantCode(t, 7)
	wantFree(t, url)
}

func TestTerminate(t *testing.T) {
	url := newURL(t)
	// The sleep is a grandchild: it has to end too, or the output stays open.
	p := start(t, sh(url, "echo ready; sleep 1000; echo not reached"))
	p.stdout.until(t, "ready")
	if err := p.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.wantCode(t, 128+15)
	if out, errs := p.stdout.all(t), p.stderr.all(t); out != "" || errs != "" {
		t.Errorf("stdout %q, stderr %q", out, errs)
	}
	wantFree(t, url)
}

// What is to be ignored (nohup) stays ignored, with the child too.
func TestIgnoredSignals(t *testing.T) {
	url := newURL(t)
	p := start(t, nil, func(c *exec.Cmd) {
		c.Path = "/bin/sh"
		script := "trap '' HUP INT; exec \"$@\""
		c.Args = slices.Concat([]string{"sh", "-c", script, "sh", program}, sh(url, "kill -HUP $$; kill -INT $$; echo ready; read line"))
	})
	p.stdout.until(t, "ready")
	for _, s := range []unix.Signal{unix.SIGHUP, unix.SIGINT} {
		if err := p.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	p.stdin.Close()
	p.wantCode(t, 1)
}

// A lock isn't kept by what its command leaves behind.
func TestGrandchild(t *testing.T) {
	url := newURL(t)
	p := start(t, sh(url, "sleep 1000 & echo $!"))
	pid, err := strconv.Atoi(p.stdout.until(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	p.wantCode(t, 0)
	wantFree(t, url)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Errorf("the grandchild didn't outlive the command: %v", err)
	}
	p.stdout.all(t)
}

func TestInterruptedWait(t *testing.T) {
	for s, code := range map[unix.Signal]int{unix.SIGINT: 130, unix.SIGTERM: 143, unix.SIGHUP: 129, unix.SIGQUIT: 131} {
		t.Run(unix.SignalName(s), func(t *testing.T) {
			url := newURL(t)
			release := hold(t, url)
			p := start(t, sh(url, "echo ran", "-v"))
			p.stderr.until(t, "waiting for")
			if err := p.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
			p.wantCode(t, code)
			if out, errs := p.stdout.all(t), p.stderr.all(t); out != "" || !strings.Contains(errs, "gave up") {
				t.Errorf("stdout %q, stderr %q", out, errs)
			}
			release()
			wantFree(t, url)
		})
	}
}

// When distlock is killed, its child doesn't run on beside the next holder.
func TestKilled(t *testing.T) {
	if runtime.GOOS != "linux" && runtime.GOOS != "freebsd" {
		t.Skip("this system can't end a child with its parent")
	}
	url := newURL(t)
	p := start(t, sh(url, "trap '' TERM HUP INT; echo ready; while :; do :; done"))
	p.stdout.until(t, "ready")
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.wantCode(t, -1)
	p.stdout.all(t) // the child had it open until it died
	wantFree(t, url)
}

// A store that fails while the command runs.
func TestLost(t *testing.T) {
	dir := t.TempDir()
	url := "file://" + dir
	p := start(t, sh(url, "trap '' TERM; sleep 1000 & echo ready; wait; while :; do sleep 1000; done", "-v", "--kill-after", "10ms"))
	p.stdout.until(t, "ready")
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		t.Fatal(entries, err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	p.stderr.until(t, "sh was ended")
	p.wantCode(t, exitLost)
	p.stdout.all(t) // the grandchild had it open too
	wantFree(t, url)
}

// A reader of the messages that goes away ends neither us nor the child.
func TestBrokenStderr(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	p := start(t, sh(newURL(t), "trap - PIPE; echo done", "-v"), func(c *exec.Cmd) { c.Stderr = w })
	w.Close()
	p.stdout.until(t, "done")
	if got := p.code(t); got != 0 {
		t.Errorf("exit code %d: %v", got, p.ProcessState)
	}
	// The child isn't made to ignore it.
	code, _, _ := outcome(t, sh(newURL(t), "kill -PIPE $$"))
	if code != 128+13 {
		t.Errorf("exit code %d of a child that SIGPIPE should have ended", code)
	}
}

// Without a terminal a stop is the child's own business: the lock is kept.
func TestStopWithoutTerminal(t *testing.T) {
	url := newURL(t)
	p := start(t, sh(url, `echo $$; read line; echo "got <$line>"; exit 3`), func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	})
	child := p.stdout.until(t, "")
	if err := p.Process.Signal(unix.SIGTSTP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child is stopped", func() bool { return state(t, child) == 'T' })
	if s := state(t, strconv.Itoa(p.Process.Pid)); s == 'T' {
		t.Error("distlock is stopped too")
	}
	if code, _, _ := outcome(t, sh(url, "true", "-n")); code != exitNotAcquired {
		t.Errorf("exit code %d while the holder is stopped", code)
	}
	if err := p.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(p.stdin, "hello\n"); err != nil {
		t.Fatal(err)
	}
	p.stdout.until(t, "got <hello>")
	p.wantCode(t, 3)
}

// state returns the state of a process as ps has it: S, R, T for stopped.
func state(t *testing.T, pid string) byte {
	t.Helper()
	out, err := exec.Command("ps", "-o", "state=", "-p", pid).Output()
	if err != nil || len(out) == 0 {
		skip(t, fmt.Sprintf("ps doesn't work here: %q, %v", out, err))
	}
	return out[0]
}

// fakeHolding is a lock that is lost on demand.
type fakeHolding struct{ done chan struct{} }

func (f fakeHolding) Done() <-chan struct{} { return f.done }

func (f fakeHolding) Err() error {
	select {
	case <-f.done:
		return distlock.ErrLost
	default:
		return nil
	}
}

// underLock is a child that is supervised under a fakeHolding.
type underLock struct {
	*child
	output lines
	lose   func()
	result chan result
}

type result struct {
	event
	lost bool
}

// superviseScript starts a script under a lock that can be lost.
func superviseScript(t *testing.T, killAfter time.Duration, script string) *underLock {
	t.Helper()
	pipe := filepath.Join(t.TempDir(), "output")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	u := &underLock{result: make(chan result, 1)}
	h := fakeHolding{make(chan struct{})}
	u.lose = func() { close(h.done) }
	started := make(chan *child)
	go func() { // startChild wants a goroutine to itself
		signals := make(chan os.Signal, 1)
		c, err := startChild("/bin/sh", []string{"sh", "-c", "exec >" + pipe + "\n" + script}, os.Environ())
		if err != nil {
			t.Error(err)
			close(started)
			return
		}
		started <- c
		exit, lost := supervise(c, h, signals, killAfter)
		c.close()
		u.result <- result{exit, lost}
	}()
	if u.child = <-started; u.child == nil {
		t.FailNow()
	}
	t.Cleanup(u.kill)
	r, err := os.Open(pipe)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	u.output = linesOf(bufio.NewReader(r))
	return u
}

// wait waits for the end of supervise, and of all that had the output open.
func (u *underLock) wait(t *testing.T) result {
	t.Helper()
	select {
	case got := <-u.result:
		u.output.all(t)
		return got
	case <-time.After(patience):
		t.Fatal("supervise doesn't return")
		return result{}
	}
}

const (
	never = time.Hour // patience ends before it does

	// soon is long enough for what is quick. It isn't never, as the dead that
	// nobody buries, in a container with no init, count as left.
	soon = 5 * time.Second
)

func TestSuperviseExit(t *testing.T) {
	u := superviseScript(t, never, "exit 3")
	if got, want := u.wait(t), (result{event{exited: true, code: 3}, false}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestSuperviseLost(t *testing.T) {
	for _, test := range []struct {
		name      string
		killAfter time.Duration
		script    string
		want      event
	}{
		{"Terminated", soon, "echo ready; sleep 1000", event{exited: true, code: 143, signal: unix.SIGTERM}},
		{"Handled", never, "trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done", event{exited: true, code: 5}},
		{"Ignored", time.Millisecond, "trap '' TERM; echo ready; while :; do sleep 1000; done", event{exited: true, code: 137, signal: unix.SIGKILL}},
		{"AtOnce", 0, "trap '' TERM; echo ready; while :; do sleep 1000; done", event{exited: true, code: 137, signal: unix.SIGKILL}},
		{
			"GrandchildIgnores", 100 * time.Millisecond,
			"trap 'exit 6' TERM; (trap '' TERM; echo ready; while :; do sleep 1000; done) & while :; do sleep 0.01; done",
			event{exited: true, code: 6},
		},
		{
			"GrandchildHandles", soon,
			"(trap 'sleep 0.1; exit' TERM; echo ready; while :; do sleep 0.01; done) & sleep 1000",
			event{exited: true, code: 143, signal: unix.SIGTERM},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			// A slow machine may need more time than there is until it is killed.
			for killAfter := test.killAfter; ; killAfter *= 10 {
				u := superviseScript(t, killAfter, test.script)
				u.output.until(t, "ready")
				u.lose()
				got, want := u.wait(t), result{test.want, true}
				if got == want {
					break
				}
				if killAfter == 0 || killAfter > soon {
					t.Errorf("got %+v, want %+v", got, want)
					break
				}
			}
		})
	}
}

// A child that is stopped when the lock is lost never runs again.
func TestSuperviseLostWhileStopped(t *testing.T) {
	u := superviseScript(t, never, "trap 'echo woken' TERM CONT; echo ready; kill -STOP $$; while :; do echo woken; sleep 0.1; done")
	u.output.until(t, "ready")
	eventually(t, "the child is stopped", func() bool { return state(t, strconv.Itoa(u.pid)) == 'T' })
	u.lose()
	select {
	case got := <-u.result:
		if want := (result{event{exited: true, code: 137, signal: unix.SIGKILL}, true}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	case <-time.After(patience):
		t.Fatal("supervise doesn't return")
	}
	if out := u.output.all(t); out != "" {
		t.Errorf("the child was woken: %q", out)
	}
}

// A reader is told who the writer is.
func TestVerboseShared(t *testing.T) {
	url := newURL(t)
	hold(t, url)
	_, _, errs := outcome(t, sh(url, "echo ran", "-n", "-v", "--shared"))
	if want := fmt.Sprintf("pid %d (%s of the test), exclusive, since ", os.Getpid(), filepath.Base(os.Args[0])); !strings.Contains(errs, want) {
		t.Errorf("stderr %q, want %q in it", errs, want)
	}
}
