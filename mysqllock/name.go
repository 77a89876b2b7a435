package mysqllock

import (
	"crypto/sha512"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
)

// maxName is how many UTF-16 code units the name of a lock may have. MySQL's
// limit is 64 characters, MariaDB's 192 bytes, which are 64 characters too.
const maxName = 64

const (
	hashLen    = 32
	base32     = "abcdefghijklmnopqrstuvwxyz234567"
	slotsStart = "distlock/"
)

// LockName returns the name that a resource has in GET_LOCK: the resource
// itself if it is not longer than 64 UTF-16 code units and lower case. Else the
// first 32 of them in lower case, and a hash: MySQL doesn't tell cases apart. So
// does a resource that has characters which a server can't hold. One that begins
// with "distlock/" does, too, and has "distlock_" then: no resource has the name
// of one of the locks that this package takes for itself.
//
// The .NET library Medallion.Threading gives the same names, but for the last
// rule. The names never change: lower case is that of Unicode 15.0, whichever
// version Go has.
func LockName(resource string) string {
	plain, units := !reserved(resource), 0
	for _, r := range resource {
		switch {
		case r == 0 || r > 0xFFFF || lower(r) != r:
			plain = false
		}
		units += utf16.RuneLen(r)
	}
	if plain && units <= maxName {
		return resource
	}
	var b strings.Builder
	left := maxName - hashLen
	for _, r := range resource {
		if left -= utf16.RuneLen(r); left < 0 {
			break
		}
		switch {
		case r == 0 || r > 0xFFFF || r == 0x130:
			b.WriteByte('_')
		default:
			b.WriteRune(lower(r))
		}
	}
	name := b.String()
	if reserved(name) {
		name = strings.Replace(name, "/", "_", 1)
	}
	return name + hash(resource)
}

// A lowering is a range of characters, at steps of step, whose lower case is delta
// beyond them.
type lowering struct{ first, last, step, delta rune }

// lower returns the character, of no more than U+FFFF, in lower case.
func lower(r rune) rune {
	if r <= unicode.MaxASCII {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}
	i, found := slices.BinarySearchFunc(lowerings, r, func(l lowering, r rune) int {
		if l.first <= r && r <= l.last {
			return 0
		}
		return int(l.first - r)
	})
	if found && (r-lowerings[i].first)%lowerings[i].step == 0 {
		r += lowerings[i].delta
	}
	return r
}

// reserved reports whether the name is one of the package's own, or could be.
func reserved(name string) bool { return strings.HasPrefix(name, slotsStart) }

// hash returns 160 bits of the resource's SHA-512, five to a letter, the least
// significant of each byte first.
func hash(resource string) string {
	sum := sha512.Sum512([]byte(resource))
	var out [hashLen]byte
	buffer, bits, next := uint32(0), 0, 0
	for i := range out {
		if bits < 5 {
			buffer |= uint32(sum[next]) << bits
			next++
			bits += 8
		}
		out[i] = base32[buffer&31]
		buffer >>= 5
		bits -= 5
	}
	return string(out[:])
}

// names are those of the locks that one resource is made of.
type names struct {
	resource string
	lock     string // exclusive
}

// hash returns what the names of the places and permits have of the resource.
func (n names) hash() string { return hash(n.resource) }

func namesOf(resource string) names {
	return names{resource: resource, lock: LockName(resource)}
}

// slots returns the names of the places of readers, or nil if there are none.
func (n names) slots(count int) []string {
	const width = len(slotsStart) + 5 + hashLen
	if count <= 0 {
		return nil
	}
	hash := n.hash()
	var b strings.Builder
	b.Grow(count * width)
	for i := range count {
		b.WriteString(slotsStart)
		b.WriteByte('r')
		b.WriteByte('0' + byte(i/100))
		b.WriteByte('0' + byte(i/10%10))
		b.WriteByte('0' + byte(i%10))
		b.WriteByte('/')
		b.WriteString(hash)
	}
	all := b.String()
	slots := make([]string, count)
	for i := range slots {
		slots[i] = all[i*width : (i+1)*width]
	}
	return slots
}

// permits returns how to name the permits of the semaphore.
func (n names) permits() func(i int) string {
	hash := n.hash()
	return func(i int) string { return fmt.Sprintf("%sp%d/%s", slotsStart, i, hash) }
}

// gate returns the name of what the one holds who waits for a permit.
func (n names) gate() string { return slotsStart + "wait/" + n.hash() }
