package mysqllock

import (
	"database/sql"
	"errors"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

func TestJudge(t *testing.T) {
	vars := func(pairs ...string) map[string]string {
		v := make(map[string]string)
		for i := 0; i < len(pairs); i += 2 {
			v[pairs[i]] = pairs[i+1]
		}
		return v
	}
	for _, c := range []struct {
		variables map[string]string
		maria     bool
		refused   string // part of why; empty: not refused
	}{
		{vars("version", "5.7.44-log"), false, ""},
		{vars("version", "8.0.36-0ubuntu0.22.04.1"), false, ""},
		{vars("version", "8.0.mysql_aurora.3.04.0"), false, ""},
		{vars("version", "9.7.4-2", "wsrep_on", "OFF", "read_only", "OFF"), false, ""},
		{vars("version", "10.2.44-MariaDB"), true, ""},
		{vars("version", "5.5.5-10.11.14-MariaDB-0+deb12u2"), true, ""},
		{vars("version", "11.8.1-MariaDB-log"), true, ""},
		{vars("version", "8.0.35", "group_replication_group_name", "aaaa", "group_replication_single_primary_mode", "ON"), false, ""},
		{vars("version", "5.6.51"), false, "5.7"},
		{vars("version", "5.5.5-10.1.48-MariaDB"), false, "10.2"},
		{vars("version", "8.0.11-TiDB-v7.5.0"), false, "TiDB"},
		{vars("version", "8.0.30-Vitess"), false, "Vitess"},
		{vars("version", "5.7.25-OceanBase_CE-v4.2.1.0"), false, "protocol"},
		{vars("version", "10.11.6-MariaDB", "wsrep_on", "ON"), false, "Galera"},
		{vars("version", "8.0.35-27.1", "pxc_strict_mode", "ENFORCING"), false, "pxc_strict_mode"},
		{vars("version", "8.0.35", "group_replication_group_name", "aaaa", "group_replication_single_primary_mode", "OFF"), false, "primaries"},
		{vars("version", "8.0.35", "read_only", "ON"), false, "read-only"},
		{vars("version", "8.0.35", "innodb_read_only", "ON"), false, "read-only"},
		{vars("version", "unknown"), false, "version"},
	} {
		s, err := judge(c.variables)
		switch {
		case c.refused == "" && (err != nil || s.maria != c.maria):
			t.Errorf("%v: %+v, %v", c.variables, s, err)
		case c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
			t.Errorf("%v: %v, want %q in it", c.variables, err, c.refused)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, n := range []uint16{1213, 3058} {
		err := explain(&mysql.MySQLError{Number: n})
		var e *mysql.MySQLError
		if !errors.Is(err, driver.ErrDeadlock) || !errors.As(err, &e) {
			t.Errorf("%d: %v", n, err)
		}
	}
	d := newDialect()
	for err, answered := range map[error]bool{
		&mysql.MySQLError{Number: 1059}: true,
		&mysql.MySQLError{Number: 1927}: false,
		&mysql.MySQLError{Number: 4031}: false,
		mysql.ErrInvalidConn:            false,
	} {
		if d.Answered(err) != answered {
			t.Errorf("%v", err)
		}
	}
}

func TestURL(t *testing.T) {
	for _, bad := range []string{
		"mysql:", "mysql:///db", "mysql://h/db?nope=1", "mysql://h/db?tls=maybe", "mysql://h/db?max_sessions=0",
		"mysql://h/db?max_sessions=1&max_sessions=2", "mysql://h?socket=/x", "mysql://h/db?heartbeat=-1s", "mysql://h/db?tls_cert=x",
		"mysql://h/db?tls=false&tls_ca=x", "mysql://h/db#f", "mysql://u:s%2Fecret@h/db?tls_ca=/does/not/exist",
		"mysql://u:s%2Fecret@h/db?readers=99", "mysql://u:s%2Fecret@h/db?create_fence_table=1", "postgres://h/db", "mysql://u:s/ecret@h/db",
		"mysql://h/db?tls=skip-verify&tls_ca=x", "mysql://h/db?tls=preferred&tls_server_name=x", "mysql://h/db?timeout=0s", "mysql://h/db?create_fence_table=maybe",
		"mysql://h/db?heartbeat=11m",
	} {
		_, err := Open(t.Context(), bad)
		if !errors.Is(err, distlock.ErrBadArgument) || strings.Contains(err.Error(), "ecret") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	u, _ := url.Parse("mysql://u:p%40w@db.example/app?tls=true&prefix=x:&max_sessions=3&max_waiting=1&readers=-1&heartbeat=2s&idle_timeout=1m&fence_table=a.b&create_fence_table=true&timeout=3s")
	cfg, o, err := parseURL(u)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.User != "u" || cfg.Passwd != "p@w" || cfg.Addr != "db.example:3306" || cfg.DBName != "app" || cfg.TLS.ServerName != "db.example" || cfg.TLS.InsecureSkipVerify {
		t.Errorf("%+v", cfg)
	}
	if o.Prefix != "x:" || o.MaxSessions != 3 || o.MaxWaiting != 1 || o.Readers != -1 || o.FenceTable != "a.b" || !o.CreateFenceTable || o.Heartbeat.String() != "2s" {
		t.Errorf("%+v", o)
	}
	defer func(args []string) { os.Args = args }(os.Args)
	os.Args = nil // as it can be within a program of another language
	if cfg, _, err := parseURL(u); err != nil || cfg.ConnectionAttributes != "" {
		t.Errorf("%+v, %v", cfg, err)
	}
}

// A mistake in the program is told apart from a server that doesn't work.
func TestBadArguments(t *testing.T) {
	db, err := sql.Open("mysql", "u@/x")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, o := range []Options{{Readers: 99}, {Heartbeat: -1}, {Heartbeat: time.Hour}, {FenceTable: "a.b.c"}} {
		b := New(db, &o)
		_, acquire := b.Acquire(t.Context(), driver.Request{Resource: "a"})
		_, holders := b.Holders(t.Context(), "a", driver.Exclusive)
		if !errors.Is(acquire, distlock.ErrBadArgument) || !errors.Is(holders, distlock.ErrBadArgument) {
			t.Errorf("%+v: got %v, and %v", o, acquire, holders)
		}
		b.Close()
	}
	if _, err := FenceTableDDL("a.b.c"); !errors.Is(err, distlock.ErrBadArgument) {
		t.Errorf("got %v", err)
	}
}
