//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package filelock

import (
	"errors"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// removeIdle removes a file that nobody has locked, while it has it locked:
// whoever opened it before finds that it is gone and opens the next.
func removeIdle(path string, before time.Time, may func(content []byte) bool) (bool, error) {
	f, err := openFile(path, unix.O_RDWR, 0, false)
	if err != nil {
		return false, err
	}
	defer f.close()
	locked, err := f.flock(unix.LOCK_EX)
	if !locked {
		return false, err
	}
	defer f.unlock()
	if current, err := f.current(); !current {
		return false, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return false, f.failed("stat", err)
	}
	if !time.Unix(st.Mtim.Unix()).Before(before) {
		return false, nil
	}
	content := make([]byte, 2*slotSize)
	n, err := guarded{f}.ReadAt(content, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	if !may(content[:n]) {
		return false, nil
	}
	if err := unix.Unlink(path); err != nil {
		return false, f.failed("remove", err)
	}
	return true, nil
}
