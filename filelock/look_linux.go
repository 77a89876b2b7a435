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

// lookAt looks at an open file.
func lookAt(fd int) (look, error) {
	l, err := statx(fd, &noPath[0], unix.AT_EMPTY_PATH)
	if err != unix.ENOSYS && err != unix.EPERM {
		return l, err
	}
	var st unix.Stat_t
	_, err = retry(func() (int, error) { return 0, unix.Fstat(fd, &st) })
	return lookOf(&st), err
}

// lookUp looks at the file that has the name now. p is the path as the kernel
// takes it.
func lookUp(path string, p *byte) (look, error) {
	l, err := statx(unix.AT_FDCWD, p, unix.AT_SYMLINK_NOFOLLOW)
	if err != unix.ENOSYS && err != unix.EPERM {
		return l, err
	}
	var st unix.Stat_t
	_, err = retry(func() (int, error) { return 0, unix.Lstat(path, &st) })
	return lookOf(&st), err
}

// statx is statx(2), which is missing before Linux 4.11, and forbidden by old
// containers' filters. Package unix would allocate for the path each time.
func statx(dir int, path *byte, flags int) (look, error) {
	var st unix.Statx_t
	_, err := retry(func() (int, error) {
		_, _, e := unix.Syscall6(unix.SYS_STATX, uintptr(dir), uintptr(unsafe.Pointer(path)), uintptr(flags),
			lookMask, uintptr(unsafe.Pointer(&st)), 0)
		if e != 0 {
			return 0, e
		}
		return 0, nil
	})
	return look{
		id:      fileID{dev: deviceOf(st.Dev_major, st.Dev_minor), ino: st.Ino},
		links:   uint64(st.Nlink),
		regular: st.Mode&unix.S_IFMT == unix.S_IFREG,
	}, err
}

func lookOf(st *unix.Stat_t) look {
	return look{
		id:      fileID{dev: deviceOf(unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev))), ino: uint64(st.Ino)},
		links:   uint64(st.Nlink),
		regular: st.Mode&unix.S_IFMT == unix.S_IFREG,
	}
}

func deviceOf(major, minor uint32) uint64 { return uint64(major)<<32 | uint64(minor) }
