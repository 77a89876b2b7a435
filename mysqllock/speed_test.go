//go:build unix

package mysqllock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
)

// Readers, writers and permits of several processes that come all the time, and
// mostly without waiting, never hold beside each other.
func TestNobodyBesideAnotherAtSpeed(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		const names, permits = 3, 2
		var lockers []*distlock.Locker
		for i := range 4 {
			o := &Options{Heartbeat: 5 * time.Second} // with which who asks once makes the trip himself
			if i == 1 {
				o.MaxSessions = 2
			}
			l, db := s.locker(t, s.addr, o)
			if i == 2 {
				db.SetMaxOpenConns(1)
			}
			lockers = append(lockers, l)
		}
		var readers, writers, takers [names]atomic.Int64
		var grants [3]atomic.Int64
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		var all sync.WaitGroup
		for _, l := range lockers {
			for range 4 {
				all.Go(func() {
					for ctx.Err() == nil {
						n, kind := rand.IntN(names), rand.IntN(3)
						var opts []distlock.AcquireOption
						switch kind {
						case 1:
							opts = append(opts, distlock.Shared())
						case 2:
							opts = append(opts, distlock.Semaphore(permits))
						}
						if wait := rand.N(4 * time.Millisecond); rand.IntN(2) == 0 {
							opts = append(opts, distlock.Timeout(0))
						} else {
							opts = append(opts, distlock.Timeout(wait))
						}
						c := context.Background()
						if rand.IntN(2) == 0 {
							c = ctx
						}
						start := time.Now()
						k, err := l.Acquire(c, fmt.Sprint("speed-", n), opts...)
						if took := time.Since(start); took > 30*time.Second {
							t.Errorf("took %v: %v", took, err)
						}
						if err != nil {
							if !errors.Is(err, distlock.ErrNotAcquired) && ctx.Err() == nil {
								t.Error(err)
								return
							}
							continue
						}
						grants[kind].Add(1)
						look := func() {
							switch r, w, p := readers[n].Load(), writers[n].Load(), takers[n].Load(); {
							case kind == 0 && (r > 0 || w != 1):
								t.Errorf("a writer beside %d readers and %d writers", r, w-1)
							case kind == 1 && w > 0:
								t.Error("a reader beside a writer")
							case p > permits:
								t.Errorf("%d permits", p)
							}
						}
						count := []*atomic.Int64{&writers[n], &readers[n], &takers[n]}[kind]
						count.Add(1)
						look()
						if rand.IntN(8) == 0 {
							time.Sleep(rand.N(2 * time.Millisecond))
						}
						look()
						count.Add(-1)
						if err := k.Release(); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		all.Wait()
		t.Log(grants[0].Load(), grants[1].Load(), grants[2].Load())
	})
}
