package azurelock

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
)

// Leases of 15 s are kept for two minutes while all processors are busy.
func TestLeasesAreKeptUnderLoad(t *testing.T) {
	if os.Getenv(longEnv) == "" {
		t.Skip("it takes two minutes; " + longEnv + "=1 runs it")
	}
	e := azurite(t)
	c := e.container(t)
	var failed, lost atomic.Int64
	l := locker(t, New(c, nil), distlock.Options{TTL: minTTL, Trace: &distlock.Trace{
		RenewalFailed: func(e distlock.Event) { failed.Add(1); t.Logf("with %v left: %v", e.Duration, e.Err) },
		Lost:          func(distlock.Event) { lost.Add(1) },
	}})
	var locks []*distlock.Lock
	for i := range 20 {
		lock, err := l.Acquire(t.Context(), fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		locks = append(locks, lock)
	}
	stop := make(chan struct{})
	var load sync.WaitGroup
	for range 4 * runtime.GOMAXPROCS(0) {
		load.Go(func() {
			garbage := make([][]byte, 1000)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					garbage[i%len(garbage)] = make([]byte, 10_000)
				}
			}
		})
	}
	witness := New(c, nil)
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Second) {
		for i := range locks {
			if free(t, witness, fmt.Sprint(i)) {
				t.Errorf("%d is free", i)
			}
		}
	}
	close(stop)
	load.Wait()
	for i, lock := range locks {
		if err := lock.Release(); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	t.Logf("%d renewals failed, %d locks were lost", failed.Load(), lost.Load())
	if lost.Load() > 0 {
		t.Error("lost")
	}
}
