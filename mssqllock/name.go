package mssqllock

import (
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf16"
)

// maxName is how many UTF-16 code units a lock's name may have: what is longer
// sp_getapplock cuts off, without a word.
// https://learn.microsoft.com/sql/relational-databases/system-stored-procedures/sp-getapplock-transact-sql
const maxName = 255

// ownStart begins the names of this package's own locks, and of resources that
// could else be taken for one of those, or for another resource. What follows is
// of one of these kinds, and a slash.
const (
	ownStart   = "distlock/"
	ownPermit  = ownStart + "p" // and the permit's number
	ownGate    = ownStart + "wait/"
	ownMark    = ownStart + "session/" // package dbsession's
	ownRenamed = ownStart + "name/"
)

var (
	ownName = regexp.MustCompile("^(" + ownPermit + "[0-9]+/|" + ownGate + "|" + ownMark + "|" + ownRenamed + ")")

	// hashed is the end of what the name of a long resource may be.
	hashed = regexp.MustCompile("[A-Za-z0-9+/]{86}==$")
)

// LockName returns the name that a resource has in sp_getapplock: the resource
// itself if it is not longer than 255 UTF-16 code units, else the beginning of it
// and its SHA-512 in Base64. The .NET library Medallion.Threading gives the same
// names.
//
// Distinct resources have distinct names. For that, these are named
// distlock/name/ and half of their SHA-512 in hexadecimal: resources that begin
// like the names of this package's own locks (distlock/p0/ with any number,
// distlock/wait/, distlock/session/ and distlock/name/), those that could be the
// name of a longer one (254 or 255 units, of which the last 88 look like a
// SHA-512 in Base64), and those with a NUL, where a name may end for somebody on
// the way.
func LockName(resource string) string {
	units := 0
	for _, r := range resource {
		units += utf16.RuneLen(r)
	}
	switch {
	case strings.HasPrefix(resource, ownStart) && ownName.MatchString(resource),
		(units == maxName || units == maxName-1) && hashed.MatchString(resource),
		strings.Contains(resource, "\x00"):
		return ownRenamed + halfHash(resource)
	case units <= maxName:
		return resource
	}
	end, left := 0, maxName-base64.StdEncoding.EncodedLen(sha512.Size)
	for i, r := range resource {
		if left -= utf16.RuneLen(r); left < 0 {
			end = i
			break
		}
	}
	sum := sha512.Sum512([]byte(resource))
	return resource[:end] + base64.StdEncoding.EncodeToString(sum[:])
}

// halfHash returns half of the resource's SHA-512.
func halfHash(resource string) string {
	sum := sha512.Sum512([]byte(resource))
	return hex.EncodeToString(sum[:sha512.Size/2])
}

// names are those of the locks that one resource is made of.
type names struct {
	resource string
	lock     string // exclusive, shared, upgradeable
}

func namesOf(resource string) names { return names{resource: resource, lock: LockName(resource)} }

// permits returns how to name the permits of the semaphore.
func (n names) permits() func(i int) string {
	end := n.permitsEnd()
	return func(i int) string { return permitName(i, end) }
}

// permitsEnd returns what the names of all permits of the semaphore end with.
func (n names) permitsEnd() string { return "/" + halfHash(n.resource) }

func permitName(i int, end string) string { return ownPermit + strconv.Itoa(i) + end }

// gate returns the name of what the one holds who waits for a permit.
func (n names) gate() string { return ownGate + halfHash(n.resource) }
