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
	file   *file // the lock file, or that of the permit
	bell   *file // permits with a line only
	permit int   // its number
}

func (h *held) close() {
	h.file.close()
	if h.bell != nil {
		h.bell.close()
	}
}

// queue is the file that waiters watch and line up on.
func (h *held) queue() *file {
	if h.bell != nil {
		return h.bell
	}
	return h.file
}

// free lets the next one have the lock. The files stay open if they may be kept
// and nobody waits: a waiter takes his place before he tries for the last time,
// so one who isn't there yet will find the lock free. Those who wait are woken by
// the close, and must find it free too; so first of all it is unlocked.
func (b *Backend) free(k nameKey, h *held, keep bool) {
	h.file.unlock()
	if keep && b.lined && !h.file.stuck && h.file.writable {
		empty, err := h.queue().isFirst(lineEnd)
		if empty && err == nil && !h.queue().stuck && b.keep(k, h) {
			return
		}
	}
	h.close()
}

// check returns driver.ErrLost if the locked file is not that of the name any
// more, where the next one looks.
func (h *held) check() error {
	current, err := h.file.current()
	if err != nil {
		return err
	}
	if !current {
		return fmt.Errorf("%w: %s was removed or replaced", driver.ErrLost, h.file.path())
	}
	return nil
}

// lookEvery is how long a file is taken for that of its name if only its links are
// counted, which is cheaper. They tell of all that can happen to the name, except
// that it, or a directory, was renamed.
const lookEvery = time.Millisecond

// checkAgain is check within age of the one before.
func (h *held) checkAgain(age time.Duration) error {
	if age < lookEvery && !h.file.touched() {
		return nil
	}
	return h.check()
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
		h.checked = -lookEvery
		return err
	}
	now := time.Since(h.backend.began)
	if h.freshened != 0 && now-h.freshened < 24*time.Hour {
		return nil
	}
	if h.freshened != 0 {
		h.backend.freshen(h.held, h.key())
	}
	h.freshened = now
	return nil
}

// Lost returns nil: loss is found by Renew only.
func (h *hold) Lost() <-chan struct{} { return nil }

// freshen sets the time of the files to now. It may not be allowed to, for
// files of others: then nor would a cleaner of theirs spare them.
func (b *Backend) freshen(h *held, k nameKey) {
	n := b.newName(k)
	for _, path := range []string{h.file.path(), n.queue, n.fence} {
		_ = unix.UtimesNanoAt(unix.AT_FDCWD, path, nil, unix.AT_SYMLINK_NOFOLLOW)
	}
}

// errReplaced reports that the file in hand is not that of the name any more.
var errReplaced = errors.New("the file was replaced")

// An attempt is one call of Acquire.
type attempt struct {
	backend *Backend
	name    *name
	request driver.Request

	// queue is the file that waiters watch and line up on: the lock file, or the
	// bell of the permits. It is nil for permits without a line.
	queue *file

	// spare is what a lock before held, and nobody had taken a place in the line
	// when that was let go. nil if it is of no use.
	spare *held
}

// take takes the lock or a permit.
func (b *Backend) take(ctx context.Context, n *name, r driver.Request) (*held, error) {
	a := attempt{backend: b, name: n, request: r}
	resumed := a.resume()
	for {
		if !resumed {
			if err := a.open(); err != nil {
				return nil, err
			}
		}
		resumed = false
		h, err := a.line(ctx)
		if err == nil {
			return h, nil
		}
		if !errors.Is(err, errReplaced) {
			a.giveUp(err)
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			a.giveUp(err)
			return nil, err
		}
	}
}

// resume goes on with files that are open. Whether they are still those of their
// names is looked at when they are locked, and for a bell here.
func (a *attempt) resume() bool {
	h := a.backend.borrow(a.name)
	if h == nil {
		return false
	}
	if h.bell != nil {
		if current, err := h.bell.current(); !current || err != nil {
			h.close()
			return false
		}
	}
	a.queue, a.spare = h.queue(), h
	return true
}

// open opens the queue, in place of the one that it may have open.
func (a *attempt) open() error {
	a.close()
	if a.request.Mode == driver.Permit && !a.backend.lined {
		return nil
	}
	f, err := a.backend.openLock(a.name.queue)
	a.queue = f
	a.backend.doubt(a.name) // it may be in another directory of the same name
	return err
}

// close closes what the attempt has open.
func (a *attempt) close() {
	if a.spare != nil && a.spare.file != a.queue {
		a.spare.file.close()
	}
	if a.queue != nil {
		a.queue.close()
	}
	a.queue, a.spare = nil, nil
}

// giveUp ends an attempt that failed. After nothing worse than that, the next
// may go on with its file.
func (a *attempt) giveUp(err error) {
	if a.request.Mode == driver.Permit || !errors.Is(err, driver.ErrHeld) {
		a.close()
		return
	}
	a.backend.free(a.name.key, a.holding(a.queue), true)
}

// holding is what is held, or was to be, with a lock on the queue.
func (a *attempt) holding(queue *file) *held {
	if a.spare != nil {
		return a.spare
	}
	return &held{file: queue}
}

// openLock opens a file to be locked. For reading is enough, where the file is
// somebody else's.
func (b *Backend) openLock(path string) (*file, error) {
	f, err := b.openFile(path, unix.O_RDWR, b.mode, true)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		if f, err := b.openFile(path, unix.O_RDONLY, 0, false); err == nil {
			return f, nil
		}
	}
	return f, err
}

// try takes the lock or a permit. The error is errReplaced if the queue has to be
// opened again.
func (a *attempt) try(ctx context.Context) (*held, error) {
	if a.request.Mode == driver.Permit {
		return a.tryPermits(ctx)
	}
	if err := a.queue.lock(a.request.Mode, a.backend.lined); err != nil {
		return nil, err
	}
	current, err := a.current(a.queue)
	if !current {
		a.queue.unlock()
		if err == nil {
			err = errReplaced
		}
		return nil, err
	}
	return a.holding(a.queue), nil
}

// current reports whether a file that was just locked is the one of its name.
// That is looked at once more when the grant is counted, see hold.count, and who
// asked without waiting can begin anew as well then.
func (a *attempt) current(f *file) (bool, error) {
	if a.request.Wait == 0 {
		return true, nil
	}
	return f.current()
}

// tryPermits looks for a free permit: first that of before, then each one from
// another start.
func (a *attempt) tryPermits(ctx context.Context) (*held, error) {
	limit := a.request.Limit
	if s := a.spare; s != nil {
		a.spare = nil
		if s.permit < limit {
			if h, err := a.tryPermit(s.file, s.permit); h != nil || err != nil {
				return h, err
			}
		} else {
			s.file.close()
		}
	}
	start := rand.IntN(limit)
	for i := range limit {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		permit := (start + i) % limit
		f, err := a.backend.openLock(a.name.base + permitSuffix + strconv.Itoa(permit))
		if err != nil {
			return nil, err
		}
		if h, err := a.tryPermit(f, permit); h != nil || err != nil {
			return h, err
		}
	}
	return nil, driver.ErrHeld
}

// tryPermit returns nil if the permit is taken, and closes the file then.
func (a *attempt) tryPermit(f *file, permit int) (*held, error) {
	locked, err := f.flock(unix.LOCK_EX)
	if locked {
		// One that was replaced just now counts as taken: its next user has the new
		// one.
		locked, err = a.current(f)
	}
	if locked && err == nil {
		return &held{file: f, bell: a.queue, permit: permit}, nil
	}
	f.close()
	return nil, err
}
