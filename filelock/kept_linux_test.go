package filelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/distlock-go/distlock/driver"
)

func init() {
	roles["few"] = few
}

// openIn returns the files below the directory that this process has open.
func openIn(t testing.TB, dir string) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	var open []string
	for _, l := range links {
		if path, err := os.Readlink(l); err == nil && strings.HasPrefix(path, dir+"/") {
			open = append(open, filepath.Base(path))
		}
	}
	return open
}

// idleOf returns what is kept of a resource.
func idleOf(b *Backend, resource string, mode driver.Mode) idle {
	n := b.name(resource, mode == driver.Permit)
	b.mu.Lock()
	defer b.mu.Unlock()
	return n.idle
}

// untidied is a backend with a line that keeps open what it keeps, however long it
// isn't used, until tidy is called.
func untidied(t testing.TB) (b *Backend, tidy func()) {
	t.Helper()
	b = lined(t)
	b.resting = true
	return b, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.resting = false
		b.rest()
	}
}

// The next lock of the same name goes on with the files of the one before, which
// nobody else has to take notice of meanwhile.
func TestKept(t *testing.T) {
	b, _ := untidied(t)
	p := newPeer(t, b.dir)
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared, driver.Upgradeable, driver.Permit} {
		resource := mode.String()
		g := acquire(t, b, mode, resource)
		release(t, g)
		before := idleOf(b, resource, mode)
		if before.held == nil || before.fence == nil {
			t.Fatalf("%v: nothing was kept", mode)
		}
		if !isFree(t, before.held.file.path()) || inLine(t, before.held.queue().path()) > 0 {
			t.Errorf("%v: something is locked", mode)
		}
		// Another process takes it, in whatever mode, and counts on.
		all := []driver.Mode{driver.Exclusive, driver.Shared, driver.Upgradeable}
		if mode == driver.Permit {
			all = []driver.Mode{mode}
		}
		last := g.Token
		for _, other := range all {
			p.send("acquire %d 0 %s", other, resource)
			token := p.granted()
			if token != last+1 {
				t.Errorf("%v after %v: token %d after %d", other, mode, token, last)
			}
			last = token
			p.send("release")
			p.answer()
		}
		next := acquire(t, b, mode, resource)
		if next.Token != last+1 {
			t.Errorf("%v: token %d after %d", mode, next.Token, last)
		}
		if h := next.Hold.(*hold).held; h.file != before.held.file {
			t.Errorf("%v: the file was opened anew", mode)
		}
		if mode != driver.Permit && isFree(t, before.held.file.path()) {
			t.Errorf("%v: nothing is locked", mode)
		}
		release(t, next)
		if after := idleOf(b, resource, mode); after.fence != before.fence {
			t.Errorf("%v: the fence was opened anew", mode)
		}
	}
}

// What happens to a file while it is kept is seen when it is locked the next
// time, so that no two hold.
func TestKeptFileIsGone(t *testing.T) {
	b, _ := untidied(t)
	dir := b.dir
	for name, harm := range map[string]func(path string) error{
		"removed": os.Remove,
		"renamed": func(path string) error { return os.Rename(path, path+"~") },
		"replaced": func(path string) error {
			return errors.Join(os.WriteFile(path+"+", nil, 0o600), os.Rename(path+"+", path))
		},
		"linked-and-removed": func(path string) error {
			return errors.Join(os.Link(path, path+"-"), os.Remove(path))
		},
		"directory-renamed": func(string) error { return errors.Join(os.Rename(dir, dir+"~"), os.Mkdir(dir, 0o700)) },
		"directory-removed": func(string) error { return os.RemoveAll(dir) },
	} {
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared, driver.Upgradeable, driver.Permit} {
			os.RemoveAll(dir + "~")
			resource := name + mode.String()
			first := acquire(t, b, mode, resource)
			release(t, first)
			kept := idleOf(b, resource, mode).held
			if kept == nil {
				t.Fatalf("%s, %v: nothing was kept", name, mode)
			}
			paths := []string{kept.file.path()}
			if kept.bell != nil {
				paths = append(paths, kept.bell.path())
			}
			for _, path := range paths {
				if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
					continue // with the directory
				}
				if err := harm(path); err != nil {
					t.Fatal(err)
				}
			}
			p := newPeer(t, dir)
			other := driver.Exclusive
			if mode == driver.Permit {
				other = mode
				p.send("acquire %d 0 %s", other, resource)
				p.granted()
			}
			p.send("acquire %d 0 %s", other, resource)
			token := p.granted()
			if token <= first.Token {
				t.Errorf("%s, %v: token %d after %d", name, mode, token, first.Token)
			}
			if g, err := b.Acquire(t.Context(), request(mode, resource)); !errors.Is(err, driver.ErrHeld) {
				t.Errorf("%s: two have it, the second %v: %v, %v", name, mode, g.Token, err)
			}
			// And who waits is woken by the release of the file that is there now.
			next := wait(t.Context(), b, request(mode, resource))
			suffix := lockSuffix
			if mode == driver.Permit {
				suffix = bellSuffix
			}
			eventually(t, "a waiter", func() bool { return inLine(t, b.path(resource, suffix)) > 0 })
			p.send("release")
			p.answer()
			g := got(t, next)
			if g.Token <= token {
				t.Errorf("%s, %v: token %d after %d", name, mode, g.Token, token)
			}
			release(t, g.Grant)
			p.signal(unix.SIGKILL)
		}
	}
}

// A file that is moved away and back is the one of its name again.
func TestKeptFileComesBack(t *testing.T) {
	b, _ := untidied(t)
	path := b.path("a", lockSuffix)
	first := acquire(t, b, driver.Exclusive, "a")
	release(t, first)
	if err := os.Rename(path, path+"~"); err != nil {
		t.Fatal(err)
	}
	p := newPeer(t, b.dir)
	p.send("acquire 0 0 a")
	token := p.granted()
	p.send("release")
	p.answer()
	if err := os.Rename(path+"~", path); err != nil {
		t.Fatal(err)
	}
	g := acquire(t, b, driver.Exclusive, "a")
	if g.Token <= token {
		t.Errorf("token %d after %d", g.Token, token)
	}
	p.send("acquire 0 0 a")
	if s := p.answer(); s != driver.ErrHeld.Error() {
		t.Errorf("the other process, with its own file kept: %s", s)
	}
	if isFree(t, path) {
		t.Error("nothing is locked")
	}
	release(t, g)
}

// A fence that is kept is no other than the one that all count in.
func TestKeptFence(t *testing.T) {
	b, _ := untidied(t)
	p := newPeer(t, b.dir)
	for name, harm := range map[string]func(path string) error{
		"removed": os.Remove,
		"moved":   func(path string) error { return os.Rename(path, path+"~") },
		"replaced": func(path string) error {
			future := line(clockToken(time.Now())+1_000_000, bootID())
			return errors.Join(os.WriteFile(path+"+", append(future, blankLine...), 0o600), os.Rename(path+"+", path))
		},
		"overwritten": func(path string) error {
			future := line(clockToken(time.Now())+1_000_000, bootID())
			return os.WriteFile(path, append(future, blankLine...), 0o600)
		},
		"linked-and-removed": func(path string) error {
			return errors.Join(os.Link(path, path+"-"), os.Remove(path))
		},
		"directory-renamed": func(path string) error {
			dir := filepath.Dir(path)
			return errors.Join(os.Rename(dir, dir+"~"), os.Mkdir(dir, 0o700))
		},
	} {
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Permit} {
			os.RemoveAll(b.dir + "~")
			first := acquire(t, b, mode, name)
			release(t, first)
			c := idleOf(b, name, mode).fence
			if c == nil {
				t.Fatal("nothing was kept")
			}
			if name == "moved" || name == "linked-and-removed" {
				// Its links are as many as before.
				eventually(t, "the name is looked at again", func() bool { return time.Since(c.looked) > lookEvery })
			}
			if err := harm(c.fenceFile.(guarded).path()); err != nil {
				t.Fatal(err)
			}
			last := first.Token
			for range 3 {
				p.send("acquire %d 0 %s", mode, name)
				token := p.granted()
				p.send("release")
				p.answer()
				g := acquire(t, b, mode, name)
				release(t, g)
				// A number is spent on a lock file that turns out to be gone.
				if token <= last || g.Token <= token || g.Token > token+2 {
					t.Errorf("%s, %v: tokens %d, %d after %d", name, mode, token, g.Token, last)
				}
				last = g.Token
			}
		}
	}

	for name, harm := range map[string]func(path string) error{
		"damaged": func(path string) error { return os.WriteFile(path, []byte("x"), 0o600) },
		"linked":  func(path string) error { return os.Link(path, path+"-") },
	} {
		release(t, acquire(t, b, driver.Exclusive, name))
		if err := harm(b.path(name, fenceSuffix)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if g, err := b.Acquire(t.Context(), request(driver.Exclusive, name)); err == nil {
				t.Errorf("%s: token %d", name, g.Token)
			}
			if !isFree(t, b.path(name, lockSuffix)) {
				t.Errorf("%s: it stays locked", name)
			}
		}
	}
}

// A fence that was looked at just now isn't trusted when the lock file is another:
// the whole directory may be.
func TestKeptFenceOfAnotherDirectory(t *testing.T) {
	b, _ := untidied(t)
	dir := b.dir
	release(t, acquire(t, b, driver.Exclusive, "a"))
	idleOf(b, "a", driver.Exclusive).fence.looked = time.Now().Add(time.Hour)
	b.borrow(b.name("a", false)).close() // as if somebody had been waiting
	if err := errors.Join(os.Rename(dir, dir+"~"), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	g := acquire(t, b, driver.Exclusive, "a")
	if text, err := os.ReadFile(b.path("a", fenceSuffix)); err != nil || !strings.Contains(string(text), fmt.Sprint("token ", g.Token, " ")) {
		t.Errorf("token %d, %v\n%s", g.Token, err, text)
	}
	release(t, g)
}

// Waiters line up at the bell that is there now, so the one that was kept must be
// that one.
func TestKeptBell(t *testing.T) {
	b, _ := untidied(t)
	release(t, acquire(t, b, driver.Permit, "a"))
	if err := os.Remove(b.path("a", bellSuffix)); err != nil {
		t.Fatal(err)
	}
	g := acquire(t, b, driver.Permit, "a")
	if current, err := g.Hold.(*hold).held.bell.current(); !current || err != nil {
		t.Error("the bell of before was taken", err)
	}
	release(t, g)
}

// Who waits is woken by a close. So what somebody waits for isn't kept, whoever
// lets go of it and whoever waits.
func TestNotKeptFromWaiters(t *testing.T) {
	b, _ := untidied(t)
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared, driver.Upgradeable, driver.Permit} {
		resource := mode.String()
		release(t, acquire(t, b, mode, resource))
		if idleOf(b, resource, mode).held == nil {
			t.Fatal("nothing was kept")
		}
		g := acquire(t, b, mode, resource)
		wanted, suffix := driver.Exclusive, lockSuffix
		var second driver.Grant
		if mode == driver.Permit {
			second = acquire(t, b, mode, resource)
			wanted, suffix = mode, bellSuffix
		}
		p := newPeer(t, b.dir)
		before := inLine(t, b.path(resource, suffix))
		p.send("acquire %d 1h %s", wanted, resource)
		eventually(t, "a waiter", func() bool { return inLine(t, b.path(resource, suffix)) > before })
		stop(t, p) // so that it can't leave the line before the release is over
		release(t, g)
		if idleOf(b, resource, mode).held != nil {
			t.Errorf("%v: kept, and nobody is woken", mode)
		}
		p.signal(unix.SIGCONT)
		p.granted()
		if second.Hold != nil {
			release(t, second)
		}
		p.signal(unix.SIGKILL)
		p.cmd.Wait()
	}

	// Somebody who gives up lets the one behind him go on.
	for _, mode := range []driver.Mode{driver.Shared, driver.Upgradeable} {
		resource := "given-up" + mode.String()
		reader := acquire(t, b, driver.Shared, resource)
		path := b.path(resource, lockSuffix)
		ctx, cancel := context.WithCancel(t.Context())
		writer := wait(ctx, b, request(driver.Exclusive, resource))
		waitInLine(t, b, resource, 2)
		p := newPeer(t, b.dir)
		p.send("acquire %d 1h %s", mode, resource)
		eventually(t, "a second waiter", func() bool { return inLine(t, path) > 2 })
		stop(t, p)
		cancel()
		if g := get(t, writer); !errors.Is(g.err, context.Canceled) {
			t.Error(g.err)
		}
		if idleOf(b, resource, driver.Exclusive).held != nil {
			t.Error("the file of somebody who gave up is kept, and nobody is woken")
		}
		p.signal(unix.SIGCONT)
		p.granted()
		release(t, reader)
	}

	// A reader lets go, and somebody waits to upgrade.
	g := acquire(t, b, driver.Upgradeable, "up")
	reader := acquire(t, b, driver.Shared, "up")
	done := make(chan error, 1)
	go func() {
		_, err := g.Hold.(driver.Upgrader).Upgrade(context.Background(), driver.Forever)
		done <- err
	}()
	waitInLine(t, b, "up", 2)
	release(t, reader)
	if err := <-done; err != nil {
		t.Error(err)
	}
	release(t, g)
}

// Files that aren't used are few, and not for long.
func TestKeptAreFew(t *testing.T) {
	b, tidy := untidied(t)
	const names = 3 * mostNames
	for i := range names {
		release(t, acquire(t, b, driver.Exclusive, strconv.Itoa(i)))
	}
	if n := len(openIn(t, b.dir)); n < mostNames || n > 2*mostNames {
		t.Errorf("%d files are open", n)
	}
	// The latest are kept.
	if idleOf(b, strconv.Itoa(names-1), driver.Exclusive).held == nil {
		t.Error("the last one isn't kept")
	}
	held := acquire(t, b, driver.Shared, "held")
	tidy()
	eventually(t, "all but the held one are closed", func() bool {
		open := openIn(t, b.dir)
		return len(open) == 1 && open[0] == FileName("held")
	})
	release(t, held)
	release(t, acquire(t, b, driver.Exclusive, "held"))
}

// few has few descriptors, and many names: DIR.
func few(args []string) {
	b, err := New(args[0], nil)
	if err == nil {
		const most = 60
		err = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most})
	}
	var held []driver.Grant
	for i := 0; i < 200 && err == nil; i++ {
		var g driver.Grant
		if g, err = b.Acquire(context.Background(), request(driver.Exclusive, strconv.Itoa(i))); err == nil {
			if len(held) < 30 {
				held = append(held, g)
			} else {
				err = g.Hold.Release(context.Background())
			}
		}
	}
	for _, g := range held {
		err = errors.Join(err, g.Hold.Release(context.Background()))
	}
	fmt.Println(err)
}

func TestFewDescriptors(t *testing.T) {
	p := start(t, "few", t.TempDir())
	if s := p.answer(); s != "<nil>" {
		t.Error(s)
	}
}

// Close leaves no file open, whoever is at work at that moment.
func TestCloseClosesAll(t *testing.T) {
	dir := t.TempDir()
	for range 20 {
		b := openDir(t, dir)
		var wg sync.WaitGroup
		ready := make(chan struct{}, 8)
		for i := range 8 {
			wg.Go(func() {
				for n := 0; ; n++ {
					g, err := b.Acquire(context.Background(), request([]driver.Mode{driver.Shared, driver.Permit}[i%2], "a"))
					if err == nil {
						err = g.Hold.Release(context.Background())
					}
					if n == 3 {
						ready <- struct{}{}
					}
					if errors.Is(err, os.ErrClosed) {
						if n < 3 {
							ready <- struct{}{}
						}
						return
					}
					if err != nil && !errors.Is(err, driver.ErrHeld) && !errors.Is(err, driver.ErrLost) {
						t.Error(err)
						return
					}
				}
			})
		}
		for range 8 {
			<-ready
		}
		b.Close()
		wg.Wait()
		if open := openIn(t, dir); len(open) > 0 {
			t.Fatal(open)
		}
	}
}

// Both ways of looking at a file see the same.
func TestLook(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	f, err := openFile(path, unix.O_RDWR, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	at, err := lookAt(f.fd, true)
	up, err2 := lookUp(f.name)
	if want := lookOf(&st); at != want || up != want || err != nil || err2 != nil || !want.regular || want.links != 1 {
		t.Errorf("%+v %v, %+v %v, want %+v", at, err, up, err2, want)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if at, err := lookAt(f.fd, false); at.links != 0 || err != nil {
		t.Error(at, err)
	}
	if _, err := lookUp(f.name); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// While somebody waits for a fence, another may be made and removed. The one that
// is made after that begins with a larger token all the same.
func TestFenceMadeAfterAWait(t *testing.T) {
	dir := t.TempDir()
	backend := func() *Backend {
		b, err := New(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		return b
	}
	take := func() uint64 {
		g, err := backend().Acquire(context.Background(), request(driver.Shared, "a"))
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Hold.Release(context.Background()); err != nil {
			t.Fatal(err)
		}
		return g.Token
	}
	take()
	slow := backend()
	fence := slow.path("a", fenceSuffix)
	busy, err := openFile(fence, unix.O_RDWR, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	defer busy.close()
	if locked, err := busy.flock(unix.LOCK_EX); !locked || err != nil {
		t.Fatal(locked, err)
	}
	open := func() (n int) {
		entries, _ := os.ReadDir("/proc/self/fd")
		for _, e := range entries {
			if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); to == fence {
				n++
			}
		}
		return n
	}
	before := open()
	slowly := make(chan uint64)
	go func() {
		r := request(driver.Shared, "a")
		r.Wait = driver.Forever
		g, err := slow.Acquire(context.Background(), r)
		if err != nil {
			t.Error(err)
		}
		slowly <- g.Token
	}()
	eventually(t, "it waits for the fence", func() bool { return open() > before })
	if err := os.Remove(fence); err != nil {
		t.Fatal(err)
	}
	other := take()
	if err := os.Remove(fence); err != nil {
		t.Fatal(err)
	}
	busy.unlock()
	if token := <-slowly; token <= other {
		t.Errorf("token %d after %d", token, other)
	}
}
