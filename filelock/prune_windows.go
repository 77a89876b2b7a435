package filelock

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/windows"
)

// removeIdle removes a file that nobody has open, while nobody can open it.
func removeIdle(path string, before time.Time, may func(content []byte) bool) (bool, error) {
	h, err := open(context.Background(), path, windows.GENERIC_READ|windows.DELETE, 0, windows.OPEN_EXISTING)
	if errors.Is(err, windows.ERROR_SHARING_VIOLATION) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	f := os.NewFile(uintptr(h), path)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	content := make([]byte, min(info.Size(), 2*slotSize))
	if _, err := f.ReadAt(content, 0); err != nil {
		return false, err
	}
	if !info.ModTime().Before(before) || !may(content) {
		return false, nil
	}
	remove := byte(1)
	err = windows.SetFileInformationByHandle(h, windows.FileDispositionInfo, &remove, 1)
	if err != nil {
		return false, &os.PathError{Op: "remove", Path: path, Err: err}
	}
	return true, nil
}
