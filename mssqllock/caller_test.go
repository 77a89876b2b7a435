package mssqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/mssqllock/internal/tdstest"
)

func testConn(t *testing.T, db *sql.DB) *sql.Conn {
	t.Helper()
	c, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func begin(t *testing.T, c interface {
	BeginTx(ctx context.Context, o *sql.TxOptions) (*sql.Tx, error)
},
) *sql.Tx {
	t.Helper()
	tx, err := c.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	return tx
}

func spid(t *testing.T, q interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
},
) int {
	t.Helper()
	var id int
	if err := q.QueryRowContext(t.Context(), "SELECT @@SPID").Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

func TestOnConn(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	db := s.pool(t, s.addr())
	conn := func() (*sql.Conn, *distlock.Locker) {
		c := testConn(t, db)
		l := distlock.New(OnConn(c), nil)
		t.Cleanup(func() { l.Close() })
		return c, l
	}
	c, l := conn()
	_, other := conn()
	normal, _ := s.locker(t, s.addr(), nil)
	name := t.Name()
	// The lock outlives transactions, however they end.
	for _, end := range []func(*sql.Tx) error{(*sql.Tx).Commit, (*sql.Tx).Rollback} {
		tx := begin(t, c)
		k := mustAcquire(t, l, name)
		for _, o := range []*distlock.Locker{l, other, normal} {
			mustBeHeld(t, o, name)
		}
		if err := end(tx); err != nil {
			t.Fatal(err)
		}
		mustBeHeld(t, normal, name)
		mustRelease(t, k)
		mustRelease(t, mustAcquire(t, normal, name))
	}
	// All kinds but semaphores.
	if _, err := l.Acquire(t.Context(), name, distlock.Semaphore(1)); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	reader := mustAcquire(t, other, name, distlock.Shared())
	k := mustAcquire(t, l, name, distlock.Upgradeable())
	if err := k.Upgrade(t.Context(), distlock.Timeout(50*time.Millisecond)); !errors.Is(err, distlock.ErrNotAcquired) {
		t.Errorf("upgraded beside a reader: %v", err)
	}
	mustBeHeld(t, normal, name, distlock.Upgradeable())
	mustRelease(t, reader)
	if err := k.Upgrade(t.Context()); err != nil {
		t.Error(err)
	}
	mustBeHeld(t, normal, name, distlock.Shared())
	mustRelease(t, k)
	mustRelease(t, mustAcquire(t, normal, name))

	// What the caller holds by himself is neither granted again nor freed.
	if _, err := c.ExecContext(t.Context(), "sp_getapplock", sql.Named("Resource", name), sql.Named("LockMode", "Exclusive"), sql.Named("LockOwner", "Session")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := l.Acquire(ctx, name); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("what is held already: %v", err)
	}
	mustBeHeld(t, normal, name)
	if _, err := c.ExecContext(t.Context(), "sp_releaseapplock", sql.Named("Resource", name), sql.Named("LockOwner", "Session")); err != nil {
		t.Error(err)
	}
	mustRelease(t, mustAcquire(t, normal, name))

	// Close releases what is left, on a connection that stays good.
	mustAcquire(t, l, name)
	mustAcquire(t, l, name+"-2", distlock.Shared())
	l.Close()
	mustRelease(t, mustAcquire(t, normal, name))
	mustRelease(t, mustAcquire(t, normal, name+"-2"))
	spid(t, c)
}

// What is closed sends nothing more on the caller's connection.
func TestOnConnClosed(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	c := testConn(t, s.pool(t, s.addr()))
	b := OnConn(c)
	request := driver.Request{Resource: t.Name(), Mode: driver.Upgradeable}
	g, err := b.Acquire(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	// The caller has it by himself now, and keeps it.
	if _, err := c.ExecContext(t.Context(), "EXEC sp_getapplock @p1, 'Update', 'Session'", t.Name()); err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func() error{
		"acquire": func() error {
			_, err := b.Acquire(t.Context(), driver.Request{Resource: t.Name() + "-2"})
			return err
		},
		"upgrade": func() error {
			_, err := g.Hold.(driver.Upgrader).Upgrade(t.Context(), 0)
			return err
		},
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), "closed") || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrLost) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := g.Hold.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	var mode, other string
	if err := c.QueryRowContext(t.Context(), "SELECT APPLOCK_MODE('public', @p1, 'Session'), APPLOCK_MODE('public', @p1 + '-2', 'Session')", t.Name()).Scan(&mode, &other); err != nil || mode != "Update" || other != "NoLock" {
		t.Error(mode, other, err)
	}
}

// The loss of the caller's connection shows with his next statement, and a closed
// one can't be locked on.
func TestOnConnLoss(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	db := s.pool(t, s.addr())
	c := testConn(t, db)
	l := distlock.New(OnConn(c), nil)
	defer l.Close()
	normal, _ := s.locker(t, s.addr(), nil)
	k := mustAcquire(t, l, t.Name())
	s.exec(t, fmt.Sprintf("KILL %d", spid(t, c)))
	mustRelease(t, mustAcquire(t, normal, t.Name()))
	if _, err := c.ExecContext(t.Context(), "SELECT 1"); err == nil {
		t.Error("the connection lives on")
	}
	select {
	case <-k.Done():
	case <-time.After(patience):
		t.Error("no loss was announced")
	}
	if err := k.Release(); !errors.Is(err, distlock.ErrLost) {
		t.Errorf("%v", err)
	}

	c2 := testConn(t, db)
	l2 := distlock.New(OnConn(c2), nil)
	defer l2.Close()
	k = mustAcquire(t, l2, t.Name())
	s.exec(t, fmt.Sprintf("KILL %d", spid(t, c2)))
	if err := k.Release(); !errors.Is(err, distlock.ErrLost) {
		t.Errorf("released on a dead connection: %v", err)
	}
	c3 := testConn(t, db)
	c3.Close()
	l3 := distlock.New(OnConn(c3), nil)
	defer l3.Close()
	if k, err := l3.TryAcquire(t.Context(), t.Name()); err == nil || errors.Is(err, distlock.ErrNotAcquired) {
		t.Errorf("on a closed connection: %v, %v", k, err)
	}
}

func TestInTx(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	p := newProxy(t, s.addr())
	db := s.pool(t, p.Addr())
	db.SetMaxIdleConns(-1)
	normal, _ := s.locker(t, s.addr(), nil)
	// It ends with the transaction, however that ends.
	for how, end := range map[string]func(*sql.Tx){
		"commit":   func(tx *sql.Tx) { tx.Commit() },
		"rollback": func(tx *sql.Tx) { tx.Rollback() },
		"cut":      func(*sql.Tx) { p.Cut() },
		"kill":     func(tx *sql.Tx) { s.exec(t, fmt.Sprintf("KILL %d", spid(t, tx))) },
	} {
		c := testConn(t, db)
		tx := begin(t, c)
		if err := InTx(t.Context(), tx, t.Name()); err != nil {
			t.Fatal(err)
		}
		mustBeHeld(t, normal, t.Name())
		if err := InTx(t.Context(), tx, t.Name()+"-2", distlock.Shared()); err != nil {
			t.Fatal(err)
		}
		mustBeHeld(t, normal, t.Name()+"-2")
		mustRelease(t, mustAcquire(t, normal, t.Name()+"-2", distlock.Shared()))
		// Granted again, which changes nothing.
		if err := InTx(t.Context(), tx, t.Name(), distlock.Timeout(0)); err != nil {
			t.Fatal(err)
		}
		end(tx)
		for _, name := range []string{t.Name(), t.Name() + "-2"} {
			k, err := normal.Acquire(t.Context(), name, distlock.Timeout(patience))
			if err != nil {
				t.Fatalf("%s: %v", how, err)
			}
			mustRelease(t, k)
		}
		tx.Rollback() // of one that has ended: it frees the connection
		c.Close()
	}
	tx := begin(t, db)
	for _, opts := range [][]distlock.AcquireOption{{distlock.Semaphore(2)}, {distlock.Shared(), distlock.Upgradeable()}, {distlock.Timeout(-1)}} {
		if err := InTx(t.Context(), tx, t.Name(), opts...); err == nil || errors.Is(err, distlock.ErrNotAcquired) {
			t.Errorf("%v: %v", opts, err)
		}
	}
	if err := InTx(t.Context(), tx, ""); !errors.Is(err, distlock.ErrBadArgument) {
		t.Error(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := InTx(t.Context(), tx, t.Name()); !errors.Is(err, sql.ErrTxDone) {
		t.Errorf("after the commit: %v", err)
	}
	// A connection that goes back to the pool takes no lock along.
	mustRelease(t, mustAcquire(t, normal, t.Name()))
	if n := s.locks(t, t.Name()); n != 0 {
		t.Errorf("%d locks are left", n)
	}
}

// Upgrades inside a transaction.
func TestInTxUpgrade(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	db := s.pool(t, s.addr())
	tx, reader := begin(t, db), begin(t, db)
	if err := InTx(t.Context(), tx, t.Name(), distlock.Upgradeable()); err != nil {
		t.Fatal(err)
	}
	if err := InTx(t.Context(), reader, t.Name(), distlock.Shared()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	upgraded := make(chan error)
	go func() { upgraded <- patientInTx(ctx, tx, t.Name()) }()
	eventually(t, "the upgrade waits", func() bool { return s.waiters(t, t.Name()) == 1 })
	cancel()
	if err := <-upgraded; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	// It keeps what it had, and the transaction goes on.
	var mode string
	if err := tx.QueryRowContext(t.Context(), "SELECT APPLOCK_MODE('public', @p1, 'Transaction')", t.Name()).Scan(&mode); err != nil || mode != "Update" {
		t.Fatal(mode, err)
	}
	go func() { upgraded <- InTx(t.Context(), tx, t.Name()) }()
	eventually(t, "the upgrade waits", func() bool { return s.waiters(t, t.Name()) == 1 })
	if err := reader.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-upgraded; err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

// A wait ends in time, is canceled, and hits neither the transaction nor what it
// has; what it was granted at the last moment is given back.
func TestInTxWaits(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	db := s.pool(t, s.addr())
	normal, _ := s.locker(t, s.addr(), nil)
	held := mustAcquire(t, normal, t.Name())
	tx := begin(t, db)
	if err := InTx(t.Context(), tx, t.Name()+"-own"); err != nil {
		t.Fatal(err)
	}
	if err := InTx(t.Context(), tx, t.Name(), distlock.Timeout(0)); !errors.Is(err, distlock.ErrNotAcquired) {
		t.Error(err)
	}
	if err := InTx(t.Context(), tx, t.Name(), distlock.Timeout(30*time.Millisecond)); !errors.Is(err, distlock.ErrNotAcquired) {
		t.Error(err)
	}
	for n, wait := 0, 30*time.Millisecond; n < 5; n++ {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		err := patientInTx(ctx, tx, t.Name())
		cancel()
		switch {
		case !errors.Is(err, context.DeadlineExceeded):
			t.Error(err)
		case errors.Is(err, distlock.ErrNotAcquired):
		case wait > patience:
			t.Fatalf("that it is held isn't said after %v: %v", wait, err)
		default: // the time was over before the first answer
			wait *= 2
			n--
		}
	}
	mustBeHeld(t, normal, t.Name()+"-own")
	// A cancel at the moment of the grant.
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		waited := make(chan error)
		go func() { waited <- patientInTx(ctx, tx, t.Name()) }()
		eventually(t, "it waits", func() bool { return s.waiters(t, t.Name()) == 1 })
		both := make(chan struct{})
		go func() {
			defer close(both)
			cancel()
		}()
		mustRelease(t, held)
		<-both
		if err := <-waited; err == nil {
			mustBeHeld(t, normal, t.Name())
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
			tx = begin(t, db)
			if err := InTx(t.Context(), tx, t.Name()+"-own"); err != nil {
				t.Fatal(err)
			}
		} else if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		held = mustAcquire(t, normal, t.Name())
	}
	mustBeHeld(t, normal, t.Name()+"-own")
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	mustRelease(t, held)
}

// What is canceled when the server has just granted it is given back where the
// transaction didn't have it before, and said to be there where that isn't known.
func TestInTxCanceledTooLate(t *testing.T) {
	t.Parallel()
	if theServer(t).tds == nil {
		t.Skip("only the test server can be held up at that moment")
	}
	const first, second = 1, 2
	for _, c := range []struct {
		name     string
		question int  // that is canceled
		late     bool // and answered only after the attention
		before   string
		want     string // the mode afterwards
		said     bool
	}{
		{"first, answered", first, false, "", "NoLock", false},
		{"first, not answered", first, true, "", "Exclusive", true},
		{"first, not answered, had before", first, true, "Shared", "Exclusive", true},
		{"second, answered", second, false, "", "NoLock", false},
		{"second, not answered", second, true, "", "NoLock", false},
		{"second, not answered, had before", second, true, "Shared", "Exclusive", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := ownServer(t, tdstest.Config{})
			normal, _ := s.locker(t, s.addr(), nil)
			tx := begin(t, s.pool(t, s.addr()))
			if c.before != "" {
				if err := InTx(t.Context(), tx, t.Name(), distlock.Shared()); err != nil {
					t.Fatal(err)
				}
			}
			var other *distlock.Lock
			if c.question == second {
				other = mustAcquire(t, normal, t.Name(), distlock.Shared())
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			questions := 0
			s.tds.OnReply(func(_ int, sql string, canceled <-chan struct{}) {
				if sql != takeInTx.text {
					return
				}
				if questions++; questions != c.question {
					return
				}
				cancel()
				if c.late {
					<-canceled
				}
			})
			defer s.tds.OnReply(nil)
			b := &txBackend{tx: tx, answer: time.Minute, patience: 2 * time.Minute}
			if c.late {
				b.answer = 10 * time.Millisecond
			}
			ended := make(chan error)
			go func() { ended <- b.lock(ctx, t.Name(), nil) }()
			if other != nil {
				eventually(t, "it waits", func() bool { return s.waiters(t, t.Name()) == 1 })
				mustRelease(t, other)
			}
			err := <-ended
			if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "the transaction holds the lock in mode Exclusive") != c.said {
				t.Errorf("%v", err)
			}
			var mode string
			if err := tx.QueryRowContext(t.Context(), "SELECT APPLOCK_MODE('public', @p1, 'Transaction')", t.Name()).Scan(&mode); err != nil || mode != c.want {
				t.Errorf("mode %q, %v, want %q", mode, err, c.want)
			}
			if err := tx.Commit(); err != nil {
				t.Error(err)
			}
			mustRelease(t, mustAcquire(t, normal, t.Name()))
		})
	}
}

// A rollback to a savepoint releases what was locked after it, and leaves what was
// upgraded as it is.
func TestInTxSavepoint(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	tx := begin(t, s.pool(t, s.addr()))
	normal, _ := s.locker(t, s.addr(), nil)
	lock := func(name string, opts ...distlock.AcquireOption) {
		t.Helper()
		if err := InTx(t.Context(), tx, t.Name()+name, opts...); err != nil {
			t.Fatal(err)
		}
	}
	do := func(query string) {
		t.Helper()
		if _, err := tx.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	lock("before")
	lock("upgraded", distlock.Shared())
	do("SAVE TRANSACTION s")
	lock("after")
	lock("before")
	lock("upgraded")
	do("ROLLBACK TRANSACTION s")
	mustRelease(t, mustAcquire(t, normal, t.Name()+"after"))
	mustBeHeld(t, normal, t.Name()+"before", distlock.Shared())
	mustBeHeld(t, normal, t.Name()+"upgraded", distlock.Shared())
	lock("after")
	mustBeHeld(t, normal, t.Name()+"after")
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"before", "upgraded", "after"} {
		mustRelease(t, mustAcquire(t, normal, t.Name()+name))
	}
}

// Two transactions in a circle: one is told, and goes on; the other gets the lock
// when that has ended.
func TestDeadlock(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	db := s.pool(t, s.addr())
	for _, upgrade := range []bool{false, true} {
		one, two := begin(t, db), begin(t, db)
		first, second := t.Name()+"1", t.Name()+"2"
		var opts []distlock.AcquireOption
		if upgrade {
			second, opts = first, []distlock.AcquireOption{distlock.Shared()}
		}
		for tx, name := range map[*sql.Tx]string{one: first, two: second} {
			if err := InTx(t.Context(), tx, name, opts...); err != nil {
				t.Fatal(err)
			}
		}
		type result struct {
			tx  *sql.Tx
			err error
		}
		got := make(chan result, 2)
		go func() { got <- result{one, InTx(t.Context(), one, second)} }()
		go func() { got <- result{two, InTx(t.Context(), two, first)} }()
		r := <-got
		if !errors.Is(r.err, distlock.ErrDeadlock) || errors.Is(r.err, distlock.ErrNotAcquired) {
			t.Errorf("%v", r.err)
		}
		if spid(t, r.tx) == 0 {
			t.Error("the transaction is gone")
		}
		if err := r.tx.Rollback(); err != nil {
			t.Error(err)
		}
		if r = <-got; r.err != nil {
			t.Error(r.err)
		}
		if err := r.tx.Commit(); err != nil {
			t.Error(err)
		}
	}
}

// Each lock alone is one call of the procedure.
func TestStatements(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	if s.tds == nil {
		t.Skip("only the test server tells what it is asked")
	}
	s = ownServerWithLog(t)
	l, _ := s.locker(t, s.addr(), nil)
	mustRelease(t, mustAcquire(t, l, "warm-up"))
	before := s.log.len()
	k := mustAcquire(t, l, "a")
	mustRelease(t, k)
	if got := strings.Join(s.log.since(before), "\n"); got != "EXEC sp_getapplock\nEXEC sp_releaseapplock" {
		t.Errorf("a lock was:\n%s", got)
	}
}
