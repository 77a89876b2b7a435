//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package filelock

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// openFence opens the fence of a resource, or takes the one that is open, and
// keeps others from it until closeFence. If there is none it is made, with n as
// its content, and fresh is true.
//
// It is made complete: the lock on the unfinished file is what decides between
// several makers, and becomes the lock on the fence with the new name.
func (b *Backend) openFence(ctx context.Context, name *name, n *note, most time.Duration) (c *counter, fresh bool, err error) {
	if c := b.borrowFence(name); c != nil {
		f := c.fenceFile.(guarded).file
		locked, err := f.flock(unix.LOCK_EX)
		if locked && err == nil && c.current(n.since) {
			return c, false, nil
		}
		f.unlock()
		f.close()
	}
	path := name.fence
	for {
		f, err := b.openGuarded(ctx, path, false, most)
		if err == nil {
			return &counter{fenceFile: guarded{f}, looked: n.since}, false, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, false, err
		}
		f, err = b.openGuarded(ctx, path+unfinishedSuffix, true, most)
		if err != nil {
			return nil, false, err
		}
		_, err = os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			// The clock of now: while this one waited, there may have been another fence,
			// which began later than the wait, and was removed.
			n.token = clockToken(time.Now())
			err = guarded{f}.finish(path, n.firstText())
			if err == nil {
				return &counter{fenceFile: guarded{f}, looked: n.since}, true, nil
			}
		}
		os.Remove(f.path()) // it is locked, so nobody else's work
		f.close()
		if err != nil {
			return nil, false, err
		}
	}
}

// current reports whether the locked fence may be counted in: it wasn't removed,
// replaced or linked to. That somebody gave it another name is noticed within
// lookEvery only, unless the lock file is another too.
func (c *counter) current(now time.Time) bool {
	f := c.fenceFile.(guarded).file
	if now.Sub(c.looked) < lookEvery && f.links == 1 {
		return !f.touched()
	}
	current, err := f.current()
	c.looked = now
	return current && err == nil && f.links == 1
}

// closeFence lets others have the fence. If all went well, it stays open for the
// next count.
func (b *Backend) closeFence(n *name, c *counter, ok bool) error {
	f := c.fenceFile.(guarded).file
	f.unlock()
	if !ok || !b.lined || f.stuck || !b.keepFence(n, c) {
		f.close()
	}
	return nil
}

// openGuarded opens a file for reading and writing and waits until nobody else
// has it open in this way, but for no longer than most.
func (b *Backend) openGuarded(ctx context.Context, path string, create bool, most time.Duration) (*file, error) {
	p := patience{most: most}
	for {
		f, err := b.openFile(path, unix.O_RDWR, b.mode, create)
		if err != nil {
			return nil, err
		}
		if f.links > 1 {
			f.close()
			return nil, f.failed("open", errLinked)
		}
		for {
			locked, err := f.flock(unix.LOCK_EX)
			if err != nil {
				f.close()
				return nil, err
			}
			if locked {
				break
			}
			if err := p.nap(ctx, path); err != nil {
				f.close()
				return nil, err
			}
		}
		current, err := f.current()
		if current {
			return f, nil
		}
		f.close()
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
	}
}

// guarded is a file that openGuarded opened.
type guarded struct{ *file }

// finish writes the content and gives the file its name. The content is on the
// disk first: else a power cut could leave the name without it.
func (g guarded) finish(path string, content []byte) error {
	if err := unix.Ftruncate(g.fd, 0); err != nil {
		return g.failed("truncate", err)
	}
	if _, err := g.WriteAt(content, 0); err != nil {
		return err
	}
	if err := g.Sync(); err != nil {
		return err
	}
	if err := os.Rename(g.path(), path); err != nil {
		return err
	}
	var err error
	g.name, err = unix.BytePtrFromString(path)
	return err
}

func (g guarded) ReadAt(b []byte, at int64) (n int, err error) {
	for n < len(b) {
		m, err := retry(func() (int, error) { return unix.Pread(g.fd, b[n:], at+int64(n)) })
		if err != nil {
			return n, g.failed("read", err)
		}
		if m == 0 {
			return n, io.EOF
		}
		n += m
	}
	return n, nil
}

func (g guarded) WriteAt(b []byte, at int64) (n int, err error) {
	for n < len(b) {
		m, err := retry(func() (int, error) { return unix.Pwrite(g.fd, b[n:], at+int64(n)) })
		if err != nil {
			return n, g.failed("write", err)
		}
		n += m
	}
	return n, nil
}

func (g guarded) Sync() error {
	_, err := retry(func() (int, error) { return 0, unix.Fsync(g.fd) })
	if err != nil {
		return g.failed("sync", err)
	}
	return nil
}

// readFence returns what is in a fence, as it is at the moment: nothing if there
// is none.
func readFence(path string) ([]byte, error) {
	f, err := openFile(path, unix.O_RDONLY, 0, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.close()
	b := make([]byte, 2*slotSize)
	n, err := guarded{f}.ReadAt(b, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b[:n], err
}
