//go:build unix

package mysqllock

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/drivertest"
	"github.com/distlock-go/distlock/internal/dbsession"
	"github.com/distlock-go/distlock/internal/faultproxy"
)

func TestDriver(t *testing.T) {
	// One server after the other: the suite has little patience.
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			s.need(t)
			s.quiet(t)
			suite(t, s, s.name != "mariadb")
		})
	}
}

// suite runs the conformance suite: with URLs, or with a pool of the caller's.
func suite(t *testing.T, s *testServer, urls bool) {
	proxies := make(map[driver.Backend]*faultproxy.Proxy)
	var mu sync.Mutex
	const parameters = "fence_table=fences&create_fence_table=true"
	h := drivertest.Harness{
		Tokens: true,
		Open: func(t testing.TB) driver.Backend {
			p := newProxy(t, s.addr)
			var b driver.Backend
			if urls {
				var err error
				b, err = Open(context.Background(), s.url(p.Addr(), parameters))
				if err != nil {
					t.Fatal(err)
				}
			} else {
				b = New(s.pool(t, p.Addr()), &Options{FenceTable: "fences", CreateFenceTable: true})
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
			s.kill(t, "", g)
		},
		Mute: func(_ testing.TB, b driver.Backend) func() {
			mu.Lock()
			defer mu.Unlock()
			p := proxies[b]
			p.Set(true, false)
			return func() { p.Set(false, false) }
		},
		Process: func(t testing.TB) []string {
			return []string{childURL + "=" + s.url(s.addr, parameters)}
		},
		Resources: func(t testing.TB) map[string]int {
			return map[string]int{"connections": s.connections(t)}
		},
		Secrets: []string{"secret"},
		Omit:    map[string]string{},
	}
	if s.password != "" { // an existing server's account may have none
		h.Secrets = append(h.Secrets, s.password)
	}
	if s.cmd != nil {
		h.Restart = func(t testing.TB) { s.restart(t, syscall.SIGTERM) }
	} else {
		h.Omit["Restart"] = "the server isn't the tests' own"
	}
	drivertest.Run(t, h)
}

// kill kills the connection that the grant hangs on, or its query.
func (s *testServer) kill(t testing.TB, what string, g driver.Grant) {
	t.Helper()
	s.exec(t, fmt.Sprintf("KILL %s %d", what, g.Session.(*dbsession.Session).Identity().ID))
}
