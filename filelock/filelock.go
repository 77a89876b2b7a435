// Package filelock locks with files in a directory: on one host without any
// server, and between hosts on network file systems whose locks work.
//
// # Requirements
//
// Linux, macOS, a BSD or Windows, and a directory that every process may write
// to. Users of different accounts need [Options.FileMode] too: files made with
// the usual umask are nobody else's to write.
//
// [New] takes a lock in the directory to see whether locks work there, and on
// Linux looks up how it is mounted: mounts whose locks stay within one client
// are refused (NFS with nolock or local_lock, SMB with nobrl, 9p, virtiofs, most
// of FUSE), unless [Options.AllowUnsafeMount] says that all users are on this
// host. Other network mounts are accepted; their locks are as good as their
// server and its lease handling.
//
// The URL is file:///var/locks, or file: for [DefaultDir]. Its parameters are
// mode (octal, see [Options.FileMode]), tokens=none (see [Options.NoTokens]) and
// unsafe_mount=allow.
//
// # How it locks
//
// On Unix, flock(2) on a file in the directory that [FileName] names; after
// locking, the file must still be the one of that name, else the new one is
// locked. The file is never removed by a release. On Linux, on local file
// systems, it stays open then, not locked, for the next lock of the same name; see
// Limits. The .NET library Medallion.Threading locks the same file in the same
// way, so that services of both kinds exclude each other; see Limits. On Windows a
// file is locked by opening it without sharing.
//
//	NAME.lock           exclusive, shared (LOCK_SH) and upgradeable
//	NAME.fence          its tokens, and who took the lock
//	NAME.permit-0, …    one for each permit of a semaphore
//	NAME.permits        open in each holder of a permit
//	NAME.permits-fence  tokens of permits
//
// Upgradeable exists on Linux, on local file systems. It is a shared flock(2)
// together with locks on two bytes of the file (fcntl(2), F_OFD_SETLK), which
// don't meet flock(2) there: readers lock one byte for reading, the upgradeable
// holder locks the other for writing, and upgrading locks the readers' byte for
// writing. The shared flock stays all the while, so that no writer gets in.
//
// # Waiting
//
// On Linux, on local file systems, a waiter sleeps in inotify(7) until the file
// is closed by somebody, which the kernel does also for a process that was
// killed. Who releases closes it if somebody waits. Waiting processes stand in a
// line: each locks one byte of the file, at the offset of the time when it came,
// and whoever finds no locked byte before its own is next. A waiter that was
// stopped (SIGSTOP) at the front holds up the others for a quarter of a second at
// most, since all try now and then without regard to the line. A process that
// released the lock while nobody waited may get ahead of the line once. A
// thousand waiters take a thousand descriptors, one inotify instance and no
// thread.
//
// Elsewhere a waiting process tries again after a pause: 1 to 50 ms, and on
// network mounts 10 ms to a second; there is no order between processes, and
// a stream of readers can keep a writer out.
//
// # Loss
//
// The lock lives as long as its open file, and so at most as long as the
// process; a killed process frees it at once. It is lost if somebody removes or
// replaces the lock file, which is noticed within five seconds, and at Release.
// A lock that is held for days has its file's time freshened each day, so that
// cleaners of old files leave it alone.
//
// A stopped process keeps its locks. On a network mount a lock may end without
// notice when the server forgets the client; the token guards against what
// follows.
//
// # Tokens
//
// Every grant counts up a number in the .fence file, which starts at the clock
// (microseconds since 1970) and is text: cat shows the last two holders. It stays
// below 2^53: the clock reaches that in 2255. [distlock.Lock.Token] has ten bits
// more. The numbers are written without waiting for the disk. What a power cut can
// take back is made good by the system's boot ID in the file: in a new boot the
// count leaps by more than was ever handed out since the last flush, or to the
// clock. On network mounts each number is flushed instead. A file without a
// readable number is an error, never a smaller number; a file that was removed
// starts a new count at the clock, which is larger unless the clock was set back,
// locks were taken faster than one in a microsecond, or the count had leapt in
// the 17 seconds before.
//
// # Limits
//
// Files stay until [Prune] removes them. Up to 64 names that were used in the last
// two seconds have their files open, on Linux and local file systems: two each,
// three for permits. Until then their file system can't be unmounted. If the
// process runs out of descriptors they are closed at once.
//
// The first grant of a resource waits for the disk once, which takes milliseconds,
// and on a busy disk a tenth of a second or more; later grants don't. A failed try
// for a permit opens the files of all permits.
//
// .NET removes the lock file when it releases, and doesn't look whether a file
// that it locked is still there: two .NET processes can thus both hold, and a Go
// process beside the one that is wrong. Against one .NET process, any number of
// Go processes are safe. Shared, upgradeable and permits mean nothing to .NET,
// except that it gets no lock while a Go reader has one.
//
// A child process that was started without closing its descriptors keeps a
// killed parent's lock, also one that was taken later in a file that was open when
// the child was made; it doesn't keep one that the parent releases.
//
// On Linux, on local file systems, a lock is first tried, and is released, in the
// caller's own goroutine: these are a few system calls that don't wait. But if the
// disk hangs, or is slow with the first grant of a resource, the caller is held up
// for as long, whatever his context says.
package filelock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

// Options tune a [Backend]. Nil and the zero value are the defaults.
type Options struct {
	// FileMode is given to the files that the backend creates, whatever the umask.
	// Zero means 0666 less the umask. Only permission bits are allowed, and the
	// owner must be able to read and write. Windows has no use for it.
	FileMode fs.FileMode

	// AllowUnsafeMount accepts a directory on a mount whose locks can't be trusted
	// to reach all of its users. It is right only if all of them are on this host,
	// in this kernel.
	AllowUnsafeMount bool

	// NoTokens leaves out fencing tokens, and the files that they are counted in: an
	// uncontended lock then takes about two thirds of the time, and the first of a
	// name doesn't wait for the disk. Locks have no token. Of holders nothing is
	// known but the kind of lock, and the process number where the system tells
	// that. As nothing is written, [Prune] takes all that isn't held for idle once
	// it is old enough. All who use a directory should agree in this: else a token
	// says nothing of the grants that have none.
	NoTokens bool
}

// Backend locks files in one directory. Its methods are safe for concurrent
// use.
type Backend struct {
	dir       string      // absolute
	perm      fs.FileMode // of the directory
	mode      fs.FileMode
	network   bool   // other hosts may use it: fences are flushed, not bound to a boot
	lined     bool   // waiters line up and wake each other: Linux, local file system
	procLocks string // how /proc/locks calls the file system; empty: ask the files
	noTokens  bool
	info      driver.Info
	began     time.Time // what holds count from

	closed  chan struct{}
	mu      sync.Mutex
	holds   []*hold // nil once closed
	names   map[nameKey]*name
	uses    uint64 // of names
	resting bool   // idle files are going to be looked through

	lastOwner atomic.Pointer[ownerText]
}

// New returns a backend on the lock files in dir, and checks at once that locks
// work there. It creates dir and its parents, with mode 0755 less the umask, if
// they are missing. A relative dir is taken from the working directory of now.
//
// The error is a *[fs.PathError] in the chain where the system refused, and
// says what to do. It matches [distlock.ErrBadArgument] if dir is empty or an option
// is invalid.
func New(dir string, o *Options) (*Backend, error) {
	if o == nil {
		o = &Options{}
	}
	if dir == "" {
		return nil, fmt.Errorf("%w: the lock directory is empty: name one, or use DefaultDir", distlock.ErrBadArgument)
	}
	if o.FileMode&^fs.ModePerm != 0 || o.FileMode != 0 && o.FileMode&0o600 != 0o600 {
		return nil, fmt.Errorf("%w: file mode %#o: only permission bits, and the owner must be able to read and write (0600)", distlock.ErrBadArgument, o.FileMode)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("%w: the lock directory can't be created", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	b := &Backend{
		dir:    dir,
		perm:   info.Mode().Perm(),
		mode:   o.FileMode,
		began:  time.Now(),
		closed: make(chan struct{}),
		holds:  []*hold{},
		names:  make(map[nameKey]*name),

		noTokens: o.NoTokens,
		info: driver.Info{
			Name:  "file",
			Modes: driver.ModesOf(driver.Exclusive, driver.Shared, driver.Permit),
		},
	}
	if err := b.examine(o.AllowUnsafeMount); err != nil {
		return nil, err
	}
	switch {
	case b.lined: // and so it isn't polled: a pause would come before the place in the line
		b.info.Modes |= driver.ModesOf(driver.Upgradeable)
		b.info.AnswersWithin = answersWithin
	case b.network:
		b.info.PollMin, b.info.PollMax = 10*time.Millisecond, time.Second
	default:
		b.info.PollMin, b.info.PollMax = time.Millisecond, 50*time.Millisecond
	}
	return b, nil
}

// Info describes the backend.
func (b *Backend) Info() driver.Info { return b.info }

// Acquire takes a lock; see [driver.Backend]. On Linux, on local file systems,
// it waits for all of r.Wait; elsewhere it never waits.
func (b *Backend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	if !b.info.Modes.Has(r.Mode) {
		return driver.Grant{}, fmt.Errorf("%w: mode %v needs Linux and a local file system", errors.ErrUnsupported, r.Mode)
	}
	if b.isClosed() {
		return driver.Grant{}, errClosed
	}
	n := b.name(r.Resource, r.Mode == driver.Permit)
	remade := false
	var until time.Time // if it waits, and not for ever
	if r.Wait != 0 && r.Wait != driver.Forever {
		until = time.Now().Add(r.Wait)
	}
	for {
		g, err := b.grant(ctx, n, r)
		switch {
		case err == nil:
			return g, nil
		case errors.Is(err, fs.ErrNotExist) && !remade && b.remake() == nil:
			remade = true
		case !errors.Is(err, driver.ErrLost) || ctx.Err() != nil:
			return driver.Grant{}, err
		}
		if !until.IsZero() {
			r.Wait = max(0, time.Until(until))
		}
	}
}

// grant is one attempt of Acquire. The error is driver.ErrLost if the lock file
// was removed or replaced at that moment.
func (b *Backend) grant(ctx context.Context, n *name, r driver.Request) (driver.Grant, error) {
	held, err := b.take(ctx, n, r)
	if err != nil {
		return driver.Grant{}, err
	}
	h := &hold{backend: b, resource: r.Resource, held: held, mode: r.Mode}
	if !b.noTokens {
		h.owner = b.describeOwner(r.Owner)
	}
	most := guardTimeout
	if r.Wait == 0 && b.lined {
		most = answersWithin
	}
	token, err := h.count(ctx, n, r.Mode, most)
	if errors.Is(err, errBusy) && most == answersWithin {
		err = driver.ErrHeld // who has time for it learns more
	}
	if err == nil && !b.add(h) {
		err = errClosed
	}
	if err != nil {
		b.free(h.key(), held, false)
		return driver.Grant{}, err
	}
	return driver.Grant{Hold: h, Token: token, Session: h.session()}, nil
}

// remake makes the directory again after somebody removed it, as cleaners of
// /tmp do with one that was of no use for days.
func (b *Backend) remake() error {
	if err := os.MkdirAll(filepath.Dir(b.dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(b.dir, b.perm); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

var errClosed = fmt.Errorf("the backend was closed: %w", fs.ErrClosed)

// add keeps the hold for Close. It reports false if that came first.
func (b *Backend) add(h *hold) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holds == nil {
		return false
	}
	h.at = len(b.holds)
	b.holds = append(b.holds, h)
	return true
}

func (b *Backend) isClosed() bool {
	select {
	case <-b.closed:
		return true
	default:
		return false
	}
}

// Close ends what waits and frees what is still held.
func (b *Backend) Close() error {
	b.mu.Lock()
	holds := b.holds
	var unused []idle
	for key := range b.names {
		unused = append(unused, b.forget(key))
	}
	b.holds = nil
	b.mu.Unlock()
	if holds == nil {
		return nil
	}
	close(b.closed)
	for _, h := range holds {
		h.Abandon()
	}
	for _, i := range unused {
		i.close()
	}
	return nil
}

// path returns the name of a file of the resource.
func (b *Backend) path(resource, suffix string) string {
	return filepath.Join(b.dir, baseName(resource)+suffix)
}

// A hold is one grant. Where it can be lost it is its own session. There may be
// many thousands, so that it has no more in mind than it needs.
type hold struct {
	backend  *Backend
	resource string
	owner    *ownerText // nil without tokens
	at       int        // in Backend.holds; guarded by Backend.mu

	mu        sync.Mutex // held during all use of held
	held      *held      // nil once it ended
	mode      driver.Mode
	lost      bool
	checked   time.Duration // after Backend.began it was last looked whether it is lost
	freshened time.Duration // likewise; zero: not since it began
}

// key returns which name the hold is of.
func (h *hold) key() nameKey { return nameKey{h.resource, h.mode == driver.Permit} }

// count returns the next token, and leaves word of the owner with it. Only then
// it looks whether the lock is still there: who has it now, if it isn't, gets a
// larger token. h.mu is held, or nobody else has h yet.
func (h *hold) count(ctx context.Context, n *name, mode driver.Mode, most time.Duration) (uint64, error) {
	if h.held == nil {
		return 0, driver.ErrLost
	}
	checked := time.Since(h.backend.began)
	token, err := uint64(0), error(nil)
	if !h.backend.noTokens {
		token, err = h.backend.count(ctx, n, mode, h.owner, time.Now(), most)
	}
	if err == nil {
		h.checked = checked
		err = h.held.check()
	}
	return token, err
}

// end takes the files out of the hold, so that one caller frees them.
func (h *hold) end() *held {
	held, b := h.held, h.backend
	h.held = nil
	b.mu.Lock()
	if last := len(b.holds) - 1; last >= 0 {
		b.holds[h.at] = b.holds[last]
		b.holds[h.at].at = h.at
		b.holds[last] = nil
		b.holds = b.holds[:last]
	}
	b.mu.Unlock()
	return held
}

// Release frees the lock. It is driver.ErrLost when the lock file was removed
// or replaced before.
func (h *hold) Release(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost {
		return driver.ErrLost
	}
	if h.held == nil {
		return nil
	}
	err := h.held.checkAgain(time.Since(h.backend.began) - h.checked)
	h.backend.free(h.key(), h.end(), err == nil)
	if errors.Is(err, driver.ErrLost) {
		h.lost = true
		return err
	}
	return nil // whatever hid the file's name, the lock is off it
}

// Abandon frees what is left.
func (h *hold) Abandon() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held != nil {
		h.lost = true
		h.backend.free(h.key(), h.end(), false)
	}
}
