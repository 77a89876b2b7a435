//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package filelock

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// probe locks a file of its own twice, where the second must be refused.
func (b *Backend) probe() error {
	tmp, err := os.CreateTemp(b.dir, ".distlock-probe-*")
	if err != nil {
		return fmt.Errorf("%w: lock files are made in the directory, which has to be writable", err)
	}
	defer os.Remove(tmp.Name())
	tmp.Close()
	one, err := openFile(tmp.Name(), unix.O_RDWR, 0, false)
	if err != nil {
		return err
	}
	defer one.close()
	two, err := openFile(tmp.Name(), unix.O_RDWR, 0, false)
	if err != nil {
		return err
	}
	defer two.close()
	first, err := one.flock(unix.LOCK_EX)
	if err != nil {
		return err
	}
	second, err := two.flock(unix.LOCK_EX)
	if err != nil {
		return err
	}
	if !first || second {
		return one.failed("flock", errors.New("locks have no effect on this file system; use another directory"))
	}
	return b.probeLine(one, two)
}
