//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package filelock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/distlock-go/distlock/driver"
)

// held is what a grant holds open.
type held struct {
	file *file // the lock file, or that of the permit
	bell *file // permits with a line only
}

// free unlocks before it closes: whoever is woken by the close must find the
// lock free.
func (h *held) free() {
	h.file.unlock()
	h.file.close()
	if h.bell != nil {
		h.bell.close()
	}
}

// check returns driver.ErrLost if the locked file is not that of the name any
// more, where the next one looks.
func (h *held) check() error {
	current, err := h.file.current()
	if err != nil {
		return err
	}
	if !current {
		return fmt.Errorf("%w: %s was removed or replaced", driver.ErrLost, h.file.path)
	}
	return nil
}

// session is the hold itself.
func (h *hold) session() driver.Session { return h }

// Lease says that the hold doesn't end by the clock, and how often to look.
func (h *hold) Lease() driver.Lease { return driver.Lease{Every: 5 * time.Second} }

// Renew finds out whether the lock file is still the one that is locked.
func (h *hold) Renew(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held == nil {
		return driver.ErrLost
	}
	if err := h.held.check(); err != nil {
		return err
	}
	if now := time.Now(); now.Sub(h.freshened) >= 24*time.Hour {
		h.freshened = now
		h.backend.freshen(h.held, h.resource, h.mode)
	}
	return nil
}

// Lost returns nil: loss is found by Renew only.
func (h *hold) Lost() <-chan struct{} { return nil }

// freshen sets the time of the files to now. It may not be allowed to, for
// files of others: then nor would a cleaner of theirs spare them.
func (b *Backend) freshen(h *held, resource string, mode driver.Mode) {
	paths := []string{h.file.path, b.path(resource, fenceSuffix)}
	if mode == driver.Permit {
		paths = []string{h.file.path, b.path(resource, permitFenceSuffix), b.path(resource, bellSuffix)}
	}
	for _, path := range paths {
		_ = unix.UtimesNanoAt(unix.AT_FDCWD, path, nil, unix.AT_SYMLINK_NOFOLLOW)
	}
}

// errReplaced reports that the file in hand is not that of the name any more.
var errReplaced = errors.New("the file was replaced")

// An attempt is one call of Acquire.
type attempt struct {
	backend *Backend
	request driver.Request

	// queue is the file that waiters watch and line up on: the lock file, or the
	// bell of the permits. It is nil for permits without a line.
	queue *file
	got   *held
}

func (b *Backend) take(ctx context.Context, r driver.Request) (h *held, err error) {
	a := &attempt{backend: b, request: r}
	defer func() {
		if err != nil && a.queue != nil {
			a.queue.close()
		}
	}()
	for {
		if err := a.open(); err != nil {
			return nil, err
		}
		if b.lined {
			err = a.line(ctx)
		} else {
			err = a.try(ctx)
		}
		if err == nil {
			return a.got, nil
		}
		if !errors.Is(err, errReplaced) {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// open opens the queue, in place of the one that it may have open.
func (a *attempt) open() error {
	suffix := lockSuffix
	if a.request.Mode == driver.Permit {
		if !a.backend.lined {
			return nil
		}
		suffix = bellSuffix
	}
	if a.queue != nil {
		a.queue.close()
		a.queue = nil
	}
	f, err := a.backend.openLock(a.backend.path(a.request.Resource, suffix))
	a.queue = f
	return err
}

// openLock opens a file to be locked. For reading is enough, where the file is
// somebody else's.
func (b *Backend) openLock(path string) (*file, error) {
	f, err := openFile(path, unix.O_RDWR, b.mode, true)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		if f, err := openFile(path, unix.O_RDONLY, 0, false); err == nil {
			return f, nil
		}
	}
	return f, err
}

// try takes the lock or a permit into a.got. The error is errReplaced if the
// queue has to be opened again.
func (a *attempt) try(ctx context.Context) error {
	if a.request.Mode == driver.Permit {
		return a.tryPermits(ctx)
	}
	if err := a.queue.lock(a.request.Mode, a.backend.lined); err != nil {
		return err
	}
	current, err := a.queue.current()
	if !current {
		a.queue.unlock()
		if err == nil {
			err = errReplaced
		}
		return err
	}
	a.got = &held{file: a.queue}
	return nil
}

// tryPermits looks for a free permit, each one from another start.
func (a *attempt) tryPermits(ctx context.Context) error {
	limit := a.request.Limit
	start := rand.IntN(limit)
	for i := range limit {
		if err := ctx.Err(); err != nil {
			return err
		}
		path := a.backend.path(a.request.Resource, permitSuffix+strconv.Itoa((start+i)%limit))
		f, err := a.backend.openLock(path)
		if err != nil {
			return err
		}
		locked, err := f.flock(unix.LOCK_EX)
		if locked {
			// One that was replaced just now counts as taken: its next user has the
			// new one.
			locked, err = f.current()
		}
		if locked {
			a.got = &held{file: f, bell: a.queue}
			return nil
		}
		f.close()
		if err != nil {
			return err
		}
	}
	return driver.ErrHeld
}
