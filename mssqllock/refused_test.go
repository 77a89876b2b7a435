package mssqllock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/dbsession"
	"github.com/distlock-go/distlock/mssqllock/internal/tdstest"
)

// refusingDialect makes the server refuse what it has perhaps done.
type refusingDialect struct {
	*dialect
	before, after func(steps []*dbsession.Step) bool
}

var errRefused = mssql.Error{Number: 1204, Class: 19, Message: "cannot obtain a LOCK resource at this time"}

func (d *refusingDialect) Run(ctx context.Context, c *dbsession.Conn, steps []*dbsession.Step) error {
	if d.before != nil && d.before(steps) {
		return errRefused
	}
	err := d.dialect.Run(ctx, c, steps)
	if err == nil && d.after != nil && d.after(steps) {
		return errRefused
	}
	return err
}

func does(steps []*dbsession.Step, verb dbsession.Verb) bool {
	return slices.ContainsFunc(steps, func(s *dbsession.Step) bool { return s.Verb == verb })
}

// refusing returns a backend on one session.
func refusing(t *testing.T, s *testServer) (*Backend, *refusingDialect) {
	t.Helper()
	b := New(s.pool(t, s.addr()), &Options{Heartbeat: patience})
	d := &refusingDialect{dialect: b.dialect}
	b.pool = dbsession.New(b.db, d, dbsession.Options{
		MaxSessions: 1, Heartbeat: b.opt.Heartbeat, IdleTimeout: b.opt.IdleTimeout,
	})
	t.Cleanup(func() { b.Close() })
	return b, d
}

// What is refused is undone, and nothing beside it: not what the same session
// holds of the same name in another mode.
func TestRefusedBesideOtherMode(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	for _, c := range []struct {
		held, asked driver.Mode
		verb        dbsession.Verb
	}{
		{driver.Shared, driver.Exclusive, doGet},
		{driver.Shared, driver.Upgradeable, doUpdate},
	} {
		b, d := refusing(t, s)
		witness, _ := s.locker(t, s.addr(), nil)
		name := t.Name() + c.asked.String()
		g, err := b.Acquire(t.Context(), driver.Request{Resource: name, Mode: c.held})
		if err != nil {
			t.Fatal(err)
		}
		var refused atomic.Int64
		d.before = func(steps []*dbsession.Step) bool { return does(steps, c.verb) && refused.Add(1) == 1 }
		if _, err := b.Acquire(t.Context(), driver.Request{Resource: name, Mode: c.asked}); err == nil {
			t.Errorf("%v beside %v was granted", c.asked, c.held)
		}
		if refused.Load() == 0 {
			t.Error("nothing was refused")
		}
		if k, err := witness.TryAcquire(t.Context(), name); err == nil {
			select {
			case <-g.Session.Lost():
			default:
				t.Errorf("%v was refused: two hold the lock", c.asked)
			}
			mustRelease(t, k)
		}
		if err := g.Hold.Release(t.Context()); err != nil {
			t.Errorf("%v was refused: %v", c.asked, err)
		}
	}
}

// A session of which can't be known what it holds is ended.
func TestRefusedUndo(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	b, d := refusing(t, s)
	kept, err := b.Acquire(t.Context(), driver.Request{Resource: t.Name() + "-kept"})
	if err != nil {
		t.Fatal(err)
	}
	var gets, others atomic.Int64
	d.after = func(steps []*dbsession.Step) bool { return does(steps, doGet) && gets.Add(1) == 1 }
	d.before = func(steps []*dbsession.Step) bool {
		return !does(steps, doGet) && gets.Load() == 1 && others.Add(1) == 1
	}
	// Asked again on another session, it may be held by the one that is being ended.
	if g, err := b.Acquire(t.Context(), driver.Request{Resource: t.Name()}); err == nil {
		defer g.Hold.Release(context.Background())
	}
	eventually(t, "the session ends", func() bool {
		select {
		case <-kept.Session.Lost():
			return true
		default:
			return false
		}
	})
}

// What was granted without a token, and whose release is refused, goes with its
// session.
func TestRefusedReleaseWithoutToken(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	b, d := refusing(t, s)
	b.dialect.sequence = "[dbo].[there_is_none]"
	witness, _ := s.locker(t, s.addr(), nil)
	d.before = func(steps []*dbsession.Step) bool { return does(steps, doRelease) }
	if _, err := b.Acquire(t.Context(), driver.Request{Resource: t.Name()}); err == nil {
		t.Error("granted without a token")
	}
	eventually(t, "it is free", func() bool {
		k, err := witness.TryAcquire(t.Context(), t.Name())
		return err == nil && k.Release() == nil
	})
}

// A try that needs a second session ends, whatever the server does.
func TestTryElsewhereEnds(t *testing.T) {
	t.Parallel()
	if theServer(t).tds == nil {
		t.Skip("the server isn't the tests' own")
	}
	s := ownServer(t, tdstest.Config{})
	b := New(s.pool(t, s.addr()), &Options{Heartbeat: 5 * time.Second})
	defer b.Close()
	k, err := b.Acquire(t.Context(), driver.Request{Resource: t.Name(), Mode: driver.Upgradeable})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Hold.Release(t.Context())
	over := make(chan struct{})
	defer s.tds.OnRequest(nil)
	defer close(over)
	s.tds.OnRequest(func(_ int, sql string) tdstest.Fault {
		if strings.Contains(sql, "'Shared','Session',@p2") {
			<-over
		}
		return tdstest.Continue
	})
	done := make(chan error, 1)
	go func() {
		_, err := b.Acquire(context.Background(), driver.Request{Resource: t.Name(), Mode: driver.Shared})
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil || errors.Is(err, driver.ErrHeld) {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("it hangs")
	}
}

// What isn't held any more can't be upgraded.
func TestUpgradeOfLost(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	conn, err := s.pool(t, s.addr()).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	g, err := OnConn(conn).Acquire(t.Context(), driver.Request{Resource: t.Name(), Mode: driver.Upgradeable})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(t.Context(), "EXEC sp_releaseapplock @Resource = @p1, @LockOwner = 'Session'", t.Name()); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Hold.(driver.Upgrader).Upgrade(t.Context(), 0); !errors.Is(err, driver.ErrLost) {
		t.Errorf("%v", err)
	}
	if n := s.locks(t, t.Name()); n != 0 {
		t.Errorf("%d locks are left", n)
	}
}

// What is left of a password that wasn't encoded isn't told.
func TestPasswordBesideParameters(t *testing.T) {
	t.Parallel()
	for _, u := range []string{
		"sqlserver://user:1?s3cret=1&s3cret=2@127.0.0.1:1",
		"sqlserver://user:1?s3cret@127.0.0.1:1",
		"sqlserver://user:1#s3cret@127.0.0.1:1",
	} {
		if _, err := Open(t.Context(), u); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%v", err)
		}
	}
}

// A connection of the caller's pool is closed when no token comes.
func TestHangingToken(t *testing.T) {
	t.Parallel()
	if theServer(t).tds == nil {
		t.Skip("the server isn't the tests' own")
	}
	s := ownServer(t, tdstest.Config{})
	db := s.pool(t, s.addr())
	b := New(db, &Options{Heartbeat: time.Second, Sequence: "fences", CreateSequence: true})
	defer b.Close()
	var g driver.Grant
	eventually(t, "it is granted", func() (ok bool) { // the machine may stall for longer than a heartbeat
		var err error
		g, err = b.Acquire(t.Context(), driver.Request{Resource: t.Name() + "1"})
		return err == nil
	})
	over := make(chan struct{})
	defer s.tds.OnRequest(nil)
	defer close(over)
	s.tds.OnRequest(func(_ int, sql string) tdstest.Fault {
		switch {
		case strings.Contains(sql, "NEXT VALUE"):
			<-over
		case strings.Contains(sql, "getapplock"):
			time.Sleep(b.opt.Heartbeat * 2 / 3)
		}
		return tdstest.Continue
	})
	start := time.Now()
	if _, err := b.Acquire(context.Background(), driver.Request{Resource: t.Name()}); err == nil {
		t.Error("granted without a token")
	}
	if took := time.Since(start); took > b.opt.Heartbeat*3/2 {
		t.Errorf("it took %v", took)
	}
	<-g.Session.Lost()
	eventually(t, "it is closed", func() bool { return db.Stats().OpenConnections == 0 })
}
