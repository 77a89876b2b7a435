package locallock_test

import (
	"testing"

	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/drivertest"
	"github.com/distlock-go/distlock/locallock"
)

func TestConformance(t *testing.T) {
	store := locallock.New()
	drivertest.Run(t, drivertest.Harness{
		Open:   func(testing.TB) driver.Backend { return store.Share() },
		Tokens: true,
		Omit: map[string]string{
			"Sever":     "a lock can't be lost",
			"Mute":      "nothing is between the caller and the store",
			"Restart":   "the store lives as long as the process",
			"Process":   "the store is in one process",
			"Resources": "memory is all that a lock takes",
		},
	})
}
