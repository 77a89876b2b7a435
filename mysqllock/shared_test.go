//go:build unix

package mysqllock

import (
	"strings"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
)

// executed is how many prepared statements the server has executed.
func (s *testServer) executed(t testing.TB) (n int) {
	t.Helper()
	var name string
	if err := s.admin.QueryRow("SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'").Scan(&name, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// A single try of a reader looks again: who had the lock may have been a reader
// on its way.
func TestSharedTryLooksAgain(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		name := strings.ToLower(t.Name())
		p := newProxy(t, s.addr)
		l, _ := s.locker(t, p.Addr(), &Options{Heartbeat: time.Minute}) // nothing else is sent meanwhile
		defer mustAcquire(t, l, name+"/other", distlock.Shared()).Release()
		onItsWay, _, _ := s.onConn(t)
		do := func(query string) {
			t.Helper()
			if _, err := onItsWay.ExecContext(t.Context(), query, LockName(name)); err != nil {
				t.Fatal(err)
			}
		}
		do("DO GET_LOCK(?,0)")
		before := s.executed(t)
		p.Set(true, false) // the answer will be true no more when it comes
		got := make(chan error, 1)
		go func() {
			k, err := l.TryAcquire(t.Context(), name, distlock.Shared())
			if err == nil {
				err = k.Release()
			}
			got <- err
		}()
		eventually(t, "it is refused", func() bool { return s.executed(t) > before })
		do("DO RELEASE_LOCK(?)")
		p.Set(false, false)
		if err := <-got; err != nil {
			t.Error(err)
		}
	})
}
