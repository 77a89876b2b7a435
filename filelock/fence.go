package filelock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/distlock-go/distlock/driver"
)

// A fence file is two lines of slotSize bytes. Each grant overwrites the line
// with the smaller token, so that the larger one stays readable whatever
// happens during the write.
const slotSize = 512

// leap is added to the count when numbers may have been taken back: the system
// was started anew, and what it had not yet written to the disk is gone, or a
// line can't be read. It is more than is granted between two flushes, which
// Linux makes after half a minute.
const leap = 1 << 24

// guardTimeout bounds the wait for others who read and write the same fence,
// which takes them microseconds.
const guardTimeout = 5 * time.Second

// A note is one line of a fence file: one grant.
type note struct {
	token uint64
	boot  string
	mode  driver.Mode
	since time.Time
	owner driver.Owner

	rest string // of a line that was read: what describe parses
}

// fenceFile is an open fence file that nobody else has at the moment.
type fenceFile interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Sync() error
}

// count writes the next token of the resource into its fence.
func (b *Backend) count(ctx context.Context, resource string, mode driver.Mode, owner driver.Owner) (token uint64, err error) {
	n := note{boot: bootID(), mode: mode, since: time.Now(), owner: owner}
	if b.network {
		n.boot = "-" // the hosts' differ, and every number is flushed
	}
	path := b.path(resource, fenceSuffix)
	if mode == driver.Permit {
		path = b.path(resource, permitFenceSuffix)
	}
	n.token = uint64(n.since.UnixMicro())
	f, fresh, err := openFence(ctx, path, b.mode, func() []byte {
		return append(n.appendLine(nil), blankLine...)
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if fresh {
		return n.token, nil
	}
	var buf [2 * slotSize]byte
	size, err := f.ReadAt(buf[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	last, slot, whole := newest(buf[:size])
	if last.token == 0 {
		return 0, damaged(path, size)
	}
	step := uint64(1)
	if last.boot != n.boot || !whole {
		step = leap
	}
	if last.token > math.MaxInt64-step {
		return 0, fmt.Errorf("%s: the count is used up at %d", path, last.token)
	}
	if next := last.token + step; step == 1 || next > n.token {
		n.token = next
	}
	if _, err := f.WriteAt(n.appendLine(buf[:0]), int64(1-slot)*slotSize); err != nil {
		return 0, fmt.Errorf("%w: the fencing token can't be written", err)
	}
	if b.network {
		if err := f.Sync(); err != nil {
			return 0, fmt.Errorf("%w: the fencing token can't be written", err)
		}
	}
	return n.token, nil
}

func damaged(path string, size int) error {
	return &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf(
		"no fencing token can be read from its %d bytes, and a new count might repeat old ones; "+
			"restore the file, or remove it: the count then starts at the clock", size)}
}

// newest returns the note with the largest token in a fence, in which slot it
// is, and whether the other slot is in order too. Token 0 means that there is
// none.
func newest(b []byte) (last note, slot int, whole bool) {
	whole = true
	for i := range 2 {
		line := b[min(i*slotSize, len(b)):min((i+1)*slotSize, len(b))]
		n, ok := parseLine(line)
		if !ok {
			whole = whole && bytes.Equal(line, blankLine)
		} else if n.token > last.token {
			last, slot = n, i
		}
	}
	return last, slot, whole
}

var blankLine = append(bytes.Repeat([]byte{' '}, slotSize-1), '\n')

const sumField = " sum "

// appendLine appends the note as text, which fits whatever the owner's names
// are.
func (n note) appendLine(b []byte) []byte {
	start := len(b)
	b = fmt.Appendf(b, "token %d boot %s mode %s since %s pid %d host %s program %s note %s",
		n.token, n.boot, n.mode, n.since.UTC().Format("2006-01-02T15:04:05.000000Z"), n.owner.PID,
		quote(n.owner.Host, 66), quote(n.owner.Program, 66), quote(n.owner.Note, 120))
	b = fmt.Appendf(b, sumField+"%08x", crc32.ChecksumIEEE(b[start:]))
	return append(b, blankLine[len(b)-start:]...)
}

// quote returns s as a Go string literal of at most most bytes, cut where it
// must be.
func quote(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	for {
		q := strconv.Quote(s)
		if len(q) <= most {
			return q
		}
		s = s[:len(s)-1]
	}
}

func parseLine(line []byte) (n note, ok bool) {
	if len(line) != slotSize || line[slotSize-1] != '\n' {
		return n, false
	}
	text := strings.TrimRight(string(line[:slotSize-1]), " ")
	i := strings.LastIndex(text, sumField)
	if i < 0 {
		return n, false
	}
	sum, err := strconv.ParseUint(text[i+len(sumField):], 16, 32)
	if err != nil || uint32(sum) != crc32.ChecksumIEEE([]byte(text[:i])) {
		return n, false
	}
	token, rest, _ := strings.Cut(strings.TrimPrefix(text[:i], "token "), " ")
	n.token, err = strconv.ParseUint(token, 10, 64)
	if err != nil || n.token == 0 {
		return n, false
	}
	n.boot, n.rest, _ = strings.Cut(strings.TrimPrefix(rest, "boot "), " ")
	return n, true
}

// describe returns the note with all that its line tells. What is missing there
// stays zero.
func (n note) describe() note {
	value := func(key string) string {
		after, ok := strings.CutPrefix(n.rest, key+" ")
		if !ok {
			return ""
		}
		if literal, err := strconv.QuotedPrefix(after); err == nil {
			n.rest = strings.TrimPrefix(after[len(literal):], " ")
			s, _ := strconv.Unquote(literal)
			return s
		}
		var word string
		word, n.rest, _ = strings.Cut(after, " ")
		return word
	}
	mode := value("mode")
	for _, m := range []driver.Mode{driver.Exclusive, driver.Shared, driver.Upgradeable, driver.Permit} {
		if m.String() == mode {
			n.mode = m
		}
	}
	n.since, _ = time.Parse(time.RFC3339Nano, value("since"))
	n.owner.PID, _ = strconv.Atoi(value("pid"))
	n.owner.Host = value("host")
	n.owner.Program = value("program")
	n.owner.Note = value("note")
	return n
}

// patience is for what others keep for microseconds only.
type patience struct {
	began time.Time
	pause time.Duration
}

// nap sleeps, each time for longer. It returns an error when ctx ends, or when
// the others have had time enough.
func (p *patience) nap(ctx context.Context, path string) error {
	if p.began.IsZero() {
		p.began, p.pause = time.Now(), 50*time.Microsecond
	}
	if time.Since(p.began) > guardTimeout {
		return &fs.PathError{Op: "lock", Path: path, Err: fmt.Errorf("another process has held it up for %v; is that one stopped?", guardTimeout)}
	}
	t := time.NewTimer(p.pause/2 + rand.N(p.pause))
	defer t.Stop()
	p.pause = min(2*p.pause, 10*time.Millisecond)
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
