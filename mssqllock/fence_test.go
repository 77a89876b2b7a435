package mssqllock

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/distlock-go/distlock/mssqllock/internal/tdstest"
)

// Tokens that are wanted at the same moment are asked for in one trip, and each
// is another one.
func TestP08_TokensAreCountedTogether(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	requests, asked := 0, func() int { return 0 }
	if s.tds != nil {
		s = ownServer(t, tdstest.Config{})
		var mu sync.Mutex
		s.tds.OnRequest(func(_ int, sql string) tdstest.Fault {
			if strings.Contains(sql, "NEXT VALUE") {
				mu.Lock()
				defer mu.Unlock()
				requests++
			}
			return tdstest.Continue
		})
		asked = func() int { mu.Lock(); defer mu.Unlock(); return requests }
	}
	l, _ := s.locker(t, s.addr(), &Options{Sequence: "together", CreateSequence: true})
	mustRelease(t, mustAcquire(t, l, t.Name())) // makes the sequence
	const names, rounds = 40, 20
	var mu sync.Mutex
	seen := make(map[uint64]string)
	var all sync.WaitGroup
	for i := range names {
		all.Go(func() {
			name, last := fmt.Sprint(t.Name(), i), uint64(0)
			for range rounds {
				k, err := l.Acquire(t.Context(), name)
				if err != nil {
					t.Error(err)
					return
				}
				token, _ := k.Token()
				if token <= last {
					t.Errorf("%s: token %d after %d", name, token, last)
				}
				last = token
				mu.Lock()
				if other := seen[token]; other != "" {
					t.Errorf("%s and %s: token %d", name, other, token)
				}
				seen[token] = name
				mu.Unlock()
				mustRelease(t, k)
			}
		})
	}
	all.Wait()
	if n := asked(); n >= names*rounds/2 {
		t.Errorf("%d statements for %d tokens", n, names*rounds)
	}
}
