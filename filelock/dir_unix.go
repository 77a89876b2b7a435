//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package filelock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// DefaultDir returns a directory for the locks of this user on this host, and
// creates it if it is missing. On Unix it is /tmp/distlock-UID, whatever the
// environment says, so that a cron job and a shell of one user meet. It belongs
// to the user, nobody else may enter it, and it is no symbolic link: else it is
// an error, since somebody else may have put it there.
//
// On Windows it is the folder distlock in [os.UserCacheDir].
func DefaultDir() (string, error) {
	dir := fmt.Sprintf("/tmp/distlock-%d", os.Geteuid())
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return dir, private(dir)
}

// private returns an error unless only this user can have put something into
// the directory.
func private(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	var why string
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		why = "is a symbolic link"
	case !info.IsDir():
		why = "is not a directory"
	case owner != uint32(os.Geteuid()):
		why = fmt.Sprintf("belongs to user %d", owner)
	case info.Mode().Perm()&0o077 != 0:
		why = fmt.Sprintf("can be entered by others (mode %#o)", info.Mode().Perm())
	default:
		return nil
	}
	return &fs.PathError{Op: "use", Path: dir, Err: fmt.Errorf("it %s and so can't be trusted with locks; remove or correct it, or name another directory", why)}
}
