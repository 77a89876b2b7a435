//go:build unix

package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

// A connection of the caller's pool may come with whatever was done on it before.
func TestConnectionsThatWereUsedBefore(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		s.exec(t, "CREATE TABLE IF NOT EXISTS app.used (x INT)")
		table := "used_fences"
		ddl, err := FenceTableDDL("app." + table)
		if err != nil {
			t.Fatal(err)
		}
		s.exec(t, ddl)
		for what, queries := range map[string][]string{
			"transaction":   {"START TRANSACTION", "INSERT INTO used VALUES (1)"},
			"read only now": {"START TRANSACTION READ ONLY"},
			"no autocommit": {"SET autocommit=0", "INSERT INTO used VALUES (1)"},
			"latin1":        {"SET NAMES latin1"},
			"sql mode":      {"SET SESSION sql_mode='ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,STRICT_ALL_TABLES,NO_UNSIGNED_SUBTRACTION'"},
			"collation":     {"SET NAMES utf8mb4 COLLATE utf8mb4_bin"},
			"isolation":     {"SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE"},
			"user lock":     {"SELECT GET_LOCK('somebody', 0)"},
		} {
			t.Run(what, func(t *testing.T) {
				db := s.pool(t, s.addr)
				c, err := db.Conn(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, q := range queries {
					if _, err := c.ExecContext(t.Context(), q); err != nil {
						t.Fatal(q, err)
					}
				}
				c.Close()
				db.SetMaxIdleConns(1)
				o := &Options{FenceTable: table, Heartbeat: calm}
				l := distlock.New(New(db, o), &distlock.Options{HandoffCount: -1})
				defer l.Close()
				other := distlock.New(New(s.pool(t, s.addr), o), &distlock.Options{HandoffCount: -1})
				defer other.Close()
				name := t.Name()
				var last uint64
				for i, l := range []*distlock.Locker{l, other, l, other} {
					k, err := l.Acquire(t.Context(), name, distlock.Timeout(calm/2))
					if err != nil {
						t.Fatalf("%d: %v", i, err)
					}
					token, _ := k.Token()
					if token <= last {
						t.Errorf("%d: token %d after %d", i, token, last)
					}
					last = token
					if err := k.Release(); err != nil {
						t.Fatal(err)
					}
				}
				k := mustAcquire(t, l, name+"-r", distlock.Shared())
				if _, err := other.TryAcquire(t.Context(), name+"-r"); !errors.Is(err, distlock.ErrNotAcquired) {
					t.Errorf("writer beside reader: %v", err)
				}
				k.Release()
				mustAcquire(t, other, name+"-r").Release()
			})
		}
	})
}

// A session that ends between the grant and the count of its token is as one that
// ended before the grant: another is asked.
func TestSessionEndsBeforeItsTokenIsCounted(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		table := "late_fences"
		ddl, _ := FenceTableDDL("app." + table)
		s.exec(t, ddl)
		l, _ := s.locker(t, s.addr, &Options{FenceTable: table})
		name := "late"
		mustAcquire(t, l, name).Release()
		tx, err := s.admin.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		if _, err := tx.Exec("UPDATE app."+table+" SET token = token + 1 WHERE name = CAST(? AS BINARY)", name); err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() {
			k, err := l.Acquire(context.Background(), name, distlock.Timeout(calm))
			if err == nil {
				err = k.Release()
			}
			got <- err
		}()
		var id int
		eventually(t, "the count waits", func() bool {
			var n sql.NullInt64
			err := s.admin.QueryRow("SELECT ID FROM information_schema.PROCESSLIST WHERE USER = ? AND COMMAND IN ('Execute','Query') AND INFO LIKE 'INSERT INTO%"+table+"%'", s.user).Scan(&n)
			id = int(n.Int64)
			return err == nil && id > 0
		})
		s.exec(t, fmt.Sprintf("KILL CONNECTION %d", id))
		tx.Rollback()
		if err := <-got; err != nil {
			t.Errorf("%v (lost: %v)", err, errors.Is(err, distlock.ErrLost))
		}
	})
}

// All names are locks of their own.
func TestOddNames(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		a, _ := s.locker(t, s.addr, nil)
		b, _ := s.locker(t, s.addr, nil)
		names := []string{"it's", `"`, "`", `\`, `\'`, "?", "a?b", "%", "a\nb", "a\rb", "a\x00b", "a\x00", "\x00", "a", "a ", " a", "a\t", "ä", "a\u0308", "Ä", "A", "😀", "a😀", "__", "_", "İ", "i̇", "ß", "ẞ", "ss", "ı", "\u2028", "\ufeff", "\ufffd", "distlock/reading/0", "distlock/never"}
		for _, mode := range [][]distlock.AcquireOption{nil, {distlock.Shared()}, {distlock.Semaphore(1)}} {
			var held []*distlock.Lock
			for _, n := range names {
				k, err := a.TryAcquire(t.Context(), n, mode...)
				if err != nil {
					t.Errorf("%q: %v", n, err)
					continue
				}
				held = append(held, k)
				other := mode
				if len(mode) > 0 && mode[0] == distlock.Shared() {
					other = nil
				}
				if k, err := b.TryAcquire(t.Context(), n, other...); !errors.Is(err, distlock.ErrNotAcquired) {
					t.Errorf("%q: %v", n, err)
					if err == nil {
						k.Release()
					}
				}
			}
			for _, k := range held {
				if err := k.Release(); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// A storm in which sessions are killed: tokens rise, nothing stays behind, and all
// calls come back in time.
func TestKillsUnderLoad(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		s.alone.Lock()
		defer s.alone.Unlock()
		s.quiet(t)
		var lockers []*distlock.Locker
		var dbs []*sql.DB
		for i := range 4 {
			db := s.pool(t, s.addr)
			switch i {
			case 0:
				db.SetMaxOpenConns(1)
				db.SetConnMaxLifetime(10 * time.Millisecond)
			case 1:
				db.SetMaxOpenConns(2)
				db.SetConnMaxIdleTime(5 * time.Millisecond)
			}
			dbs = append(dbs, db)
			lockers = append(lockers, distlock.New(New(db, &Options{Heartbeat: 500 * time.Millisecond, FenceTable: "kills", CreateFenceTable: true}), &distlock.Options{HandoffCount: -1}))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		var all sync.WaitGroup
		var last [3]atomic.Uint64
		var grants, notAcquired, lost atomic.Int64
		odd := make(map[string]int)
		var mu sync.Mutex
		for _, l := range lockers {
			for range 6 {
				all.Go(func() {
					for ctx.Err() == nil {
						n := rand.IntN(len(last))
						name := fmt.Sprint("kills-", n)
						var opts []distlock.AcquireOption
						switch rand.IntN(4) {
						case 0:
							opts = append(opts, distlock.Shared())
						case 1:
							name += "-free" + fmt.Sprint(rand.IntN(100))
							n = -1
						}
						c, stop := context.Background(), context.CancelFunc(func() {})
						most := 700 * time.Millisecond
						switch rand.IntN(3) {
						case 0:
							opts = append(opts, distlock.Timeout(700*time.Millisecond))
						case 1:
							opts = append(opts, distlock.Timeout(0))
							most = 5 * time.Second
						default:
							c, stop = context.WithTimeout(ctx, 700*time.Millisecond)
						}
						var before uint64
						if n >= 0 {
							before = last[n].Load()
						}
						start := time.Now()
						k, err := l.Acquire(c, name, opts...)
						took := time.Since(start)
						stop()
						if took > most+30*time.Second {
							t.Errorf("took %v: %v", took, err)
						}
						if err != nil {
							switch {
							case errors.Is(err, distlock.ErrNotAcquired):
								notAcquired.Add(1)
							case errors.Is(err, context.DeadlineExceeded):
							default:
								mu.Lock()
								odd[err.Error()]++
								mu.Unlock()
							}
							continue
						}
						grants.Add(1)
						token, ok := k.Token()
						if !ok {
							t.Error("no token")
						}
						if n >= 0 {
							if token <= before {
								t.Errorf("token %d, though %d was granted before", token, before)
							}
							for {
								old := last[n].Load()
								if old >= token || last[n].CompareAndSwap(old, token) {
									break
								}
							}
						}
						time.Sleep(rand.N(3 * time.Millisecond))
						if err := k.Release(); errors.Is(err, distlock.ErrLost) {
							lost.Add(1)
						} else if err != nil {
							mu.Lock()
							odd["release: "+err.Error()]++
							mu.Unlock()
						}
					}
				})
			}
		}
		all.Go(func() {
			for ctx.Err() == nil {
				time.Sleep(rand.N(40 * time.Millisecond))
				var id sql.NullInt64
				_ = s.admin.QueryRow("SELECT ID FROM information_schema.PROCESSLIST WHERE USER = ? ORDER BY RAND() LIMIT 1", s.user).Scan(&id)
				if id.Int64 == 0 {
					continue
				}
				what := []string{"CONNECTION", "QUERY"}[rand.IntN(2)]
				_, _ = s.admin.Exec(fmt.Sprintf("KILL %s %d", what, id.Int64))
			}
		})
		all.Wait()
		t.Logf("%d grants, %d not acquired, %d lost", grants.Load(), notAcquired.Load(), lost.Load())
		for e, n := range odd {
			t.Logf("%5d %s", n, e)
		}
		eventually(t, "all is free", func() bool {
			for n := range last {
				for _, l := range lockers {
					k, err := l.Acquire(t.Context(), fmt.Sprint("kills-", n), distlock.Timeout(time.Second))
					if err != nil {
						t.Log(err)
						return false
					}
					k.Release()
				}
			}
			return true
		})
		for _, l := range lockers {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
		for _, db := range dbs {
			eventually(t, "no connection is in use", func() bool { return db.Stats().InUse == 0 })
			db.Close()
		}
		s.quiet(t)
	})
}

// When the reader's session is killed while a writer asks, nobody is left out, and
// a reader that lives is never overlooked.
func TestReaderDiesAsWriterComes(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		w, _ := s.locker(t, s.addr, nil)
		living, _ := s.locker(t, s.addr, nil)
		for i := range 60 {
			b := New(s.pool(t, s.addr), &Options{Heartbeat: calm})
			name := fmt.Sprint("dies-", i%3)
			g, err := b.Acquire(t.Context(), driver.Request{Resource: name, Mode: driver.Shared})
			if err != nil {
				t.Fatal(err)
			}
			var k *distlock.Lock
			if i%2 == 0 {
				k = mustAcquire(t, living, name, distlock.Shared())
			}
			killed := make(chan struct{})
			go func() {
				defer close(killed)
				s.kill(t, "CONNECTION", g)
			}()
			start := time.Now()
			if k != nil {
				for time.Since(start) < 20*time.Millisecond {
					if _, err := w.TryAcquire(t.Context(), name); err == nil {
						t.Fatal("a writer beside a reader")
					}
				}
				k.Release()
			}
			mustAcquire(t, w, name).Release()
			<-killed
			b.Close()
		}
	})
}

// More than 16 processes that read.
func TestTwentyReaders(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		s.alone.Lock()
		defer s.alone.Unlock()
		var held []*distlock.Lock
		for i := range 16 {
			l, _ := s.locker(t, s.addr, nil)
			k, err := l.Acquire(t.Context(), fmt.Sprint("twenty-", i), distlock.Shared(), distlock.Timeout(calm/2))
			if err != nil {
				t.Fatal(i, err)
			}
			held = append(held, k)
		}
		w, _ := s.locker(t, s.addr, nil)
		for i := range 16 {
			if _, err := w.TryAcquire(t.Context(), fmt.Sprint("twenty-", i)); !errors.Is(err, distlock.ErrNotAcquired) {
				t.Fatal(i, err)
			}
		}
		l, _ := s.locker(t, s.addr, nil)
		got := make(chan error, 1)
		go func() {
			k, err := l.Acquire(context.Background(), "twenty-17", distlock.Shared(), distlock.Timeout(calm))
			if err == nil {
				if _, e := w.TryAcquire(context.Background(), "twenty-17"); !errors.Is(e, distlock.ErrNotAcquired) {
					err = errors.New("a writer beside a reader")
				}
				k.Release()
			}
			got <- err
		}()
		select {
		case err := <-got:
			t.Fatal(err)
		case <-time.After(300 * time.Millisecond):
		}
		held[3].Release()
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		for _, k := range held {
			k.Release()
		}
	})
}

// A pool whose connections have a short readTimeout can wait for longer than that.
func TestWaitsBeyondReadTimeout(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		holder, _ := s.locker(t, s.addr, nil)
		held := mustAcquire(t, holder, t.Name())
		cfg, err := mysql.ParseDSN(s.dsn(s.addr))
		if err != nil {
			t.Fatal(err)
		}
		cfg.ReadTimeout = 3 * time.Second // in which any other statement is answered
		connector, err := mysql.NewConnector(cfg)
		if err != nil {
			t.Fatal(err)
		}
		db := sql.OpenDB(connector)
		defer db.Close()
		l := distlock.New(New(db, &Options{Heartbeat: calm}), nil)
		defer l.Close()
		done := make(chan error, 1)
		go func() {
			k, err := l.Acquire(context.Background(), t.Name(), distlock.Timeout(5*time.Minute))
			if err == nil {
				err = k.Release()
			}
			done <- err
		}()
		seen := make(map[int]bool)
		eventually(t, "it waits again, on another connection", func() bool {
			select {
			case err := <-done:
				t.Fatal(err)
			default:
			}
			for _, w := range s.waiters(t, t.Name()) {
				seen[w.id] = true
			}
			return len(seen) > 1
		})
		held.Release()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
