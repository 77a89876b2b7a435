package filelock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/heldtest"
)

func openDir(t testing.TB, dir string) *Backend {
	t.Helper()
	b, err := New(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func request(mode driver.Mode, resource string) driver.Request {
	r := driver.Request{Resource: resource, Mode: mode, Owner: driver.Owner{
		Host: "host-1", PID: os.Getpid(), Program: "test", Note: "a \"note\" – with\nnewline",
	}}
	if mode == driver.Permit {
		r.Limit = 2
	}
	return r
}

func acquire(t testing.TB, b *Backend, mode driver.Mode, resource string) driver.Grant {
	t.Helper()
	g, err := b.Acquire(t.Context(), request(mode, resource))
	if err != nil {
		t.Fatalf("%v %q: %v", mode, resource, err)
	}
	return g
}

func release(t testing.TB, g driver.Grant) {
	t.Helper()
	if err := g.Hold.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// long is how long a test waits for what happens soon on a machine that isn't busy.
const long = time.Minute

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(long)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", long, what)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestFileName(t *testing.T) {
	text, err := os.ReadFile("testdata/names.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct{ In, Out string }
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) < 20 {
		t.Fatalf("%d vectors", len(vectors))
	}
	for _, v := range vectors {
		if got := FileName(v.In); got != v.Out {
			t.Errorf("%.40q: %q, want %q", v.In, got, v.Out)
		}
	}
	for in, prefix := range map[string]string{
		"😀a":                          "__a",
		strings.Repeat("x", 26) + "😀": strings.Repeat("x", 26) + "_",
		"Ⅷ²٣_":                        "__٣_", // a letter number, another number, a decimal digit
		"e\u0301":                     "e_",
		strings.Repeat("漢", 30):       strings.Repeat("漢", 27),
	} {
		got := FileName(in)
		if got[:len(got)-32-len(".lock")] != prefix {
			t.Errorf("%q: %q, want the prefix %q", in, got, prefix)
		}
	}
}

func FuzzFileName(f *testing.F) {
	f.Add("a", "b")
	f.Add("a/b", "a_b")
	f.Add("\x00", "😀")
	f.Add(strings.Repeat("漢", 40), strings.Repeat("漢", 41))
	f.Fuzz(func(t *testing.T, a, b string) {
		one, two := FileName(a), FileName(b)
		if a != b && strings.EqualFold(one, two) {
			t.Errorf("%q and %q share %q", a, b, one)
		}
		for _, name := range []string{one, two} {
			_, suffix, ok := ownFile(name)
			if len(name)+len(".permits-fence-new") > 255 || !ok || suffix != lockSuffix {
				t.Errorf("%q", name)
			}
		}
	})
}

// The modes that stand beside each other, in one process and through two
// backends.
func TestModes(t *testing.T) {
	dir := t.TempDir()
	a, b := openDir(t, dir), openDir(t, dir)
	modes := []driver.Mode{driver.Exclusive, driver.Shared, driver.Upgradeable, driver.Permit}
	for _, first := range modes {
		for _, second := range modes {
			if !a.Info().Modes.Has(first) || !a.Info().Modes.Has(second) {
				continue
			}
			beside := first == driver.Shared && (second == driver.Shared || second == driver.Upgradeable) ||
				second == driver.Shared && first == driver.Upgradeable ||
				first == driver.Permit || second == driver.Permit
			for _, other := range []*Backend{a, b} {
				resource := fmt.Sprint(first, second, other == a)
				held := acquire(t, a, first, resource)
				g, err := other.Acquire(t.Context(), request(second, resource))
				if beside && err != nil || !beside && !errors.Is(err, driver.ErrHeld) {
					t.Errorf("%v beside %v: %v", second, first, err)
				}
				if err == nil {
					if g.Token <= held.Token && (first == driver.Permit) == (second == driver.Permit) {
						t.Errorf("%v after %v: token %d after %d", second, first, g.Token, held.Token)
					}
					release(t, g)
				}
				release(t, held)
				if err := held.Hold.Release(t.Context()); err != nil {
					t.Errorf("second release: %v", err)
				}
				release(t, acquire(t, other, second, resource))
			}
		}
	}
}

func TestPermits(t *testing.T) {
	b := openDir(t, t.TempDir())
	r := request(driver.Permit, "p")
	r.Limit = 5
	var held []driver.Grant
	for range r.Limit {
		g, err := b.Acquire(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, g)
	}
	for i := range held {
		if _, err := b.Acquire(t.Context(), r); !errors.Is(err, driver.ErrHeld) {
			t.Fatalf("a sixth permit: %v", err)
		}
		release(t, held[i])
		g, err := b.Acquire(t.Context(), r)
		if err != nil {
			t.Fatalf("after a release: %v", err)
		}
		if i > 0 && g.Token <= held[i-1].Token {
			t.Errorf("token %d after %d", g.Token, held[i-1].Token)
		}
		held[i] = g
	}
	for _, g := range held {
		release(t, g)
	}
}

// Without a line, as on network mounts and other systems, waiting is left to the
// caller.
func TestWithoutLine(t *testing.T) {
	dir := t.TempDir()
	b := openDir(t, dir)
	b.lined, b.network, b.procLocks = false, true, ""
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Permit} {
		held := []driver.Grant{acquire(t, b, mode, "a")}
		if mode == driver.Permit {
			held = append(held, acquire(t, b, mode, "a"))
		}
		r := request(mode, "a")
		r.Wait, r.Queue = driver.Forever, true
		if _, err := b.Acquire(t.Context(), r); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("%v: %v", mode, err)
		}
		if h, err := b.Holders(t.Context(), "a", mode); err != nil || len(h) != len(held) {
			t.Errorf("%v: %v, %v", mode, h, err)
		}
		for _, g := range held {
			release(t, g)
		}
		if g := acquire(t, b, mode, "a"); g.Token != held[len(held)-1].Token+1 {
			t.Errorf("token %d after %d", g.Token, held[len(held)-1].Token)
		} else {
			release(t, g)
		}
	}
	if names(t, dir)[baseName("a")+bellSuffix] {
		t.Error("a bell that nobody hears")
	}
}

// Somebody who was stopped while he counted holds up the others, but not for
// ever, and not the lock.
func TestFenceIsBusy(t *testing.T) {
	b := openDir(t, t.TempDir())
	g := acquire(t, b, driver.Exclusive, "a")
	release(t, g)
	n := b.name("a", false)
	f, _, err := b.openFence(t.Context(), n, &note{since: time.Now()}, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	patient := request(driver.Shared, "a")
	patient.Wait = driver.Forever
	if _, err := b.Acquire(ctx, patient); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if h, err := b.Holders(t.Context(), "a", driver.Exclusive); len(h) > 0 || err != nil {
		t.Error(h, err)
	}
	// A try doesn't hold anybody up for long; who has time gets another error.
	for _, queue := range []bool{true, false} {
		if !b.lined {
			break
		}
		r := request(driver.Exclusive, "a")
		r.Queue = queue
		began := time.Now()
		_, err := b.Acquire(t.Context(), r)
		if d := time.Since(began); !errors.Is(err, driver.ErrHeld) || d < answersWithin {
			t.Errorf("a try: %v after %v", err, d)
		}
	}
	p := patience{began: time.Now().Add(-2 * guardTimeout)}
	if err := p.nap(t.Context(), "x"); err == nil || errors.Is(err, driver.ErrHeld) {
		t.Error(err)
	}
	if err := b.closeFence(n, f, true); err != nil {
		t.Error(err)
	}
	if next := acquire(t, b, driver.Exclusive, "a"); next.Token != g.Token+1 {
		t.Errorf("token %d after %d", next.Token, g.Token)
	}
}

func TestUnsupported(t *testing.T) {
	b := openDir(t, t.TempDir())
	b.info.Modes = driver.ModesOf(driver.Exclusive)
	if _, err := b.Acquire(t.Context(), request(driver.Upgradeable, "u")); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
}

func TestContextDone(t *testing.T) {
	dir := t.TempDir()
	b := openDir(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Acquire(ctx, request(driver.Exclusive, "a")); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) > 0 {
		t.Error(entries)
	}
}

func TestClose(t *testing.T) {
	dir := t.TempDir()
	b := openDir(t, dir)
	g := acquire(t, b, driver.Exclusive, "a")
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := g.Hold.Release(t.Context()); !errors.Is(err, driver.ErrLost) {
		t.Errorf("release after close: %v", err)
	}
	if _, err := b.Acquire(t.Context(), request(driver.Exclusive, "a")); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("acquire after close: %v", err)
	}
	release(t, acquire(t, openDir(t, dir), driver.Exclusive, "a"))
}

func TestFenceText(t *testing.T) {
	b := openDir(t, t.TempDir())
	before := time.Now()
	g := acquire(t, b, driver.Exclusive, "a")
	text, err := os.ReadFile(b.path("a", fenceSuffix))
	if err != nil {
		t.Fatal(err)
	}
	if len(text) != 2*slotSize || strings.Count(string(text), "\n") != 2 {
		t.Errorf("%d bytes:\n%s", len(text), text)
	}
	for _, want := range []string{fmt.Sprint("token ", g.Token, " "), `host "host-1"`, `program "test"`, fmt.Sprint("pid ", os.Getpid()), "mode exclusive"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if now := clockToken(time.Now()); g.Token < clockToken(before) || g.Token > now || g.Token >= 1<<53 {
		t.Errorf("token %d at %d", g.Token, now)
	}
	holders, err := b.Holders(t.Context(), "a", driver.Exclusive)
	if err != nil || len(holders) != 1 {
		t.Fatal(holders, err)
	}
	h := holders[0]
	if h.Owner != (driver.Owner{Host: "host-1", PID: os.Getpid(), Program: "test", Note: "a \"note\" – with\nnewline"}) ||
		h.Token != g.Token || h.Mode != driver.Exclusive || h.Since.Before(before.Add(-time.Millisecond)) || h.Since.After(time.Now()) {
		t.Errorf("%+v", h)
	}
	release(t, g)
}

func TestNoteFits(t *testing.T) {
	for _, s := range []string{"", "x", strings.Repeat("漢", 500), strings.Repeat("\x00", 500), strings.Repeat(`"`, 500), strings.Repeat("\xff", 99), " sum 00000000"} {
		n := note{
			token: math.MaxInt64, boot: "01234567-89ab-cdef-0123-456789abcdef", mode: driver.Upgradeable, since: time.Now(),
			owner: driver.Owner{Host: s, PID: math.MaxInt32, Program: s, Note: s},
		}
		line := n.appendLine(nil)
		read, ok := parseLine(line)
		got := read.describe()
		if len(line) != slotSize || !ok || got.token != n.token || got.boot != n.boot || got.mode != n.mode || got.owner.PID != n.owner.PID {
			t.Errorf("%.20q: %d bytes, %v, %+v\n%s", s, len(line), ok, got, line)
		}
		if len(s) < 20 && got.owner.Note != s {
			t.Errorf("%q: %q", s, got.owner.Note)
		}
		line[8] ^= 1
		if _, ok := parseLine(line); ok {
			t.Error("a changed token is accepted")
		}
	}
}

func FuzzParseLine(f *testing.F) {
	n := note{token: 7, boot: "b", since: time.Now()}
	f.Add(n.appendLine(nil))
	f.Fuzz(func(t *testing.T, line []byte) {
		if n, ok := parseLine(line); ok && n.token == 0 {
			t.Error("token zero")
		} else if ok {
			n.describe()
		}
	})
}

// fence writes a fence file with the given lines.
func fence(t *testing.T, b *Backend, resource string, lines ...[]byte) {
	t.Helper()
	var text []byte
	for _, l := range lines {
		text = append(text, l...)
	}
	if err := os.WriteFile(b.path(resource, fenceSuffix), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func line(token uint64, boot string) []byte {
	n := note{token: token, boot: boot, since: time.Now()}
	return n.appendLine(nil)
}

func TestTokenAfter(t *testing.T) {
	b := openDir(t, t.TempDir())
	torn := line(99, bootID())
	torn[20] ^= 1
	future := clockToken(time.Now().Add(time.Hour))
	for name, c := range map[string]struct {
		lines [][]byte
		least uint64
		exact bool
	}{
		"first of two":       {[][]byte{line(41, bootID()), line(40, bootID())}, 42, true},
		"second of two":      {[][]byte{line(40, bootID()), line(41, bootID())}, 42, true},
		"first only":         {[][]byte{line(41, bootID()), blankLine}, 42, true},
		"cut off":            {[][]byte{line(41, bootID())}, 41 + leap, false},
		"other boot":         {[][]byte{line(41, "x"), blankLine}, clockToken(time.Now()), false},
		"other boot, future": {[][]byte{line(future, "x"), blankLine}, future + leap, true},
		"other line torn":    {[][]byte{line(future, bootID()), torn}, future + leap, true},
	} {
		fence(t, b, name, c.lines...)
		for i := range uint64(3) {
			g := acquire(t, b, driver.Exclusive, name)
			if g.Token < c.least+i || c.exact && g.Token != c.least+i {
				t.Errorf("%s: token %d, want %d", name, g.Token, c.least+i)
			}
			release(t, g)
		}
	}
}

func TestDamagedFence(t *testing.T) {
	b := openDir(t, t.TempDir())
	for name, text := range map[string]string{
		"empty":  "",
		"short":  "token 12",
		"blank":  string(blankLine) + string(blankLine),
		"zeroed": strings.Repeat("\x00", 2*slotSize),
		"full":   string(line(1<<53-1, bootID())) + string(blankLine),
		"leap":   string(line(1<<53-leap, "x")) + string(blankLine),
		"zero":   string(line(0, bootID())) + string(blankLine),
	} {
		for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
			fence(t, b, name, []byte(text))
			_, err := b.Acquire(t.Context(), request(mode, name))
			if err == nil || errors.Is(err, driver.ErrHeld) || !strings.Contains(err.Error(), b.path(name, fenceSuffix)) {
				t.Errorf("%s: %v", name, err)
			}
			if now, _ := os.ReadFile(b.path(name, fenceSuffix)); string(now) != text {
				t.Errorf("%s: the fence was changed", name)
			}
			if h, err := b.Holders(t.Context(), name, mode); len(h) > 0 || err != nil {
				t.Errorf("%s: still held: %v %v", name, h, err)
			}
		}
		if err := os.Remove(b.path(name, fenceSuffix)); err != nil {
			t.Fatal(err)
		}
		release(t, acquire(t, b, driver.Exclusive, name)) // as the error says
	}
}

// A maker of a fence that died half-way left an unfinished file behind.
func TestUnfinishedFence(t *testing.T) {
	b := openDir(t, t.TempDir())
	if err := os.WriteFile(b.path("a", fenceSuffix+unfinishedSuffix), []byte("token 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	g := acquire(t, b, driver.Exclusive, "a")
	release(t, g)
	if next := acquire(t, b, driver.Exclusive, "a"); next.Token != g.Token+1 {
		t.Errorf("token %d after %d", next.Token, g.Token)
	}
}

func TestNewErrors(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var path *fs.PathError
	for name, c := range map[string]struct {
		dir  string
		o    *Options
		path bool
	}{
		"empty":           {"", nil, false},
		"a file":          {plain, nil, true},
		"below a file":    {filepath.Join(plain, "x"), nil, true},
		"too long":        {filepath.Join(dir, strings.Repeat("x", 300)), nil, true},
		"not permissions": {dir, &Options{FileMode: fs.ModeSetuid | 0o666}, false},
		"write-only":      {dir, &Options{FileMode: 0o200}, false},
	} {
		_, err := New(c.dir, c.o)
		if err == nil || errors.As(err, &path) != c.path {
			t.Errorf("%s: %v", name, err)
		}
	}
	if now, _ := os.ReadDir(dir); len(now) != 1 {
		t.Error(now)
	}
	openDir(t, filepath.Join(dir, "new", "below")) // is created
}

// A directory that is named relatively is that of the time of New.
func TestRelative(t *testing.T) {
	t.Chdir(t.TempDir())
	b := openDir(t, "locks")
	t.Chdir(t.TempDir())
	release(t, acquire(t, b, driver.Exclusive, "a"))
	if entries, _ := os.ReadDir("."); len(entries) > 0 {
		t.Error(entries)
	}
}

func TestURL(t *testing.T) {
	type want struct {
		dir string
		o   Options
	}
	for raw, w := range map[string]want{
		"file:///var/locks":                      {"/var/locks", Options{}},
		"file://localhost/var/locks":             {"/var/locks", Options{}},
		"file:/var/locks":                        {"/var/locks", Options{}},
		"file:///a%20b%23%3F":                    {"/a b#?", Options{}},
		"file:":                                  {"", Options{}},
		"file://":                                {"", Options{}},
		"file:?mode=0660":                        {"", Options{FileMode: 0o660}},
		"file:///d?mode=0666&unsafe_mount=allow": {"/d", Options{FileMode: 0o666, AllowUnsafeMount: true}},
		"file:///d?tokens=none":                  {"/d", Options{NoTokens: true}},
		"file:///d?unsafe_mount=allow&mode=640&&&&&&": {"/d", Options{FileMode: 0o640, AllowUnsafeMount: true}},
	} {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		dir, o, err := parseURL(u)
		if dir != filepath.FromSlash(w.dir) || o != w.o || err != nil {
			t.Errorf("%s: %q %+v %v", raw, dir, o, err)
		}
	}
	for _, raw := range []string{
		"file:foo", "file:./foo", "file://var/locks", "file://user@/var", "file:///a#b", "file:///a?b=c", "file:///a?mode=", "file:///a?mode=9",
		"file:///a?mode=0444", "file:///a?mode=01777", "file:///a?unsafe_mount=yes", "file:///a?unsafe_mount", "file:///a?mode=0666&mode=0660", "file:///a?mode=%zz",
		"file:///a?tokens=no", "file:///a?tokens",
		"file:///a%00b", "file:///a?Mode=0666",
	} {
		_, err := distlock.Open(t.Context(), raw, nil)
		if !errors.Is(err, distlock.ErrBadArgument) {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

func TestOpen(t *testing.T) {
	l, err := distlock.Open(t.Context(), (&url.URL{Scheme: "file", Path: slashed(t.TempDir())}).String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	lock, err := l.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if token, ok := lock.Token(); !ok || token == 0 {
		t.Error(token, ok)
	}
	if err := lock.Release(); err != nil {
		t.Error(err)
	}
}

// Without tokens nothing is written, and nobody has one.
func TestNoTokens(t *testing.T) {
	dir := t.TempDir()
	b, err := New(dir, &Options{NoTokens: true})
	if err != nil {
		t.Fatal(err)
	}
	l := distlock.New(b, nil)
	defer l.Close()
	for _, opts := range [][]distlock.AcquireOption{nil, {distlock.Shared()}, {distlock.Upgradeable()}, {distlock.Semaphore(2)}} {
		lock, err := l.Acquire(t.Context(), "a", opts...)
		if errors.Is(err, errors.ErrUnsupported) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if token, ok := lock.Token(); ok || token != 0 {
			t.Error(token, ok)
		}
		var permits []distlock.AcquireOption
		if len(opts) > 0 && opts[0] == distlock.Semaphore(2) {
			permits = opts
		}
		holders, err := l.Holders(t.Context(), "a", permits...)
		if err != nil || len(holders) != 1 || !holders[0].Since.IsZero() || holders[0].Token != 0 {
			t.Errorf("%+v, %v", holders, err)
		}
		if len(opts) > 0 && runtime.GOOS == "linux" && b.info.Modes.Has(driver.Upgradeable) {
			switch err := lock.Upgrade(t.Context()); {
			case err == nil:
				if token, ok := lock.Token(); ok || token != 0 {
					t.Error(token, ok)
				}
			case !errors.Is(err, errors.ErrUnsupported):
				t.Error(err)
			}
		}
		if err := lock.Release(); err != nil {
			t.Error(err)
		}
	}
	for name := range names(t, dir) {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() > 0 || strings.HasSuffix(name, "fence") {
			t.Errorf("%s is there: %v", name, err)
		}
	}
}

func slashed(path string) string {
	path = filepath.ToSlash(path)
	if runtime.GOOS == "windows" {
		path = "/" + path
	}
	return path
}

// age makes files look as if they were last used two days ago.
func age(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	then := time.Now().Add(-48 * time.Hour)
	for _, e := range entries {
		if err := os.Chtimes(filepath.Join(dir, e.Name()), then, then); err != nil && runtime.GOOS != "windows" {
			t.Fatal(err)
		}
	}
}

func names(t *testing.T, dir string) map[string]bool {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]bool)
	for _, e := range entries {
		found[e.Name()] = true
	}
	return found
}

func TestPrune(t *testing.T) {
	dir := t.TempDir()
	b := openDir(t, dir)
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Permit} {
		for _, resource := range []string{"idle", "recent", "held", "old"} {
			release(t, acquire(t, b, mode, resource))
		}
	}
	old := clockToken(time.Now().Add(-47 * time.Hour))
	fence(t, b, "old", line(old, bootID()), blankLine)
	for _, other := range []string{"mine.lock", "-" + FileName("x"), FileName("x") + "~", strings.ToLower(FileName("x"))} {
		if err := os.WriteFile(filepath.Join(dir, other), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	os.Mkdir(filepath.Join(dir, FileName("directory")), 0o700)
	held := []driver.Grant{acquire(t, b, driver.Shared, "held"), acquire(t, b, driver.Permit, "held")}
	age(t, dir)
	release(t, acquire(t, b, driver.Exclusive, "recent"))
	release(t, acquire(t, b, driver.Permit, "recent"))
	before := names(t, dir)

	removed, err := Prune(t.Context(), dir, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	after := names(t, dir)
	if n := len(before) - len(after); n != removed {
		t.Errorf("removed %d files and says %d", n, removed)
	}
	for name := range before {
		base := baseName("idle")
		gone := name == base+lockSuffix || strings.HasPrefix(name, base+permitSuffix) || name == base+bellSuffix
		base = baseName("old")
		gone = gone || name == base+lockSuffix || name == base+fenceSuffix || strings.HasPrefix(name, base+permitSuffix) || name == base+bellSuffix
		// Another permit of a held resource may go.
		if gone == after[name] && !strings.HasPrefix(name, baseName("held")+permitSuffix) {
			t.Errorf("%s: kept is %v", name, after[name])
		}
	}
	for _, g := range held {
		if g.Session != nil {
			if err := g.Session.Renew(t.Context()); err != nil {
				t.Error(err)
			}
		}
		release(t, g)
	}
	if g := acquire(t, b, driver.Exclusive, "old"); g.Token <= old {
		t.Errorf("token %d after %d", g.Token, old)
	}
	if _, err := Prune(t.Context(), dir, 0); err == nil {
		t.Error("idle time 0 is accepted")
	}
	if _, err := Prune(t.Context(), filepath.Join(dir, "none"), time.Hour); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestDirectoryIsMadeAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "above", "locks")
	b := openDir(t, dir)
	release(t, acquire(t, b, driver.Exclusive, "a"))
	for _, gone := range []string{dir, filepath.Dir(dir)} {
		if err := os.RemoveAll(gone); err != nil {
			t.Fatal(err)
		}
		release(t, acquire(t, b, driver.Exclusive, "a"))
		release(t, acquire(t, b, driver.Shared, "b"))
	}
}

// A mistake in the program is told apart from a directory that doesn't work.
func TestBadArguments(t *testing.T) {
	dir := t.TempDir()
	_, empty := New("", nil)
	_, mode := New(dir, &Options{FileMode: 0o444})
	_, idle := Prune(t.Context(), dir, 0)
	for _, err := range []error{empty, mode, idle} {
		if !errors.Is(err, distlock.ErrBadArgument) {
			t.Errorf("got %v", err)
		}
	}
}

// What is held is an open file and little more. There are no tokens here, as their
// files take the disk's time; a hold with one knows one word more.
func TestHeldLocksAreSmall(t *testing.T) {
	const n = 3000
	b, err := New(t.TempDir(), &Options{NoTokens: true})
	if err != nil {
		t.Fatal(err)
	}
	l := distlock.New(b, nil)
	defer l.Close()
	held, err := heldtest.Take(t.Context(), l, n, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes each, %d goroutines more", held.Each, held.Goroutines)
	if held.Each >= 1024 {
		t.Errorf("a lock that is held takes %d bytes", held.Each)
	}
	if held.Goroutines > 10 {
		t.Errorf("%d goroutines for %d locks", held.Goroutines, n)
	}
	if left, err := held.Release(); err != nil || left > n*128 {
		t.Errorf("%d bytes are left of %d names: %v", left, n, err)
	}
}
