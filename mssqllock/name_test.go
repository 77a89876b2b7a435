package mssqllock

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/dbsession"
)

func TestLockName(t *testing.T) {
	text, err := os.ReadFile("testdata/names.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct{ In, Out string }
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) < 15 {
		t.Fatalf("%d vectors", len(vectors))
	}
	for _, v := range vectors {
		if got := LockName(v.In); got != v.Out {
			t.Errorf("%.40q: %q, want %q", v.In, got, v.Out)
		}
	}
}

func FuzzLockName(f *testing.F) {
	f.Add("a", "A")
	f.Add("a\x00b", "a\x00c")
	f.Add("😀", "😁")
	f.Add(strings.Repeat("漢", 255), strings.Repeat("漢", 256))
	f.Add(strings.Repeat("😀", 127)+"a", strings.Repeat("😀", 128))
	f.Add("a", "a ")
	long := strings.Repeat("x", 256)
	f.Add(long, LockName(long))
	f.Add(strings.Repeat("😀", 128), LockName(strings.Repeat("😀", 128)))
	f.Add("a\x00", LockName("a\x00"))
	f.Add(LockName(LockName(long)), LockName(long))
	for _, own := range ownNames() {
		f.Add(own, LockName(own))
		f.Add(own+long, LockName(own+long))
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if !utf8.ValidString(a) || !utf8.ValidString(b) || a == "" || b == "" {
			return
		}
		one, two := LockName(a), LockName(b)
		if a != b && one == two {
			t.Errorf("%q and %q share %q", a, b, one)
		}
		for _, name := range []string{one, two} {
			if n := len(utf16.Encode([]rune(name))); n > maxName || n == 0 || !utf8.ValidString(name) || strings.Contains(name, "\x00") {
				t.Errorf("%q has %d units", name, n)
			}
			if ownName.MatchString(name) && name != ownRenamed+halfHash(a) && name != ownRenamed+halfHash(b) {
				t.Errorf("%q and %q: %q may be another lock of this package", a, b, name)
			}
		}
	})
}

// ownNames are of all forms that locks have which aren't resources.
func ownNames() []string {
	n := namesOf("Order")
	permit := n.permits()
	return []string{permit(0), permit(9), permit(1 << 30), n.gate(), ownMark + "ABCDEFGHIJKLMNOPQRSTUVWXYZ", LockName("a\x00")}
}

// No resource has the name of another lock of this package, or of another
// resource.
func TestOwnNames(t *testing.T) {
	s := theServer(t)
	b := New(s.pool(t, s.addr()), &Options{Heartbeat: patience})
	defer b.Close()
	g, err := b.Acquire(t.Context(), driver.Request{Resource: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Hold.Release(t.Context())
	mark := g.Session.(*dbsession.Session).Identity().Mark
	long := strings.Repeat("x", 256)
	for _, own := range append(ownNames(), mark, LockName(long), LockName(strings.Repeat("😀", 200))) {
		if got := LockName(own); got == own || !strings.HasPrefix(got, ownRenamed) {
			t.Errorf("%q: %q", own, got)
		}
	}
	for _, free := range []string{"distlock", "distlock/", "distlock/x", "distlock/payments", "distlock/p/x", "distlock/p1", "distlock/waiting", "Distlock/wait/x", "distlock/no-gate", "x" + mark} {
		if got := LockName(free); got != free {
			t.Errorf("%q: %q", free, got)
		}
	}

	// The parts of a semaphore, and resources of their names.
	n := namesOf(t.Name())
	l := distlock.New(b, nil)
	for _, name := range []string{n.permits()(0), n.gate(), mark, "distlock/no-gate"} {
		defer mustAcquire(t, l, name).Release()
	}
	k := mustAcquire(t, l, t.Name(), distlock.Semaphore(1))
	mustBeHeld(t, l, t.Name(), distlock.Semaphore(1))
	mustRelease(t, k)
}

func TestNamesOfParts(t *testing.T) {
	n := namesOf("Order")
	permit := n.permits()
	parts := []string{permit(0), permit(1), permit(1 << 30), n.gate(), n.lock, namesOf("order").gate()}
	seen := make(map[string]bool)
	for _, p := range parts {
		if len(p) > maxName || seen[p] {
			t.Errorf("%q", p)
		}
		seen[p] = true
	}
}
