//go:build unix

package mysqllock

import (
	"testing"

	"github.com/distlock-go/distlock/internal/faultproxy"
)

// newProxy returns a proxy to the server, for the time of the test.
func newProxy(t testing.TB, server string) *faultproxy.Proxy {
	t.Helper()
	p, err := faultproxy.New(server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}
