package filelock

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/distlock-go/distlock/driver"
)

// An observation is one lock that is on a file.
type observation struct {
	pid    int  // 0: unknown
	shared bool // as far as flock(2) goes, or another system's like of it
}

// Holders tells who holds the resource; see [driver.Inspector].
//
// On Linux, on local file systems, the system tells which processes hold it,
// to users in its initial PID namespace. Elsewhere the files are asked by
// locking them for a moment, which tells only whether there are holders, and can
// make another's single try fail. Names and times are known of the last two who
// were granted the lock, or a permit.
func (b *Backend) Holders(ctx context.Context, resource string, mode driver.Mode) ([]driver.Holder, error) {
	paths, fence := []string{b.path(resource, lockSuffix)}, b.path(resource, fenceSuffix)
	if mode == driver.Permit {
		fence = b.path(resource, permitFenceSuffix)
		var err error
		if paths, err = b.permits(resource); err != nil {
			return nil, err
		}
	}
	var seen []observation
	for _, path := range paths {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		locks, err := b.observe(path)
		if err != nil {
			return nil, err
		}
		seen = append(seen, locks...)
	}
	if len(seen) == 0 {
		return nil, nil
	}
	text, err := readFence(fence)
	if err != nil {
		return nil, err
	}
	return describe(seen, readNotes(text), mode == driver.Permit), nil
}

// permits lists the files of the resource's permits.
func (b *Backend) permits(resource string) ([]string, error) {
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, e := range entries {
		if suffix, ok := strings.CutPrefix(e.Name(), baseName(resource)); ok && permitFile.MatchString(suffix) {
			paths = append(paths, filepath.Join(b.dir, e.Name()))
		}
	}
	return paths, nil
}

// readNotes returns the notes in a fence, the latest first.
func readNotes(text []byte) []note {
	last, slot, _ := newest(text)
	if last.token == 0 {
		return nil
	}
	notes := []note{last.describe()}
	other := (1 - slot) * slotSize
	if n, ok := parseLine(text[min(other, len(text)):min(other+slotSize, len(text))]); ok {
		notes = append(notes, n.describe())
	}
	return notes
}

// describe tells what is known of each lock that was seen. A note belongs to it
// if the process is the same; if that isn't known, the latest notes do.
func describe(seen []observation, notes []note, permit bool) []driver.Holder {
	var holders []driver.Holder
	for _, o := range seen {
		h := driver.Holder{Owner: driver.Owner{PID: o.pid}, Mode: driver.Exclusive}
		if permit {
			h.Mode = driver.Permit
		} else if o.shared {
			h.Mode = driver.Shared
		}
		for i, n := range notes {
			// One that upgraded has a shared lock still.
			fits := n.mode == h.Mode || o.shared && !permit
			if fits && (o.pid == 0 || o.pid == n.owner.PID) {
				h = driver.Holder{Owner: n.owner, Mode: n.mode, Since: n.since, Token: n.token}
				notes = append(notes[:i:i], notes[i+1:]...)
				break
			}
		}
		holders = append(holders, h)
	}
	return holders
}
