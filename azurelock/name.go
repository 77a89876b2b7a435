package azurelock

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
)

// reserved is the beginning of all names that are this package's own.
const reserved = "__distlock__/"

// BlobName returns the name of the blob that is leased for a resource.
//
// It is the resource itself, if that has at most 1024 UTF-16 code units, no
// more than 253 slashes, and doesn't end with a slash or dot. Else a final
// slash, and each after the 253rd, become SLASH, a final dot becomes DOT, the
// result is cut so that it fits, and the Base64 of the resource's SHA-512 is
// appended. So far it is the name that Medallion.Threading gives the
// resource, on Azurite's standard address too, where it takes 256 for the
// limit.
//
// Resources that the service, or .NET's client for it, would change or refuse
// have names with a SHA-256 below __distlock__/locks/: those with backslashes
// (the service takes them for slashes), control characters, private-use
// characters or noncharacters, with a slash at the start, with a path segment
// that ends with a dot, and those that begin with __distlock__/ themselves.
//
// The name never changes over releases.
func (b *Backend) BlobName(resource string) string { return blobName(resource, b.maxName) }

func blobName(resource string, most int) string {
	v, changed := medallionName(resource, most)
	if strings.HasPrefix(v, reserved) ||
		!changed && strings.HasPrefix(v, "/") ||
		strings.ContainsFunc(v, troublesome) ||
		slices.ContainsFunc(strings.Split(v, "/"), func(s string) bool { return strings.HasSuffix(s, ".") }) {
		return ownName("locks", resource)
	}
	return v
}

// medallionName returns Medallion.Threading's name for the resource, and
// whether it is another.
func medallionName(resource string, most int) (name string, changed bool) {
	const mostSlashes = 253
	units := utf16.Encode([]rune(resource))
	var v []uint16
	slashes := 0
	for i, u := range units {
		last := i == len(units)-1
		switch {
		case u == '/' || u == '\\':
			if slashes++; slashes > mostSlashes || last {
				v = append(v, utf16.Encode([]rune("SLASH"))...)
				changed = true
				continue
			}
		case u == '.' && last:
			v = append(v, utf16.Encode([]rune("DOT"))...)
			changed = true
			continue
		}
		v = append(v, u)
	}
	if !changed && len(v) <= most {
		return resource, false
	}
	sum := sha512.Sum512([]byte(resource))
	hash := base64.StdEncoding.EncodeToString(sum[:])
	if keep := most - len(hash); len(v) > keep {
		v = v[:keep]
	}
	return string(utf16.Decode(v)) + hash, true
}

// troublesome reports whether the character isn't safe in a blob's name. The
// classes are such as never change with Unicode's version.
func troublesome(r rune) bool {
	return r == '\\' || unicode.Is(unicode.Cc, r) || unicode.Is(unicode.Co, r) ||
		r&0xFFFE == 0xFFFE || 0xFDD0 <= r && r <= 0xFDEF
}

func permitName(resource string, i int) string {
	return fmt.Sprintf("%s/%d", permitsName(resource), i)
}

func permitsName(resource string) string { return ownName("permits", resource) }

// permitFence holds the count of permits.
func permitFence(resource string) string { return permitsName(resource) + "/fence" }

// ownName returns a name that isn't Medallion's: readable as far as that goes
// without risk, and then a hash.
func ownName(folder, resource string) string {
	const most = 40
	var hint strings.Builder
	for _, r := range resource {
		if hint.Len() == most {
			break
		}
		if r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			r = '_'
		}
		hint.WriteRune(r)
	}
	sum := sha256.Sum256([]byte(resource))
	return reserved + folder + "/" + hint.String() + "-" + hex.EncodeToString(sum[:])
}
