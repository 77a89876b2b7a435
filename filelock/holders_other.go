//go:build darwin || dragonfly || freebsd || netbsd || openbsd || windows

package filelock

func (b *Backend) observe(path string) ([]observation, error) { return ask(path) }
