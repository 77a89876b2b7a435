package mssqllock

import (
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf16"
)

// maxName is how many UTF-16 code units a lock's name may have: what is longer
// sp_getapplock cuts off, without a word.
// https://learn.microsoft.com/sql/relational-databases/system-stored-procedures/sp-getapplock-transact-sql
const maxName = 255

const ownStart = "distlock/"

// LockName returns the name that a resource has in sp_getapplock: the resource
// itself if it is not longer than 255 UTF-16 code units, else the beginning of it
// and its SHA-512 in Base64. A resource with a NUL, where a name may end for
// somebody on the way, is treated as too long.
//
// The .NET library Medallion.Threading gives the same names.
func LockName(resource string) string {
	units := 0
	for _, r := range resource {
		units += utf16.RuneLen(r)
	}
	if units <= maxName && !strings.Contains(resource, "\x00") {
		return resource
	}
	sum := sha512.Sum512([]byte(resource))
	hash := base64.StdEncoding.EncodeToString(sum[:])
	var b strings.Builder
	left := maxName - len(hash)
	for _, r := range resource {
		if left -= utf16.RuneLen(r); left < 0 {
			break
		}
		if r == 0 {
			r = '_'
		}
		b.WriteRune(r)
	}
	b.WriteString(hash)
	return b.String()
}

// names are those of the locks that one resource is made of.
type names struct {
	resource string
	lock     string // exclusive, shared, upgradeable
}

func namesOf(resource string) names { return names{resource: resource, lock: LockName(resource)} }

// hash returns half of the resource's SHA-512.
func (n names) hash() string {
	sum := sha512.Sum512([]byte(n.resource))
	return hex.EncodeToString(sum[:32])
}

// permits returns how to name the permits of the semaphore.
func (n names) permits() func(i int) string {
	hash := n.hash()
	return func(i int) string { return fmt.Sprintf("%sp%d/%s", ownStart, i, hash) }
}

// gate returns the name of what the one holds who waits for a permit.
func (n names) gate() string { return ownStart + "wait/" + n.hash() }
