package drivertest_test

import (
	"testing"

	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/drivertest"
	"github.com/distlock-go/distlock/locallock"
)

// An in-process store has nothing that could be lost, muted or restarted: what
// Open returns are handles on one store.
func ExampleRun() {
	testConformance := func(t *testing.T) {
		store := locallock.New()
		drivertest.Run(t, drivertest.Harness{
			Open:   func(testing.TB) driver.Backend { return store.Share() },
			Tokens: true,
			Omit: map[string]string{
				"Sever":     "a holding can't be lost",
				"Mute":      "there is no network in between",
				"Restart":   "the store is this process",
				"Process":   "the store is this process",
				"Resources": "there is nothing but memory to leave behind",
			},
		})
	}
	_ = testConformance // go test calls it
}
