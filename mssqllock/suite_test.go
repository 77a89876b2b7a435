package mssqllock

import (
	"context"
	"sync"
	"testing"

	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/drivertest"
	"github.com/distlock-go/distlock/internal/faultproxy"
	"github.com/distlock-go/distlock/mssqllock/internal/tdstest"
)

// One after the other: the suite has little patience.
func TestDriver(t *testing.T) {
	t.Run("url", func(t *testing.T) { suite(t, true) })
	t.Run("pool", func(t *testing.T) { suite(t, false) })
}

// suite runs the conformance suite: with URLs, or with a pool of the caller's.
func suite(t *testing.T, urls bool) {
	s := theServer(t)
	if s.tds != nil {
		s = ownServer(t, tdstest.Config{}) // it counts connections, and restarts it
	}
	proxies := make(map[driver.Backend]*faultproxy.Proxy)
	var mu sync.Mutex
	const parameters = "sequence=fences&create_sequence=true"
	h := drivertest.Harness{
		Tokens: true,
		Open: func(t testing.TB) driver.Backend {
			p := newProxy(t, s.addr())
			var b driver.Backend
			if urls {
				var err error
				b, err = Open(context.Background(), s.url(p.Addr(), parameters))
				if err != nil {
					t.Fatal(err)
				}
			} else {
				b = New(s.pool(t, p.Addr()), &Options{Sequence: "fences", CreateSequence: true})
				// Cases have little patience with the first connection.
				if _, err := b.(driver.Inspector).Holders(context.Background(), "warm-up", driver.Exclusive); err != nil {
					t.Fatal(err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			proxies[b] = p
			return b
		},
		Sever: func(t testing.TB, _ driver.Backend, _ driver.Request, g driver.Grant) {
			s.kill(t, g)
		},
		Mute: func(_ testing.TB, b driver.Backend) func() {
			mu.Lock()
			defer mu.Unlock()
			p := proxies[b]
			p.Set(true, false)
			return func() { p.Set(false, false) }
		},
		Process: func(t testing.TB) []string {
			return []string{childURL + "=" + s.url(s.addr(), parameters)}
		},
		Resources: func(t testing.TB) map[string]int {
			return map[string]int{"connections": s.connections(t)}
		},
		Secrets: []string{s.password, "secret"},
		Omit:    map[string]string{},
	}
	if s.tds != nil {
		h.Restart = func(t testing.TB) {
			if err := s.restart(); err != nil {
				t.Fatal(err)
			}
		}
	} else {
		h.Omit["Restart"] = "the server isn't the tests' own"
	}
	drivertest.Run(t, h)
}
