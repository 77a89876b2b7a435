package mssqllock

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/dbsession"
	"github.com/distlock-go/distlock/mssqllock/internal/tdstest"
)

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		server  server
		refused string // part of why; empty: not refused
	}{
		{server{edition: 3, version: "13.0.1601.5", updates: "READ_WRITE"}, ""},
		{server{edition: 2, version: "16.0.4135.4", updates: "READ_WRITE"}, ""},
		{server{edition: 4, version: "17.0.1000.7", updates: "READ_WRITE"}, ""},
		{server{edition: 5, version: "12.0.2000.8", updates: "READ_WRITE"}, ""},
		{server{edition: 8, version: "12.0.2000.8", updates: "READ_WRITE"}, ""},
		{server{edition: 3, version: "12.0.6024.0", updates: "READ_WRITE"}, "2016"},
		{server{edition: 3, version: "", updates: "READ_WRITE"}, "2016"},
		{server{edition: 6, version: "10.0.16003.0", updates: "READ_WRITE"}, "Synapse"},
		{server{edition: 11, version: "12.0.2000.8", updates: "READ_WRITE"}, "Synapse"},
		{server{edition: 12, version: "12.0.2000.8", updates: "READ_WRITE"}, "Fabric"},
		{server{edition: 99, version: "16.0.0.0", updates: "READ_WRITE"}, "99"},
		{server{edition: 3, version: "16.0.4135.4", updates: "READ_ONLY"}, "read-only"},
		{server{edition: 5, version: "12.0.2000.8", updates: "READ_ONLY"}, "read-only"},
		{server{edition: 3, version: "16.0.4135.4", updates: "READ_WRITE", trans: 1}, "transaction"},
	} {
		err := c.server.judge()
		switch {
		case c.refused == "" && err != nil:
			t.Errorf("%+v: %v", c.server, err)
		case c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
			t.Errorf("%+v: %v, want %q in it", c.server, err, c.refused)
		}
	}
}

func TestRefusedServers(t *testing.T) {
	for why, cfg := range map[string]tdstest.Config{
		"2016":      {Version: "12.0.6024.0"},
		"Synapse":   {EngineEdition: 6},
		"read-only": {ReadOnly: true},
	} {
		s := ownServer(t, cfg)
		_, err := Open(t.Context(), s.url(s.addr(), ""))
		if err == nil || !strings.Contains(err.Error(), why) || strings.Contains(err.Error(), s.password) {
			t.Errorf("%s: %v", why, err)
		}
		conn, err := s.pool(t, s.addr()).Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		l := distlock.New(OnConn(conn), nil)
		if _, err := l.TryAcquire(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), why) || errors.Is(err, distlock.ErrLost) {
			t.Errorf("%s, on a connection: %v", why, err)
		}
		l.Close()
		conn.Close()
	}
	for _, cfg := range []tdstest.Config{{EngineEdition: 5, Version: "12.0.2000.8"}, {EngineEdition: 8, Version: "12.0.2000.8"}, {Version: "13.0.1601.5"}} {
		s := ownServer(t, cfg)
		l, _ := s.locker(t, s.addr(), nil)
		mustRelease(t, mustAcquire(t, l, "a"))
	}
}

func TestErrors(t *testing.T) {
	d := newDialect()
	for _, err := range []error{explain(mssql.Error{Number: 1205}), codeError(-3)} {
		if !errors.Is(err, driver.ErrDeadlock) || !d.Answered(err) {
			t.Errorf("%v", err)
		}
	}
	var e mssql.Error
	if err := explain(mssql.Error{Number: 1205}); !errors.As(err, &e) {
		t.Errorf("%v", err)
	}
	for code, meaning := range map[int64]string{-2: "canceled", -3: "deadlock", -999: "invalid", -7: "documented"} {
		err := checked(&dbsession.Step{Verb: doGet, Result: result(code)})
		if err == nil || !strings.Contains(err.Error(), meaning) || code != -3 && errors.Is(err, driver.ErrDeadlock) {
			t.Errorf("%d: %v", code, err)
		}
	}
	for code, want := range map[int64]int64{0: 1, 1: 1, -1: 0} {
		if got := result(code); got != want || checked(&dbsession.Step{Verb: doGet, Result: got}) != nil {
			t.Errorf("%d: %d", code, got)
		}
	}
	for _, c := range []struct {
		err      error
		answered bool
	}{
		{mssql.Error{Number: 208, Class: 16}, true},
		{mssql.Error{Number: 596, Class: 21}, false},
		{mssql.Error{Number: 5, Class: 16, All: []mssql.Error{{Class: 20}, {Class: 16}}}, false},
		{mssql.ServerError{}, false},
		{halfDoneError{mssql.Error{Number: 208, Class: 16}}, false},
		{context.Canceled, false},
	} {
		if d.Answered(c.err) != c.answered {
			t.Errorf("%v", c.err)
		}
	}
}

func TestLockTimeout(t *testing.T) {
	for d, want := range map[time.Duration]int32{
		0: 0, 1: 1, time.Microsecond: 1, time.Millisecond: 1, time.Millisecond + 1: 2, time.Minute: 60000,
		40 * 24 * time.Hour: math.MaxInt32, 400 * 24 * time.Hour: -1, driver.Forever: -1,
	} {
		if got := lockTimeout(d); got != want {
			t.Errorf("%v: %d, want %d", d, got, want)
		}
	}
}

func TestURL(t *testing.T) {
	for _, bad := range []string{
		"sqlserver:", "sqlserver:///instance", "sqlserver://h?nope=1", "sqlserver://h?max_sessions=0", "sqlserver://h?max_sessions=x",
		"sqlserver://h?database=a&database=b", "sqlserver://h?database=a&Database=b", "sqlserver://h?heartbeat=-1s", "sqlserver://h?heartbeat=1h",
		"sqlserver://h#f", "sqlserver://u:s%2Fecret@h?encrypt=maybe", "sqlserver://u:s%2Fecret@h?create_sequence=true",
		"sqlserver://u:s%2Fecret@h?connection+timeout=5", "sqlserver://u:s%2Fecret@h?fedauth=ActiveDirectoryDefault",
		"sqlserver://u:s%2Fecret@h?sequence=a.b.c", "sqlserver://u:s%2Fecret@h?create_sequence=maybe&sequence=x", "mysql://h/db",
		"sqlserver://u:s/ecret@h", "sqlserver://u:s%2Fecret@h?user+id=x", "sqlserver://u:s%2Fecret@h?password=secret", "sqlserver://u:s%2Fecret@h?%zz", "sqlserver://u:pw?s3ecret@h/db",
		"sqlserver://u:s%2Fecret@h?change+password=secret&tlsmin=1&certificate=/does/not/exist.pem",
	} {
		_, err := Open(t.Context(), bad)
		if !errors.Is(err, distlock.ErrBadArgument) || strings.Contains(err.Error(), "ecret") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := Open(t.Context(), "sqlserver://h?nope=1"); !strings.Contains(err.Error(), "max_waiting") || !strings.Contains(err.Error(), "trustservercertificate") {
		t.Errorf("the valid parameters aren't named: %v", err)
	}
	u, err := url.Parse("sqlserver://u:p%40w@db.example:1444/instance?Database=app&encrypt=true&prefix=x:&max_sessions=3&max_waiting=1&heartbeat=2s&idle_timeout=1m&sequence=a.b&create_sequence=true")
	if err != nil {
		t.Fatal(err)
	}
	connector, o, err := parseURL(u)
	if err != nil || connector == nil {
		t.Fatal(err)
	}
	want := Options{Prefix: "x:", MaxSessions: 3, MaxWaiting: 1, Heartbeat: 2 * time.Second, IdleTimeout: time.Minute, Sequence: "a.b", CreateSequence: true}
	if *o != want {
		t.Errorf("%+v", o)
	}
	defer func(args []string) { os.Args = args }(os.Args)
	os.Args = nil // as it can be within a program of another language
	if _, _, err := parseURL(u); err != nil {
		t.Error(err)
	}
}

func FuzzURL(f *testing.F) {
	f.Add("sqlserver://u:p@h:1433/i?database=x&prefix=y&heartbeat=1s")
	f.Add("sqlserver://[::1]?max_sessions=8&encrypt=disable")
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := url.Parse(raw)
		if err != nil || u.Scheme != "sqlserver" {
			return
		}
		connector, o, err := parseURL(u)
		if (err == nil) != (connector != nil && o != nil) {
			t.Errorf("%q: %v, %v, %v", raw, connector, o, err)
		}
	})
}

func TestSequenceNames(t *testing.T) {
	for name, want := range map[string]string{
		"a": "[a]", "dbo.fences": "[dbo].[fences]", "we]ird": "[we]]ird]", "": "", "a.b.c": "", ".a": "", "a\x00": "", strings.Repeat("x", 129): "",
	} {
		got, err := quoteSequence(name)
		if (err != nil) != (want == "") || got != want {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
	if ddl, err := SequenceDDL("dbo.fences"); err != nil || !strings.HasPrefix(ddl, "CREATE SEQUENCE [dbo].[fences] AS bigint START WITH 1") {
		t.Error(ddl, err)
	}
}

func TestShown(t *testing.T) {
	for name, want := range map[string]string{
		"a":                              "0:[a]:(",
		strings.Repeat("x", 32):          "0:[" + strings.Repeat("x", 32) + "]:(",
		strings.Repeat("x", 33):          "0:[" + strings.Repeat("x", 32),
		strings.Repeat("x", 31) + "😀abc": "0:[" + strings.Repeat("x", 31),
	} {
		if got := shown(name); got != want {
			t.Errorf("%q: %q", name, got)
		}
	}
}

// A mistake in the program is told apart from a server that doesn't work.
func TestBadArguments(t *testing.T) {
	db, err := sql.Open("sqlserver", "sqlserver://h")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, o := range []Options{{Heartbeat: -1}, {Sequence: "a.b.c"}} {
		b := New(db, &o)
		_, acquire := b.Acquire(t.Context(), driver.Request{Resource: "a"})
		_, holders := b.Holders(t.Context(), "a", driver.Exclusive)
		if !errors.Is(acquire, distlock.ErrBadArgument) || !errors.Is(holders, distlock.ErrBadArgument) {
			t.Errorf("%+v: got %v, and %v", o, acquire, holders)
		}
		b.Close()
	}
	if _, err := SequenceDDL("a.b.c"); !errors.Is(err, distlock.ErrBadArgument) {
		t.Errorf("got %v", err)
	}
}
