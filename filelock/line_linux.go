package filelock

import (
	"golang.org/x/sys/unix"

	"github.com/distlock-go/distlock/driver"
)

// Bytes of the lock file that are locked with F_OFD_SETLK. None of them exists:
// the file is empty.
const (
	lineEnd  = int64(1) << 62
	readers  = lineEnd     // read: a reader; write: an upgradeable holder that upgraded
	upgrades = lineEnd + 1 // write: the upgradeable holder

	// The place of an upgradeable holder that waits for the readers to go: before
	// everybody.
	firstPlace = int64(0)
)

// now is the place in the line of somebody who comes now. The clock is that of
// the whole host and goes on during suspend. Two who come in the same
// nanosecond share a place, and may both think that they are first.
func now() int64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return lineEnd - 1
	}
	return t.Nano()
}

// flock is flock(2). Without waiting, and on a local file system, that is nothing
// but memory, and the runtime needn't be told that this thread may be gone for
// long.
func flock(fd, how int, local bool) error {
	if !local {
		return unix.Flock(fd, how)
	}
	_, _, e := unix.RawSyscall(unix.SYS_FLOCK, uintptr(fd), uintptr(how), 0)
	return errorOf(e)
}

// fcntl locks or unlocks one byte.
func (f *file) fcntl(kind int16, at int64) (bool, error) {
	l := unix.Flock_t{Type: kind, Start: at, Len: 1}
	_, err := retry(func() (int, error) { return 0, unix.FcntlFlock(uintptr(f.fd), unix.F_OFD_SETLK, &l) })
	switch err {
	case nil:
		return true, nil
	case unix.EAGAIN, unix.EACCES:
		return false, nil
	}
	return false, f.failed("fcntl", err)
}

// stand takes a place in the line. A read lock does, which needs no right to
// write and is no obstacle to somebody in the same place.
func (f *file) stand(place int64) error {
	_, err := f.fcntl(unix.F_RDLCK, place)
	return err
}

func (f *file) leave(place int64) {
	if _, err := f.fcntl(unix.F_UNLCK, place); err != nil {
		f.stuck = true
	}
}

// isFirst reports whether nobody else stands before the place.
func (f *file) isFirst(place int64) (bool, error) {
	if place == 0 {
		return true, nil
	}
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: 0, Len: place}
	_, err := retry(func() (int, error) { return 0, unix.FcntlFlock(uintptr(f.fd), unix.F_OFD_GETLK, &l) })
	if err != nil {
		return false, f.failed("fcntl", err)
	}
	return l.Type == unix.F_UNLCK, nil
}

// ring makes the waiters look again.
func (f *file) ring() {
	fd, err := retry(func() (int, error) {
		return unix.Open(f.path(), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	})
	if err == nil {
		unix.Close(fd)
	}
}

// lock locks the file in a mode, or returns driver.ErrHeld. A byte is taken
// before the flock: in the other order, a reader that an upgraded holder keeps
// out would have kept out writers for a moment.
func (f *file) lock(mode driver.Mode, lined bool) error {
	how := unix.LOCK_SH
	free, err := true, error(nil)
	switch {
	case mode == driver.Exclusive:
		how = unix.LOCK_EX
	case !lined:
	case mode == driver.Shared:
		free, err = f.fcntl(unix.F_RDLCK, readers)
		f.bytes = free
	case mode == driver.Upgradeable:
		free, err = f.fcntl(unix.F_WRLCK, upgrades)
		f.bytes = free
	}
	if free && err == nil {
		free, err = f.flock(how)
	}
	if free && err == nil {
		return nil
	}
	f.unlockBytes()
	if err == nil {
		err = driver.ErrHeld
	}
	return err
}

func (f *file) unlockBytes() {
	if f.bytes {
		f.bytes = false
		_, one := f.fcntl(unix.F_UNLCK, readers)
		_, two := f.fcntl(unix.F_UNLCK, upgrades)
		if one != nil || two != nil {
			f.stuck = true
		}
	}
}

// probeLine finds out whether byte locks work, and are independent of the lock
// on the file that one has. Where flock is made of byte locks they aren't.
func (b *Backend) probeLine(one, two *file) error {
	if b.network {
		return nil
	}
	locked, err := two.fcntl(unix.F_WRLCK, readers)
	if err != nil || !locked {
		return nil
	}
	empty, err := one.isFirst(lineEnd + 1)
	b.lined = err == nil && !empty
	b.procLocks = findProcLocks(one)
	return nil
}
