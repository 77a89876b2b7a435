package tdstest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/distlock-go/distlock/mssqllock/internal/tdstest"
)

// go-mssqldb drops a connection whose request ended by a deadline:
// context.DeadlineExceeded is a net.Error. It keeps one after context.Canceled,
// see TestCancel. A backend relies on both.
func TestDriverDropsAfterDeadline(t *testing.T) {
	srv := start(t, tdstest.Config{})
	db := open(t, srv, nil)
	a, b := conn(t, db), conn(t, db)
	want(t, 0)(get(ctx, a, "a", "Exclusive", "Session", 0))
	want(t, 0)(get(ctx, b, "b", "Exclusive", "Session", 0))
	for timeout := 20 * time.Millisecond; ; timeout *= 2 {
		deadline, cancel := context.WithTimeout(ctx, timeout)
		_, err := get(deadline, b, "a", "Exclusive", "Session", -1)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if err := b.PingContext(ctx); err != nil {
			break
		}
		// The time may have been over before the request was sent.
		if timeout > 10*time.Second {
			t.Fatal("the connection is kept")
		}
	}
	want(t, 0)(release(a, "a", "Session"))
	free(srv)
}

func TestCanceledUpgradeKeepsUpdate(t *testing.T) {
	srv := start(t, tdstest.Config{})
	db := open(t, srv, nil)
	a, b := conn(t, db), conn(t, db)
	want(t, 0)(get(ctx, a, "r", "Update", "Session", 0))
	want(t, 0)(get(ctx, b, "r", "Shared", "Session", 0))
	waitCtx, cancel := context.WithCancel(ctx)
	ch := later(func() (int, error) { return get(waitCtx, a, "r", "Exclusive", "Session", -1) })
	waiting(srv, 1)
	cancel()
	if r := <-ch; !errors.Is(r.err, context.Canceled) {
		t.Fatal(r)
	}
	if got := query[string](t, a, "SELECT APPLOCK_MODE('public', 'r', 'Session')"); got != "Update" {
		t.Error(got)
	}
	want(t, 0)(release(a, "r", "Session"))
	if code, err := release(a, "r", "Session"); number(err) != 1223 {
		t.Error("the cancelled request counts", code, err)
	}
}

func TestWaitForIsCanceled(t *testing.T) {
	srv := start(t, tdstest.Config{})
	c := conn(t, open(t, srv, nil))
	waitCtx, cancel := context.WithCancel(ctx)
	srv.OnStatement(func(_ int, sql string) {
		if strings.HasPrefix(sql, "WAITFOR") {
			cancel()
		}
	})
	if _, err := c.ExecContext(waitCtx, "WAITFOR DELAY '00:10:00'"); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	exec(t, c, "SELECT 1")
}

// Many locks take one round trip, and their return codes come in one row.
func TestManyLocksInOneRoundTrip(t *testing.T) {
	srv := start(t, tdstest.Config{})
	c := conn(t, open(t, srv, nil))
	const n = 200
	var batch, result strings.Builder
	var args []any
	for i := range n {
		fmt.Fprintf(&batch, "DECLARE @r%d int; EXEC @r%[1]d = sp_getapplock @Resource = @n%[1]d, @LockMode = 'Exclusive', @LockOwner = 'Session', @LockTimeout = 0;\n", i)
		fmt.Fprintf(&result, ", @r%d", i)
		args = append(args, sql.Named(fmt.Sprintf("n%d", i), fmt.Sprintf("name %d with enough text to make several packets of it", i)))
	}
	var trips atomic.Int32
	srv.OnStatement(func(int, string) { trips.Add(1) })
	codes, dest := make([]int, n), make([]any, n)
	for i := range codes {
		codes[i], dest[i] = 99, &codes[i]
	}
	if err := c.QueryRowContext(ctx, batch.String()+"SELECT "+result.String()[2:], args...).Scan(dest...); err != nil {
		t.Fatal(err)
	}
	for i, code := range codes {
		if code != 0 {
			t.Errorf("lock %d: %d", i, code)
		}
	}
	if srv.Locks() != n || trips.Load() != 1 {
		t.Error(srv.Locks(), trips.Load())
	}
}

func TestXactAbort(t *testing.T) {
	srv := start(t, tdstest.Config{})
	c := conn(t, open(t, srv, nil))
	exec(t, c, "SET XACT_ABORT ON")
	tx, err := c.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	want(t, 0)(get(ctx, tx, "r", "Exclusive", "Transaction", 0))
	if _, err := tx.ExecContext(ctx, "SELECT 1/0"); number(err) != 8134 {
		t.Error(err)
	}
	if n := srv.Locks(); n != 0 {
		t.Errorf("%d locks after the transaction was aborted", n)
	}
	var e mssql.Error
	if err := tx.Commit(); !errors.As(err, &e) {
		t.Error(err)
	}
}

func TestDatabaseProperty(t *testing.T) {
	for want, cfg := range map[string]tdstest.Config{"READ_WRITE": {}, "READ_ONLY": {ReadOnly: true}} {
		c := conn(t, open(t, start(t, cfg), nil))
		if got := query[string](t, c, "SELECT CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(60))"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if got := query[int](t, c, "SELECT CASE WHEN DATABASEPROPERTYEX('another', 'Updateability') IS NULL AND DATABASEPROPERTYEX(DB_NAME(), 'nonsense') IS NULL THEN 1 ELSE 0 END"); got != 1 {
			t.Error("what isn't known isn't NULL")
		}
	}
}

// A text that has run before is not read again, and runs as if it were.
func TestTextsRunAgain(t *testing.T) {
	c := conn(t, open(t, start(t, tdstest.Config{}), nil))
	for i := range 1200 {
		text := fmt.Sprintf("DECLARE @n int = @p1; WHILE @n < %d SET @n = @n + 1; SELECT @n", 5+i/2)
		if got := query[int](t, c, text, 3); got != 5+i/2 {
			t.Fatal(got)
		}
	}
	for range 2 {
		exec(t, c, "CREATE SEQUENCE s AS bigint START WITH 7")
		if got := query[int](t, c, "SELECT NEXT VALUE FOR s"); got != 7 {
			t.Fatal(got)
		}
		exec(t, c, "DROP SEQUENCE s")
	}
}
