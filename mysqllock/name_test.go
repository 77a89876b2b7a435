package mysqllock

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
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
				if r == 0 || r > 0xFFFF || lower(r) != r {
					t.Errorf("%q has %q", name, r)
				}
			}
			if strings.HasPrefix(name, "distlock/") {
				t.Errorf("%q may be a name of the package's own", name)
			}
		}
	})
}

// Lower case is the same with each version of Go.
func TestLowerIsUnicode15(t *testing.T) {
	const characters = 1 << 16 // those that are told apart
	var all []byte
	for r := range rune(characters) {
		all = binary.BigEndian.AppendUint16(all, uint16(lower(r)))
	}
	sum := sha256.Sum256(all)
	if got, want := hex.EncodeToString(sum[:8]), "707fe91c10ac7f10"; got != want {
		t.Errorf("the table isn't what it was, and so the names of locks aren't: %s, want %s", got, want)
	}
	if unicode.Version != "15.0.0" {
		t.Skipf("this Go has Unicode %s", unicode.Version)
	}
	var table []lowering
	for r := range rune(characters) {
		want := unicode.ToLower(r)
		if got := lower(r); got != want {
			t.Errorf("%U has the lower case %U, want %U", r, got, want)
		}
		if r <= unicode.MaxASCII || want == r {
			continue
		}
		if n := len(table) - 1; n >= 0 && table[n].delta == want-r {
			l := &table[n]
			if step := r - l.last; step <= 2 && (step == l.step || l.first == l.last) {
				l.last, l.step = r, step
				continue
			}
		}
		table = append(table, lowering{r, r, 1, want - r})
	}
	if t.Failed() {
		var text strings.Builder
		for i, l := range table {
			fmt.Fprintf(&text, "{0x%04X, 0x%04X, %d, %d}, ", l.first, l.last, l.step, l.delta)
			if i%4 == 3 {
				text.WriteByte('\n')
			}
		}
		t.Logf("the table should be:\n%s", text.String())
	}
}

// A capital that Unicode has since version 16 is none for a name, whatever Go says.
func TestLockNameWithAnotherUnicode(t *testing.T) {
	const newer = 0xA7CB
	defer func(cases []unicode.CaseRange) { unicode.CaseRanges = cases }(unicode.CaseRanges)
	unicode.CaseRanges = []unicode.CaseRange{{Lo: newer, Hi: newer, Delta: [unicode.MaxCase]rune{0, 0x264 - newer, 0}}}
	for resource, want := range map[string]string{
		string(rune(newer)):       string(rune(newer)),
		"Ä" + string(rune(newer)): "ä" + string(rune(newer)) + hash("Ä"+string(rune(newer))),
	} {
		if got := LockName(resource); got != want {
			t.Errorf("%q: %q, want %q", resource, got, want)
		}
	}
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
