//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/filelock"
)

var fileTests = []string{"uncontended", "names", "hot", "handover", "hold"}

var file = backend{
	name: "file", title: "Files",
	start: startFiles,
	contenders: []*contender{
		{
			name: "flock(2)", role: floor, note: "open, flock, which waits in the kernel, and close", tests: fileTests,
			open: func(_ context.Context, p place) (locker, error) { return bareFiles{p.Dir}, nil },
		},
		{
			name: "gofrs/flock", role: peer, note: "TryLockContext, which tries each 10 ms, and Unlock; a Flock for each goroutine", module: "github.com/gofrs/flock", tests: fileTests,
			open: func(_ context.Context, p place) (locker, error) { return flocks{p.Dir}, nil },
		},
		fileLocks("distlock", "filelock, with its tokens", nil),
		fileLocks("distlock, no tokens", "filelock with NoTokens", &filelock.Options{NoTokens: true}),
	},
}

func fileLocks(name, note string, o *filelock.Options) *contender {
	return &contender{name: name, role: ours, note: note, tests: fileTests, open: func(_ context.Context, p place) (locker, error) {
		b, err := filelock.New(p.Dir, o)
		if err != nil {
			return nil, err
		}
		return locks{distlock.New(b, nil)}, nil
	}}
}

// files is a directory for each run of a test.
type files struct{ dir, run string }

func startFiles(context.Context) (store, error) {
	dir, err := os.MkdirTemp("", "distlock-bench-files-")
	if err != nil {
		return nil, err
	}
	return &files{dir: dir}, nil
}

func (f *files) prepare(context.Context, string) (place, error) {
	if f.run != "" {
		if err := os.RemoveAll(f.run); err != nil {
			return place{}, err
		}
	}
	var err error
	f.run, err = os.MkdirTemp(f.dir, "")
	return place{Dir: f.run}, err
}

func (f *files) observe(context.Context) (observation, error) { return nothing, nil }

func (f *files) version() string { return fileSystem(f.dir) }

func (f *files) close() { os.RemoveAll(f.dir) }

// bareFiles is the floor.
type bareFiles struct{ dir string }

func (l bareFiles) client(_ context.Context, name string) (client, error) {
	return &bareFile{path: filepath.Join(l.dir, name)}, nil
}

func (l bareFiles) close() error { return nil }

type bareFile struct {
	noTokens

	path string
	fd   int
}

func (c *bareFile) acquire() (err error) {
	if c.fd, err = unix.Open(c.path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600); err != nil {
		return err
	}
	for {
		if err = unix.Flock(c.fd, unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (c *bareFile) release() error { return unix.Close(c.fd) }

// flocks is gofrs/flock.
type flocks struct{ dir string }

func (l flocks) client(ctx context.Context, name string) (client, error) {
	return &flockClient{ctx: ctx, f: flock.New(filepath.Join(l.dir, name))}, nil
}

func (l flocks) close() error { return nil }

type flockClient struct {
	noTokens

	ctx context.Context
	f   *flock.Flock
}

func (c *flockClient) acquire() error {
	_, err := c.f.TryLockContext(c.ctx, 10*time.Millisecond)
	return err
}

func (c *flockClient) release() error { return c.f.Unlock() }
