package mssqllock

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/mssqllock/internal/tdstest"
)

// Who waits at the server does so in one statement, and so keeps his place in its
// queue.
func TestP18_WaitersAreGrantedInTheirOrder(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	if s.tds != nil {
		s = ownServerWithLog(t)
	}
	for name, opts := range map[string][]distlock.AcquireOption{"exclusive": nil, "upgradeable": {distlock.Upgradeable()}} {
		name = t.Name() + name
		holder, _ := s.locker(t, s.addr(), nil)
		held := mustAcquire(t, holder, name)
		const waiters = 3
		order, released := make(chan int, waiters), make(chan error, waiters)
		for i := range waiters {
			l, _ := s.locker(t, s.addr(), nil)
			go func() {
				k, err := l.Acquire(t.Context(), name, opts...)
				order <- i
				if err == nil {
					err = k.Release()
				}
				released <- err
			}()
			eventually(t, "it waits at the server", func() bool { return s.waiters(t, name) == i+1 })
		}
		if s.log != nil {
			asked := s.log.len()
			time.Sleep(300 * time.Millisecond) // for what isn't to come
			if more := s.log.since(asked); len(more) > 0 {
				t.Errorf("those who wait ask: %q", more)
			}
		}
		mustRelease(t, held)
		for i := range waiters {
			if got := <-order; got != i {
				t.Errorf("%d was granted as number %d", got, i)
			}
			if err := <-released; err != nil {
				t.Error(err)
			}
		}
	}
}

// What many ask for, and give back, at the same moment goes in common batches.
func TestP20_LocksTravelTogether(t *testing.T) {
	t.Parallel()
	if theServer(t).tds == nil {
		t.Skip("only the test server tells what it is asked")
	}
	const names, rounds = 40, 20
	s := ownServer(t, tdstest.Config{})
	var mu sync.Mutex
	asked := 0
	s.tds.OnStatement(func(_ int, sql string) {
		if strings.Contains(sql, "sp_getapplock") || strings.Contains(sql, "sp_releaseapplock") {
			mu.Lock()
			defer mu.Unlock()
			asked++
		}
	})
	l, _ := s.locker(t, s.addr(), nil)
	var all sync.WaitGroup
	for i := range names {
		all.Go(func() {
			for range rounds {
				k, err := l.Acquire(t.Context(), fmt.Sprint(t.Name(), i))
				if err == nil {
					err = k.Release()
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	mu.Lock()
	defer mu.Unlock()
	if asked >= names*rounds/2 {
		t.Errorf("%d batches for %d locks and as many releases", asked, names*rounds)
	}
}
