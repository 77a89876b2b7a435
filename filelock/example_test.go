package filelock_test

import (
	"context"
	"log"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/filelock"
)

// A directory that the services of several accounts share: they are in one
// group, which the directory belongs to.
func Example() {
	backend, err := filelock.New("/var/lib/app/locks", &filelock.Options{FileMode: 0o660})
	if err != nil {
		log.Fatal(err)
	}
	locks := distlock.New(backend, nil)
	defer locks.Close()

	lock, err := locks.Acquire(context.Background(), "report", distlock.Timeout(5*time.Second))
	if err != nil {
		log.Print(err)
		return
	}
	defer lock.Release()
}

// A job of every night that removes what wasn't used for a month.
func ExamplePrune() {
	removed, err := filelock.Prune(context.Background(), "/var/lib/app/locks", 30*24*time.Hour)
	if err != nil {
		log.Print(err)
	}
	log.Print(removed, " lock files removed")
}
