package filelock

import (
	"os"
	"path/filepath"
)

// DefaultDir returns a directory for the locks of this user on this host, and
// creates it if it is missing. On Windows it is the folder distlock in
// [os.UserCacheDir].
//
// On Unix it is /tmp/distlock-UID, whatever the environment says, so that a cron
// job and a shell of one user meet.
func DefaultDir() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "distlock")
	return dir, os.MkdirAll(dir, 0o700)
}
