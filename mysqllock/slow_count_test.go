//go:build unix

package mysqllock

import (
	"context"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
)

// Who has to wait for his token keeps nobody else waiting.
func TestSlowCountKeepsNobodyElse(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		const table = "slow_fences"
		ddl, err := FenceTableDDL("app." + table)
		if err != nil {
			t.Fatal(err)
		}
		s.exec(t, ddl)
		l, _ := s.locker(t, s.addr, &Options{FenceTable: table})
		mustAcquire(t, l, "slow").Release()
		mustAcquire(t, l, "quick").Release()
		tx, err := s.admin.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		if _, err := tx.Exec("UPDATE app."+table+" SET token = token + 1 WHERE name = CAST(? AS BINARY)", "slow"); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if k, err := l.Acquire(context.Background(), "slow", distlock.Timeout(10*time.Second)); err == nil {
				k.Release()
			}
		}()
		eventually(t, 5*time.Second, "the count waits", func() bool {
			return s.number(t, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = ? AND INFO LIKE 'INSERT INTO%"+table+"%'", s.user) > 0
		})
		var worst time.Duration
		for range 5 {
			start := time.Now()
			k, err := l.Acquire(t.Context(), "quick", distlock.Timeout(400*time.Millisecond))
			worst = max(worst, time.Since(start))
			if err != nil {
				t.Error(err)
				continue
			}
			k.Release()
		}
		t.Log(worst)
		tx.Rollback()
		<-done
	})
}
