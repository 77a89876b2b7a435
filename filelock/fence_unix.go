//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package filelock

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// openFence opens the fence of a resource, or takes the one that is open, and
// keeps others from it until closeFence. If there is none it is made, with what first returns as its content,
// and fresh is true.
//
// It is made complete: the lock on the unfinished file is what decides between
// several makers, and becomes the lock on the fence with the new name.
func (b *Backend) openFence(ctx context.Context, n *name, first func() []byte) (f fenceFile, fresh bool, err error) {
	if g := b.borrowFence(n); g != nil {
		locked, err := g.flock(unix.LOCK_EX)
		if locked && err == nil {
			// Somebody may have removed or replaced it meanwhile, or linked to it.
			if current, err := g.current(); current && err == nil && g.links == 1 {
				return guarded{g}, false, nil
			}
		}
		g.unlock()
		g.close()
	}
	path := n.fence
	for {
		g, err := b.openGuarded(ctx, path, false)
		if err == nil {
			return guarded{g}, false, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, false, err
		}
		g, err = b.openGuarded(ctx, path+unfinishedSuffix, true)
		if err != nil {
			return nil, false, err
		}
		_, err = os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			err = guarded{g}.finish(path, first())
			if err == nil {
				return guarded{g}, true, nil
			}
		}
		os.Remove(g.path) // it is locked, so nobody else's work
		g.close()
		if err != nil {
			return nil, false, err
		}
	}
}

// openGuarded opens a file for reading and writing and waits until nobody else
// has it open in this way.
func (b *Backend) openGuarded(ctx context.Context, path string, create bool) (*file, error) {
	var p patience
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

// closeFence lets others have the fence. If all went well, it stays open for the next count.
func (b *Backend) closeFence(n *name, f fenceFile, ok bool) error {
	g := f.(guarded).file
	g.unlock()
	if !ok || !b.lined || g.stuck || !b.keepFence(n, g) {
		g.close()
	}
	return nil
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
	if err := os.Rename(g.path, path); err != nil {
		return err
	}
	var err error
	g.path = path
	g.cpath, err = unix.BytePtrFromString(path)
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
