//go:build linux

package main

import (
	"regexp"
	"testing"
)

func TestMachine(t *testing.T) {
	line := machine()
	if !regexp.MustCompile(`^.+, \d+ cores, [1-9]\d* GiB of memory; Linux \d.+; go.+; load average before the run \d`).MatchString(line) {
		t.Error(line)
	}
}

func TestVersion(t *testing.T) {
	for release, want := range map[string]string{"6.1.0-13-amd64": "6.1.0", "6.18.44": "6.18.44", "": ""} {
		if got := version(release); got != want {
			t.Errorf("version of %q: %q, want %q", release, got, want)
		}
	}
}
