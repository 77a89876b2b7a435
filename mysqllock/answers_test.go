//go:build unix

package mysqllock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/dbsession"
)

// late returns a Locker that didn't wait for the answer to a release of the
// lock, which came after it had given up.
func late(t *testing.T, s *testServer, name string, o ...distlock.AcquireOption) *distlock.Locker {
	t.Helper()
	p := newProxy(t, s.addr)
	l := distlock.New(New(s.pool(t, p.Addr()), &Options{Heartbeat: calm}), &distlock.Options{ReleaseTimeout: 200 * time.Millisecond})
	t.Cleanup(func() { l.Close() })
	keep := mustAcquire(t, l, name+"/other") // or the connection would be closed as idle
	t.Cleanup(func() { keep.Release() })
	k := mustAcquire(t, l, name, o...)
	p.Set(true, false)
	if err := k.Release(); err == nil {
		t.Fatal("released, though nothing was answered")
	}
	time.Sleep(time.Second) // Release is tried again for 200 ms
	p.Set(false, false)
	return l
}

func TestP10_LateReleaseLeavesNoPhantomReader(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		l := late(t, s, t.Name(), distlock.Shared())
		other, _ := s.locker(t, s.addr, nil)
		r := mustAcquire(t, l, t.Name(), distlock.Shared())
		if _, err := other.TryAcquire(t.Context(), t.Name()); !errors.Is(err, distlock.ErrNotAcquired) {
			t.Errorf("a writer beside a reader: %v", err)
		}
		if err := r.Release(); errors.Is(err, distlock.ErrLost) { // the machine may be too slow for its timeout
			t.Error(err)
		}
		mustAcquire(t, other, t.Name()).Release()
	})
}

func TestP10_LateReleaseFreesTheNameInTheProcessToo(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		l := late(t, s, t.Name())
		mustAcquire(t, l, t.Name()).Release()
	})
}

// Somebody has a transaction open on a row of the fence table.
func TestLockedFenceHarmsNoOtherLock(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		l, _ := s.locker(t, s.addr, &Options{FenceTable: "fences", CreateFenceTable: true, Heartbeat: 5 * time.Second})
		mustAcquire(t, l, t.Name()).Release()
		innocent := mustAcquire(t, l, t.Name()+"/other")
		tx, err := s.pool(t, s.addr).Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		if _, err := tx.Exec("UPDATE fences SET owner = '' WHERE name = ?", LockName(t.Name())); err != nil {
			t.Fatal(err)
		}
		// Which comes first, the server's answer or the end of the time, depends on how
		// fast all is.
		if _, err := l.TryAcquire(context.Background(), t.Name()); err == nil || errors.Is(err, distlock.ErrNotAcquired) || errors.Is(err, distlock.ErrLost) {
			t.Errorf("acquired: %v", err)
		}
		if err := innocent.Err(); err != nil {
			t.Errorf("another lock was lost: %v", err)
		}
		tx.Rollback()
		mustAcquire(t, l, t.Name()).Release()
	})
}

func TestHoldersWhoseContextEndsMeanwhile(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		other, _ := s.locker(t, s.addr, nil)
		defer mustAcquire(t, other, t.Name()).Release()
		b := New(s.pool(t, s.addr), nil)
		defer b.Close()
		for i := range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(100+i*10)*time.Microsecond)
			b.Holders(ctx, t.Name(), driver.Exclusive)
			cancel()
		}
	})
}

// The driver can't tell an answer that is at the end of its buffer from one that
// is at its end.
func TestRenewalSparesOpenRows(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		conn, err := s.pool(t, s.addr).Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		b := OnConn(conn)
		if _, err := b.Acquire(t.Context(), driver.Request{Resource: t.Name()}); err != nil {
			t.Fatal(err)
		}
		rows, err := conn.QueryContext(t.Context(), "SELECT REPEAT('x', 4093) FROM information_schema.COLUMNS LIMIT 100")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		n := 0
		for ; rows.Next(); n++ {
			if err := b.session.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := rows.Err(); err != nil || n != 100 {
			t.Errorf("%d rows, %v", n, err)
		}
	})
}

// Whoever asks again and again waits at the server as soon as there is room.
func TestWaiterMovesToTheServer(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		l, _ := s.locker(t, s.addr, &Options{MaxSessions: 2})
		other, _ := s.locker(t, s.addr, nil)
		first := mustAcquire(t, l, t.Name()+"/0")
		theirs := mustAcquire(t, other, t.Name()+"/1")
		got := make(chan *distlock.Lock)
		wait := func(name string) {
			go func() {
				k, err := l.Acquire(context.Background(), name, distlock.Timeout(5*time.Minute))
				if err != nil {
					t.Error(err)
				}
				got <- k
			}()
		}
		wait(t.Name() + "/1")
		eventually(t, "it waits at the server", func() bool { return len(s.waiters(t, t.Name()+"/1")) == 1 })
		theirs.Release()
		second := <-got
		theirs = mustAcquire(t, other, t.Name()+"/2")
		wait(t.Name() + "/2") // both connections hold something
		first.Release()
		second.Release()
		eventually(t, "it waits at the server, when there is room", func() bool { return len(s.waiters(t, t.Name()+"/2")) == 1 })
		theirs.Release()
		(<-got).Release()
	})
}

// All connections have been killed, and nobody has noticed yet.
func TestKilledSessionsAreNoMatterForNewLocks(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		b := New(s.pool(t, s.addr), &Options{Heartbeat: calm})
		l := distlock.New(b, nil)
		defer l.Close()
		sessions := make(map[int64]bool)
		for i := 0; i < 10_000 && (i < 400 || len(sessions) < 2); i++ { // a connection takes its time
			g, err := b.Acquire(t.Context(), driver.Request{Resource: fmt.Sprint(t.Name(), i)})
			if err != nil {
				t.Fatal(err)
			}
			sessions[int64(s.number(t, "SELECT IS_USED_LOCK(?)", g.Hold.(*dbsession.Holding).Key))] = true
		}
		if len(sessions) < 2 {
			t.Fatalf("all locks on %d connections", len(sessions))
		}
		g, err := b.Acquire(t.Context(), driver.Request{Resource: t.Name(), Mode: driver.Shared})
		if err != nil {
			t.Fatal(err)
		}
		sessions[int64(s.number(t, "SELECT IS_USED_LOCK(?)", g.Hold.(*sharedHold).Key))] = true
		for id := range sessions {
			s.exec(t, fmt.Sprintf("KILL %d", id))
		}
		k, err := l.TryAcquire(context.Background(), t.Name())
		if err != nil {
			t.Fatal(err)
		}
		if err := k.Release(); err != nil {
			t.Error(err)
		}
		eventually(t, "what hung on them is forgotten", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return len(b.sharing)+len(b.shares) == 0
		})
	})
}

func TestP26_HalfOfAPasswordIsNotQuoted(t *testing.T) {
	for _, u := range []string{"mysql://root:1234?s3cret@127.0.0.1/db", "mysql://root:s3cret/x@127.0.0.1/db"} {
		_, err := distlock.Open(t.Context(), u, nil)
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("error %v", err)
		}
	}
}

// slowThenSilent takes its time to take a lock, and says nothing about its token.
type slowThenSilent struct {
	*dialect
	takes time.Duration
	on    atomic.Bool
}

func (d *slowThenSilent) Run(ctx context.Context, c *dbsession.Conn, steps []*dbsession.Step) error {
	switch v := steps[len(steps)-1].Verb; {
	case !d.on.Load():
	case v == doGetLock || v == doGetIfAll:
		time.Sleep(d.takes)
	case v == doCount || v == doCountOwn:
		<-ctx.Done()
		return ctx.Err()
	}
	return d.dialect.Run(ctx, c, steps)
}

// The promise of Info.AnswersWithin is about all that a try takes.
func TestP08_SilentFence(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		const heartbeat = 2 * time.Second
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for _, takes := range []time.Duration{0, heartbeat * 2 / 3} {
			for _, ctx := range []context.Context{context.Background(), ctx} {
				b := New(s.pool(t, s.addr), &Options{Heartbeat: heartbeat, FenceTable: "fences", CreateFenceTable: true})
				d := &slowThenSilent{dialect: b.dialect, takes: takes}
				b.pool = dbsession.New(b.db, d, dbsession.Options{
					MaxSessions: 2, Heartbeat: heartbeat, IdleTimeout: heartbeat, Dropped: b.dropped,
				})
				defer b.Close()
				name := fmt.Sprint(t.Name(), takes, ctx)
				if _, err := b.Acquire(ctx, driver.Request{Resource: name + "/other"}); err != nil {
					t.Fatal(err)
				}
				d.on.Store(true)
				start := time.Now()
				_, err := b.Acquire(ctx, driver.Request{Resource: name})
				if took := time.Since(start); took > heartbeat*3/2 || !errors.Is(err, dbsession.ErrSilent) {
					t.Errorf("after %v: %v", took, err)
				}
			}
		}
	})
}
