package distlock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/distlock-go/distlock/driver"
)

var (
	// ErrNotAcquired reports that the time to wait is over. Either somebody else had
	// the resource, or others of this process had asked the store before, or it gave no
	// answer in that time; the text says which. A single try of a silent store is
	// another error: it has no time of its own.
	ErrNotAcquired = errors.New("not acquired")

	// ErrLost reports that a holding ended without Release: its lease ran out,
	// its connection died, an administrator broke it. Somebody else may hold the
	// resource now.
	ErrLost = driver.ErrLost

	// ErrReleased is what [Lock.Err] returns after Release.
	ErrReleased = errors.New("lock released")

	// ErrDeadlock reports that the store found this request to be part of a cycle
	// of waiting and refused it. What the caller held before, it still holds.
	ErrDeadlock = driver.ErrDeadlock

	// ErrClosed reports that the Locker was closed.
	ErrClosed = errors.New("locker closed")

	// ErrBadArgument reports an invalid argument, option or URL: an empty resource,
	// a negative timeout, an unknown URL parameter. It comes before any I/O.
	ErrBadArgument = errors.New("bad argument")
)

// Error is the error type of this package: which operation on which resource
// failed, and on what kind of backend. The cause is in Err and reachable with
// errors.Is and errors.As.
type Error struct {
	Op       string // "acquire", "upgrade", "release", "hold", "open", "inspect", "close"
	Backend  string // "file", "mysql", ...; empty if unknown
	Resource string // empty if the operation has none
	Err      error
}

// Error returns for example
//
//	distlock: acquire "inventory:42" (mysql): not acquired within 5s: held by another
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("distlock: ")
	b.WriteString(e.Op)
	if e.Resource != "" {
		fmt.Fprintf(&b, " %q", abbreviate(e.Resource))
	}
	if e.Backend != "" {
		fmt.Fprintf(&b, " (%s)", e.Backend)
	}
	b.WriteString(": ")
	b.WriteString(e.Err.Error())
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// abbreviate keeps a resource of any length from filling the log.
func abbreviate(resource string) string {
	const most = 200
	if len(resource) <= most {
		return resource
	}
	return strings.ToValidUTF8(resource[:most], "") + "…"
}

// reason is an error with a text of its own that matches others.
type reason struct {
	text string
	is   []error
}

func (r *reason) Error() string   { return r.text }
func (r *reason) Unwrap() []error { return r.is }

func badArgument(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &reason{err.Error(), []error{ErrBadArgument, err}}
}

// notAcquired is the error of a wait whose time is over.
func notAcquired(text string) error {
	return &reason{"not acquired" + text, []error{ErrNotAcquired}}
}

// ended is the error of a wait whose context ended.
func ended(ctx context.Context, contended bool) error {
	r := &reason{text: ctx.Err().Error(), is: []error{ctx.Err()}}
	if cause := context.Cause(ctx); !errors.Is(ctx.Err(), cause) {
		r.is = append(r.is, cause)
		r.text += ": " + cause.Error()
	}
	if contended {
		r.is = append(r.is, ErrNotAcquired)
		r.text = "not acquired: " + r.text + ", while held by another"
	}
	return r
}
