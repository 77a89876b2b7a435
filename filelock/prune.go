package filelock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/distlock-go/distlock"
)

// fenceMargin is how far behind the clock a count must be for its file to be
// removed: then the next count, which starts at the clock, is larger even if
// the clock is set back by as much.
const fenceMargin = 24 * time.Hour

// Prune removes the files of resources that nobody holds and that nobody was
// granted for the time idle, and returns how many files it removed. It is safe
// beside everything that this package does, on all hosts, and looks at no files
// but those that this package makes. A token file whose count isn't behind the
// clock by a day stays, so that tokens never repeat. Where there are no tokens (see
// [Options.NoTokens]), what nobody holds goes when it is as old as idle.
//
// It isn't safe beside .NET processes that use the same resource just then,
// after idle has passed without any Go process doing so.
//
// What can't be removed doesn't keep the rest from it; all errors are joined.
func Prune(ctx context.Context, dir string, idle time.Duration) (removed int, err error) {
	if idle <= 0 {
		return 0, fmt.Errorf("%w: idle time of %v: it must be more than zero", distlock.ErrBadArgument, idle)
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return 0, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	// What a lock has and what the permits of the same name have are apart.
	type set struct {
		base    string
		permits bool
	}
	sets := make(map[set][]string)
	for _, e := range entries {
		base, suffix, ok := ownFile(e.Name())
		if ok && e.Type().IsRegular() {
			s := set{base, strings.HasPrefix(suffix, ".permit")}
			sets[s] = append(sets[s], filepath.Join(dir, e.Name()))
		}
	}
	p := pruning{before: time.Now().Add(-idle)}
	for _, paths := range sets {
		if err := ctx.Err(); err != nil {
			return p.removed, errors.Join(append(p.errs, err)...)
		}
		p.prune(paths)
	}
	return p.removed, errors.Join(p.errs...)
}

type pruning struct {
	before  time.Time
	removed int
	errs    []error
}

// prune removes the files of one lock, or of the permits of one name. What is
// locked comes first: while one of them is, the rest is needed.
func (p *pruning) prune(paths []string) {
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err == nil && !info.ModTime().Before(p.before) {
			return
		}
	}
	idle := true
	for _, locked := range []bool{true, false} {
		for _, path := range paths {
			isLock := strings.HasSuffix(path, lockSuffix) || permitFile.MatchString(filepath.Ext(path))
			if isLock == locked && idle && !p.remove(path) && isLock {
				idle = false
			}
		}
	}
}

func (p *pruning) remove(path string) bool {
	may := func([]byte) bool { return true }
	if strings.HasSuffix(path, "fence") {
		may = func(content []byte) bool {
			last, _, _ := newest(content)
			return last.token > 0 && last.token < clockToken(time.Now().Add(-fenceMargin))
		}
	}
	removed, err := removeIdle(path, p.before, may)
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err != nil {
		p.errs = append(p.errs, err)
	}
	if removed {
		p.removed++
	}
	return removed
}
