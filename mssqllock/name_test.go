package mssqllock

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
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
		}
	})
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
