//go:build linux

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/distlock-go/distlock"
	_ "github.com/distlock-go/distlock/mysqllock"
)

const driverModule = "github.com/go-sql-driver/mysql"

// waitSeconds is what GET_LOCK waits at most, and no test as long as that.
const waitSeconds = 60

// The contenders that are there with a context that can be canceled, too.
var (
	bareOneConnection = &contender{
		name: "bare, 1 connection", role: floor, note: "GET_LOCK and RELEASE_LOCK, prepared, on one connection that is kept, by one goroutine also where others have 64", module: driverModule, serial: true, tests: []string{"uncontended", "names", "hold"},
		open: openBareOne,
	}
	bareOneEach = &contender{
		name: "bare, 1 connection each", role: floor, note: "the same, prepared, with a connection for each goroutine; GET_LOCK waits at the server", module: driverModule, tests: []string{"names", "hot", "handover"},
		open: openBareEach,
	}
	goMySQLLock = &contender{
		name: "stand-in for go-mysql-lock", role: peer, note: "works as github.com/sanketplus/go-mysql-lock does: a pooled connection for each lock, GET_LOCK and RELEASE_LOCK unprepared with arguments, a goroutine that pings each second. The pool keeps all its connections. Its Obtain, which takes no context, has one that never ends; *cancelable* is its ObtainContext", module: driverModule, tests: []string{"uncontended", "names", "hot", "handover", "hold"},
		open: openStandIn,
	}
	mariaDBLocks = mysqlLocks("distlock", "mysqllock, opened by its URL", "")
)

var mariaDB = backend{
	name: "mariadb", title: "MariaDB",
	start: startMariaDB,
	contenders: []*contender{
		bareOneConnection,
		{
			name: "bare text, 1 connection", role: floor, note: "the same in text, without preparing", module: driverModule, serial: true, tests: []string{"uncontended", "names"},
			open: openBareText,
		},
		bareOneEach,
		goMySQLLock,
		mariaDBLocks,
		mysqlLocks("distlock, tokens", "mysqllock with fence_table", "fence_table=fences&create_fence_table=true"),
		cancelable(bareOneConnection, "uncontended", "names"),
		cancelable(bareOneEach, "names", "hot"),
		cancelable(goMySQLLock, "uncontended", "names"),
		cancelable(mariaDBLocks, "uncontended", "names", "hot"),
	},
}

func mysqlLocks(name, note, query string) *contender {
	return &contender{name: name, role: ours, note: note, tests: []string{"uncontended", "names", "hot", "handover", "hold"}, open: func(ctx context.Context, p place) (locker, error) {
		u := url.URL{Scheme: "mysql", User: url.UserPassword(p.User, p.Secret), Host: p.Address, Path: "/" + p.Name, RawQuery: query}
		l, err := distlock.Open(ctx, u.String(), nil)
		if err != nil {
			return nil, err
		}
		return locks{l}, nil
	}}
}

func openPool(p place) (*sql.DB, error) {
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.DBName, cfg.Net, cfg.Addr = p.User, p.Secret, p.Name, "tcp", p.Address
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxIdleConns(1 << 16)
	return db, nil
}

// A statements is a connection with the two statements prepared.
type statements struct{ get, release asker }

type asker interface {
	QueryRowContext(ctx context.Context, args ...any) *sql.Row
}

func newStatements(ctx context.Context, db *sql.DB) (*statements, error) {
	c, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	get, err1 := c.PrepareContext(ctx, "SELECT GET_LOCK(?, ?)")
	release, err2 := c.PrepareContext(ctx, "SELECT RELEASE_LOCK(?)")
	return &statements{get, release}, errors.Join(err1, err2)
}

// one asks for a number that must be 1.
func one(row *sql.Row) error {
	var n sql.NullInt64
	if err := row.Scan(&n); err != nil {
		return err
	}
	if n.Int64 != 1 {
		return fmt.Errorf("the server answered %d and not 1", n.Int64)
	}
	return nil
}

type bareOne struct {
	db *sql.DB
	s  *statements
}

func openBareOne(ctx context.Context, p place) (locker, error) {
	db, err := openPool(p)
	if err != nil {
		return nil, err
	}
	s, err := newStatements(ctx, db)
	return &bareOne{db: db, s: s}, err
}

func (l *bareOne) client(ctx context.Context, name string) (client, error) {
	return &bareOneClient{ctx: ctx, l: l, name: name}, nil
}

func (l *bareOne) close() error { return l.db.Close() }

type bareOneClient struct {
	noTokens

	ctx  context.Context
	l    *bareOne
	name string
}

func (c *bareOneClient) acquire() error {
	return one(c.l.s.get.QueryRowContext(c.ctx, c.name, 0))
}

func (c *bareOneClient) release() error {
	return one(c.l.s.release.QueryRowContext(c.ctx, c.name))
}

// openBareText makes the statements anew each time, with the name in them.
func openBareText(ctx context.Context, p place) (locker, error) {
	db, err := openPool(p)
	if err != nil {
		return nil, err
	}
	c, err := db.Conn(ctx)
	return &bareOne{db: db, s: &statements{text{c, "SELECT GET_LOCK('%s', %d)"}, text{c, "SELECT RELEASE_LOCK('%s')"}}}, err
}

type text struct {
	conn      *sql.Conn
	statement string
}

func (t text) QueryRowContext(ctx context.Context, args ...any) *sql.Row {
	return t.conn.QueryRowContext(ctx, fmt.Sprintf(t.statement, args...))
}

type bareEach struct{ db *sql.DB }

func openBareEach(_ context.Context, p place) (locker, error) {
	db, err := openPool(p)
	return &bareEach{db}, err
}

func (l *bareEach) client(ctx context.Context, name string) (client, error) {
	s, err := newStatements(ctx, l.db)
	return &bareEachClient{ctx: ctx, s: s, name: name}, err
}

func (l *bareEach) close() error { return l.db.Close() }

type bareEachClient struct {
	noTokens

	ctx  context.Context
	s    *statements
	name string
}

func (c *bareEachClient) acquire() error {
	return one(c.s.get.QueryRowContext(c.ctx, c.name, waitSeconds))
}

func (c *bareEachClient) release() error {
	return one(c.s.release.QueryRowContext(c.ctx, c.name))
}

// standIn works as go-mysql-lock does.
type standIn struct{ db *sql.DB }

func openStandIn(_ context.Context, p place) (locker, error) {
	db, err := openPool(p)
	return &standIn{db}, err
}

func (l *standIn) client(ctx context.Context, name string) (client, error) {
	return &standInClient{ctx: ctx, db: l.db, name: name}, nil
}

func (l *standIn) close() error { return l.db.Close() }

type standInClient struct {
	noTokens

	ctx  context.Context
	db   *sql.DB
	name string
	conn *sql.Conn
	over chan struct{}
}

func (c *standInClient) acquire() (err error) {
	if c.conn, err = c.db.Conn(c.ctx); err != nil {
		return err
	}
	if err := one(c.conn.QueryRowContext(c.ctx, "SELECT GET_LOCK(?, ?)", c.name, waitSeconds)); err != nil {
		return err
	}
	c.over = make(chan struct{})
	go refresh(c.conn, c.over)
	return nil
}

func refresh(conn *sql.Conn, over chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-over:
			return
		case <-tick.C:
			if conn.PingContext(context.Background()) != nil {
				return // the next statement says so
			}
		}
	}
}

func (c *standInClient) release() error {
	close(c.over)
	_, err := c.conn.ExecContext(context.Background(), "DO RELEASE_LOCK(?)", c.name)
	return errors.Join(err, c.conn.Close())
}
