package mysqllock

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
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
	if len(vectors) < 17 {
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
	f.Add(strings.Repeat("漢", 64), strings.Repeat("漢", 65))
	f.Add("\u0130", "i")
	f.Add("distlock/reading/0", "DISTLOCK/wait/")
	f.Fuzz(func(t *testing.T, a, b string) {
		if !utf8.ValidString(a) || !utf8.ValidString(b) || a == "" || b == "" {
			return
		}
		one, two := LockName(a), LockName(b)
		if a != b && strings.EqualFold(one, two) && one == strings.ToLower(one) && one == two {
			t.Errorf("%q and %q share %q", a, b, one)
		}
		for _, name := range []string{one, two} {
			if n := len(utf16.Encode([]rune(name))); n > maxName || n == 0 || len(name) > 192 {
				t.Errorf("%q has %d units", name, n)
			}
			for _, r := range name {
				if r == 0 || r > 0xFFFF || unicode.ToLower(r) != r {
					t.Errorf("%q has %q", name, r)
				}
			}
			if strings.HasPrefix(name, "distlock/") {
				t.Errorf("%q may be a name of the package's own", name)
			}
		}
	})
}

func TestNamesOfParts(t *testing.T) {
	n := namesOf("Order")
	parts := append(n.slots(64), n.permits()(1<<30), n.gate(), n.lock)
	seen := make(map[string]bool)
	for _, p := range parts {
		if len(p) > maxName || p != strings.ToLower(p) || seen[p] {
			t.Errorf("%q", p)
		}
		seen[p] = true
	}
}

// No resource has the name of a lock that the package takes for itself, be it of
// its own parts, those of another, or of no resource at all.
func TestP17_NoResourceHasANameOfTheParts(t *testing.T) {
	own := []string{neverHeld, noGate, readingKey}
	for i := range readingSessions {
		own = append(own, readingName(i))
	}
	for _, n := range []names{namesOf("order"), namesOf("distlock/wait/"), namesOf("DistLock/r000/")} {
		own = append(own, n.gate(), n.permits()(0))
		own = append(own, n.slots(2)...)
	}
	resources := append([]string{"distlock/", "distlock/wait/", "Distlock/Wait/", "DistLock/r000/", "distloc\u212A/p0/", "distlock/session/ABC"}, own...)
	for _, o := range own {
		if !strings.HasPrefix(o, "distlock/") {
			t.Errorf("%q is a name of the package's own", o)
		}
	}
	seen := make(map[string]string)
	for _, r := range resources {
		name := LockName(r)
		if strings.HasPrefix(name, "distlock/") {
			t.Errorf("%q has the name %q", r, name)
		}
		if before, ok := seen[name]; ok {
			t.Errorf("%q and %q share %q", before, r, name)
		}
		seen[name] = r
	}
}
