package mssqllock

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/mssqllock/internal/tdstest"
)

// The session on which the first waiter of a semaphore holds the place is used
// often enough not to be cut for idleness; and if it ends all the same, he stands
// in line again.
func TestFirstWaiterKeepsItsPlace(t *testing.T) {
	t.Parallel()
	if theServer(t).tds == nil {
		t.Skip("only the test server tells what it is asked")
	}
	s := ownServer(t, tdstest.Config{})
	gate := namesOf(t.Name()).gate()
	place := func() int {
		return s.number(t, "SELECT MAX(request_session_id) FROM sys.dm_tran_locks WHERE resource_type = 'APPLICATION' AND request_status = 'GRANT' AND CHARINDEX(@p1, resource_description) = 1", shown(gate))
	}
	var mu sync.Mutex
	pings := make(map[int]int)
	s.tds.OnStatement(func(spid int, sql string) {
		if strings.HasSuffix(sql, ";SET @r1=0;SELECT @r1") {
			mu.Lock()
			defer mu.Unlock()
			pings[spid]++
		}
	})
	pinged := func(spid int) int {
		mu.Lock()
		defer mu.Unlock()
		return pings[spid]
	}

	a, _ := s.locker(t, s.addr(), nil)
	held := mustAcquire(t, a, t.Name(), distlock.Semaphore(1))
	b, _ := s.locker(t, s.addr(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	before := make(chan struct{})
	go func() {
		defer close(before)
		_, _ = b.Acquire(ctx, t.Name(), distlock.Semaphore(1))
	}()
	eventually(t, "one is the first", func() bool { return place() != 0 })
	c, _ := s.locker(t, s.addr(), &Options{Heartbeat: 300 * time.Millisecond})
	got := make(chan *distlock.Lock, 1)
	go func() {
		for {
			k, err := c.Acquire(t.Context(), t.Name(), distlock.Semaphore(1))
			if err == nil || t.Context().Err() != nil {
				got <- k
				return
			}
			t.Log(err) // a busy machine may not answer within a heartbeat
		}
	}()
	eventually(t, "another stands behind him", func() bool { return s.waiters(t, gate) == 1 })
	cancel()
	<-before
	// It has waited for the place, on a session of its own. The permit it looks for
	// over another.
	eventually(t, "that one is the first", func() bool { return place() != 0 && s.waiters(t, gate) == 0 })
	spid := 0
	first := make(map[int]int)
	eventually(t, "its session is used", func() bool {
		spid = place()
		n, ok := first[spid]
		if !ok {
			first[spid] = pinged(spid)
		}
		return ok && spid != 0 && pinged(spid) >= n+2
	})
	s.exec(t, fmt.Sprintf("KILL %d", spid))
	eventually(t, "it has the place again", func() bool { return place() != 0 })
	mustRelease(t, held)
	mustRelease(t, <-got)
}
