package dbsession

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"time"
)

// Options tune a [Pool].
type Options struct {
	// MaxSessions is how many connections may be in use at once.
	MaxSessions int

	// MaxWaiting is how many of them may wait for a lock; what waits beyond that
	// asks again and again, all together.
	MaxWaiting int

	// Heartbeat is the pause between two proofs that a session lives, and how
	// long a statement may take that doesn't wait.
	Heartbeat time.Duration

	// IdleTimeout is how long a session without locks is kept.
	IdleTimeout time.Duration

	// ConnectTimeout bounds the opening of a session. Zero is [ConnectTimeout].
	ConnectTimeout time.Duration

	// Connect opens a connection, and returns a function that cuts it off under
	// a statement that hangs, if there is one. Nil takes connections from DB.
	Connect func(ctx context.Context) (*sql.Conn, func(), error)

	// Dropped, if not nil, is called in a goroutine of its own when a session has
	// ended, with all that hung on it.
	Dropped func(*Session)
}

// ConnectTimeout is the default of the option of that name.
const ConnectTimeout = 10 * time.Second

// Complete puts defaults in the place of zeroes, in the options of a backend, and
// says what can't be.
func Complete(maxSessions, maxWaiting *int, heartbeat, idleTimeout *time.Duration) error {
	if *maxSessions == 0 {
		*maxSessions = 8
	}
	if *maxWaiting == 0 {
		*maxWaiting = *maxSessions / 2
	}
	*maxWaiting = max(*maxWaiting, 0)
	if *heartbeat == 0 {
		*heartbeat = 5 * time.Second
	}
	if *idleTimeout == 0 {
		*idleTimeout = 2 * *heartbeat
	}
	switch {
	case *maxSessions < 0:
		return fmt.Errorf("negative Options.MaxSessions: %d", *maxSessions)
	case *heartbeat < 100*time.Millisecond || *heartbeat > 10*time.Minute:
		return fmt.Errorf("Options.Heartbeat of %v: between 100ms and 10m", *heartbeat)
	case *idleTimeout < 0:
		return fmt.Errorf("negative Options.IdleTimeout: %v", *idleTimeout)
	}
	return nil
}

// ParseDuration reads a URL's parameter.
func ParseDuration(v string, to *time.Duration) error {
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		return fmt.Errorf("must be a positive duration, like 5s or 500ms")
	}
	*to = d
	return nil
}

// ParseNumber reads a URL's parameter, which isn't 0.
func ParseNumber(v string, least int, to *int) error {
	n, err := strconv.Atoi(v)
	switch {
	case (err != nil || n < least || n == 0) && least < 0:
		return fmt.Errorf("must be a number, at least %d, and not 0", least)
	case err != nil || n < least:
		return fmt.Errorf("must be a number, at least %d", least)
	}
	*to = n
	return nil
}

// ParseBool reads a URL's parameter.
func ParseBool(v string, to *bool) error {
	b, err := strconv.ParseBool(v)
	if err != nil {
		return fmt.Errorf("must be true or false")
	}
	*to = b
	return nil
}
