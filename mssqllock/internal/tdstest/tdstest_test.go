package tdstest_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/distlock-go/distlock/mssqllock/internal/tdstest"
)

var ctx = context.Background()

func start(tb testing.TB, cfg tdstest.Config) *tdstest.Server {
	tb.Helper()
	srv, err := tdstest.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(srv.Close)
	return srv
}

func open(tb testing.TB, srv *tdstest.Server, params url.Values) *sql.DB {
	tb.Helper()
	db, err := sql.Open("sqlserver", srv.URL(params))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { db.Close() })
	return db
}

func conn(tb testing.TB, db *sql.DB) *sql.Conn {
	tb.Helper()
	c, err := db.Conn(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	return c
}

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func get(ctx context.Context, c execer, name, mode, owner string, timeout int) (int, error) {
	var rs mssql.ReturnStatus
	_, err := c.ExecContext(ctx, "sp_getapplock", sql.Named("Resource", name), sql.Named("LockMode", mode),
		sql.Named("LockOwner", owner), sql.Named("LockTimeout", timeout), &rs)
	return int(rs), err
}

func release(c execer, name, owner string) (int, error) {
	var rs mssql.ReturnStatus
	_, err := c.ExecContext(ctx, "sp_releaseapplock", sql.Named("Resource", name), sql.Named("LockOwner", owner), &rs)
	return int(rs), err
}

func want(tb testing.TB, code int) func(got int, err error) {
	tb.Helper()
	return func(got int, err error) {
		tb.Helper()
		if err != nil || got != code {
			tb.Fatalf("return code %d, error %v; want %d", got, err, code)
		}
	}
}

func query[T any](tb testing.TB, c execer, q string, args ...any) T {
	tb.Helper()
	var v T
	if err := c.QueryRowContext(ctx, q, args...).Scan(&v); err != nil {
		tb.Fatalf("%s: %v", q, err)
	}
	return v
}

func exec(tb testing.TB, c execer, q string, args ...any) {
	tb.Helper()
	if _, err := c.ExecContext(ctx, q, args...); err != nil {
		tb.Fatalf("%s: %v", q, err)
	}
}

func number(err error) int32 {
	if e, ok := errors.AsType[mssql.Error](err); ok {
		return e.Number
	}
	return 0
}

// waiting waits until n sessions wait for a lock.
func waiting(srv *tdstest.Server, n int) {
	for srv.Waiters() != n {
		runtime.Gosched()
	}
}

func free(srv *tdstest.Server) {
	for srv.Locks() != 0 {
		runtime.Gosched()
	}
}

type outcome struct {
	code int
	err  error
}

func later(f func() (int, error)) <-chan outcome {
	ch := make(chan outcome, 1)
	go func() {
		code, err := f()
		ch <- outcome{code, err}
	}()
	return ch
}

func TestLogin(t *testing.T) {
	srv := start(t, tdstest.Config{})
	db := open(t, srv, url.Values{"app name": {"me"}, "workstation id": {"here"}})
	if err := db.PingContext(ctx); err != nil {
		t.Fatal(err)
	}
	if got := query[string](t, db, "SELECT HOST_NAME() + '/' + APP_NAME() + '/' + DB_NAME() + '/' + ORIGINAL_LOGIN()"); got != "here/me/test/sa" {
		t.Error(got)
	}
	if err := open(t, srv, url.Values{"password": {"wrong"}}).PingContext(ctx); number(err) != 18456 {
		t.Errorf("wrong password: %v", err)
	}
}

func TestResetAtNextUse(t *testing.T) {
	srv := start(t, tdstest.Config{})
	db := open(t, srv, nil)
	db.SetMaxOpenConns(1)
	want(t, 0)(get(ctx, db, "a", "Exclusive", "Session", 0))
	if n := srv.Locks(); n != 1 {
		t.Fatalf("%d locks while the connection is idle", n)
	}
	if err := db.PingContext(ctx); err != nil {
		t.Fatal(err)
	}
	if n := srv.Locks(); n != 0 {
		t.Fatalf("%d locks after the next use", n)
	}
}

func TestCancel(t *testing.T) {
	srv := start(t, tdstest.Config{})
	db := open(t, srv, nil)
	a, b := conn(t, db), conn(t, db)
	want(t, 0)(get(ctx, a, "a", "Exclusive", "Session", 0))
	want(t, 0)(get(ctx, b, "b", "Exclusive", "Session", 0))
	spid := query[int](t, b, "SELECT @@SPID")
	waitCtx, cancel := context.WithCancel(ctx)
	ch := later(func() (int, error) { return get(waitCtx, b, "a", "Exclusive", "Session", -1) })
	waiting(srv, 1)
	cancel()
	if r := <-ch; !errors.Is(r.err, context.Canceled) {
		t.Fatal(r)
	}
	if srv.Waiters() != 0 || query[int](t, b, "SELECT @@SPID") != spid {
		t.Error("the connection isn't the same, or waits still")
	}
	want(t, 0)(release(a, "a", "Session"))
	if got := query[string](t, b, "SELECT APPLOCK_MODE('public', N'a', 'Session') + APPLOCK_MODE('public', N'b', 'Session')"); got != "NoLockExclusive" {
		t.Error(got)
	}
}

func TestCompatibility(t *testing.T) {
	srv := start(t, tdstest.Config{})
	db := open(t, srv, nil)
	a, b := conn(t, db), conn(t, db)
	modes := []string{"IntentShared", "Shared", "Update", "IntentExclusive", "Exclusive"}
	table := []string{"yyyyn", "yyynn", "yynnn", "ynnyn", "nnnnn"}
	for i, held := range modes {
		for j, asked := range modes {
			want(t, 0)(get(ctx, a, "r", held, "Session", 0))
			code, n := -1, 0
			if table[i][j] == 'y' {
				code, n = 0, 1
			}
			if got := query[int](t, b, "SELECT APPLOCK_TEST('public', 'r', @p1, 'Session')", asked); got != n {
				t.Errorf("APPLOCK_TEST of %s beside %s: %d", asked, held, got)
			}
			want(t, code)(get(ctx, b, "r", asked, "Session", 0))
			if code == 0 {
				want(t, 0)(release(b, "r", "Session"))
			}
			want(t, 0)(release(a, "r", "Session"))
		}
	}
}

func TestCountingAndConversion(t *testing.T) {
	srv := start(t, tdstest.Config{})
	db := open(t, srv, nil)
	a, b := conn(t, db), conn(t, db)
	want(t, 0)(get(ctx, a, "r", "Update", "Session", 0))
	want(t, 0)(get(ctx, b, "r", "Shared", "Session", 0))
	want(t, -1)(get(ctx, a, "r", "Exclusive", "Session", 0))
	ch := later(func() (int, error) { return get(ctx, a, "r", "Exclusive", "Session", -1) })
	waiting(srv, 1)
	if got := query[int](t, b, "SELECT COUNT(*) FROM sys.dm_tran_locks WHERE request_status = 'CONVERT' AND request_mode = 'X'"); got != 1 {
		t.Error("no CONVERT in sys.dm_tran_locks")
	}
	want(t, 0)(release(b, "r", "Session"))
	r := <-ch
	want(t, 1)(r.code, r.err)
	want(t, 0)(release(a, "r", "Session"))
	want(t, -1)(get(ctx, b, "r", "IntentShared", "Session", 0)) // still Exclusive
	want(t, 0)(release(a, "r", "Session"))
	if code, err := release(a, "r", "Session"); code != -999 && number(err) != 1223 {
		t.Error(code, err)
	}
	want(t, 0)(get(ctx, a, "r", "Shared", "Session", 0))
	want(t, 0)(get(ctx, a, "r", "IntentExclusive", "Session", 0))
	if got := query[string](t, a, "SELECT APPLOCK_MODE('public', 'r', 'Session')"); got != "SharedIntentExclusive" {
		t.Error(got)
	}
}

func TestFIFO(t *testing.T) {
	srv := start(t, tdstest.Config{})
	db := open(t, srv, nil)
	a, b, c := conn(t, db), conn(t, db), conn(t, db)
	want(t, 0)(get(ctx, a, "r", "Shared", "Session", 0))
	chB := later(func() (int, error) { return get(ctx, b, "r", "Exclusive", "Session", -1) })
	waiting(srv, 1)
	chC := later(func() (int, error) { return get(ctx, c, "r", "Shared", "Session", -1) })
	waiting(srv, 2)
	want(t, 0)(release(a, "r", "Session"))
	r := <-chB
	want(t, 1)(r.code, r.err)
	if srv.Waiters() != 1 {
		t.Error("the reader has overtaken the writer")
	}
	want(t, 0)(release(b, "r", "Session"))
	r = <-chC
	want(t, 1)(r.code, r.err)
}

func TestTimeout(t *testing.T) {
	srv := start(t, tdstest.Config{})
	db := open(t, srv, nil)
	a, b := conn(t, db), conn(t, db)
	want(t, 0)(get(ctx, a, "r", "Exclusive", "Session", 0))
	want(t, -1)(get(ctx, b, "r", "Exclusive", "Session", 20))
	exec(t, b, "SET LOCK_TIMEOUT 10")
	if got := query[int](t, b, "SELECT @@LOCK_TIMEOUT"); got != 10 {
		t.Error(got)
	}
	if got := query[int](t, b, "DECLARE @r int; EXEC @r = sp_getapplock 'r', 'Exclusive', 'Session'; SELECT @r"); got != -1 {
		t.Error(got)
	}
}

func TestDeadlock(t *testing.T) {
	srv := start(t, tdstest.Config{})
	db := open(t, srv, nil)
	a, b := conn(t, db), conn(t, db)
	want(t, 0)(get(ctx, a, "x", "Exclusive", "Session", 0))
	want(t, 0)(get(ctx, b, "y", "Exclusive", "Session", 0))
	ch := later(func() (int, error) { return get(ctx, a, "y", "Exclusive", "Session", -1) })
	waiting(srv, 1)
	want(t, -3)(get(ctx, b, "x", "Exclusive", "Session", -1))
	want(t, 0)(release(b, "y", "Session"))
	r := <-ch
	want(t, 1)(r.code, r.err)
}

func TestTransactions(t *testing.T) {
	srv := start(t, tdstest.Config{})
	db := open(t, srv, nil)
	if code, err := get(ctx, db, "r", "Exclusive", "Transaction", 0); number(err) != 3918 {
		t.Error(code, err)
	}
	for _, end := range []func(*sql.Tx) error{(*sql.Tx).Commit, (*sql.Tx).Rollback} {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		want(t, 0)(get(ctx, tx, "r", "Exclusive", "Transaction", 0))
		if got := query[int](t, tx, "SELECT @@TRANCOUNT"); got != 1 {
			t.Error(got)
		}
		if err := end(tx); err != nil {
			t.Error(err)
		}
		if n := srv.Locks(); n != 0 {
			t.Errorf("%d locks after the transaction", n)
		}
	}
	c := conn(t, db)
	exec(t, c, "BEGIN TRAN; EXEC sp_getapplock 'r', 'Exclusive'; BEGIN TRAN; COMMIT")
	if n := srv.Locks(); n != 1 {
		t.Errorf("%d locks within the transaction", n)
	}
	exec(t, c, "SAVE TRAN one; EXEC sp_getapplock 's', 'Exclusive'; SAVE TRAN two; EXEC sp_getapplock 't', 'Exclusive'; ROLLBACK TRAN two")
	if n := srv.Locks(); n != 2 {
		t.Errorf("%d locks after the rollback to the second savepoint", n)
	}
	exec(t, c, "EXEC sp_getapplock 'r', 'Exclusive'; ROLLBACK TRAN one")
	if n := srv.Locks(); n != 1 {
		t.Errorf("%d locks after the rollback to the first savepoint", n)
	}
	if _, err := c.ExecContext(ctx, "ROLLBACK TRAN two"); number(err) != 6401 {
		t.Errorf("to a savepoint that is gone: %v", err)
	}
	if got := query[int](t, c, "SELECT @@TRANCOUNT"); got != 1 {
		t.Errorf("%d transactions", got)
	}
	exec(t, c, "ROLLBACK; BEGIN TRAN x; EXEC sp_getapplock 'r', 'Exclusive'; ROLLBACK TRAN x; BEGIN TRAN; EXEC sp_getapplock 'r', 'Exclusive'")
	// database/sql closes it then, once: go-mssqldb gives two connections one
	// buffer after one was closed twice.
	c.Raw(func(any) error { return sqldriver.ErrBadConn })
	free(srv)
}

func TestKill(t *testing.T) {
	srv := start(t, tdstest.Config{})
	db := open(t, srv, nil)
	a, b := conn(t, db), conn(t, db)
	want(t, 0)(get(ctx, a, "r", "Exclusive", "Session", 0))
	exec(t, b, fmt.Sprintf("KILL %d", query[int](t, a, "SELECT @@SPID")))
	want(t, 0)(get(ctx, b, "r", "Exclusive", "Session", 0))
	if err := a.PingContext(ctx); err == nil {
		t.Error("a killed session answers")
	}
	if _, err := b.ExecContext(ctx, "KILL 32000"); number(err) != 6106 {
		t.Error(err)
	}
}

func TestViewsAndPermissions(t *testing.T) {
	srv := start(t, tdstest.Config{Users: map[string]tdstest.User{"sa": {Password: tdstest.DefaultPassword}, "low": {Password: "p", NoViewServerState: true, NoKill: true, NoSequences: true}}})
	db := open(t, srv, nil)
	a := conn(t, db)
	want(t, 0)(get(ctx, a, "Name:with colon", "Exclusive", "Session", 0))
	const q = `SELECT l.request_mode + ' ' + l.request_status + ' ' + l.request_owner_type + ' ' + s.login_name
		FROM sys.dm_tran_locks AS l INNER JOIN sys.dm_exec_sessions AS s ON s.session_id = l.request_session_id
		WHERE l.resource_type = 'APPLICATION' AND l.resource_database_id = DB_ID() AND l.resource_description LIKE @p1`
	if got := query[string](t, a, q, "0:[[]Name:with colon]:(%"); got != "X GRANT SESSION sa" {
		t.Error(got)
	}
	low := open(t, srv, url.Values{"user": {"low"}, "password": {"p"}})
	_, err := low.ExecContext(ctx, "SELECT * FROM sys.dm_tran_locks")
	var e mssql.Error
	if !errors.As(err, &e) || e.Number != 297 || e.All[0].Number != 300 {
		t.Error(err)
	}
	if got := query[int](t, low, "SELECT COUNT(*) FROM sys.dm_exec_sessions"); got != 1 {
		t.Error(got)
	}
	if _, err := low.ExecContext(ctx, "CREATE SEQUENCE s AS bigint START WITH 1"); number(err) != 262 {
		t.Error(err)
	}
}

func TestSequence(t *testing.T) {
	db := open(t, start(t, tdstest.Config{}), nil)
	exec(t, db, "IF OBJECT_ID(N'dbo.fence', N'SO') IS NULL CREATE SEQUENCE dbo.fence AS bigint START WITH 1 INCREMENT BY 1 NO CACHE")
	for i := range 3 {
		if got := query[int](t, db, "SELECT NEXT VALUE FOR dbo.fence"); got != i+1 {
			t.Error(got)
		}
	}
	if got := query[int](t, db, "SELECT current_value FROM sys.sequences WHERE name = 'fence'"); got != 3 {
		t.Error(got)
	}
	for q, want := range map[string]int{
		"SELECT NEXT VALUE FOR dbo.fence - NEXT VALUE FOR fence":                                                       0,
		"DECLARE @a bigint,@b bigint;SET @a=NEXT VALUE FOR dbo.fence;SET @b=NEXT VALUE FOR dbo.fence;SELECT @b-@a":     1,
		"DECLARE @a bigint=NEXT VALUE FOR dbo.fence;SELECT NEXT VALUE FOR dbo.fence - @a FROM (SELECT 1 AS n) AS rows": 1,
	} {
		if got := query[int](t, db, q); got != want {
			t.Errorf("%s: %d, want %d", q, got, want)
		}
	}
	if _, err := db.ExecContext(ctx, "CREATE SEQUENCE fence"); number(err) != 2714 {
		t.Error(err)
	}
	if _, err := db.ExecContext(ctx, "SELECT NEXT VALUE FOR other"); number(err) != 208 {
		t.Error(err)
	}
}

func TestErrors(t *testing.T) {
	db := open(t, start(t, tdstest.Config{}), nil)
	for q, n := range map[string]int32{
		"SELECT 1 FROM": 102, "UPDATE t SET a = 1": 156, "no_such_proc": 2812, "EXEC no_such_proc": 2812, "SELECT @x": 137,
		"SELECT * FROM nothing": 208, "SELECT nothing": 207, "SELECT nothing()": 195, "SELECT 'a": 105, "SELECT 1/0": 8134,
		"SELECT 'a' COLLATE nonsense": 448, "SELECT CASE WHEN 'a' COLLATE Latin1_General_BIN2 = 'a' COLLATE Latin1_General_CI_AS THEN 1 ELSE 0 END": 468, "SELECT 1 COLLATE Latin1_General_BIN2": 447,
		"SAVE TRAN s": 628, "COMMIT": 3902, "ROLLBACK": 3903, "THROW 50001, 'x', 1": 50001, "RAISERROR('x', 16, 1)": 50000, "SELECT CAST('x' AS int)": 245,
		"EXEC sp_getapplock 'a', 'Bad', 'Session'": 15600, "EXEC sp_getapplock NULL, 'Shared', 'Session'": 15600, "EXEC sp_releaseapplock 'a', 'Session'": 1223,
		"IF 1 SELECT 1": 4145, strings.Repeat("(", 300): 156,
	} {
		if _, err := db.ExecContext(ctx, q); number(err) != n && !strings.HasPrefix(q, "((") {
			t.Errorf("%s: %v, want %d", q, err, n)
		} else if err == nil {
			t.Errorf("%s: no error", q)
		}
	}
}

func TestCollations(t *testing.T) {
	db := open(t, start(t, tdstest.Config{}), nil)
	for q, want := range map[string]int{
		"SELECT CHARINDEX('B', 'abc')":                                                         2,
		"SELECT CHARINDEX('B' COLLATE Latin1_General_BIN2, 'abc')":                             0,
		"SELECT CHARINDEX('B', 'abc' COLLATE Latin1_General_CS_AS)":                            0,
		"SELECT CHARINDEX('b', 'abc' COLLATE Latin1_General_BIN2)":                             2,
		"SELECT CASE WHEN 'a' = 'A' THEN 1 ELSE 0 END":                                         1,
		"SELECT CASE WHEN 'a' = 'A' COLLATE Latin1_General_BIN2 THEN 1 ELSE 0 END":             0,
		"SELECT CASE WHEN 'a' LIKE 'A' COLLATE SQL_Latin1_General_CP1_CI_AS THEN 1 ELSE 0 END": 1,
		"SELECT CASE WHEN 'a' LIKE 'A' COLLATE Latin1_General_CS_AS_KS_WS THEN 1 ELSE 0 END":   0,
		"SELECT CASE WHEN 'a' = 'A' COLLATE database_default THEN 1 ELSE 0 END":                1,
	} {
		if got := query[int](t, db, q); got != want {
			t.Errorf("%s: %d", q, got)
		}
	}
}

func TestDates(t *testing.T) {
	db := open(t, start(t, tdstest.Config{}), nil)
	for q, want := range map[string]int{
		"SELECT DATEDIFF_BIG(MICROSECOND, @p1, DATEADD(MILLISECOND, 1500, @p1))":                                        1500000,
		"SELECT DATEDIFF_BIG(ms, @p1, DATEADD(second, -2, @p1))":                                                        -2000,
		"SELECT DATEDIFF_BIG(second, DATEADD(ms, 1, @p1), @p1)":                                                         -1, // it counts boundaries
		"SELECT DATEDIFF_BIG(second, @p1, DATEADD(ms, 1, @p1))":                                                         1,
		"SELECT DATEDIFF_BIG(second, DATEADD(ms, 1, @p1), DATEADD(ms, 2, @p1))":                                         0,
		"SELECT DATEDIFF_BIG(hour, @p1, DATEADD(ms, 2147483647, @p1))":                                                  596,
		"SELECT ISNULL(DATEDIFF_BIG(hour, @p1, NULL), 7)":                                                               7,
		"SELECT ISNULL(DATEDIFF_BIG(hour, DATEADD(ms, NULL, @p1), @p1), 7)":                                             7,
		"SELECT CASE WHEN DATEDIFF_BIG(ms, SYSUTCDATETIME(), @p1) > 0 THEN 1 ELSE 0 END":                                1,
		"DECLARE @d datetime2 = DATEADD(hh, 1, @p1); SELECT DATEDIFF_BIG(n, @p1, @d)":                                   60,
		"DECLARE @i bigint = 0; WHILE 1 = 1 BEGIN SET @i += 1; IF @i % 7 = 6 BEGIN IF @i > 20 BREAK END END; SELECT @i": 27,
	} {
		if got := query[int](t, db, "DECLARE @p1 datetime2 = '2100-01-01T00:00:00.999'; "+q); got != want {
			t.Errorf("%s: %d, want %d", q, got, want)
		}
	}
	for q, n := range map[string]int32{
		"SELECT DATEADD(fortnight, 1, SYSUTCDATETIME())": 155, "SELECT DATEDIFF_BIG('ms', SYSUTCDATETIME(), SYSUTCDATETIME())": 102,
		"SELECT DATEADD(ms, 2147483648, SYSUTCDATETIME())": 8115, "SELECT DATEADD(ms, 1)": 174, "SELECT DATEADD(ms)": 102,
		"SELECT DATEADD(ms, 1, 'tomorrow')": 241,
	} {
		if _, err := db.ExecContext(ctx, q); number(err) != n {
			t.Errorf("%s: %v, want %d", q, err, n)
		}
	}
}

func TestPrincipals(t *testing.T) {
	srv := start(t, tdstest.Config{Users: map[string]tdstest.User{"sa": {Password: tdstest.DefaultPassword}, "low": {Password: "p"}, "out": {Password: "p", NoOwnLocks: true}}})
	const get = "DECLARE @r int, @u nvarchar(128) = USER_NAME(); BEGIN TRY EXEC @r = sp_getapplock 'r', 'Exclusive', 'Session', 0, @u END TRY BEGIN CATCH SET @r = -ERROR_NUMBER() END CATCH; SELECT @r"
	a := conn(t, open(t, srv, nil))
	for user, want := range map[string]int{"low": 0, "out": -1202} {
		c := conn(t, open(t, srv, url.Values{"user": {user}, "password": {"p"}}))
		if got := query[int](t, c, get); got != want {
			t.Errorf("%s: %d, want %d", user, got, want)
		}
		if user == "out" {
			continue
		}
		// What others hold of the name is another lock, of the same hash.
		if got := query[int](t, a, get); got != 0 {
			t.Errorf("%d", got)
		}
		if got := query[int](t, a, "SELECT COUNT(*) FROM sys.dm_tran_locks l JOIN sys.dm_tran_locks m ON SUBSTRING(l.resource_description, 2, 100) = SUBSTRING(m.resource_description, 2, 100) AND l.resource_description < m.resource_description"); got != 1 {
			t.Errorf("%d pairs", got)
		}
	}
}

func TestTruncation(t *testing.T) {
	srv := start(t, tdstest.Config{})
	db := open(t, srv, nil)
	a, b := conn(t, db), conn(t, db)
	long := strings.Repeat("ä", 255)
	want(t, 0)(get(ctx, a, long+"1", "Exclusive", "Session", 0))
	want(t, -1)(get(ctx, b, long+"2", "Exclusive", "Session", 0))
	want(t, 0)(get(ctx, b, strings.Repeat("Ä", 255), "Exclusive", "Session", 0))
}

func TestBatch(t *testing.T) {
	srv := start(t, tdstest.Config{})
	c := conn(t, open(t, srv, nil))
	rows, err := c.QueryContext(ctx, `SET NOCOUNT ON; DECLARE @r int, @t TABLE (i int, r int);
		EXEC @r = sys.sp_getapplock @Resource = @p1, @LockMode = 'Exclusive', @LockOwner = 'Session', @LockTimeout = 0, @DbPrincipal = 'public';
		INSERT INTO @t VALUES (1, @r)
		BEGIN TRY EXEC @r = sp_releaseapplock @Resource = N'nothing', @LockOwner = 'Session' END TRY
		BEGIN CATCH SET @r = -ERROR_NUMBER() END CATCH;
		INSERT @t (i, r) SELECT 2, @r; WHILE @r < 0 BEGIN SET @r += 1000; IF @r > -500 BREAK END
		SELECT i, r FROM @t UNION ALL SELECT v, CASE WHEN v = 4 THEN @r ELSE NULL END FROM (VALUES (3), (4)) AS x(v) ORDER BY i`, "one")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var got []string
	for rows.Next() {
		var i int
		var r sql.NullInt64
		if err := rows.Scan(&i, &r); err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(i, r.Int64, r.Valid))
	}
	if err := rows.Err(); err != nil || strings.Join(got, ",") != "1 0 true,2 -1223 true,3 0 false,4 -223 true" {
		t.Error(got, err)
	}
	var out int
	exec(t, c, "SET @out = @in + 1", sql.Named("in", 41), sql.Named("out", sql.Out{Dest: &out}))
	if out != 42 {
		t.Error(out)
	}
}

func TestThousandLocks(t *testing.T) {
	srv := start(t, tdstest.Config{})
	db := open(t, srv, nil)
	var wg sync.WaitGroup
	for i := range 8 {
		c := conn(t, db)
		wg.Go(func() {
			for j := range 125 {
				want(t, 0)(get(ctx, c, fmt.Sprint(i, ":", j), "Exclusive", "Session", 0))
			}
		})
	}
	wg.Wait()
	if n := srv.Locks(); n != 1000 {
		t.Error(n)
	}
	if n := query[int](t, db, "SELECT COUNT(*) FROM sys.dm_tran_locks l JOIN sys.dm_exec_sessions s ON l.request_session_id = s.session_id"); n != 1000 {
		t.Error(n)
	}
	srv.KillAll()
	free(srv)
}

func TestManyConnections(t *testing.T) {
	srv := start(t, tdstest.Config{})
	db := open(t, srv, nil)
	var wg sync.WaitGroup
	for range 200 {
		c := conn(t, db)
		wg.Go(func() {
			if code, err := get(ctx, c, "r", "Exclusive", "Session", -1); code < 0 || err != nil {
				t.Error(code, err)
			}
			want(t, 0)(release(c, "r", "Session"))
		})
	}
	wg.Wait()
	if n := len(srv.Sessions()); n != 200 {
		t.Error(n)
	}
}

func TestFaultsAndRestart(t *testing.T) {
	srv := start(t, tdstest.Config{Version: "12.0.2000.8", EngineEdition: 5})
	db := open(t, srv, nil)
	if got := query[string](t, db, "SELECT CAST(SERVERPROPERTY('ProductMajorVersion') AS nvarchar(10)) + '/' + CAST(SERVERPROPERTY('EngineEdition') AS nvarchar(10))"); got != "12/5" {
		t.Error(got)
	}
	c := conn(t, db)
	srv.OnRequest(func(_ int, sql string) tdstest.Fault {
		if sql == "EXEC sp_getapplock" {
			return tdstest.DropAfter
		}
		return tdstest.Continue
	})
	if _, err := get(ctx, c, "r", "Exclusive", "Session", 0); err == nil {
		t.Error("no error from a dropped connection")
	}
	free(srv)
	if err := srv.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := db.PingContext(ctx); err != nil {
		t.Error(err)
	}
}

func BenchmarkRPC(b *testing.B) {
	srv := start(b, tdstest.Config{})
	c := conn(b, open(b, srv, nil))
	for b.Loop() {
		if code, err := get(ctx, c, "r", "Exclusive", "Session", 0); code != 0 || err != nil {
			b.Fatal(code, err)
		}
		if code, err := release(c, "r", "Session"); code != 0 || err != nil {
			b.Fatal(code, err)
		}
	}
}
