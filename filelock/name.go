package filelock

import (
	"crypto/sha512"
	"regexp"
	"strings"
	"unicode"
)

// FileName returns the name of the file that is locked for a resource.
//
// It is the first 27 UTF-16 code units of the resource, where all but letters
// (categories Lu, Ll, Lt, Lm, Lo), decimal digits (Nd) and the underscore became
// underscores; then 160 bits of the SHA-512 of its UTF-8 form as 32 characters
// of A–Z and 2–7; then ".lock". It is the name that Medallion.Threading gives
// the resource, and has at most 118 bytes.
//
// It never changes, neither over releases nor with Go's version: letters and
// digits are those of Unicode 15.0. Versions of .NET have those of other versions
// of Unicode. With the characters that came between them, the names differ.
func FileName(resource string) string { return baseName(resource) + lockSuffix }

const (
	lockSuffix        = ".lock"
	fenceSuffix       = ".fence"
	permitSuffix      = ".permit-" // and the permit's number
	bellSuffix        = ".permits"
	permitFenceSuffix = ".permits-fence"
	unfinishedSuffix  = "-new" // after that of a fence
)

var (
	// Of what comes before the hash, ownFile looks at the characters.
	anyFile    = regexp.MustCompile(`^([^.]{0,27}[A-Z2-7]{32})(\.lock|\.permits|\.permit-[0-9]+|(?:\.permits-|\.)fence(?:-new(?:-[0-9]+)?)?)$`)
	permitFile = regexp.MustCompile(`^\.permit-[0-9]+$`)
)

// ownFile returns the two parts of the name of a file that this package makes.
func ownFile(name string) (base, suffix string, ok bool) {
	m := anyFile.FindStringSubmatch(name)
	if m == nil || strings.ContainsFunc(m[1], func(r rune) bool { return !isKept(r) }) {
		return "", "", false
	}
	return m[1], m[2], true
}

func baseName(resource string) string {
	const units = 27
	var b strings.Builder
	n := 0
	for _, r := range resource {
		if r > 0xFFFF { // two units, neither of them a letter
			b.WriteString("__"[:min(2, units-n)])
			n += 2
		} else {
			if !isKept(r) {
				r = '_'
			}
			b.WriteRune(r)
			n++
		}
		if n >= units {
			break
		}
	}
	sum := sha512.Sum512([]byte(resource))
	return b.String() + encode(sum[:20])
}

// isKept reports whether the character stays in a file's name.
func isKept(r rune) bool { return unicode.Is(kept, r) }

// encode returns the bits of b, least significant first, in characters of five
// bits each. RFC 4648 takes them in another order.
func encode(b []byte) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	out := make([]byte, 0, len(b)*8/5)
	var bits, n uint
	for _, c := range b {
		bits |= uint(c) << n
		for n += 8; n >= 5; n -= 5 {
			out = append(out, alphabet[bits&31])
			bits >>= 5
		}
	}
	return string(out)
}
