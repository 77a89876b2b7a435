//go:build unix

package mysqllock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Who waits at the server does so in one statement, however long and whatever
// limits the server sets, and so keeps his place in its queue.
func TestP18_WaitersAreGrantedInTheirOrder(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		s.alone.Lock() // waiters are counted, and the server is changed
		defer s.alone.Unlock()
		limit, value := "max_execution_time", 1000
		if s.number(t, "SELECT VERSION() LIKE '%MariaDB%'") == 1 {
			limit, value = "max_statement_time", 1
		}
		defer s.exec(t, fmt.Sprintf("SET GLOBAL %s = 0", limit))
		for _, value := range []int{0, value} {
			s.exec(t, fmt.Sprintf("SET GLOBAL %s = %d", limit, value))
			name := strings.ToLower(t.Name())
			holder, _ := s.locker(t, s.addr, nil)
			held := mustAcquire(t, holder, name)
			type grant struct {
				i   int
				err error
			}
			const waiters = 3
			order, released := make(chan grant, waiters), make(chan error, waiters)
			var sessions []string
			for i := range waiters {
				l, _ := s.locker(t, s.addr, nil)
				go func() {
					k, err := l.Acquire(context.Background(), name)
					order <- grant{i, err}
					if err == nil {
						err = k.Release()
					}
					released <- err
				}()
				eventually(t, "it waits at the server", func() bool { return len(s.waiters(t, name)) == i+1 })
				for _, w := range s.waiters(t, name) {
					if id := fmt.Sprint(w.id); !slices.Contains(sessions, id) {
						sessions = append(sessions, id)
					}
				}
			}
			eventually(t, "each has been for two seconds in the same statement", func() bool {
				return s.number(t, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID IN ("+strings.Join(sessions, ",")+")"+
					" AND STATE = 'User lock' AND TIME >= 2") == len(sessions)
			})
			if err := held.Release(); err != nil {
				t.Error(err)
			}
			for i := range waiters {
				if got := <-order; got.i != i || got.err != nil {
					t.Errorf("%d was granted as number %d: %v", got.i, i, got.err)
				}
				if err := <-released; err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// To cancel a wait costs no connection.
func TestP07_CanceledWaitKeepsItsConnection(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		l, _ := s.locker(t, s.addr, &Options{Heartbeat: calm})
		other, _ := s.locker(t, s.addr, nil)
		held := mustAcquire(t, other, t.Name())
		connections := make(map[int]bool)
		const waits = 10
		for range waits {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() {
				_, err := l.Acquire(ctx, t.Name())
				ended <- err
			}()
			eventually(t, "it waits at the server", func() bool { return len(s.waiters(t, t.Name())) == 1 })
			connections[s.waiters(t, t.Name())[0].id] = true
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("canceled: %v", err)
			}
			eventually(t, "it doesn't wait any more", func() bool { return len(s.waiters(t, t.Name())) == 0 })
		}
		if len(connections) > waits/2 { // a slow machine may be in doubt about some
			t.Errorf("%d waits on %d connections", waits, len(connections))
		}
		if err := held.Release(); err != nil {
			t.Error(err)
		}
		mustAcquire(t, other, t.Name()).Release()
	})
}
