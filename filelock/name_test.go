package filelock

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"unicode"
)

// The characters that are kept are the same with each version of Go.
func TestKeptIsUnicode15(t *testing.T) {
	const characters = 1 << 16 // those that UTF-16 has in one unit
	var all [characters]byte
	for r := range all {
		if isKept(rune(r)) {
			all[r] = 1
		}
	}
	sum := sha256.Sum256(all[:])
	if got, want := hex.EncodeToString(sum[:8]), "db5fe0e1f89cefd5"; got != want {
		t.Errorf("the table isn't what it was, and so the names of files aren't: %s, want %s", got, want)
	}
	for r := rune(characters); r <= unicode.MaxRune; r++ {
		if isKept(r) {
			t.Fatalf("%U is kept", r)
		}
	}
	if unicode.Version != "15.0.0" {
		t.Skipf("this Go has Unicode %s", unicode.Version)
	}
	var table strings.Builder
	ranges, first := 0, rune(-1)
	for r := range rune(characters) + 1 {
		keep := r < characters && (r == '_' || unicode.In(r, unicode.L, unicode.Nd))
		if r < characters && keep != isKept(r) {
			t.Errorf("%U: kept: %v", r, !keep)
		}
		switch {
		case keep && first < 0:
			first = r
		case !keep && first >= 0:
			fmt.Fprintf(&table, "{0x%04X, 0x%04X, 1}, ", first, r-1)
			if ranges++; ranges%4 == 0 {
				table.WriteByte('\n')
			}
			first = -1
		}
	}
	if t.Failed() {
		t.Logf("the table should be:\n%s", table.String())
	}
}

// A letter that Unicode has since version 16 is none for a name, whatever Go says.
func TestFileNameWithAnotherUnicode(t *testing.T) {
	const newer = 0xA7CB
	defer func(letters *unicode.RangeTable) { unicode.L = letters }(unicode.L)
	unicode.L = &unicode.RangeTable{R16: []unicode.Range16{{Lo: newer, Hi: newer, Stride: 1}}}
	name := FileName(string(rune(newer)))
	if !strings.HasPrefix(name, "_") {
		t.Errorf("%q", name)
	}
	if _, _, ok := ownFile(name); !ok {
		t.Errorf("Prune takes %q for no file of its own", name)
	}
	if other := string(rune(newer)) + name[1:]; other != name {
		if _, _, ok := ownFile(other); ok {
			t.Errorf("Prune takes %q for a file of its own", other)
		}
	}
}
