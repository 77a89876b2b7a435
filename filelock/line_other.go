//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package filelock

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/distlock-go/distlock/driver"
)

// line acquires. There is no line here.
func (a *attempt) line(ctx context.Context) (*held, error) { return a.try(ctx) }

// isFirst is asked of backends that are lined only, which there are none of here.
func (f *file) isFirst(int64) (bool, error) { return false, nil }

const lineEnd = 0

// lock locks the file in a mode, or returns driver.ErrHeld.
func (f *file) lock(mode driver.Mode, _ bool) error {
	how := unix.LOCK_SH
	if mode == driver.Exclusive {
		how = unix.LOCK_EX
	}
	free, err := f.flock(how)
	if err == nil && !free {
		err = driver.ErrHeld
	}
	return err
}

func (f *file) unlockBytes() {}

func flock(fd, how int, _ bool) error { return unix.Flock(fd, how) }

func (b *Backend) probeLine(one, two *file) error { return nil }
