//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package filelock

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// A file is one open description of a regular file: what the system's locks
// belong to.
type file struct {
	fd       int
	name     *byte // its path, as the kernel takes it
	look           // as it was when it was opened; links as they were last
	writable bool
	local    bool // no lock on it is the affair of other hosts
	bytes    bool // single bytes of it are locked too
	stuck    bool // something may be locked on it until it is closed
}

// A look is what can be seen of a file.
type look struct {
	id      fileID
	links   uint32
	regular bool
}

// fileID tells files apart as long as they are open.
type fileID struct{ dev, ino uint64 }

// openFile opens a file; see the function. If the process has too many files
// open, those that are idle are closed.
func (b *Backend) openFile(path string, access int, mode fs.FileMode, create bool) (*file, error) {
	f, err := openFile(path, access, mode, create)
	if (errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)) && b.dropIdle() {
		f, err = openFile(path, access, mode, create)
	}
	if err == nil {
		f.local = b.lined
	}
	return f, err
}

// openFile opens a file, without following a link in its place. access is
// O_RDWR or O_RDONLY.
func openFile(path string, access int, mode fs.FileMode, create bool) (*file, error) {
	// O_NONBLOCK keeps the call from waiting for the other end of a FIFO.
	const always = unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := &file{name: name, writable: access == unix.O_RDWR}
	for {
		// Without O_CREAT first: Linux denies that to the existing files of others
		// in directories like /tmp (sysctl fs.protected_regular).
		f.fd, err = retry(func() (int, error) { return unix.Open(path, access|always, 0) })
		if err == nil {
			break
		}
		if !create || err != unix.ENOENT {
			return nil, f.failed("open", err)
		}
		perm := uint32(0o666)
		if mode != 0 {
			perm = uint32(mode)
		}
		f.fd, err = retry(func() (int, error) {
			return unix.Open(path, access|always|unix.O_CREAT|unix.O_EXCL, perm)
		})
		if err == unix.EEXIST {
			// A link to nowhere also exists, and would do so for ever.
			var st unix.Stat_t
			if unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
				return nil, f.failed("open", unix.ELOOP)
			}
			continue
		}
		if err != nil {
			return nil, f.failed("create", err)
		}
		if mode != 0 {
			if err := unix.Fchmod(f.fd, perm); err != nil {
				unix.Close(f.fd)
				return nil, f.failed("chmod", err)
			}
		}
		break
	}
	if f.look, err = lookAt(f.fd, false); err != nil {
		f.close()
		return nil, f.failed("stat", err)
	}
	if !f.regular {
		f.close()
		return nil, f.failed("open", errNotRegular)
	}
	return f, nil
}

var (
	errNotRegular = errors.New("not a regular file; remove it, or use another directory")
	errLinked     = errors.New("the file has a second name elsewhere (hard link), and would be changed there too; remove this name")
)

// failed wraps what the system said.
func (f *file) failed(op string, err error) error {
	err = &fs.PathError{Op: op, Path: f.path(), Err: err}
	advice := ""
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EMLINK):
		advice = "a symbolic link is in the place of a lock file; remove it, or use a directory where nobody else can put one"
	case errors.Is(err, unix.EISDIR):
		advice = "a directory is in the place of a lock file; remove it"
	case errors.Is(err, unix.EROFS):
		advice = "lock files must be on a file system that can be written to"
	case errors.Is(err, unix.EACCES):
		advice = "users of different accounts need Options.FileMode (mode=0666 in the URL, or 0660 and one group), and a directory that all may write to; files that exist keep their mode: chmod them"
	case errors.Is(err, unix.EBADF):
		advice = "the file can't be written to, which this kind of lock needs"
	case errors.Is(err, unix.ENAMETOOLONG):
		advice = "the directory's path is too long"
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		advice = "each lock and each waiter needs an open file; raise the limit"
	case errors.Is(err, unix.ENOLCK), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP):
		advice = "locks don't work on this file system; use another directory"
	}
	if advice == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, advice)
}

// flock locks the file without waiting, and reports whether it could.
func (f *file) flock(how int) (bool, error) {
	_, err := retry(func() (int, error) { return 0, flock(f.fd, how|unix.LOCK_NB, f.local) })
	switch err {
	case nil:
		return true, nil
	case unix.EWOULDBLOCK:
		return false, nil
	}
	return false, f.failed("flock", err)
}

// unlock takes the locks off the description, which may live on in a child
// process for a while.
func (f *file) unlock() {
	f.unlockBytes()
	if flock(f.fd, unix.LOCK_UN, f.local) != nil {
		f.stuck = true
	}
}

func (f *file) close() { unix.Close(f.fd) }

func (f *file) path() string { return unix.BytePtrToString(f.name) }

// current reports whether the file is still the one of its name.
func (f *file) current() (bool, error) {
	l, err := lookUp(f.name)
	if err == unix.ENOENT {
		return false, nil
	}
	if err != nil {
		return false, f.failed("stat", err)
	}
	f.links = l.links
	return l.id == f.id, nil
}

// touched reports whether the file was removed or replaced, or something else was
// done to its names, since its links were looked at. That it was given another
// name isn't noticed.
func (f *file) touched() bool {
	l, err := lookAt(f.fd, f.local)
	return err != nil || l.links != f.links
}

// retry calls a system call again as long as a signal interrupts it.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}
