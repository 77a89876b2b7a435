//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package filelock

import "golang.org/x/sys/unix"

// lookAt looks at an open file.
func lookAt(fd int, _ bool) (look, error) {
	var st unix.Stat_t
	_, err := retry(func() (int, error) { return 0, unix.Fstat(fd, &st) })
	return lookOf(&st), err
}

// lookUp looks at the file that has the name now.
func lookUp(name *byte) (look, error) {
	var st unix.Stat_t
	_, err := retry(func() (int, error) { return 0, unix.Lstat(unix.BytePtrToString(name), &st) })
	return lookOf(&st), err
}

func lookOf(st *unix.Stat_t) look {
	return look{
		id:      fileID{uint64(st.Dev), uint64(st.Ino)},
		links:   uint32(st.Nlink),
		regular: st.Mode&unix.S_IFMT == unix.S_IFREG,
	}
}
