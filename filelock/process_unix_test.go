//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package filelock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/drivertest"
)

// The test binary runs itself as other processes, each in one of these roles.
var roles = map[string]func(args []string){
	"peer":   peer,
	"dotnet": dotnet,
}

const (
	roleEnv = "FILELOCK_TEST_ROLE"
	userEnv = "FILELOCK_TEST_USER"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if user, err := strconv.Atoi(os.Getenv(userEnv)); err == nil {
			err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(user), syscall.Setuid(user))
			if err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		}
		roles[role](os.Args[1:])
		os.Exit(0)
	}
	drivertest.Main(m, openForSuite)
}

// A process is a child that answers each line it gets with one.
type process struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
}

// start starts a process as this user.
func start(t testing.TB, role string, args ...string) *process {
	t.Helper()
	return startAs(t, "", role, args...)
}

// startAs starts one that becomes another user, by number, once it runs: the
// test binary itself may be out of that user's reach.
func startAs(t testing.TB, user, role string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), roleEnv+"="+role, userEnv+"="+user)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t, cmd, in, make(chan string, 100)}
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
		close(p.lines)
	}()
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGCONT)
		cmd.Process.Kill()
		cmd.Wait()
	})
	return p
}

func (p *process) send(format string, args ...any) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) answer() string {
	p.t.Helper()
	select {
	case s, ok := <-p.lines:
		if !ok {
			p.t.Fatal("the process has ended")
		}
		return s
	case <-time.After(long):
		p.t.Fatal("no answer")
	}
	return ""
}

// granted returns the token in the answer to "acquire".
func (p *process) granted() uint64 {
	p.t.Helper()
	s := p.answer()
	token, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		p.t.Fatal(s)
	}
	return token
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// peer obeys: "open DIR MODE", "acquire MODE WAIT RESOURCE" (answered with the
// token), "limit BYTES", "default" (answered with
// the directory), "release".
func peer([]string) {
	var b *Backend
	var held []driver.Grant
	ctx := context.Background()
	for s := bufio.NewScanner(os.Stdin); s.Scan(); {
		f := strings.Fields(s.Text())
		var err error
		var answer any = "ok"
		switch f[0] {
		case "open":
			mode, _ := strconv.ParseUint(f[2], 8, 32)
			b, err = New(f[1], &Options{FileMode: fs.FileMode(mode)})
		case "acquire":
			mode, _ := strconv.Atoi(f[1])
			r := request(driver.Mode(mode), f[3])
			r.Wait, _ = time.ParseDuration(f[2])
			r.Queue = r.Wait > 0
			var g driver.Grant
			if g, err = b.Acquire(ctx, r); err == nil {
				held = append(held, g)
				answer = g.Token
			}
		case "release":
			for _, g := range held {
				err = errors.Join(err, g.Hold.Release(ctx))
			}
			held = nil
		case "limit":
			err = limitFiles(f[1])
		case "default":
			answer, err = DefaultDir()
		}
		if err != nil {
			answer = strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		fmt.Println(answer)
	}
}

// limitFiles sets the size above which this process can write no file.
var limitFiles func(bytes string) error

// newPeer starts a process that has the directory open.
func newPeer(t testing.TB, dir string) *process {
	t.Helper()
	p := start(t, "peer")
	p.send("open %s 0", dir)
	if s := p.answer(); s != "ok" {
		t.Fatal(s)
	}
	return p
}

// dotnet locks as Medallion.Threading does: DIR RESOURCE ROUNDS.
func dotnet(args []string) {
	path := filepath.Join(args[0], FileName(args[1]))
	rounds, _ := strconv.Atoi(args[2])
	for done := 0; done < rounds; {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o666)
		if err != nil {
			fmt.Println(err)
			return
		}
		if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
			if err := critical(args[0]); err != nil {
				fmt.Println(err)
				return
			}
			done++
			unix.Unlink(path)
			unix.Flock(fd, unix.LOCK_UN)
		}
		unix.Close(fd)
		time.Sleep(rand.N(200 * time.Microsecond))
	}
	fmt.Println("done")
}

// critical fails if somebody else is in it.
func critical(dir string) error {
	marker := filepath.Join(dir, "marker")
	f, err := os.OpenFile(marker, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	time.Sleep(rand.N(100 * time.Microsecond))
	return errors.Join(f.Close(), os.Remove(marker))
}

// sever removes the file that the grant has locked.
func sever(t testing.TB, _ driver.Backend, _ driver.Request, g driver.Grant) {
	t.Helper()
	if err := os.Remove(g.Hold.(*hold).held.file.path()); err != nil {
		t.Fatal(err)
	}
}

func skip(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal("in CI nothing is skipped: ", why)
	}
	t.Skip(why)
}

func asRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		skip(t, "another user's process can be started by root only")
	}
}

// shared returns a directory below /tmp that other users can reach, with the
// given mode.
func shared(t testing.TB, mode fs.FileMode) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "filelock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, mode); err != nil {
		t.Fatal(err)
	}
	return dir
}

// isFree reports whether a new description of the lock file can be locked.
func isFree(t testing.TB, path string) bool {
	t.Helper()
	f, err := openFile(path, unix.O_RDONLY, 0, false)
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	free, err := f.flock(unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	return free
}

func TestKilledHolder(t *testing.T) {
	dir := t.TempDir()
	b := openDir(t, dir)
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared, driver.Upgradeable, driver.Permit} {
		if !b.info.Modes.Has(mode) {
			continue
		}
		p := newPeer(t, dir)
		p.send("acquire %d 0 a", mode)
		p.granted()
		if mode == driver.Permit {
			p.send("acquire %d 0 a", mode)
			p.granted()
		}
		want := driver.Exclusive
		if mode == driver.Permit {
			want = mode
		}
		if _, err := b.Acquire(t.Context(), request(want, "a")); !errors.Is(err, driver.ErrHeld) {
			t.Fatalf("%v: %v", mode, err)
		}
		p.signal(syscall.SIGKILL)
		p.cmd.Wait()
		// The process is gone, and so is its lock.
		release(t, acquire(t, b, want, "a"))
	}
}

func TestStoppedHolder(t *testing.T) {
	dir := t.TempDir()
	b := openDir(t, dir)
	p := newPeer(t, dir)
	p.send("acquire 0 0 a")
	p.granted()
	p.signal(syscall.SIGSTOP)
	r := request(driver.Exclusive, "a")
	r.Wait = 300 * time.Millisecond
	if _, err := b.Acquire(t.Context(), r); !errors.Is(err, driver.ErrHeld) {
		t.Error(err)
	}
	p.signal(syscall.SIGCONT)
	p.send("release")
	if s := p.answer(); s != "ok" {
		t.Error(s)
	}
	release(t, acquire(t, b, driver.Exclusive, "a"))
}

func TestTokensOverProcesses(t *testing.T) {
	dir := t.TempDir()
	b := openDir(t, dir)
	var last uint64
	check := func(token uint64) {
		t.Helper()
		if token <= last {
			t.Errorf("token %d after %d", token, last)
		}
		last = token
	}
	p, q := newPeer(t, dir), newPeer(t, dir)
	for i := range 30 {
		p.send("acquire 0 0 a")
		check(p.granted())
		switch i % 3 {
		case 0:
			p.send("release")
			p.answer()
		case 1:
			p.signal(syscall.SIGKILL)
			p.cmd.Wait()
			p = newPeer(t, dir)
		case 2: // .NET comes by
			p.send("release")
			p.answer()
			if err := os.Remove(b.path("a", lockSuffix)); err != nil {
				t.Fatal(err)
			}
		}
		p, q = q, p
	}
}

// Several readers count at once.
func TestTokensOfReaders(t *testing.T) {
	dir := t.TempDir()
	const each = 200
	tokens := make(chan uint64, 4*each)
	done := make(chan error)
	for range 4 {
		b := openDir(t, dir)
		go func() {
			for range each {
				r := request(driver.Shared, "a")
				r.Wait = driver.Forever // until the others have counted
				g, err := b.Acquire(context.Background(), r)
				if err != nil {
					done <- err
					return
				}
				tokens <- g.Token
				g.Hold.Release(context.Background())
			}
			done <- nil
		}()
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	close(tokens)
	seen := make(map[uint64]bool)
	for token := range tokens {
		if seen[token] {
			t.Fatalf("token %d twice", token)
		}
		seen[token] = true
	}
}

// A .NET process and two of ours exclude each other, though it removes the file
// each time.
func TestDotNet(t *testing.T) {
	dir := t.TempDir()
	stop := make(chan struct{})
	var rounds [2]atomic.Int64
	done := make(chan error)
	for i := range 2 {
		b := openDir(t, dir)
		go func() {
			var last uint64
			for n := 0; ; n++ {
				rounds[i].Store(int64(n))
				select {
				case <-stop:
					done <- nil
					return
				default:
				}
				r := request(driver.Exclusive, "a")
				if n%2 == 0 {
					r.Wait = time.Millisecond
				}
				g, err := b.Acquire(context.Background(), r)
				if errors.Is(err, driver.ErrHeld) {
					continue
				}
				if err == nil && g.Token <= last {
					err = fmt.Errorf("token %d after %d", g.Token, last)
				}
				if err == nil {
					last = g.Token
					err = errors.Join(critical(dir), g.Hold.Release(context.Background()))
				}
				if err != nil {
					done <- err
					return
				}
				time.Sleep(rand.N(time.Millisecond)) // .NET waits without a place in the line
			}
		}()
	}
	eventually(t, "ten rounds beside .NET", func() bool {
		before := [2]int64{rounds[0].Load(), rounds[1].Load()}
		if s := start(t, "dotnet", dir, "a", "300").answer(); s != "done" {
			t.Error(s)
		}
		return t.Failed() || rounds[0].Load()-before[0] >= 10 && rounds[1].Load()-before[1] >= 10
	})
	close(stop)
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// Readers keep .NET out too.
func TestDotNetAndReader(t *testing.T) {
	dir := t.TempDir()
	b := openDir(t, dir)
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		g := acquire(t, b, mode, "a")
		if isFree(t, b.path("a", lockSuffix)) {
			t.Errorf("%v lets .NET in", mode)
		}
		release(t, g)
		if !isFree(t, b.path("a", lockSuffix)) {
			t.Errorf("%v stays", mode)
		}
	}
}

func TestLoss(t *testing.T) {
	dir := t.TempDir()
	b := openDir(t, dir)
	for name, harm := range map[string]func(path string) error{
		"removed": os.Remove,
		"renamed": func(path string) error { return os.Rename(path, path+"~") },
		"replaced": func(path string) error {
			return errors.Join(os.WriteFile(path+"+", nil, 0o600), os.Rename(path+"+", path))
		},
		"directory renamed": func(string) error { return os.Rename(dir, dir+"~") },
	} {
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared, driver.Permit} {
			os.Rename(dir+"~", dir)
			g := acquire(t, b, mode, name)
			if err := g.Session.Renew(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			h := g.Hold.(*hold)
			if err := harm(h.held.file.path()); err != nil {
				t.Fatal(err)
			}
			if err := g.Session.Renew(t.Context()); !errors.Is(err, driver.ErrLost) {
				t.Errorf("%s: renew: %v", name, err)
			}
			for range 2 {
				if err := g.Hold.Release(t.Context()); !errors.Is(err, driver.ErrLost) {
					t.Errorf("%s: release: %v", name, err)
				}
			}
		}
	}
	os.Rename(dir+"~", dir)
	g := acquire(t, b, driver.Exclusive, "abandoned")
	g.Session.Abandon()
	if err := g.Session.Renew(t.Context()); !errors.Is(err, driver.ErrLost) {
		t.Error(err)
	}
	release(t, acquire(t, b, driver.Exclusive, "abandoned"))
}

// A lock that is held for long keeps its files young.
func TestFreshen(t *testing.T) {
	dir := t.TempDir()
	b := openDir(t, dir)
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Permit} {
		g := acquire(t, b, mode, mode.String())
		age(t, dir)
		g.Hold.(*hold).freshened -= 25 * time.Hour
		if err := g.Session.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		for name := range names(t, dir) {
			info, err := os.Stat(filepath.Join(dir, name))
			if err != nil || strings.HasPrefix(name, baseName(mode.String())) && time.Since(info.ModTime()) > time.Minute {
				t.Errorf("%s: %v, %v", name, info.ModTime(), err)
			}
		}
		release(t, g)
	}
}

// What somebody put in the place of our files is left alone.
func TestPlanted(t *testing.T) {
	dir := t.TempDir()
	b := openDir(t, dir)
	victim := filepath.Join(dir, "victim")
	const content = "precious"
	plants := map[string]func(path string) error{
		"symlink":          func(path string) error { return os.Symlink(victim, path) },
		"dangling symlink": func(path string) error { return os.Symlink(filepath.Join(dir, "nowhere"), path) },
		"directory":        func(path string) error { return os.Mkdir(path, 0o700) },
		"fifo":             func(path string) error { return unix.Mkfifo(path, 0o600) },
		"hard link":        func(path string) error { return os.Link(victim, path) },
	}
	for what, plant := range plants {
		for _, suffix := range []string{lockSuffix, fenceSuffix, fenceSuffix + unfinishedSuffix} {
			if err := os.WriteFile(victim, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if what == "hard link" && suffix == lockSuffix {
				continue // nothing is written into it
			}
			resource := what + suffix
			path := b.path(resource, suffix)
			if err := plant(path); err != nil {
				t.Fatal(err)
			}
			_, err := b.Acquire(t.Context(), request(driver.Exclusive, resource))
			var pathError *fs.PathError
			if !errors.As(err, &pathError) || pathError.Path != path {
				t.Errorf("%s in the place of %s: %v", what, suffix, err)
			}
			if text, err := os.ReadFile(victim); string(text) != content {
				t.Errorf("%s in the place of %s: the victim is %q, %v", what, suffix, text, err)
			}
			if _, err := os.Lstat(filepath.Join(dir, "nowhere")); err == nil {
				t.Errorf("%s in the place of %s: its aim was created", what, suffix)
			}
			if suffix != lockSuffix && !isFree(t, b.path(resource, lockSuffix)) {
				t.Errorf("%s in the place of %s: still locked", what, suffix)
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			release(t, acquire(t, b, driver.Exclusive, resource))
		}
	}
}

func TestOtherUser(t *testing.T) {
	asRoot(t)
	for _, c := range []struct {
		name        string
		directory   fs.FileMode
		file        fs.FileMode
		open, works bool
	}{
		{"all may", 0o777, 0o666, true, true},
		{"all may, sticky", 0o777 | fs.ModeSticky, 0o666, true, true},
		{"usual umask", 0o777 | fs.ModeSticky, 0, true, false},
		{"directory not writable", 0o755, 0o666, false, false},
		{"directory closed", 0o700, 0o666, false, false},
	} {
		dir := shared(t, c.directory)
		b, err := New(dir, &Options{FileMode: c.file})
		if err != nil {
			t.Fatal(err)
		}
		release(t, acquire(t, b, driver.Exclusive, "a"))
		p := startAs(t, "65534", "peer")
		p.send("open %s %o", dir, c.file)
		if s := p.answer(); (s == "ok") != c.open || !c.open && !strings.Contains(s, "permission denied") {
			t.Errorf("%s: open: %s", c.name, s)
		}
		if !c.open {
			continue
		}
		p.send("acquire 0 0 a")
		s := p.answer()
		if _, err := strconv.Atoi(s); (err == nil) != c.works || !c.works && !strings.Contains(s, "mode=0666") {
			t.Errorf("%s: acquire: %s", c.name, s)
		}
		if free := isFree(t, b.path("a", lockSuffix)); free == c.works {
			t.Errorf("%s: free is %v", c.name, free)
		}
		p.send("acquire 0 0 b")
		p.granted()
		b.Close()
	}
}

// The lock file of another user, which can only be read: that is enough to lock
// it, and .NET's are such files.
func TestReadOnlyLockFile(t *testing.T) {
	asRoot(t)
	dir := shared(t, 0o777)
	path := filepath.Join(dir, FileName("a"))
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	os.Chmod(path, 0o644)
	p := startAs(t, "65534", "peer")
	p.send("open %s 666", dir)
	p.answer()
	p.send("acquire 0 0 a")
	p.granted()
	if isFree(t, path) {
		t.Error("it isn't locked")
	}
	p.send("release")
	p.answer()
	p.send("acquire 0 10ms a")
	p.granted()
	p.send("release")
	p.answer()
	p.send("acquire %d 0 a", driver.Upgradeable)
	if s := p.answer(); openDir(t, dir).lined && !strings.Contains(s, "can't be written") {
		t.Error(s)
	}
	if !isFree(t, path) {
		t.Error("it stays locked")
	}
}

func TestDefaultDir(t *testing.T) {
	asRoot(t)
	// A user nobody else is, so that the directory isn't anybody's.
	uid := 4_000_000 + rand.Uint32N(1_000_000)
	dir := fmt.Sprintf("/tmp/distlock-%d", uid)
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := startAs(t, fmt.Sprint(uid), "peer")
	ask := func() string {
		p.send("default")
		return p.answer()
	}
	for range 2 {
		if s := ask(); s != dir {
			t.Fatal(s)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode() != fs.ModeDir|0o700 {
		t.Error(info.Mode(), err)
	}
	for want, plant := range map[string]func() error{
		"can be entered by others": func() error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, int(uid), int(uid)), os.Chmod(dir, 0o750))
		},
		"belongs to user 0": func() error { return os.Mkdir(dir, 0o700) },
		"symbolic link":     func() error { return os.Symlink(t.TempDir(), dir) },
		"not a directory":   func() error { return os.WriteFile(dir, nil, 0o600) },
	} {
		os.RemoveAll(dir)
		if err := plant(); err != nil {
			t.Fatal(err)
		}
		if s := ask(); !strings.Contains(s, want) {
			t.Errorf("%s: %s", want, s)
		}
	}
}

// Options.FileMode counts whatever the umask is.
func TestFileMode(t *testing.T) {
	dir := t.TempDir()
	b, err := New(dir, &Options{FileMode: 0o666})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	release(t, acquire(t, b, driver.Exclusive, "a"))
	release(t, acquire(t, b, driver.Permit, "a"))
	for name := range names(t, dir) {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != 0o666 {
			t.Error(name, info.Mode(), err)
		}
	}
}

// A child that got the descriptors doesn't keep a lock that was released.
func TestInherited(t *testing.T) {
	b := openDir(t, t.TempDir())
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared, driver.Permit} {
		g := acquire(t, b, mode, "a")
		f := g.Hold.(*hold).held.file
		fd, err := unix.Dup(f.fd)
		if err != nil {
			t.Fatal(err)
		}
		release(t, g)
		// Nor the next one.
		for range 2 {
			if !isFree(t, f.path()) {
				t.Errorf("%v: still locked", mode)
			}
			release(t, acquire(t, b, mode, "a"))
		}
		unix.Close(fd)
	}
}
