//go:build race

package main

import "os"

func init() {
	buildFlags = append(buildFlags, "-race")
	// Else the race detector waits a second when a program ends.
	os.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0")
}
