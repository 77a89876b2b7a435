package distlock

import (
	"context"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/distlock-go/distlock/driver"
)

// opener makes a backend of a URL.
type opener = func(ctx context.Context, u *url.URL) (driver.Backend, error)

var (
	openersMu sync.RWMutex
	openers   = map[string]opener{}
)

// Register makes a backend known to [Open] under a URL scheme. Backends call it
// in init; a scheme that is registered twice, or a nil function, panics.
//
// The function checks all of the URL. What it can't use is an error that wraps
// [ErrBadArgument], names what can be used, and never holds a password.
func Register(scheme string, open func(ctx context.Context, u *url.URL) (driver.Backend, error)) {
	openersMu.Lock()
	defer openersMu.Unlock()
	scheme = strings.ToLower(scheme)
	if open == nil {
		panic("distlock: Register of scheme " + scheme + " with a nil function")
	}
	if openers[scheme] != nil {
		panic("distlock: Register of scheme " + scheme + " twice")
	}
	openers[scheme] = open
}

// Open returns a Locker on the store that the URL names:
//
//	local:                             in-process
//	file:///var/locks                  lock files in a directory
//	mysql://user@host:3306/db          user locks of a MySQL or MariaDB server
//	sqlserver://user@host?database=db  application locks of a SQL Server
//	azblob://container                 leases on blobs in Azure Storage
//
// The scheme picks the backend, whose package must be linked in:
//
//	import _ "github.com/distlock-go/distlock/filelock"
//
// ctx bounds the opening only. A URL that can't be used, or options that the
// backend can't do, are errors that match [ErrBadArgument]; a store that can't
// be reached or refuses is the store's error.
func Open(ctx context.Context, url string, o *Options) (*Locker, error) {
	if ctx.Err() != nil {
		return nil, &Error{Op: "open", Err: ended(ctx, false)}
	}
	u, open, err := lookUp(url)
	if err != nil {
		return nil, &Error{Op: "open", Err: err}
	}
	b, err := open(ctx, u)
	if err != nil {
		return nil, &Error{Op: "open", Backend: u.Scheme, Err: err}
	}
	l := New(b, o)
	if l.bad != nil {
		return nil, errors.Join(&Error{Op: "open", Backend: l.name, Err: l.bad}, b.Close())
	}
	return l, nil
}

// lookUp finds the backend for a URL. Its errors never quote the URL: the part
// that can't be parsed may be the password.
func lookUp(raw string) (*url.URL, opener, error) {
	openersMu.RLock()
	defer openersMu.RUnlock()
	known := "no backend is linked in: import one, for example _ \"github.com/distlock-go/distlock/filelock\""
	if len(openers) > 0 {
		known = "backends linked in: " + strings.Join(slices.Sorted(maps.Keys(openers)), ", ")
	}
	if raw == "" {
		return nil, nil, badArgument("empty URL; %s", known)
	}
	u, err := url.Parse(raw)
	if err != nil {
		return nil, nil, badArgument("the URL can't be parsed: are special characters in user, password and path percent-encoded?")
	}
	if u.Scheme == "" {
		return nil, nil, badArgument("the URL has no scheme; %s", known)
	}
	open := openers[u.Scheme]
	if open == nil {
		return nil, nil, badArgument("unknown scheme %q; %s", u.Scheme, known)
	}
	return u, open, nil
}
