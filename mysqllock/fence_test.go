//go:build unix

package mysqllock

import (
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/distlock-go/distlock"
)

// inserts is how many INSERT statements the server has executed.
func (s *testServer) inserts(t *testing.T) (n int) {
	t.Helper()
	var name string
	if err := s.pool(t, s.addr).QueryRow("SHOW GLOBAL STATUS LIKE 'Com_insert'").Scan(&name, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Tokens of different names are counted in one statement, and each name is given
// its own.
func TestP08_TokensAreCountedTogether(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		const names, rounds = 40, 20
		l, db := s.locker(t, s.addr, &Options{FenceTable: "together", CreateFenceTable: true})
		mustAcquire(t, l, t.Name()).Release() // makes the table
		before := s.inserts(t)
		var last [names]uint64
		var all sync.WaitGroup
		for i := range names {
			all.Go(func() {
				for range rounds {
					k, err := l.Acquire(t.Context(), fmt.Sprint(t.Name(), i))
					if err != nil {
						t.Error(err)
						return
					}
					token, _ := k.Token()
					if token <= last[i] {
						t.Errorf("%s: token %d after %d", k.Resource(), token, last[i])
					}
					last[i] = token
					if err := k.Release(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		if n := s.inserts(t) - before; n >= names*rounds/2 {
			t.Errorf("%d statements for %d tokens", n, names*rounds)
		}
		for i, token := range last {
			// A hand-off isn't counted there; there is none, as nobody waits.
			var kept uint64
			err := db.QueryRow("SELECT token FROM together WHERE name = CAST(? AS BINARY)", LockName(fmt.Sprint(t.Name(), i))).Scan(&kept)
			if err != nil {
				t.Fatal(err)
			}
			if kept<<10 < token || kept<<10 > token+3<<10 {
				t.Errorf("%d: token %d, in the table %d", i, token>>10, kept)
			}
		}
	})
}

// If what was written can't be read, each counts by itself, and nothing is lost.
func TestUnreadableCountersCostNothing(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		// As if the rows were those of a replica that is behind: the owner in them isn't
		// the one that was written.
		s.exec(t, "CREATE TABLE app.unreadable (name VARBINARY(255) PRIMARY KEY, token BIGINT UNSIGNED NOT NULL, owner VARBINARY(10) NOT NULL, since TIMESTAMP(6))")
		defer s.exec(t, "DROP TABLE app.unreadable")
		cfg, err := mysql.ParseDSN(s.dsn(s.addr))
		if err != nil {
			t.Fatal(err)
		}
		cfg.Params = map[string]string{"sql_mode": "''"}
		connector, err := mysql.NewConnector(cfg)
		if err != nil {
			t.Fatal(err)
		}
		db := sql.OpenDB(connector)
		defer db.Close()
		l := distlock.New(New(db, &Options{FenceTable: "unreadable"}), nil)
		defer l.Close()
		held := mustAcquire(t, l, t.Name())
		before := s.inserts(t)
		var all sync.WaitGroup
		for i := range 40 {
			all.Go(func() {
				last := uint64(0)
				for range 5 {
					k, err := l.Acquire(t.Context(), fmt.Sprint(t.Name(), i))
					if err != nil {
						t.Error(err)
						return
					}
					token, _ := k.Token()
					if token <= last {
						t.Errorf("token %d after %d", token, last)
					}
					last = token
					if err := k.Release(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		if n := s.inserts(t) - before; n < 200 {
			t.Errorf("%d statements: none was by itself", n)
		}
		if err := held.Release(); err != nil {
			t.Error(err)
		}
	})
}

// A counter that somebody has locked fails for its own name only.
func TestLockedFenceHarmsNoneThatAreCountedWithIt(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		l, _ := s.locker(t, s.addr, &Options{FenceTable: "locked", CreateFenceTable: true})
		name := func(i int) string { return fmt.Sprint(t.Name(), i) }
		// All have a row: a new one may have to wait for the gap beside the locked one.
		for i := range 16 {
			mustAcquire(t, l, name(i)).Release()
		}
		tx, err := s.pool(t, s.addr).Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		if _, err := tx.Exec("UPDATE locked SET owner = '' WHERE name = CAST(? AS BINARY)", LockName(name(0))); err != nil {
			t.Fatal(err)
		}
		var granted atomic.Int64
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				k, err := l.TryAcquire(t.Context(), name(i))
				switch {
				case i == 0:
					if err == nil || errors.Is(err, distlock.ErrNotAcquired) {
						t.Errorf("the locked one: %v", err)
					}
				case err != nil:
					t.Error(err)
				default:
					granted.Add(1)
					defer k.Release()
				}
			})
		}
		all.Wait()
		if granted.Load() != 15 {
			t.Errorf("%d of 15 granted", granted.Load())
		}
	})
}
