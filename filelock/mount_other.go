//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package filelock

// examine finds out whether locks work in the directory.
func (b *Backend) examine(bool) error { return b.probe() }
