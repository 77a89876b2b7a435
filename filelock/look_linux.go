package filelock

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// What is asked for of a file. Not its times: since Linux 6.13 a file system
// that was asked for them gives the next write a time of its own, and notes that
// in its journal, which costs more than the write.
const lookMask = unix.STATX_TYPE | unix.STATX_NLINK | unix.STATX_INO

var noPath [1]byte

// lookAt looks at an open file. On a local file system that is nothing but
// memory; see flock.
func lookAt(fd int, local bool) (look, error) {
	var st unix.Statx_t
	_, err := retry(func() (int, error) {
		var e unix.Errno
		if local {
			_, _, e = unix.RawSyscall6(unix.SYS_STATX, uintptr(fd), uintptr(unsafe.Pointer(&noPath[0])), unix.AT_EMPTY_PATH,
				lookMask, uintptr(unsafe.Pointer(&st)), 0)
		} else {
			_, _, e = unix.Syscall6(unix.SYS_STATX, uintptr(fd), uintptr(unsafe.Pointer(&noPath[0])), unix.AT_EMPTY_PATH,
				lookMask, uintptr(unsafe.Pointer(&st)), 0)
		}
		return 0, errorOf(e)
	})
	if missing(err) {
		var st unix.Stat_t
		_, err := retry(func() (int, error) { return 0, unix.Fstat(fd, &st) })
		return lookOf(&st), err
	}
	return lookOfX(&st), err
}

// lookUp looks at the file that has the name now. The name is as the kernel takes
// it: package unix would allocate for it each time.
func lookUp(name *byte) (look, error) {
	var st unix.Statx_t
	_, err := retry(func() (int, error) {
		at := unix.AT_FDCWD
		_, _, e := unix.Syscall6(unix.SYS_STATX, uintptr(at), uintptr(unsafe.Pointer(name)), unix.AT_SYMLINK_NOFOLLOW,
			lookMask, uintptr(unsafe.Pointer(&st)), 0)
		return 0, errorOf(e)
	})
	if missing(err) {
		var st unix.Stat_t
		_, err := retry(func() (int, error) { return 0, unix.Lstat(unix.BytePtrToString(name), &st) })
		return lookOf(&st), err
	}
	return lookOfX(&st), err
}

// missing reports that there is no statx(2): it came with Linux 4.11, and old
// containers' filters forbid it.
func missing(err error) bool { return err == unix.ENOSYS || err == unix.EPERM }

func errorOf(e unix.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

func lookOfX(st *unix.Statx_t) look {
	return look{
		id:      fileID{dev: deviceOf(st.Dev_major, st.Dev_minor), ino: st.Ino},
		links:   st.Nlink,
		regular: st.Mode&unix.S_IFMT == unix.S_IFREG,
	}
}

func lookOf(st *unix.Stat_t) look {
	return look{
		id:      fileID{dev: deviceOf(unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev))), ino: uint64(st.Ino)},
		links:   uint32(st.Nlink),
		regular: st.Mode&unix.S_IFMT == unix.S_IFREG,
	}
}

func deviceOf(major, minor uint32) uint64 { return uint64(major)<<32 | uint64(minor) }
