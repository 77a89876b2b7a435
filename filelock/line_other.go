//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package filelock

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/distlock-go/distlock/driver"
)

// line is for backends that are lined, which there are none of here.
func (a *attempt) line(ctx context.Context) error { return a.try(ctx) }

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

func (b *Backend) probeLine(one, two *file) error { return nil }
