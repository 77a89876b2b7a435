//go:build unix

package mysqllock

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
)

// The first who waits for a permit keeps his place for as long as he waits, also
// on a session that nobody else uses.
func TestGateIsKept(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		s.alone.Lock() // waiters are counted
		defer s.alone.Unlock()
		const heartbeat = 300 * time.Millisecond
		name := strings.ToLower(t.Name())
		gate := namesOf(name).gate()
		one := distlock.Semaphore(1)
		holder, _ := s.locker(t, s.addr, nil)
		defer mustAcquire(t, holder, name, one).Release()

		for try := 1; ; try++ {
			first, _ := s.locker(t, s.addr, nil)
			second, _ := s.locker(t, s.addr, &Options{Heartbeat: heartbeat})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{}, 2)
			wait := func(ctx context.Context, l *distlock.Locker) {
				go func() {
					if _, err := l.Acquire(ctx, name, one); ctx.Err() == nil {
						t.Error("it waits no more:", err)
					}
					done <- struct{}{}
				}()
			}
			// Who waited for the gate has it on the session that he waited on.
			giveUp, stop := context.WithCancel(ctx)
			wait(giveUp, first)
			eventually(t, "the first has the gate", func() bool { return !s.free(t, gate) })
			before := s.number(t, "SELECT IS_USED_LOCK(?)", gate)
			wait(ctx, second)
			eventually(t, "the second waits for it", func() bool { return len(s.waiters(t, "")) == 1 })
			stop()
			id := 0
			eventually(t, "the second has the gate", func() bool {
				id = s.number(t, "SELECT IS_USED_LOCK(?)", gate)
				return id != 0 && id != before
			})

			// The server frees what it hears nothing of for a second. A machine that
			// stands still for so long is not what is looked at.
			kept, still := true, time.Duration(0)
			last := time.Now()
			for start := last; kept && time.Since(start) < 10*heartbeat; {
				time.Sleep(5 * time.Millisecond)
				kept = s.number(t, "SELECT IS_USED_LOCK(?)", gate) == id
				still = max(still, time.Since(last))
				last = time.Now()
			}
			cancel()
			<-done
			<-done
			if kept {
				return
			}
			if still < heartbeat || try == 10 {
				t.Fatalf("the gate was lost; the longest stand-still was %v", still)
			}
		}
	})
}
