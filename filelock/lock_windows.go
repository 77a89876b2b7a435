package filelock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/windows"

	"github.com/distlock-go/distlock/driver"
)

// held is what a grant holds open. The file can't be removed or renamed
// meanwhile, so that it can't be lost.
type held struct{ handle windows.Handle }

// free closes the file. While it is open nobody else can have it, so that it
// can't be kept for later.
func (b *Backend) free(_ nameKey, h *held, _ bool) { windows.CloseHandle(h.handle) }

// idle is nothing here; see free.
type idle struct{}

func (idle) close() {}

func (h *held) check() error { return nil }

func (h *held) checkAgain(time.Duration) error { return nil }

func (h *hold) session() driver.Session { return nil }

// examine finds out whether the directory can be used.
func (b *Backend) examine(bool) error {
	f, err := os.CreateTemp(b.dir, ".distlock-probe-*")
	if err != nil {
		return fmt.Errorf("%w: lock files are made in the directory, which has to be writable", err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

func (b *Backend) take(ctx context.Context, n *name, r driver.Request) (*held, error) {
	if r.Mode != driver.Permit {
		return lock(ctx, n.queue, r.Mode)
	}
	start := rand.IntN(r.Limit)
	for i := range r.Limit {
		h, err := lock(ctx, n.base+permitSuffix+strconv.Itoa((start+i)%r.Limit), driver.Exclusive)
		if !errors.Is(err, driver.ErrHeld) {
			return h, err
		}
	}
	return nil, driver.ErrHeld
}

// lock opens the file so that nobody else can, or only other readers.
func lock(ctx context.Context, path string, mode driver.Mode) (*held, error) {
	access, share := uint32(windows.GENERIC_READ|windows.GENERIC_WRITE), uint32(0)
	if mode == driver.Shared {
		access, share = windows.GENERIC_READ, windows.FILE_SHARE_READ
	}
	handle, err := open(ctx, path, access, share, windows.OPEN_ALWAYS)
	if errors.Is(err, windows.ERROR_SHARING_VIOLATION) {
		return nil, driver.ErrHeld
	}
	if err != nil {
		return nil, err
	}
	return &held{handle}, nil
}

// open opens a regular file, and no link in its place.
func open(ctx context.Context, path string, access, share, disposition uint32) (windows.Handle, error) {
	name, err := windows.UTF16PtrFromString(longPath(path))
	if err != nil {
		return 0, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	var p patience
	var h windows.Handle
	for range 10 {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		h, err = windows.CreateFile(name, access, share, nil, disposition,
			windows.FILE_ATTRIBUTE_NORMAL|windows.FILE_FLAG_OPEN_REPARSE_POINT, 0)
		// Access is denied for a moment also to a file that is being removed.
		if err != windows.ERROR_ACCESS_DENIED {
			break
		}
		if err := p.nap(ctx, path); err != nil {
			return 0, err
		}
	}
	if err != nil {
		return 0, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	var info windows.ByHandleFileInformation
	err = windows.GetFileInformationByHandle(h, &info)
	if err == nil && info.FileAttributes&(windows.FILE_ATTRIBUTE_REPARSE_POINT|windows.FILE_ATTRIBUTE_DIRECTORY) != 0 {
		err = errors.New("not a regular file; remove it, or use another directory")
	}
	if err != nil {
		windows.CloseHandle(h)
		return 0, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return h, nil
}

// longPath lifts the limit of 260 characters.
func longPath(path string) string {
	if len(path) < 248 || filepath.VolumeName(path) == "" || path[0] == '\\' {
		return path
	}
	return `\\?\` + path
}

// openFence opens the fence of a resource and keeps others from it until it is
// closed. If there is none it is made, with n as its content, and fresh is true.
func (b *Backend) openFence(ctx context.Context, name *name, n *note, most time.Duration) (c *counter, fresh bool, err error) {
	p := patience{most: most}
	path := name.fence
	for {
		h, err := open(ctx, path, windows.GENERIC_READ|windows.GENERIC_WRITE, 0, windows.OPEN_EXISTING)
		switch {
		case err == nil:
			return &counter{fenceFile: os.NewFile(uintptr(h), path)}, false, nil
		case errors.Is(err, windows.ERROR_SHARING_VIOLATION):
			if err := p.nap(ctx, path); err != nil {
				return nil, false, err
			}
			continue
		case !errors.Is(err, fs.ErrNotExist):
			return nil, false, err
		}
		if err := makeFence(path, n.firstText()); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, false, err
		}
	}
}

func (b *Backend) closeFence(_ *name, c *counter, _ bool) error {
	return c.fenceFile.(*os.File).Close()
}

// makeFence gives a complete file the name, unless there is one by now. Its
// number isn't granted to anybody.
func makeFence(path string, content []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+unfinishedSuffix+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(content)
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	from, err := windows.UTF16PtrFromString(longPath(tmp.Name()))
	if err != nil {
		return err
	}
	to, err := windows.UTF16PtrFromString(longPath(path))
	if err != nil {
		return err
	}
	if err := windows.MoveFileEx(from, to, windows.MOVEFILE_WRITE_THROUGH); err != nil {
		return &os.LinkError{Op: "rename", Old: tmp.Name(), New: path, Err: err}
	}
	return nil
}

// readFence returns what is in a fence, as it is at the moment: nothing if there
// is none.
func readFence(path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var p patience
	for {
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if !errors.Is(err, windows.ERROR_SHARING_VIOLATION) || p.nap(ctx, path) != nil {
			return b, err
		}
	}
}

// ask finds out what locks are on a file by trying.
func ask(path string) ([]observation, error) {
	for _, o := range []struct {
		share  uint32
		shared bool
	}{{windows.FILE_SHARE_READ, false}, {0, true}} {
		h, err := open(context.Background(), path, windows.GENERIC_READ, o.share, windows.OPEN_EXISTING)
		switch {
		case err == nil:
			windows.CloseHandle(h)
		case errors.Is(err, fs.ErrNotExist):
			return nil, nil
		case errors.Is(err, windows.ERROR_SHARING_VIOLATION):
			return []observation{{shared: o.shared}}, nil
		default:
			return nil, err
		}
	}
	return nil, nil
}
