//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package filelock

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// ask finds out what locks are on a file by trying.
func ask(path string) ([]observation, error) {
	f, err := openFile(path, unix.O_RDONLY, 0, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.close()
	for _, how := range []int{unix.LOCK_SH, unix.LOCK_EX} {
		free, err := f.flock(how)
		if err != nil {
			return nil, err
		}
		if !free {
			return []observation{{shared: how == unix.LOCK_EX}}, nil
		}
		f.unlock()
	}
	return nil, nil
}
