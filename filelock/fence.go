package filelock

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/distlock-go/distlock/driver"
)

// A fence file is two lines of slotSize bytes. Each grant overwrites the line
// with the smaller token, so that the larger one stays readable whatever
// happens during the write.
const slotSize = 512

// lastToken is the largest number that is given out: package distlock puts 10
// bits of its own behind it.
const lastToken = 1<<53 - 1

// clockToken is what a count begins with: the microseconds since 1970, which reach
// lastToken in the year 2255.
func clockToken(t time.Time) uint64 { return uint64(t.UnixMicro()) }

// leap is added to the count when numbers may have been taken back: the system
// was started anew, and what it had not yet written to the disk is gone, or a
// line can't be read. It is more than is granted between two flushes, which
// Linux makes after half a minute. The clock makes as many in 17 seconds, so that
// a count gets far ahead of it only on a system that starts more often than that;
// and there are hundreds of millions of leaps between the clock and lastToken.
const leap = 1 << 24

// guardTimeout bounds the wait for others who read and write the same fence,
// which takes them microseconds.
const guardTimeout = 5 * time.Second

// answersWithin bounds a try where it is a matter of system calls on local files:
// for as long it waits for the fence, which then is as good as held.
const answersWithin = 100 * time.Millisecond

// A note is one line of a fence file: one grant.
type note struct {
	token uint64
	boot  string
	mode  driver.Mode
	since time.Time
	owner driver.Owner
	who   string // the owner as text; empty: not made yet
}

// fenceFile is the file of a counter.
type fenceFile interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
}

// A counter is an open fence that nobody else has at the moment.
type counter struct {
	fenceFile
	looked time.Time // when it was seen to be the file of its name

	// What was in it when this counter had written, and what that means: nobody
	// has counted since if it is still the same.
	text [2 * slotSize]byte
	last reading
}

// A reading is what the lines of a fence say.
type reading struct {
	token uint64 // the largest; 0: none can be read
	slot  int    // where that is
	boot  string
	whole bool // the other line is in order too
}

// count writes the next token of the resource into its fence. It waits for others
// who count for no longer than most.
func (b *Backend) count(ctx context.Context, name *name, mode driver.Mode, owner *ownerText, now time.Time, most time.Duration) (token uint64, err error) {
	n := note{boot: bootID(), mode: mode, since: now, who: owner.text}
	if b.network {
		n.boot = "-" // the hosts' differ, and every number is flushed
	}
	n.token = clockToken(n.since)
	c, fresh, err := b.openFence(ctx, name, &n, most)
	if err != nil {
		return 0, err
	}
	if !fresh {
		err = b.countIn(c, name.fence, &n)
	}
	if e := b.closeFence(name, c, err == nil); err == nil {
		err = e
	}
	return n.token, err
}

// countIn writes n into the fence, with the next token.
func (b *Backend) countIn(c *counter, path string, n *note) error {
	buf := buffers.Get().(*[2 * slotSize]byte)
	defer buffers.Put(buf)
	size, err := c.ReadAt(buf[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	last := &c.last
	if last.token == 0 || size < len(buf) || *buf != c.text {
		*last = read(buf[:size])
	}
	if last.token == 0 {
		return damaged(path, size)
	}
	step := uint64(1)
	if last.boot != n.boot || !last.whole {
		step = leap
	}
	if last.token > lastToken-step {
		return fmt.Errorf("%s: the count is used up at %d; remove the file: the count then starts at the clock", path, last.token)
	}
	if next := last.token + step; step == 1 || next > n.token {
		n.token = next
	}
	slot := 1 - last.slot
	c.text = *buf
	line := n.appendLine(c.text[slot*slotSize : slot*slotSize])
	last.token = 0 // until it is known to be written
	if _, err := c.WriteAt(line, int64(slot)*slotSize); err != nil {
		return fmt.Errorf("%w: the fencing token can't be written", err)
	}
	if b.network {
		if err := c.Sync(); err != nil {
			return fmt.Errorf("%w: the fencing token can't be written", err)
		}
	}
	*last = reading{token: n.token, slot: slot, boot: n.boot, whole: true}
	return nil
}

var buffers = sync.Pool{New: func() any { return new([2 * slotSize]byte) }}

// read reads the lines of a fence.
func read(text []byte) reading {
	last, slot, whole := newest(text)
	return reading{last.token, slot, string(last.boot), whole}
}

// firstText is the content of a new fence.
func (n *note) firstText() []byte { return append(n.appendLine(nil), blankLine...) }

// An ownerText is an owner as a note has it.
type ownerText struct {
	owner driver.Owner // without the ID, which is another for each attempt
	text  string
}

// describeOwner returns the owner as a note has it, which is seldom another than
// before.
func (b *Backend) describeOwner(o driver.Owner) *ownerText {
	o.ID = driver.ID{}
	last := b.lastOwner.Load()
	if last == nil || last.owner != o {
		last = &ownerText{o, describeOwner(o)}
		b.lastOwner.Store(last)
	}
	return last
}

func describeOwner(o driver.Owner) string {
	return fmt.Sprintf("pid %d host %s program %s note %s",
		o.PID, quote(o.Host, 66), quote(o.Program, 66), quote(o.Note, 120))
}

func damaged(path string, size int) error {
	return &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf(
		"no fencing token can be read from its %d bytes, and a new count might repeat old ones; "+
			"remove it: the count then starts at the clock (an older copy would repeat numbers)", size)}
}

// newest returns the note with the largest token in a fence, in which slot it
// is, and whether the other slot is in order too. Token 0 means that there is
// none.
func newest(b []byte) (last written, slot int, whole bool) {
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

const (
	sumField = " sum "
	sumSize  = len(sumField) + 8
)

// appendLine appends the note as text, which fits whatever the owner's names
// are.
func (n *note) appendLine(b []byte) []byte {
	start := len(b)
	b = strconv.AppendUint(append(b, "token "...), n.token, 10)
	b = append(append(b, " boot "...), n.boot...)
	b = append(append(b, " mode "...), n.mode.String()...)
	b = n.since.UTC().Truncate(time.Microsecond).AppendFormat(append(b, " since "...), time.RFC3339Nano)
	who := n.who
	if who == "" {
		who = describeOwner(n.owner)
	}
	b = append(append(b, ' '), who...)
	sum := crc32.ChecksumIEEE(b[start:])
	b = append(b, sumField...)
	b = hex.AppendEncode(b, binary.BigEndian.AppendUint32(nil, sum))
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

// written is what is read of a line, and refers to it.
type written struct {
	token uint64
	boot  []byte
	rest  []byte // for describe
}

func parseLine(line []byte) (w written, ok bool) {
	if len(line) != slotSize || line[slotSize-1] != '\n' {
		return w, false
	}
	text := trimBlanks(line[:slotSize-1])
	i := len(text) - sumSize
	if i < 0 || string(text[i:i+len(sumField)]) != sumField {
		return w, false
	}
	sum, err := strconv.ParseUint(string(text[i+len(sumField):]), 16, 32)
	if err != nil || uint32(sum) != crc32.ChecksumIEEE(text[:i]) {
		return w, false
	}
	token, rest, _ := bytes.Cut(bytes.TrimPrefix(text[:i], []byte("token ")), []byte(" "))
	w.token, err = strconv.ParseUint(string(token), 10, 64)
	if err != nil || w.token == 0 {
		return w, false
	}
	w.boot, w.rest, _ = bytes.Cut(bytes.TrimPrefix(rest, []byte("boot ")), []byte(" "))
	return w, true
}

// trimBlanks returns b without the blanks at its end, of which there are many.
func trimBlanks(b []byte) []byte {
	const eight = 0x2020202020202020
	for len(b) >= 8 && binary.NativeEndian.Uint64(b[len(b)-8:]) == eight {
		b = b[:len(b)-8]
	}
	return bytes.TrimRight(b, " ")
}

// describe returns all that the line tells. What is missing there stays zero.
func (w written) describe() note {
	n := note{token: w.token, boot: string(w.boot)}
	text := string(w.rest)
	value := func(key string) string {
		after, ok := strings.CutPrefix(text, key+" ")
		if !ok {
			return ""
		}
		if literal, err := strconv.QuotedPrefix(after); err == nil {
			text = strings.TrimPrefix(after[len(literal):], " ")
			s, _ := strconv.Unquote(literal)
			return s
		}
		var word string
		word, text, _ = strings.Cut(after, " ")
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

var errBusy = errors.New("another process has held it up")

// patience is for what others keep for microseconds only.
type patience struct {
	most  time.Duration // zero: guardTimeout
	began time.Time
	pause time.Duration
}

// nap sleeps, each time for longer. It returns an error when ctx ends, or when
// the others have had time enough.
func (p *patience) nap(ctx context.Context, path string) error {
	if p.began.IsZero() {
		p.began, p.pause = time.Now(), 50*time.Microsecond
	}
	if p.most == 0 {
		p.most = guardTimeout
	}
	if time.Since(p.began) > p.most {
		return &fs.PathError{Op: "lock", Path: path, Err: fmt.Errorf("%w for %v; is that one stopped?", errBusy, p.most)}
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
