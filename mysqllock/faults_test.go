//go:build unix

package mysqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/faultproxy"
)

// calm is a heartbeat for tests that are about something else: however slow the
// machine is, no lock is lost, and no answer given up, because it stalls. And what
// gets going only with a heartbeat is too late.
const calm = time.Minute

// locker returns a Locker on a new backend, with a calm heartbeat if o has none.
func (s *testServer) locker(t testing.TB, addr string, o *Options) (*distlock.Locker, *sql.DB) {
	t.Helper()
	var full Options
	if o != nil {
		full = *o
	}
	if full.Heartbeat == 0 {
		full.Heartbeat = calm
	}
	db := s.pool(t, addr)
	l := distlock.New(New(db, &full), &distlock.Options{ReleaseTimeout: calm})
	t.Cleanup(func() { l.Close() })
	return l, db
}

func mustAcquire(t testing.TB, l *distlock.Locker, resource string, opts ...distlock.AcquireOption) *distlock.Lock {
	t.Helper()
	k, err := l.Acquire(t.Context(), resource, append([]distlock.AcquireOption{distlock.Timeout(calm / 2)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// eventually waits for what comes at some time, however slow the machine.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// insist calls f until it succeeds: where the heartbeat is short, a server on a
// machine that stalls is as one that is silent.
func insist[T any](t testing.TB, f func() (T, error)) (v T) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if v, err = f(); err == nil {
			return v
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %v", err)
		}
	}
}

// quiet waits until the connections of the tests before are closed at the server.
func (s *testServer) quiet(t testing.TB) {
	t.Helper()
	if s.cmd != nil { // else it may have other users
		eventually(t, "the connections of other tests are closed", func() bool { return s.connections(t) == 0 })
	}
}

// waiting is a session that waits for a lock at the server, and with what statement.
type waiting struct {
	id    int
	query string
}

// waiters returns those that wait for the lock of the name, or for any if it is
// empty.
func (s *testServer) waiters(t testing.TB, name string) (found []waiting) {
	t.Helper()
	part := ""
	if name != "" {
		part = literal(LockName(name))
	}
	rows, err := s.admin.Query("SELECT ID, INFO FROM information_schema.PROCESSLIST WHERE USER = ? AND STATE = 'User lock' AND LOCATE(?, INFO) > 0", s.user, part)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var w waiting
		if err := rows.Scan(&w.id, &w.query); err != nil {
			t.Fatal(err)
		}
		found = append(found, w)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return found
}

// What ends the session of a waiter, or its statement, costs him nothing.
func TestKilledWaiter(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		a, _ := s.locker(t, s.addr, nil)
		b, _ := s.locker(t, s.addr, nil)
		name := t.Name()
		held := mustAcquire(t, a, name)
		got := make(chan error, 1)
		go func() {
			k, err := b.Acquire(context.Background(), name, distlock.Timeout(5*time.Minute))
			if err == nil {
				err = k.Release()
			}
			got <- err
		}()
		var killed waiting
		again := func() (now waiting) {
			eventually(t, "it waits at the server, with a new statement", func() bool {
				select {
				case err := <-got:
					t.Fatalf("the waiter ended: %v", err)
				default:
				}
				// The statement tells how much of the time is left.
				all := s.waiters(t, name)
				if len(all) == 1 {
					now = all[0]
				}
				return now != waiting{} && now != killed
			})
			return now
		}
		for _, what := range []string{"QUERY", "CONNECTION", "QUERY"} {
			killed = again()
			s.exec(t, fmt.Sprintf("KILL %s %d", what, killed.id))
		}
		again()
		if err := held.Release(); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil {
			t.Fatal(err)
		}
	})
}

// Holders are told when the server is killed, nobody holds beside another, and
// all goes on when it is back.
func TestRestartUnderLoad(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		if s.cmd == nil {
			t.Skip("the server isn't the tests' own")
		}
		s.alone.Lock()
		defer s.alone.Unlock()
		// Two that were inside at the same time, and of which neither had lost it when
		// it was released, held it both.
		type holding struct{ kept atomic.Bool }
		var mu sync.Mutex
		var inside [4]map[*holding]bool
		for n := range inside {
			inside[n] = make(map[*holding]bool)
		}
		var pairs [][2]*holding
		var grants, losses, failures atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for w := range 3 {
			l, _ := s.locker(t, s.addr, &Options{Heartbeat: 500 * time.Millisecond})
			for range 8 {
				all.Go(func() {
					for i := 0; ctx.Err() == nil; i++ {
						n := (i + w) % len(inside)
						k, err := l.Acquire(ctx, fmt.Sprint(t.Name(), n), distlock.Timeout(time.Second))
						if err != nil {
							if !errors.Is(err, distlock.ErrNotAcquired) {
								failures.Add(1)
								time.Sleep(10 * time.Millisecond)
							}
							continue
						}
						grants.Add(1)
						h := new(holding)
						mu.Lock()
						for other := range inside[n] {
							pairs = append(pairs, [2]*holding{h, other})
						}
						inside[n][h] = true
						mu.Unlock()
						time.Sleep(time.Millisecond)
						mu.Lock()
						delete(inside[n], h)
						mu.Unlock()
						err = k.Release()
						h.kept.Store(err == nil)
						if errors.Is(err, distlock.ErrLost) {
							losses.Add(1)
						}
					}
				})
			}
		}
		eventually(t, "grants", func() bool { return grants.Load() > 100 })
		s.restart(t, syscall.SIGKILL)
		before := grants.Load()
		eventually(t, "grants after the restart", func() bool { return grants.Load() > before+100 })
		cancel()
		all.Wait()
		for _, p := range pairs {
			if p[0].kept.Load() && p[1].kept.Load() {
				t.Error("two held one lock")
			}
		}
		t.Logf("%d grants, %d losses, %d failed acquires", grants.Load(), losses.Load(), failures.Load())
	})
}

// Short timeouts of the server end neither idle holders nor long waits.
func TestServerTimeouts(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		s.alone.Lock()
		defer s.alone.Unlock()
		admin, err := s.admin.Conn(t.Context()) // none that is opened meanwhile, and is left with these timeouts
		if err != nil {
			t.Fatal(err)
		}
		defer admin.Close()
		for variable, value := range map[string][2]string{
			"wait_timeout": {"1", "60"}, "max_statement_time": {"1", "0"}, "max_execution_time": {"1000", "0"}, "lock_wait_timeout": {"1", "3600"},
		} {
			if _, err := admin.ExecContext(t.Context(), "SET GLOBAL "+variable+" = "+value[0]); err == nil {
				defer func() {
					if _, err := admin.ExecContext(t.Context(), "SET GLOBAL "+variable+" = "+value[1]); err != nil {
						t.Error(err)
					}
				}()
			}
		}
		a, _ := s.locker(t, s.addr, nil)
		b, _ := s.locker(t, s.addr, nil)
		held := mustAcquire(t, a, t.Name())
		start := time.Now()
		if _, err := b.Acquire(t.Context(), t.Name(), distlock.Timeout(2500*time.Millisecond)); !errors.Is(err, distlock.ErrNotAcquired) {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 2500*time.Millisecond || took > 12500*time.Millisecond {
			t.Errorf("a wait of 2.5 s took %v", took)
		}
		if err := held.Release(); err != nil {
			t.Fatal(err)
		}
	})
}

// Other clients may have used up what the server allows of prepared statements.
func TestNoMorePreparedStatements(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		s.alone.Lock()
		defer s.alone.Unlock()
		before := s.number(t, "SELECT @@GLOBAL.max_prepared_stmt_count")
		s.exec(t, "SET GLOBAL max_prepared_stmt_count = 0")
		defer s.exec(t, fmt.Sprint("SET GLOBAL max_prepared_stmt_count = ", before))
		l, _ := s.locker(t, s.addr, &Options{FenceTable: "fences", CreateFenceTable: true})
		other, _ := s.locker(t, s.addr, nil)
		mustAcquire(t, l, t.Name()+"/first").Release() // the table is there, and a single try has time enough
		for _, name := range []string{t.Name(), t.Name() + "'?\\"} {
			for _, o := range []distlock.AcquireOption{distlock.Timeout(0), distlock.Semaphore(1)} {
				k := mustAcquire(t, l, name, o)
				if token, ok := k.Token(); !ok || token == 0 {
					t.Errorf("token %d, %t", token, ok)
				}
				if _, err := other.TryAcquire(t.Context(), name, o); !errors.Is(err, distlock.ErrNotAcquired) {
					t.Errorf("another process: %v", err)
				}
				if err := k.Release(); err != nil {
					t.Error(err)
				}
			}
			k := mustAcquire(t, l, name, distlock.Shared())
			mustAcquire(t, other, name, distlock.Shared()).Release()
			if err := k.Release(); err != nil {
				t.Error(err)
			}
		}
	})
}

// Whatever the network does, the holder is told within two heartbeats, the
// server frees the lock within three, and all goes on when it is healed.
func TestNetworkFaults(t *testing.T) {
	const heartbeat = 500 * time.Millisecond
	const slack = 7 * time.Second // with the default heartbeat it would take more still
	for name, fault := range map[string]func(p *faultproxy.Proxy){
		"hold":      func(p *faultproxy.Proxy) { p.Set(true, true) },
		"drop":      func(p *faultproxy.Proxy) { p.Set(true, false) },
		"cut":       func(p *faultproxy.Proxy) { p.Cut() },
		"half-open": func(p *faultproxy.Proxy) { p.HalfOpen() },
	} {
		t.Run(name, func(t *testing.T) {
			onServers(t, func(t *testing.T, s *testServer) {
				p := newProxy(t, s.addr)
				b := insist(t, func() (*Backend, error) {
					return Open(t.Context(), s.url(p.Addr(), "heartbeat="+heartbeat.String()))
				})
				l := distlock.New(b, nil)
				defer l.Close()
				k := insist(t, func() (*distlock.Lock, error) { return l.TryAcquire(t.Context(), t.Name()) })
				witness, _ := s.locker(t, s.addr, nil)
				busy, stop := context.WithCancel(t.Context())
				var all sync.WaitGroup
				for i := range 8 {
					all.Go(func() {
						for busy.Err() == nil {
							if k, err := l.TryAcquire(busy, fmt.Sprint(t.Name(), i)); err == nil {
								k.Release()
							}
						}
					})
				}
				time.Sleep(20 * time.Millisecond)
				start := time.Now()
				fault(p)
				select {
				case <-k.Done():
				case <-time.After(time.Minute):
					t.Fatal("no loss was announced")
				}
				if took := time.Since(start); took > 2*heartbeat+slack {
					t.Errorf("the loss was announced after %v", took)
				}
				mustAcquire(t, witness, t.Name()).Release()
				if took := time.Since(start); took > 4*heartbeat+slack {
					t.Errorf("it was free for others after %v", took)
				}
				p.Set(false, false)
				eventually(t, "it works again", func() bool {
					k, err := l.Acquire(t.Context(), t.Name(), distlock.Timeout(time.Second))
					return err == nil && k.Release() == nil
				})
				stop()
				all.Wait()
			})
		})
	}
}

// The caller of a pool of his own, who asks himself, gets an answer within a
// heartbeat when the network swallows his statement; and the connection is closed
// then, with all that is behind it, though TCP would go on.
func TestSwallowedStatement(t *testing.T) {
	const heartbeat = 500 * time.Millisecond
	const slack = 10 * time.Second // TCP would go on for many minutes
	onServers(t, func(t *testing.T, s *testServer) {
		p := newProxy(t, s.addr)
		db := s.pool(t, p.Addr())
		b := New(db, &Options{Heartbeat: heartbeat})
		defer b.Close()
		ask := func(resource string) (driver.Grant, error) {
			return b.Acquire(context.Background(), driver.Request{Resource: resource})
		}
		g := insist(t, func() (driver.Grant, error) { return ask(t.Name()) })
		p.Set(true, true)
		start := time.Now()
		if err := g.Hold.Release(context.Background()); !errors.Is(err, driver.ErrLost) {
			t.Errorf("released without an answer: %v", err)
		}
		if took := time.Since(start); took > heartbeat+slack {
			t.Errorf("Release took %v", took)
		}
		eventually(t, "the connection is closed", func() bool { return db.Stats().OpenConnections == 0 })
		p.Set(false, false)
		g = insist(t, func() (driver.Grant, error) { return ask(t.Name() + "-other") })
		p.Set(true, true)
		start = time.Now()
		if _, err := ask(t.Name()); err == nil || errors.Is(err, driver.ErrHeld) {
			t.Errorf("without an answer: %v", err)
		}
		if took := time.Since(start); took > heartbeat+slack {
			t.Errorf("Acquire took %v", took)
		}
		select {
		case <-g.Session.Lost():
		case <-time.After(time.Minute):
			t.Error("the session lives on")
		}
	})
}

// A connection of a caller's pool is one that is asked in the caller's own
// goroutine: the driver watches all that is sent.
func TestDriverGoesOnWatching(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		c, err := s.pool(t, s.addr).Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		err = c.Raw(func(dc any) error {
			if watching(dc) {
				t.Error("it watches before a query")
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			rows, err := dc.(sqldriver.QueryerContext).QueryContext(ctx, "SELECT 1", nil)
			if err != nil {
				return err
			}
			for row := make([]sqldriver.Value, 1); err == nil; {
				err = rows.Next(row)
			}
			if !errors.Is(err, io.EOF) || !watching(dc) {
				t.Errorf("it watches no more at the end of the rows, before they are closed: %v", err)
			}
			if _, err := dc.(sqldriver.Queryer).Query("SELECT 1", nil); err != nil { //nolint:staticcheck // it is what is used
				t.Error(err)
			}
			cancel()
			eventually(t, "the connection is cut", func() bool { return !dc.(sqldriver.Validator).IsValid() })
			return sqldriver.ErrBadConn
		})
		if !errors.Is(err, sqldriver.ErrBadConn) {
			t.Error(err)
		}
		for _, other := range []any{nil, 1, struct{ watching int }{1}, &struct{ watching bool }{}} {
			if watching(other) {
				t.Errorf("%#v watches", other)
			}
		}
	})
}

// A server that accepts a connection and says nothing gets no more than the time
// there is, opened or asked.
func TestP04_SilentServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // connections stay in its backlog
	const wait = 300 * time.Millisecond
	const limit = 8 * time.Second // a connection alone is waited for for longer
	within := func(what string, f func() error) {
		t.Helper()
		start := time.Now()
		if err := f(); err == nil {
			t.Errorf("%s succeeded", what)
		}
		if took := time.Since(start); took > limit {
			t.Errorf("%s took %v", what, took)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	within("Open", func() error {
		_, err := Open(ctx, "mysql://user:secret@"+l.Addr().String()+"/db")
		return err
	})
	// What the URL says is what counts, whatever the context and the heartbeat.
	canceled, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, ctx := range []context.Context{context.Background(), canceled} {
		for _, parameter := range []string{"", "&heartbeat=100ms"} {
			within("Open", func() error {
				start := time.Now()
				_, err := Open(ctx, "mysql://user:secret@"+l.Addr().String()+"/db?timeout=700ms"+parameter)
				if took := time.Since(start); took < 700*time.Millisecond || !strings.Contains(err.Error(), "did not answer in time") || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("after %v: %v", took, err)
				}
				return err
			})
		}
	}
	db, err := sql.Open("mysql", "user:secret@tcp("+l.Addr().String()+")/db")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	k := distlock.New(New(db, &Options{Heartbeat: calm}), &distlock.Options{ReleaseTimeout: wait})
	defer k.Close()
	for range 2 { // the second finds a connection on its way
		within("Acquire", func() error {
			_, err := k.Acquire(context.Background(), t.Name(), distlock.Timeout(wait))
			return err
		})
	}
}

func TestTenThousand(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		const n = 10_000
		l, db := s.locker(t, s.addr, nil)
		locks := make([]*distlock.Lock, n)
		var next atomic.Int64
		var all sync.WaitGroup
		for range 64 {
			all.Go(func() {
				for i := next.Add(1) - 1; i < n; i = next.Add(1) - 1 {
					var err error
					if locks[i], err = l.TryAcquire(t.Context(), fmt.Sprintf("%s-%d", t.Name(), i)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		if t.Failed() {
			return
		}
		if open := db.Stats().OpenConnections; open > 8 {
			t.Errorf("%d connections", open)
		}
		t.Logf("%d connections", db.Stats().OpenConnections)
		other, _ := s.locker(t, s.addr, nil)
		for i := 0; i < n; i += 997 {
			if _, err := other.TryAcquire(t.Context(), fmt.Sprintf("%s-%d", t.Name(), i)); !errors.Is(err, distlock.ErrNotAcquired) {
				t.Fatalf("lock %d: %v", i, err)
			}
		}
		for part := range 64 {
			all.Go(func() {
				for i := part; i < n; i += 64 {
					if err := locks[i].Release(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
	})
}

func TestThousandWaiters(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		const n = 1000
		a, _ := s.locker(t, s.addr, nil)
		b, db := s.locker(t, s.addr, nil)
		var held []*distlock.Lock
		for i := range n {
			held = append(held, mustAcquire(t, a, fmt.Sprintf("%s-%d", t.Name(), i)))
		}
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				k, err := b.Acquire(t.Context(), fmt.Sprintf("%s-%d", t.Name(), i), distlock.Timeout(5*time.Minute))
				if err != nil {
					t.Error(err)
					return
				}
				if err := k.Release(); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(time.Second) // most of them have come
		eventually(t, "somebody waits at the server", func() bool { return len(s.waiters(t, "")) > 0 })
		if open := db.Stats().OpenConnections; open > 8 {
			t.Errorf("%d connections", open)
		}
		for _, k := range held {
			if err := k.Release(); err != nil {
				t.Error(err)
			}
		}
		all.Wait()
	})
}

// With a pool of one connection, all of it works, and an application that asks
// for the connection gets it as soon as nothing is held.
func TestPoolOfOne(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		l, db := s.locker(t, s.addr, nil)
		db.SetMaxOpenConns(1)
		other, _ := s.locker(t, s.addr, nil)
		held := mustAcquire(t, other, t.Name())
		const wait, limit = 300 * time.Millisecond, 10 * time.Second // which is much less than a heartbeat
		start := time.Now()
		if _, err := l.Acquire(t.Context(), t.Name(), distlock.Timeout(wait)); !errors.Is(err, distlock.ErrNotAcquired) || time.Since(start) > limit {
			t.Fatalf("after %v: %v", time.Since(start), err)
		}
		time.AfterFunc(200*time.Millisecond, func() { held.Release() })
		k := mustAcquire(t, l, t.Name())
		k2 := mustAcquire(t, l, t.Name()+"-2")
		for _, k := range []*distlock.Lock{k, k2} {
			if err := k.Release(); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), calm/2)
		defer cancel()
		c, err := db.Conn(ctx)
		if err != nil {
			t.Fatalf("the application gets no connection: %v", err)
		}
		start = time.Now()
		_, err = l.Acquire(t.Context(), t.Name(), distlock.Timeout(wait))
		if err == nil || time.Since(start) > limit {
			t.Fatalf("after %v: %v", time.Since(start), err)
		}
		c.Close()
		mustAcquire(t, l, t.Name()).Release()
	})
}

// Failed, cancelled and timed-out tries leave nothing at the server.
func TestNothingLeaks(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		s.alone.Lock()
		defer s.alone.Unlock()
		s.quiet(t)
		holder, _ := s.locker(t, s.addr, &Options{Heartbeat: 10 * time.Minute}) // which is a statement more
		held := mustAcquire(t, holder, t.Name())
		connections, statements := s.connections(t), s.statements(t)
		db := s.pool(t, s.addr)
		db.SetMaxIdleConns(-1) // one that was opened too late for its waiter is given back unused
		l := distlock.New(New(db, &Options{IdleTimeout: 100 * time.Millisecond}), nil)
		var all sync.WaitGroup
		for w := range 10 {
			all.Go(func() {
				for i := range 100 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%7)*300*time.Microsecond)
					opts := []distlock.AcquireOption{distlock.Timeout(time.Duration(i%5) * time.Millisecond)}
					if i%2 == 0 {
						opts = append(opts, distlock.Shared())
					}
					if w%2 == 0 {
						ctx = t.Context()
					}
					if _, err := l.Acquire(ctx, t.Name(), opts...); err == nil {
						t.Error("granted")
					}
					cancel()
				}
			})
		}
		all.Wait()
		eventually(t, "all sessions are closed when idle", func() bool {
			return db.Stats().OpenConnections == 0 && s.connections(t) == connections && s.statements(t) == statements
		})
		mustAcquire(t, l, t.Name()+"-free").Release()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		eventually(t, "all sessions are closed after Close", func() bool {
			return db.Stats().OpenConnections == 0 && s.connections(t) == connections && s.statements(t) == statements
		})
		held.Release()
	})
}

// Connections that aren't needed any more are closed as the protocol has it: the
// server logs the others.
func TestConnectionsAreClosedInOrder(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		s.alone.Lock()
		defer s.alone.Unlock()
		aborted := func() int {
			return s.number(t, "SELECT CAST(VARIABLE_VALUE AS UNSIGNED) FROM "+s.statusTable(t)+" WHERE VARIABLE_NAME = 'Aborted_clients'")
		}
		s.quiet(t)
		connections, before := s.connections(t), aborted()
		byURL, err := distlock.Open(t.Context(), s.url(s.addr, "idle_timeout=100ms&heartbeat="+calm.String()), nil)
		if err != nil {
			t.Fatal(err)
		}
		pool, db := s.locker(t, s.addr, &Options{IdleTimeout: 100 * time.Millisecond})
		for _, l := range []*distlock.Locker{byURL, pool} {
			for _, idle := range []bool{true, false} {
				mustAcquire(t, l, t.Name()).Release()
				if !idle {
					l.Close()
				}
				eventually(t, "the connections are closed", func() bool { return s.connections(t) == connections })
			}
		}
		db.Close()
		if n := aborted() - before; n != 0 {
			t.Errorf("the server says that %d were aborted", n)
		}
	})
}

func (s *testServer) statements(t testing.TB) int {
	return s.number(t, "SELECT CAST(VARIABLE_VALUE AS UNSIGNED) FROM "+s.statusTable(t)+" WHERE VARIABLE_NAME = 'Prepared_stmt_count'")
}

func (s *testServer) statusTable(t testing.TB) string {
	var one int
	if s.admin.QueryRow("SELECT 1 FROM information_schema.GLOBAL_STATUS LIMIT 1").Scan(&one) == nil {
		return "information_schema.GLOBAL_STATUS"
	}
	return "performance_schema.global_status"
}

func TestReadersAndWriters(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		var lockers []*distlock.Locker
		for range 3 {
			l, _ := s.locker(t, s.addr, nil)
			lockers = append(lockers, l)
		}
		// Readers that overlap don't keep a writer out.
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		var reading, writing atomic.Int64
		for _, l := range lockers[:2] {
			for range 3 {
				all.Go(func() {
					for ctx.Err() == nil {
						k, err := l.Acquire(ctx, t.Name(), distlock.Shared())
						if err != nil {
							continue
						}
						reading.Add(1)
						if writing.Load() > 0 {
							t.Error("a reader beside a writer")
						}
						time.Sleep(20 * time.Millisecond)
						reading.Add(-1)
						k.Release()
					}
				})
			}
		}
		eventually(t, "readers", func() bool { return reading.Load() > 1 })
		for range 5 {
			k := mustAcquire(t, lockers[2], t.Name())
			writing.Add(1)
			if reading.Load() > 0 {
				t.Error("a writer beside readers")
			}
			time.Sleep(2 * time.Millisecond)
			writing.Add(-1)
			k.Release()
		}
		cancel()
		all.Wait()
		// A reader that dies is gone at once, and not after heartbeats.
		b := New(s.pool(t, s.addr), &Options{Heartbeat: calm})
		defer b.Close()
		g, err := b.Acquire(t.Context(), driver.Request{Resource: t.Name() + "-dead", Mode: driver.Shared})
		if err != nil {
			t.Fatal(err)
		}
		s.kill(t, "CONNECTION", g)
		eventually(t, "the writer gets in", func() bool {
			k, err := lockers[0].TryAcquire(t.Context(), t.Name()+"-dead")
			return err == nil && k.Release() == nil
		})
	})
}

func TestOnConn(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		db := s.pool(t, s.addr)
		conn := func() (*sql.Conn, *distlock.Locker) {
			c, err := db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			l := distlock.New(OnConn(c), nil)
			t.Cleanup(func() { l.Close() })
			return c, l
		}
		c, l := conn()
		_, other := conn()
		normal, _ := s.locker(t, s.addr, nil)
		name := strings.ToLower(t.Name())
		tx, err := c.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		k := mustAcquire(t, l, name)
		for _, o := range []*distlock.Locker{l, other, normal} {
			if _, err := o.TryAcquire(t.Context(), name); !errors.Is(err, distlock.ErrNotAcquired) {
				t.Errorf("twice: %v", err)
			}
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := k.Release(); err != nil {
			t.Fatal(err)
		}
		mustAcquire(t, normal, name).Release()

		// What the caller holds by himself is neither granted again nor freed.
		var one int
		if err := c.QueryRowContext(t.Context(), "SELECT GET_LOCK(?, 0)", name).Scan(&one); err != nil || one != 1 {
			t.Fatal(one, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := l.Acquire(ctx, name); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("what is held already: %v", err)
		}
		if _, err := normal.TryAcquire(t.Context(), name); !errors.Is(err, distlock.ErrNotAcquired) {
			t.Errorf("the outer holding was freed: %v", err)
		}
		if err := c.QueryRowContext(t.Context(), "SELECT RELEASE_LOCK(?)", name).Scan(&one); err != nil || one != 1 {
			t.Error(one, err)
		}
		if _, err := l.Acquire(t.Context(), name, distlock.Shared()); !errors.Is(err, errors.ErrUnsupported) {
			t.Error(err)
		}

		// Rows of the caller's that are open are left alone.
		rows, err := c.QueryContext(t.Context(), "SELECT 1 UNION SELECT 2")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		if _, err := l.TryAcquire(t.Context(), name); !errors.Is(err, errRows) {
			t.Errorf("beside open rows: %v", err)
		}
		n := 0
		for rows.Next() {
			n++
		}
		if err := rows.Err(); err != nil || n != 2 {
			t.Errorf("%d rows, %v", n, err)
		}

		// The caller's connection dies.
		k = mustAcquire(t, l, name)
		s.exec(t, fmt.Sprintf("KILL %d", s.number(t, "SELECT IS_USED_LOCK(?)", LockName(name))))
		for range 2 { // the first notices it, and the second is told by database/sql
			if _, err := c.ExecContext(t.Context(), "DO 1"); err == nil {
				t.Error("a statement on a connection that was killed")
			}
		}
		select {
		case <-k.Done():
		case <-time.After(time.Minute):
			t.Error("no loss was announced")
		}
		mustAcquire(t, normal, name).Release()
	})
}

// Locks of .NET services, which do no more than GET_LOCK, exclude and are excluded.
func TestPlainGetLock(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		l, _ := s.locker(t, s.addr, nil)
		for _, name := range []string{"plain-" + s.name, "Mixed Case " + s.name, strings.Repeat("long", 50) + s.name, "漢字" + s.name} {
			k := mustAcquire(t, l, name)
			if s.number(t, "SELECT GET_LOCK(?, 0)", LockName(name)) != 0 {
				t.Errorf("%q was granted to another", name)
			}
			k.Release()
		}
	})
}

func TestServerTellsHolder(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		a, err := distlock.Open(t.Context(), s.url(s.addr, ""), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		b, _ := s.locker(t, s.addr, nil)
		defer mustAcquire(t, a, t.Name()).Release()
		holders, err := b.Holders(t.Context(), t.Name())
		if err != nil || len(holders) != 1 {
			t.Fatal(holders, err)
		}
		o := holders[0].Owner
		if o.Host == "" || !strings.Contains(o.Note, "connection ") || !strings.Contains(o.Note, s.user) {
			t.Errorf("%+v", o)
		}
		if s.number(t, "SELECT @@performance_schema") == 0 {
			return // nobody knows more
		}
		if o.Program != filepath.Base(os.Args[0]) || o.PID != os.Getpid() {
			t.Errorf("program %q, pid %d", o.Program, o.PID)
		}
	})
}

// A balancer between that spreads connections over servers is found out.
func TestTwoServersBehindOneAddress(t *testing.T) {
	if len(servers) < 2 {
		t.Skip("there are no two servers")
	}
	for _, s := range servers {
		s.need(t)
	}
	a, b := servers[0], servers[1]
	p := newProxy(t, a.addr)
	l, _ := a.locker(t, p.Addr(), nil)
	k := mustAcquire(t, l, t.Name())
	defer k.Release()
	p.Redirect(b.addr)
	// A wait takes a connection more.
	other, _ := a.locker(t, a.addr, nil)
	held := mustAcquire(t, other, t.Name()+"-held")
	defer held.Release()
	_, err := l.Acquire(t.Context(), t.Name()+"-held", distlock.Timeout(calm/2))
	if err == nil || errors.Is(err, distlock.ErrNotAcquired) || !strings.Contains(err.Error(), "load balancer") {
		t.Errorf("%v", err)
	}
}

// A process that was stopped for longer than the server waits for it must not
// go on working when it wakes.
func TestStoppedProcess(t *testing.T) {
	if u := os.Getenv("DISTLOCK_TEST_STOPPED_URL"); u != "" {
		workWhileHeld(u, os.Getenv("DISTLOCK_TEST_STOPPED_FILE"))
	}
	onServers(t, func(t *testing.T, s *testServer) {
		file := filepath.Join(t.TempDir(), "work")
		cmd := exec.Command(os.Args[0], "-test.run=^TestStoppedProcess$")
		cmd.Env = append(os.Environ(), "DISTLOCK_TEST_STOPPED_URL="+s.url(s.addr, "heartbeat=500ms"), "DISTLOCK_TEST_STOPPED_FILE="+file)
		if _, err := cmd.StdinPipe(); err != nil { // which ends with us
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer cmd.Wait()
		defer cmd.Process.Kill()
		work := func() string {
			done, err := os.ReadFile(file)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			return string(done)
		}
		l, _ := s.locker(t, s.addr, nil)
		for stopped := false; !stopped; {
			begun := len(work())
			eventually(t, "it works", func() bool { return len(work()) > begun+10 })
			cmd.Process.Signal(syscall.SIGSTOP)
			k := mustAcquire(t, l, "stopped")
			before := work()
			// Else it had lost the lock already, as it does on a machine that stalls.
			stopped = strings.HasSuffix(before, "x")
			cmd.Process.Signal(syscall.SIGCONT)
			eventually(t, "it knows that it has lost the lock", func() bool { return strings.HasSuffix(work(), "lost\n") })
			if n := strings.Count(work()[len(before):], "x"); n > 1 {
				t.Errorf("it worked on after it had lost the lock: %d times", n)
			}
			if err := k.Release(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// workWhileHeld writes an x to the file again and again while it holds the lock,
// and that it has lost it.
func workWhileHeld(u, file string) {
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var l *distlock.Locker
	for ; ; time.Sleep(5 * time.Millisecond) { // the heartbeat may be too short for the machine
		if l == nil {
			l, _ = distlock.Open(context.Background(), u, nil)
			continue
		}
		k, err := l.Acquire(context.Background(), "stopped")
		if err != nil {
			continue
		}
		for k.Err() == nil {
			f.WriteString("x")
			time.Sleep(time.Millisecond)
		}
		f.WriteString("lost\n")
	}
}

// After Close, of the backend or of the connection, it says so, and takes nothing.
func TestOnConnAfterClose(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		c, err := s.pool(t, s.addr).Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		name := strings.ToLower(t.Name())
		r := driver.Request{Resource: name}
		b := OnConn(c)
		g, err := b.Acquire(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Acquire(t.Context(), r); !errors.Is(err, errConnClosed) || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrLost) {
			t.Errorf("after Close: %v", err)
		}
		if n := s.number(t, "SELECT IS_FREE_LOCK(?)", LockName(name)); n != 1 {
			t.Error("it is held after Close")
		}
		if err := g.Hold.Release(t.Context()); err != nil {
			t.Errorf("Release of what Close released: %v", err)
		}
		if err := b.Close(); err != nil {
			t.Errorf("Close, again: %v", err)
		}
		// The connection is the caller's still.
		again := OnConn(c)
		if g, err = again.Acquire(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if err := g.Hold.Release(t.Context()); err != nil {
			t.Error(err)
		}
		c.Close()
		for _, b := range []*ConnBackend{again, OnConn(c)} {
			if _, err := b.Acquire(t.Context(), r); !errors.Is(err, sql.ErrConnDone) || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrLost) {
				t.Errorf("on a connection that was closed: %v", err)
			}
		}
	})
}

// The mark of a process that reads goes with its last reader, though the
// connection stays: as long as there is one, writers look further.
func TestMarkGoesWithTheLastReader(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		s.alone.Lock()
		defer s.alone.Unlock()
		marks := func() int {
			n := 0
			for i := range readingSessions {
				n += 1 - s.number(t, "SELECT IS_FREE_LOCK(?)", readingName(i))
			}
			return n
		}
		eventually(t, "nobody reads", func() bool { return marks() == 0 })
		l, _ := s.locker(t, s.addr, nil)
		defer mustAcquire(t, l, t.Name()+"-other").Release()
		a := mustAcquire(t, l, t.Name(), distlock.Shared())
		b := mustAcquire(t, l, t.Name()+"-2", distlock.Shared())
		if err := a.Release(); err != nil || marks() != 1 {
			t.Errorf("%d marks with a reader: %v", marks(), err)
		}
		if err := b.Release(); err != nil || marks() != 0 {
			t.Errorf("%d marks without readers: %v", marks(), err)
		}
	})
}

// A writer that waits at the server looks for readers when it has the lock, and
// not before: they may have come meanwhile.
func TestP23_WaiterSeesReadersThatCameMeanwhile(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		s.alone.Lock() // a reader's mark makes others look, too
		defer s.alone.Unlock()
		name := strings.ToLower(t.Name())
		holder, _ := s.locker(t, s.addr, nil)
		held := mustAcquire(t, holder, name)
		waiter, _ := s.locker(t, s.addr, nil)
		got := make(chan error, 1)
		go func() {
			k, err := waiter.Acquire(context.Background(), name, distlock.Timeout(5*time.Minute))
			if err == nil {
				err = k.Release()
			}
			got <- err
		}()
		eventually(t, "it waits", func() bool { return len(s.waiters(t, name)) > 0 })
		reader := s.pool(t, s.addr)
		c, err := reader.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		slot := namesOf(name).slots(16)[7]
		for _, lock := range []string{readingName(5), slot} {
			var n int
			if err := c.QueryRowContext(t.Context(), "SELECT GET_LOCK(?, 0)", lock).Scan(&n); err != nil || n != 1 {
				t.Fatal(n, err)
			}
		}
		if err := held.Release(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it has the lock", func() bool {
			return s.number(t, "SELECT IS_FREE_LOCK(?)", name) == 0 && len(s.waiters(t, name)) == 0
		})
		select {
		case err := <-got:
			t.Fatalf("a writer beside a reader: %v", err)
		case <-time.After(200 * time.Millisecond):
		}
		c.Close()
		reader.Close()
		if err := <-got; err != nil {
			t.Error(err)
		}
	})
}

// A server that is read-only is refused at the first use of it, however it is used, and
// good again when it isn't any more.
func TestReadOnlyServerIsRefused(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		s.alone.Lock()
		defer s.alone.Unlock()
		c, _, onConn := s.onConn(t)
		pool, _ := s.locker(t, s.addr, nil)
		refused := func(what string, err error) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), "it is read-only") || errors.Is(err, distlock.ErrNotAcquired) || errors.Is(err, distlock.ErrLost) {
				t.Errorf("%s: %v", what, err)
			}
		}
		s.exec(t, "SET GLOBAL read_only = 1")
		defer s.exec(t, "SET GLOBAL read_only = 0")
		_, err := Open(t.Context(), s.url(s.addr, "heartbeat="+calm.String()))
		refused("Open", err)
		_, err = pool.Acquire(t.Context(), t.Name(), distlock.Timeout(calm/2))
		refused("New", err)
		_, err = onConn.Acquire(t.Context(), t.Name(), distlock.Timeout(calm/2))
		refused("OnConn", err)
		if err := c.PingContext(t.Context()); err != nil {
			t.Errorf("the caller's connection: %v", err)
		}
		s.exec(t, "SET GLOBAL read_only = 0")
		for _, l := range []*distlock.Locker{pool, onConn} {
			if err := mustAcquire(t, l, t.Name()).Release(); err != nil {
				t.Error(err)
			}
		}
	})
}
