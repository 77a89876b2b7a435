//go:build unix

package mysqllock

import (
	"errors"
	"strings"
	"testing"

	"github.com/distlock-go/distlock"
)

// A prefix is a part of the names of all locks: it keeps those who have it apart from
// those who haven't, and .NET, which has none, is excluded by the whole name.
func TestPrefix(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		name := strings.ToLower(t.Name())
		plain, _ := s.locker(t, s.addr, nil)
		byPool, _ := s.locker(t, s.addr, &Options{Prefix: "app:"})
		byURL, err := distlock.Open(t.Context(), s.url(s.addr, "prefix=app:&heartbeat="+calm.String()), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer byURL.Close()
		for _, l := range []*distlock.Locker{byPool, byURL} {
			for what, c := range map[string]struct{ held, other []distlock.AcquireOption }{
				"exclusive": {},
				"shared":    {held: []distlock.AcquireOption{distlock.Shared()}},
				"permit":    {[]distlock.AcquireOption{distlock.Semaphore(1)}, []distlock.AcquireOption{distlock.Semaphore(1)}},
			} {
				k := mustAcquire(t, l, name, c.held...)
				mustAcquire(t, plain, name, c.other...).Release()
				if _, err := plain.TryAcquire(t.Context(), "app:"+name, c.other...); !errors.Is(err, distlock.ErrNotAcquired) {
					t.Errorf("%s: the whole name: %v", what, err)
				}
				for resource, l := range map[string]*distlock.Locker{name: l, "app:" + name: plain} {
					if holders, err := l.Holders(t.Context(), resource, c.other...); err != nil || len(holders) != 1 {
						t.Errorf("%s: holders of %s: %v, %v", what, resource, holders, err)
					}
				}
				if err := k.Release(); err != nil {
					t.Error(err)
				}
			}
		}
	})
}
