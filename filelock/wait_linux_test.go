package filelock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/distlock-go/distlock/driver"
)

func init() {
	roles["flock"] = flockOnly
	roles["noinotify"] = noInotify
	roles["quiet"] = quiet
	limitFiles = func(bytes string) error {
		n, err := strconv.ParseUint(bytes, 10, 64)
		signal.Ignore(syscall.SIGXFSZ)
		return errors.Join(err, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: n, Max: n}))
	}
}

// inLine counts the places taken in the line of the file.
func inLine(t testing.TB, path string) int { return locks(t, path, "OFDLCK", "READ") }

// locks counts the locks of one kind on the file.
func locks(t testing.TB, path, kind, access string) int {
	t.Helper()
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return 0
	}
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for l := range procLocks(string(text)) {
		if l.kind == kind && l.inode == fmt.Sprint(st.Ino) && l.access == access {
			n++
		}
	}
	return n
}

func waitInLine(t testing.TB, b *Backend, resource string, n int) {
	t.Helper()
	eventually(t, fmt.Sprint(n, " in line"), func() bool { return inLine(t, b.path(resource, lockSuffix)) == n })
}

// stop stops a process, and waits until none of its threads runs any more: one
// that does could still take a lock.
func stop(t testing.TB, p *process) {
	t.Helper()
	p.signal(syscall.SIGSTOP)
	eventually(t, "the process has stopped", func() bool {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		if err != nil || len(tasks) == 0 {
			t.Fatal("no threads: ", err)
		}
		for _, task := range tasks {
			text, err := os.ReadFile(task)
			_, state, _ := strings.Cut(string(text), ") ")
			if err != nil || !strings.HasPrefix(state, "T") {
				return false
			}
		}
		return true
	})
}

type result struct {
	driver.Grant
	err error
	at  time.Time
}

// wait acquires in the background.
func wait(ctx context.Context, b *Backend, r driver.Request) <-chan result {
	c := make(chan result, 1)
	if r.Wait == 0 {
		r.Wait = driver.Forever
	}
	go func() {
		g, err := b.Acquire(ctx, r)
		c <- result{g, err, time.Now()}
	}()
	return c
}

func get(t testing.TB, c <-chan result) result {
	t.Helper()
	select {
	case r := <-c:
		return r
	case <-time.After(long):
		t.Fatal("no answer")
		return result{}
	}
}

func got(t testing.TB, c <-chan result) result {
	t.Helper()
	r := get(t, c)
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r
}

// lined returns a backend with a line.
func lined(t testing.TB) *Backend {
	t.Helper()
	b := openDir(t, t.TempDir())
	if !b.lined {
		t.Fatal("no line on the file system of the temporary directory")
	}
	return b
}

func TestLineOnTmpfs(t *testing.T) {
	b := openDir(t, inMemory(t))
	if !b.lined || !b.info.Modes.Has(driver.Upgradeable) {
		t.Error("no line on tmpfs")
	}
}

// A lock file that was removed while the token was counted begins no new time of
// waiting.
func TestWaitIsOneOverLostFiles(t *testing.T) {
	const most = 300 * time.Millisecond
	b := lined(t)
	path := b.path("a", lockSuffix)
	if err := acquire(t, b, driver.Exclusive, "a").Hold.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	locked := func(path string) *file {
		f, err := openFile(path, unix.O_RDWR, 0o600, true)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(f.close)
		if ok, err := f.flock(unix.LOCK_EX); !ok || err != nil {
			t.Fatal(ok, err)
		}
		return f
	}
	fence := locked(b.path("a", fenceSuffix))
	r := request(driver.Exclusive, "a")
	r.Wait = most
	waiter := wait(t.Context(), openDir(t, b.dir), r)
	eventually(t, "the waiter has the lock and has left the line", func() bool {
		return locks(t, path, "FLOCK", "WRITE") == 1 && inLine(t, path) == 0
	})
	over := time.After(most)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	locked(path) // by the next one
	<-over
	fence.unlock()
	for {
		select {
		case r := <-waiter:
			if !errors.Is(r.err, driver.ErrHeld) {
				t.Errorf("%v", r.err)
			}
			return
		default:
			if inLine(t, path) != 0 {
				t.Fatal("it waits again, though its time is over")
			}
		}
	}
}

// Processes get their turn in the order in which they came. Now and then one
// tries out of line, and may be lucky; not always.
func TestLineOrder(t *testing.T) {
	b := lined(t)
	var waiters []*process
	for range 5 {
		waiters = append(waiters, newPeer(t, b.dir))
	}
	for attempt := 1; ; attempt++ {
		held := acquire(t, b, driver.Exclusive, "a")
		for i, p := range waiters {
			p.send("acquire 0 1h a")
			waitInLine(t, b, "a", i+1)
		}
		release(t, held)
		tokens := make([]uint64, len(waiters))
		var wg sync.WaitGroup
		for i, p := range waiters {
			wg.Go(func() {
				tokens[i], _ = strconv.ParseUint(p.answer(), 10, 64)
				p.send("release")
				p.answer()
			})
		}
		wg.Wait()
		if slices.Min(tokens) <= held.Token || slices.Max(tokens) != held.Token+uint64(len(waiters)) {
			t.Fatalf("tokens %d after %d", tokens, held.Token)
		}
		if slices.IsSorted(tokens) {
			return
		}
		if attempt == 12 { // it is rare by chance: 120 orders are possible
			t.Fatalf("tokens %d", tokens)
		}
	}
}

// Somebody who would come back to wait gives way to those who wait already; a
// single try doesn't.
func TestGiveWay(t *testing.T) {
	b := lined(t)
	held := acquire(t, b, driver.Exclusive, "a")
	p := newPeer(t, b.dir)
	p.send("acquire 0 1h a")
	waitInLine(t, b, "a", 1)
	stop(t, p)
	release(t, held)
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		r := request(mode, "a")
		r.Queue = true
		if _, err := b.Acquire(t.Context(), r); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("%v: %v", mode, err)
		}
		release(t, acquire(t, b, mode, "a"))
	}
	// And whoever waits isn't held up for long by one who doesn't move.
	least := time.Hour
	for range 10 {
		began := time.Now()
		release(t, got(t, wait(t.Context(), b, request(driver.Exclusive, "a"))).Grant)
		if least = min(least, time.Since(began)); least <= 2*time.Second {
			break
		}
	}
	if least > 2*time.Second {
		t.Errorf("held up for %v at best", least)
	}
	r := request(driver.Exclusive, "a")
	r.Wait = 5 * time.Millisecond // over before the next try out of line
	release(t, got(t, wait(t.Context(), b, r)).Grant)
	p.signal(syscall.SIGCONT)
	p.granted()
}

// A waiter that dies leaves no gap.
func TestKilledWaiter(t *testing.T) {
	b := lined(t)
	held := acquire(t, b, driver.Exclusive, "a")
	p := newPeer(t, b.dir)
	p.send("acquire 0 1h a")
	waitInLine(t, b, "a", 1)
	next := wait(t.Context(), b, request(driver.Exclusive, "a"))
	waitInLine(t, b, "a", 2)
	p.signal(syscall.SIGKILL)
	p.cmd.Wait()
	waitInLine(t, b, "a", 1)
	release(t, held)
	release(t, got(t, next).Grant)
}

// Whoever watches a file is told of each close of it.
func TestCloseIsReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	watched, err := openFile(path, unix.O_RDWR, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	defer watched.close()
	told, stop, ok := watch(watched.fd)
	if !ok {
		t.Fatal("no inotify")
	}
	defer stop()
	for range 3 {
		other, err := openFile(path, unix.O_RDONLY, 0, false)
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-told:
			t.Fatal("told of nothing")
		default:
		}
		other.close()
		select {
		case <-told:
		case <-time.After(long):
			t.Fatal("not told of a close")
		}
	}
}

// When the lock comes free, or its holder dies, waiters sleep no longer than
// they must: at best far less than the time after which everybody tries unasked.
func TestWakeUp(t *testing.T) {
	b := lined(t)
	for _, how := range []string{"release", "kill"} {
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared, driver.Permit} {
			least := time.Hour
			for n := 0; n < 20 && least > outOfLine/3; n++ { // the machine may be busy
				p := newPeer(t, b.dir)
				resource, suffix := how+mode.String(), lockSuffix
				p.send("acquire %d 0 %s", mode, resource)
				p.granted()
				wanted := driver.Exclusive
				if mode == driver.Permit {
					p.send("acquire %d 0 %s", mode, resource)
					p.granted()
					wanted, suffix = mode, bellSuffix
				}
				next := wait(t.Context(), b, request(wanted, resource))
				eventually(t, "a waiter", func() bool { return inLine(t, b.path(resource, suffix)) >= 1 })
				began := time.Now()
				if how == "kill" {
					p.signal(syscall.SIGKILL)
				} else {
					p.send("release")
				}
				r := got(t, next)
				least = min(least, r.at.Sub(began))
				release(t, r.Grant)
				p.signal(syscall.SIGKILL)
				p.cmd.Wait()
			}
			if least > outOfLine/3 {
				t.Errorf("%s of %v: at best %v", how, mode, least)
			}
		}
	}
}

// Readers in line come in together, though none of them closes anything.
func TestReadersInLine(t *testing.T) {
	b := lined(t)
	for _, mode := range []driver.Mode{driver.Shared, driver.Permit} {
		resource := mode.String()
		suffix, n := lockSuffix, 4
		held := []driver.Grant{}
		if mode == driver.Permit {
			suffix, n = bellSuffix, 2
			held = append(held, acquire(t, b, mode, resource), acquire(t, b, mode, resource))
		} else {
			held = append(held, acquire(t, b, driver.Exclusive, resource))
		}
		var next []<-chan result
		for i := range n {
			next = append(next, wait(t.Context(), b, request(mode, resource)))
			eventually(t, "a waiter", func() bool { return inLine(t, b.path(resource, suffix)) == i+1 })
		}
		for _, g := range held {
			release(t, g)
		}
		var all []driver.Grant
		for _, c := range next {
			all = append(all, got(t, c).Grant)
		}
		for _, g := range all {
			release(t, g)
		}
	}
}

// A writer in line isn't starved by readers that come later.
func TestWriterAndReaders(t *testing.T) {
	b := lined(t)
	first := acquire(t, b, driver.Shared, "a")
	writer := wait(t.Context(), b, request(driver.Exclusive, "a"))
	waitInLine(t, b, "a", 2) // the reader's own byte counts too
	r := request(driver.Shared, "a")
	r.Queue = true
	if _, err := b.Acquire(t.Context(), r); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	release(t, first)
	release(t, got(t, writer).Grant)
}

func TestUpgrade(t *testing.T) {
	b := lined(t)
	reader := acquire(t, b, driver.Shared, "a")
	g := acquire(t, b, driver.Upgradeable, "a")
	up := g.Hold.(driver.Upgrader)
	for _, w := range []time.Duration{0, time.Microsecond, 20 * time.Millisecond} {
		if _, err := up.Upgrade(t.Context(), w); !errors.Is(err, driver.ErrHeld) {
			t.Fatalf("beside a reader, %v: %v", w, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	if _, err := up.Upgrade(ctx, driver.Forever); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	cancel()
	// All as before: readers come in, nobody else does.
	release(t, acquire(t, b, driver.Shared, "a"))
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Upgradeable} {
		if _, err := b.Acquire(t.Context(), request(mode, "a")); !errors.Is(err, driver.ErrHeld) {
			t.Fatalf("%v: %v", mode, err)
		}
	}
	type upgraded struct {
		token uint64
		err   error
	}
	done := make(chan upgraded, 1)
	go func() {
		token, err := up.Upgrade(context.Background(), driver.Forever)
		done <- upgraded{token, err}
	}()
	// While it waits, readers that queue stay out.
	r := request(driver.Shared, "a")
	r.Queue = true
	eventually(t, "readers are kept out", func() bool {
		g, err := b.Acquire(t.Context(), r)
		if err == nil {
			release(t, g)
		}
		return errors.Is(err, driver.ErrHeld)
	})
	later := wait(t.Context(), b, request(driver.Shared, "a"))
	release(t, reader)
	u := <-done
	if u.err != nil || u.token <= g.Token {
		t.Fatalf("token %d after %d, %v", u.token, g.Token, u.err)
	}
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared, driver.Upgradeable} {
		if _, err := b.Acquire(t.Context(), request(mode, "a")); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("%v beside an upgraded one: %v", mode, err)
		}
	}
	if isFree(t, b.path("a", lockSuffix)) {
		t.Error(".NET could lock it")
	}
	holders, err := b.Holders(t.Context(), "a", driver.Exclusive)
	if err != nil || len(holders) != 1 || holders[0].Mode != driver.Exclusive || holders[0].Token != u.token {
		t.Errorf("%+v %v", holders, err)
	}
	release(t, g)
	l := got(t, later)
	if l.Token <= u.token {
		t.Errorf("token %d after %d", l.Token, u.token)
	}
	release(t, l.Grant)
	release(t, acquire(t, b, driver.Exclusive, "a"))
}

// A reader that waits only because of somebody who wanted to upgrade comes in
// when that one gives up.
func TestUpgradeGivenUp(t *testing.T) {
	b := lined(t)
	reader := acquire(t, b, driver.Shared, "a")
	g := acquire(t, b, driver.Upgradeable, "a")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := g.Hold.(driver.Upgrader).Upgrade(ctx, driver.Forever)
		done <- err
	}()
	waitInLine(t, b, "a", 2)
	later := wait(t.Context(), b, request(driver.Shared, "a"))
	waitInLine(t, b, "a", 3)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	release(t, got(t, later).Grant)
	release(t, reader)
	release(t, g)
}

func TestUpgradeFails(t *testing.T) {
	b := lined(t)
	g := acquire(t, b, driver.Upgradeable, "token")
	fence(t, b, "token")
	if _, err := g.Hold.(driver.Upgrader).Upgrade(t.Context(), time.Second); err == nil {
		t.Error("upgraded without a token")
	}
	if err := os.Remove(b.path("token", fenceSuffix)); err != nil {
		t.Fatal(err)
	}
	release(t, acquire(t, b, driver.Shared, "token"))
	release(t, g)
	if _, err := g.Hold.(driver.Upgrader).Upgrade(t.Context(), 0); !errors.Is(err, driver.ErrLost) {
		t.Errorf("after release: %v", err)
	}

	for _, w := range []time.Duration{0, driver.Forever} {
		g = acquire(t, b, driver.Upgradeable, "removed")
		if err := os.Remove(b.path("removed", lockSuffix)); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Hold.(driver.Upgrader).Upgrade(t.Context(), w); !errors.Is(err, driver.ErrLost) {
			t.Errorf("after the file was removed: %v", err)
		}
		g.Session.Abandon()
	}
}

func TestUpgradeIsAbandoned(t *testing.T) {
	b := lined(t)
	reader := acquire(t, b, driver.Shared, "a")
	g := acquire(t, b, driver.Upgradeable, "a")
	done := make(chan error, 1)
	go func() {
		_, err := g.Hold.(driver.Upgrader).Upgrade(context.Background(), driver.Forever)
		done <- err
	}()
	waitInLine(t, b, "a", 2)
	g.Session.Abandon()
	release(t, reader)
	if err := <-done; !errors.Is(err, driver.ErrLost) {
		t.Error(err)
	}
	release(t, acquire(t, b, driver.Exclusive, "a"))
}

// Who waits for a file that is removed goes on with the next of that name.
func TestRemovedWhileWaiting(t *testing.T) {
	b := lined(t)
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Permit} {
		resource := mode.String()
		held := []driver.Grant{acquire(t, b, mode, resource)}
		path := b.path(resource, lockSuffix)
		if mode == driver.Permit {
			held = append(held, acquire(t, b, mode, resource))
			path = b.path(resource, bellSuffix)
		}
		next := wait(t.Context(), b, request(mode, resource))
		eventually(t, "a waiter", func() bool { return inLine(t, path) == 1 })
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if mode == driver.Permit {
			eventually(t, "a waiter at the new file", func() bool { return inLine(t, path) == 1 })
			release(t, held[0])
		}
		g := got(t, next)
		release(t, g.Grant)
		for _, h := range held {
			h.Hold.Release(t.Context())
		}
	}
}

func TestTimes(t *testing.T) {
	b := lined(t)
	held := acquire(t, b, driver.Exclusive, "a")
	for _, w := range []time.Duration{1, time.Microsecond, time.Millisecond, 30 * time.Millisecond} {
		r := request(driver.Exclusive, "a")
		r.Wait = w
		began := time.Now()
		_, err := b.Acquire(t.Context(), r)
		if d := time.Since(began); !errors.Is(err, driver.ErrHeld) || d < w || d > w+long {
			t.Errorf("wait of %v: %v after %v", w, err, d)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	next := wait(ctx, b, request(driver.Exclusive, "a"))
	waitInLine(t, b, "a", 1)
	cancel(errors.New("enough"))
	if r := get(t, next); !errors.Is(r.err, context.Canceled) {
		t.Error(r.err)
	}
	waitInLine(t, b, "a", 0)
	c := openDir(t, b.dir)
	next = wait(t.Context(), c, request(driver.Exclusive, "a"))
	waitInLine(t, b, "a", 1)
	c.Close()
	if r := get(t, next); !errors.Is(r.err, os.ErrClosed) {
		t.Errorf("closed while waiting: %v", r.err)
	}
	release(t, held)
}

func count(t testing.TB, dir string) int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// Waiters take a descriptor each, and no thread; when they are gone, so is
// everything.
func TestManyWaiters(t *testing.T) {
	b := lined(t)
	const n = 500
	idle := func() bool { closes.mu.Lock(); defer closes.mu.Unlock(); return closes.file == nil }
	eventually(t, "no watcher is left", idle)
	goroutines, files := runtime.NumGoroutine(), count(t, "/proc/self/fd")
	// The runtime keeps the threads that other tests needed.
	threads := count(t, "/proc/self/task")
	held := acquire(t, b, driver.Exclusive, "a")
	ctx, cancel := context.WithCancel(t.Context())
	var next []<-chan result
	for range n {
		next = append(next, wait(ctx, b, request(driver.Exclusive, "a")))
	}
	waitInLine(t, b, "a", n)
	if more := count(t, "/proc/self/task") - threads; more > n/2 { // of those whose tries overlap
		t.Errorf("%d threads for %d waiters", more, n)
	}
	// Those of a try come and go.
	eventually(t, "one descriptor a waiter, and five at most for all", func() bool { return count(t, "/proc/self/fd")-files-n <= 5 })
	release(t, held)
	// One of them gets it, and no other.
	var winner result
	eventually(t, "somebody has it", func() bool {
		for i, c := range next {
			select {
			case winner = <-c:
				next = slices.Delete(next, i, i+1)
				return true
			default:
			}
		}
		return false
	})
	if winner.err != nil {
		t.Fatal(winner.err)
	}
	cancel()
	for _, c := range next {
		if r := get(t, c); !errors.Is(r.err, context.Canceled) {
			t.Fatal(r.err)
		}
	}
	release(t, winner.Grant)
	eventually(t, "all is as before", func() bool {
		return idle() && runtime.NumGoroutine() <= goroutines && count(t, "/proc/self/fd") <= files
	})
}

// However an attempt ends, it leaves nothing behind.
func TestNoLeak(t *testing.T) {
	b := lined(t)
	fence(t, b, "damaged")
	held := []driver.Grant{acquire(t, b, driver.Exclusive, "a"), acquire(t, b, driver.Permit, "a"), acquire(t, b, driver.Permit, "a")}
	g := acquire(t, b, driver.Upgradeable, "u")
	reader := acquire(t, b, driver.Shared, "u")
	eventually(t, "no watcher is left", func() bool { closes.mu.Lock(); defer closes.mu.Unlock(); return closes.file == nil })
	files := count(t, "/proc/self/fd")
	var wg sync.WaitGroup
	for i := range 1000 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*20*time.Microsecond)
		wg.Go(func() {
			defer cancel()
			r := request([]driver.Mode{driver.Exclusive, driver.Shared, driver.Upgradeable, driver.Permit}[i%4], "a")
			switch i % 3 {
			case 0:
				r.Wait = time.Duration(i) * time.Microsecond
			case 1:
				r.Wait = driver.Forever
			case 2:
				r.Resource = "damaged"
				r.Mode, r.Limit = driver.Exclusive, 0
			}
			if _, err := b.Acquire(ctx, r); err == nil {
				t.Error("acquired")
			}
		})
		if i%50 == 0 {
			if _, err := g.Hold.(driver.Upgrader).Upgrade(ctx, time.Millisecond); err == nil {
				t.Error("upgraded")
			}
		}
	}
	wg.Wait()
	eventually(t, "all is as before", func() bool {
		return count(t, "/proc/self/fd") <= files && inLine(t, b.path("a", lockSuffix)) == 0 && inLine(t, b.path("a", bellSuffix)) == 0
	})
	for _, g := range append(held, g, reader) {
		release(t, g)
	}
	release(t, acquire(t, b, driver.Exclusive, "u"))
	release(t, acquire(t, b, driver.Exclusive, "a"))
}

// noInotify waits for a lock after it has used up its user's inotify instances.
func noInotify(args []string) {
	for {
		if _, err := unix.InotifyInit1(unix.IN_CLOEXEC); err != nil {
			fmt.Println(err)
			break
		}
	}
	b, err := New(args[0], nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	r := request(driver.Exclusive, "a")
	r.Wait = driver.Forever
	g, err := b.Acquire(context.Background(), r)
	fmt.Println(g.Token, err)
}

func TestNoInotify(t *testing.T) {
	asRoot(t)
	dir := shared(t, 0o777)
	b, err := New(dir, &Options{FileMode: 0o666})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	held := acquire(t, b, driver.Exclusive, "a")
	p := startAs(t, fmt.Sprint(4_000_000+os.Getpid()%1_000_000), "noinotify", dir)
	if s := p.answer(); !strings.Contains(s, "too many") {
		t.Fatal(s)
	}
	waitInLine(t, b, "a", 1)
	release(t, held)
	if s := p.answer(); s != fmt.Sprint(held.Token+1, " <nil>") {
		t.Error(s)
	}
}

// flockOnly locks a file until its input ends, and knows nothing of notes.
func flockOnly(args []string) {
	fd, err := unix.Open(args[0], unix.O_RDONLY, 0)
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	}
	fmt.Println(err)
	io.Copy(io.Discard, os.Stdin)
}

func TestHolders(t *testing.T) {
	b := lined(t)
	if b.procLocks == "" {
		t.Log("not in the initial PID namespace: holders are asked for by locking")
	}
	q := newPeer(t, b.dir)
	known := b.procLocks
	for _, dev := range []string{known, ""} {
		b.procLocks = dev
		byProc := dev != ""
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared, driver.Upgradeable, driver.Permit} {
			resource := fmt.Sprintf("%v-%v", mode, byProc)
			before := names(t, b.dir)
			if h, err := b.Holders(t.Context(), resource, mode); len(h) > 0 || err != nil {
				t.Errorf("%v of nothing: %v, %v", mode, h, err)
			}
			if after := names(t, b.dir); len(after) != len(before) {
				t.Error("asking made files")
			}
			q.send("acquire %d 0 %s", mode, resource)
			token := q.granted()
			h, err := b.Holders(t.Context(), resource, mode)
			if err != nil || len(h) != 1 || h[0].Mode != mode || h[0].Token != token || h[0].Owner.PID != q.cmd.Process.Pid {
				t.Errorf("%v: %+v, %v", mode, h, err)
			}
			if byProc && (mode == driver.Shared || mode == driver.Permit) {
				mine := acquire(t, b, mode, resource)
				h, err := b.Holders(t.Context(), resource, mode)
				if err != nil || len(h) != 2 || h[0].Token == h[1].Token || h[0].Mode != mode || h[1].Mode != mode {
					t.Errorf("two of %v: %+v, %v", mode, h, err)
				}
				release(t, mine)
			}
			q.send("release")
			q.answer()
			if h, err := b.Holders(t.Context(), resource, mode); len(h) > 0 || err != nil {
				t.Errorf("%v of a free one: %v, %v", mode, h, err)
			}
		}
	}
	if known == "" {
		return
	}
	b.procLocks = known
	// A .NET holder leaves no note, and isn't taken for the one before.
	path := b.path("exclusive-true", lockSuffix)
	p := start(t, "flock", path)
	if s := p.answer(); s != "<nil>" {
		t.Fatal(s)
	}
	h, err := b.Holders(t.Context(), "exclusive-true", driver.Exclusive)
	if err != nil || len(h) != 1 || h[0] != (driver.Holder{Owner: driver.Owner{PID: p.cmd.Process.Pid}}) {
		t.Errorf("%+v, %v", h, err)
	}
}

func TestProcLocks(t *testing.T) {
	const text = `1: POSIX  ADVISORY  READ  5433 08:01:7864448 128 128
2: FLOCK  ADVISORY  WRITE 708 fe:00:1310804 0 EOF
2: -> FLOCK  ADVISORY  WRITE 710 fe:00:1310804 0 EOF
3: OFDLCK ADVISORY  WRITE -1 08:01:8713209 128 191 254 0
junk
4: FLOCK  ADVISORY  WRITE x fe:00:1310804 0 EOF
`
	want := []procLock{
		{"POSIX", "READ", 5433, "08:01", "7864448"},
		{"FLOCK", "WRITE", 708, "fe:00", "1310804"},
		{"OFDLCK", "WRITE", -1, "08:01", "8713209"},
	}
	if got := slices.Collect(procLocks(text)); !slices.Equal(got, want) {
		t.Error(got)
	}
}

func TestMounts(t *testing.T) {
	const table = `22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard
36 27 0:40 / /mnt/a rw,relatime shared:9 - nfs4 host:/a rw,vers=4.2,local_lock=none,addr=10.0.0.1
37 27 0:41 / /mnt/b rw - nfs host:/b rw,vers=3,nolock,local_lock=all
38 27 0:42 / /mnt/with\040blank rw - nfs host:/with\040blank rw,vers=3,local_lock=flock
39 27 0:43 / /mnt/d rw - cifs //host/d rw,vers=3.1.1,nobrl
40 27 0:44 / /mnt/e rw - cifs //host/e rw,vers=3.1.1
41 27 0:45 / /mnt/f rw - fuse.sshfs host: rw,user_id=0
42 27 0:46 / /mnt/g rw - 9p share rw,trans=virtio
43 27 0:47 / /mnt/h rw - lustre host@tcp:/h rw,localflock
44 27 0:48 / /mnt/i rw - fuse.glusterfs host:i rw
45 27 0:49 / /mnt/j rw - fuseblk /dev/sdb1 rw
46 27 0:50 / /mnt/k rw - ceph host:/ rw
47 27 0:51 / /mnt/l rw - fuse whatever rw
48 27 0:52 / /mnt/m rw - virtiofs m rw
49 27 0:53 / /mnt/n rw - nfs4 host:/n rw,local_lock=posix
50 27 0:54 / /mnt/o rw - overlay overlay rw,lowerdir=/nolock
51 27 0:55 / /mnt/p rw
`
	for id, want := range map[string]struct{ found, network, unsafe bool }{
		"22": {true, false, false},
		"27": {true, false, false},
		"36": {true, true, false},
		"37": {true, true, true},
		"38": {true, true, true},
		"39": {true, true, true},
		"40": {true, true, false},
		"41": {true, true, true},
		"42": {true, true, true},
		"43": {true, true, true},
		"44": {true, true, false},
		"45": {true, false, false},
		"46": {true, true, false},
		"47": {true, true, true},
		"48": {true, true, true},
		"49": {true, true, false},
		"50": {true, false, false},
		"51": {},
		"3":  {},
		"":   {},
	} {
		m, found := findMount(table, id)
		network, unsafe := m.judge()
		if found != want.found || network != want.network || unsafe != "" != want.unsafe {
			t.Errorf("%s: %+v: found %v, network %v, unsafe %q", id, m, found, network, unsafe)
		}
	}
	if id := mountID("pos:\t0\nflags:\t0100000\nmnt_id:\t27\nino:\t246947\n"); id != "27" {
		t.Error(id)
	}
}

// A limit on the size of files is a full disk on any file system.
func TestNoSpace(t *testing.T) {
	dir := t.TempDir()
	b := openDir(t, dir)
	p := newPeer(t, dir)
	p.send("limit 700")
	p.answer()
	for _, resource := range []string{"new", "old"} {
		var last driver.Grant
		if resource == "old" {
			last = acquire(t, b, driver.Exclusive, resource)
			release(t, last)
		}
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared, driver.Permit} {
			p.send("acquire %d 0 %s", mode, resource)
			if s := p.answer(); !strings.Contains(s, "file too large") {
				t.Errorf("%s: %s", resource, s)
			}
			if h, err := b.Holders(t.Context(), resource, mode); len(h) > 0 || err != nil {
				t.Errorf("%s: still held: %v, %v", resource, h, err)
			}
		}
		for name := range names(t, dir) {
			if strings.HasSuffix(name, unfinishedSuffix) {
				t.Errorf("%s stays", name)
			}
		}
		if g := acquire(t, b, driver.Exclusive, resource); g.Token <= last.Token {
			t.Errorf("token %d after %d", g.Token, last.Token)
		}
	}
}

// mountTmpfs mounts a file system of its own, where that is allowed.
func mountTmpfs(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Skip("nothing can be mounted here, so this is shown by TestNoSpace and TestOtherUser only: ", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func TestFullDisk(t *testing.T) {
	dir := mountTmpfs(t, "size=64k")
	b := openDir(t, dir)
	old := acquire(t, b, driver.Exclusive, "old")
	release(t, old)
	if err := os.WriteFile(filepath.Join(dir, "big"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := b.Acquire(t.Context(), request(driver.Exclusive, "new")); !errors.Is(err, unix.ENOSPC) {
			t.Error(err)
		}
	}
	if h, err := b.Holders(t.Context(), "new", driver.Exclusive); len(h) > 0 || err != nil {
		t.Error(h, err)
	}
	// What has its files already goes on.
	g := acquire(t, b, driver.Exclusive, "old")
	if g.Token != old.Token+1 {
		t.Errorf("token %d after %d", g.Token, old.Token)
	}
	release(t, g)
	if err := os.Remove(filepath.Join(dir, "big")); err != nil {
		t.Fatal(err)
	}
	release(t, acquire(t, b, driver.Exclusive, "new"))
}

func TestReadOnly(t *testing.T) {
	dir := mountTmpfs(t, "size=64k")
	b := openDir(t, dir)
	release(t, acquire(t, b, driver.Exclusive, "old"))
	eventually(t, "nothing is open any more", func() bool {
		return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "") == nil
	})
	if _, err := New(dir, nil); !errors.Is(err, unix.EROFS) {
		t.Error(err)
	}
	for _, resource := range []string{"old", "new"} {
		if _, err := b.Acquire(t.Context(), request(driver.Exclusive, resource)); !errors.Is(err, unix.EROFS) {
			t.Error(err)
		}
	}
	if !isFree(t, b.path("old", lockSuffix)) {
		t.Error("it stays locked")
	}
}

// Prune runs beside those who take and give back, and never gets two in.
func TestPruneBeside(t *testing.T) {
	b := lined(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			var last uint64
			for {
				select {
				case <-stop:
					return
				default:
				}
				r := request(driver.Exclusive, "a")
				r.Wait = driver.Forever
				g, err := b.Acquire(context.Background(), r)
				if err == nil && g.Token <= last {
					err = fmt.Errorf("token %d after %d", g.Token, last)
				}
				if err == nil {
					last = g.Token
					err = errors.Join(critical(b.dir), g.Hold.Release(context.Background()))
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	removed := 0
	eventually(t, "Prune removes something", func() bool {
		n, err := Prune(context.Background(), b.dir, 1)
		if err != nil {
			t.Error(err)
		}
		removed += n
		return removed >= 100 || t.Failed()
	})
	close(stop)
	wg.Wait()
}

// Readers that come all the time keep neither a writer nor an upgrade waiting,
// however they ask.
func TestReadersDoNotStarveWriters(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{0, 50 * time.Millisecond, driver.Forever} {
		t.Run(fmt.Sprint(wait), func(t *testing.T) {
			t.Parallel()
			b := lined(t)
			ctx, cancel := context.WithCancel(t.Context())
			var readers sync.WaitGroup
			for range 4 {
				other, err := New(b.dir, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer other.Close()
				readers.Go(func() {
					for ctx.Err() == nil {
						r := request(driver.Shared, "a")
						r.Wait = wait
						g, err := other.Acquire(ctx, r)
						if err != nil {
							<-time.After(10 * time.Millisecond) // who asks without a pause has it whenever it is free
							continue
						}
						<-time.After(100*time.Millisecond + rand.N(100*time.Millisecond))
						release(t, g)
					}
				})
			}
			for range 3 {
				r := request(driver.Exclusive, "a")
				r.Wait = long
				g, err := b.Acquire(t.Context(), r)
				if err != nil {
					t.Errorf("the writer: %v", err)
					break
				}
				release(t, g)
				r = request(driver.Upgradeable, "a")
				r.Wait = long
				if g, err = b.Acquire(t.Context(), r); err != nil {
					t.Errorf("the upgradeable one: %v", err)
					break
				}
				if _, err := g.Hold.(driver.Upgrader).Upgrade(t.Context(), long); err != nil {
					t.Errorf("the upgrade: %v", err)
				}
				release(t, g)
			}
			cancel()
			readers.Wait()
		})
	}
}

// quiet waits for a lock that nobody touches and says whether that took little
// processor time.
func quiet(args []string) {
	b, err := New(args[0], nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	used := func() time.Duration {
		var use unix.Rusage
		err = errors.Join(err, unix.Getrusage(unix.RUSAGE_SELF, &use))
		return time.Duration(use.Utime.Nano() + use.Stime.Nano())
	}
	before := used()
	r := request(driver.Exclusive, "a")
	r.Wait = 15 * time.Second
	_, err = b.Acquire(context.Background(), r)
	fmt.Println(errors.Is(err, driver.ErrHeld), used()-before < time.Second)
}

func TestQuietWaiterSleeps(t *testing.T) {
	t.Parallel()
	b := lined(t)
	g := acquire(t, b, driver.Exclusive, "a")
	p := start(t, "quiet", b.dir)
	if s := p.answer(); s != "true true" {
		t.Errorf("held, and under a second of processor time in fifteen: %s", s)
	}
	release(t, g)
}

// The core pauses before it lets a backend wait that it takes for one that is
// polled; others would get ahead meanwhile.
func TestLineIsNotPolled(t *testing.T) {
	if info := openDir(t, t.TempDir()).Info(); info.PollMin != 0 || info.PollMax != 0 {
		t.Errorf("pauses from %v to %v", info.PollMin, info.PollMax)
	}
}
