package main

import (
	"context"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/locallock"
)

// It says the time that was given, whatever the resource looks like.
func TestNotAcquiredSentence(t *testing.T) {
	const resource = "a within 1ns: b"
	locks := distlock.New(locallock.New(), nil)
	defer locks.Close()
	if _, err := locks.Acquire(context.Background(), resource); err != nil {
		t.Fatal(err)
	}
	_, err := locks.Acquire(t.Context(), resource, distlock.Timeout(1))
	for _, c := range []struct {
		timeout string
		verbose bool
		want    string
	}{
		{"0.05s", false, `"a within 1ns: b" not acquired within 0.05s: held by another; to wait longer, set --timeout; to see who holds it, -v`},
		{"1m", true, `"a within 1ns: b" not acquired within 1m: held by another; to wait longer, set --timeout`},
		{"", true, `"a within 1ns: b" not acquired: held by another; to wait longer, set --timeout`},
	} {
		r := &runner{resource: resource, verbose: c.verbose}
		r.given.text = c.timeout
		r.timeout, _ = time.ParseDuration(c.timeout)
		if got := r.notAcquired(err).Error(); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}
