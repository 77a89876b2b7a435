package drivertest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/distlock-go/distlock/driver"
)

var names = []clause{
	{name: "P17_S35_letter_case_matters", run: distinct("order", "Order", "ORDER", "ordeR", "straße", "STRASSE", "strasse", "\u0131", "i", "I", "\u0130", "\u017f", "s", "\u212a", "K", "k", "Σ", "σ", "ς", "ä", "Ä")},
	{name: "P17_S35_blanks_matter", run: distinct("a", "a ", " a", " a ", "a  ", "a\t", "a\n", "a\r\n", "a\u00a0", "a\u200b", "\ufeffa", "a b", "a  b", "ab", " ", "  ", "\t", "\n")},
	{name: "P17_S35_separators_matter", run: distinct("a/b", "a_b", "a\\b", "a:b", "a.b", "a-b", "a b", "a|b", "a%2Fb", "a%2fb", "a%5Cb", "a+b", "a,b", "a;b", "/a/b", "a/b/", "a//b", "/", "//", "\\", "a\\\\b", "C:\\a", "\\\\host\\a")},
	{name: "P17_S35_dots_matter", run: distinct(".", "..", "...", "a.", "a", ".a", "a..", "a/.", "a/..", "a/../a", "./a", "../a", "a.lock", "a.lock.lock", "con", "CON", "nul", "aux.txt", "a~1", "~", "~a")},
	{name: "P17_S35_control_characters_matter", run: distinct("a\x00b", "ab", "a", "a\x00", "\x00", "\x00\x00", "a\x01", "a\x1b[0m", "a\x7f", "a\u0085", "a\u2028", "a\u202eb", "a\x00c")},
	{name: "P17_S35_quotes_and_wildcards_matter", run: distinct("a'b", "a''b", `a"b`, "a`b", "a%", "a_", "a*", "a?", "[a]", "{a}", "a;--", "$a", "${a}", "a$", "%s", "%%", "\\0", `\u0061`, "&amp;", "&", "a#b", "a?b=c", "@a")},
	{name: "P17_S35_emoji_matter", run: distinct("😀", "😁", "\U0001F600\ufe0f", "a😀", "😀a", "👩‍👩‍👧", "👩👩👧", "👩", "?", "??", "????", "\ufffd", "\U00010000", "\U0010ffff", "\uffff", "🇩🇪", "🇪🇩")},
	{name: "P17_S35_normal_forms_matter", run: distinct("\u00e9", "e\u0301", "e", "\u00c5", "\u212b", "A\u030a", "\ufb01", "fi", "\u0451", "\u0435\u0308", "\u2460", "1", "\u2163", "IV", "\uac00", "\u1100\u1161", "\uff41", "a", "a\u0323\u0307", "a\u0307\u0323")},
	{name: "P17_S35_long_names_differ_at_their_end", run: func(t *trial) {
		var all []string
		for _, n := range []int{62, 63, 64, 100, 127, 128, 191, 192, 254, 255, 256, 1023, 1024, 1025, 10_000} {
			long := strings.Repeat("x", n-1)
			all = append(all, long+"a", long+"b")
		}
		areDistinct(t, all)
	}},
	{name: "P17_S35_long_names_differ_at_their_start", run: func(t *trial) {
		var all []string
		for _, n := range []int{63, 64, 192, 255, 256, 1024, 10_000} {
			long := strings.Repeat("x", n-1)
			all = append(all, "a"+long, "b"+long)
		}
		areDistinct(t, all)
	}},
	{name: "P17_S35_long_names_of_wide_characters_differ", run: func(t *trial) {
		var all []string
		for _, n := range []int{16, 21, 22, 32, 43, 64, 86, 128, 256, 2_500} {
			long := strings.Repeat("漢", n-1)
			all = append(all, long+"字", long+"宇")
			long = strings.Repeat("😀", n-1)
			all = append(all, long+"😀", long+"😁")
		}
		areDistinct(t, all)
	}},
	{name: "P17_S36_a_thousand_names_are_distinct", run: func(t *trial) {
		base := t.resource()
		all := make([]string, t.many(1000))
		for i := range all {
			all[i] = fmt.Sprintf("%s%d", base, i)
		}
		areDistinct(t, all)
	}},
	{name: "P17_random_names_are_distinct", run: func(t *trial) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		known := make(map[string]bool)
		for range t.many(150) {
			s := randomName(random)
			known[s], known[twin(random, s)] = true, true
		}
		all := slices.Collect(maps.Keys(known))
		areDistinct(t, all)
	}},
	{name: "P17_name_means_the_same_to_all_backends", run: func(t *trial) {
		a, b := t.two()
		base := t.resource()
		for _, s := range []string{"a", "Ä", "a/b", "a\\b", "😀", "a\x00b", " ", strings.Repeat("x", 300), strings.Repeat("漢", 300)} {
			g := t.hold(a, base+s)
			t.held(b, base+s, "though another backend holds it")
			t.release(g)
		}
	}},
}

// distinct returns a case in which all names, under a common prefix, are held
// at once. The prefix is short, so that it doesn't make all of them long.
func distinct(names ...string) func(*trial) {
	return func(t *trial) { areDistinct(t, names) }
}

func areDistinct(t *trial, names []string) {
	t.Helper()
	b := t.open()
	prefix := fmt.Sprintf("%s%x-%x", once[:4], t.number, t.names.Add(1))
	held := make(map[string]driver.Grant)
	left := countdown(len(names), 100, t.gathering(b))
	for _, s := range names {
		if !left() {
			return
		}
		r := t.request(b, prefix+s, driver.Exclusive)
		g, err := t.try(b, r)
		switch {
		case errors.Is(err, driver.ErrHeld):
			t.Errorf("%q is the same lock as %q", s, t.aliasOf(b, prefix+s, held))
		case err != nil:
			t.Errorf("%q can't be locked: %v", s, err)
		default:
			t.keep(g)
			held[s] = g
		}
		if t.Failed() {
			return
		}
	}
}

// aliasOf finds out which of the names is the one that keeps resource from
// being granted.
func (t *trial) aliasOf(b driver.Backend, resource string, held map[string]driver.Grant) string {
	for s, g := range held {
		t.drop(g)
		t.releaseErr(g)
		if _, err := t.try(b, t.request(b, resource, driver.Exclusive)); err == nil {
			return s
		}
	}
	return "?"
}

// twin returns a name that differs from s in one bit of one character.
func twin(random *rand.Rand, s string) string {
	runes := []rune(s)
	for {
		i, r := random.IntN(len(runes)), rune(1)<<random.IntN(20)
		if r ^= runes[i]; utf8.ValidRune(r) {
			runes[i] = r
			return string(runes)
		}
	}
}

// randomName returns valid UTF-8 of any planes, and of lengths around those at
// which stores cut.
func randomName(random *rand.Rand) string {
	ranges := []struct{ first, last rune }{
		{0x01, 0x7f}, {0x20, 0x7e}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, 0x10ffff},
	}
	n := 1 + random.IntN(12)
	if random.IntN(10) == 0 {
		n += random.IntN(300)
	}
	var b strings.Builder
	for range n {
		r := ranges[random.IntN(len(ranges))]
		b.WriteRune(r.first + random.Int32N(r.last-r.first+1))
	}
	return b.String()
}
