//go:build unix

package mysqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/distlock-go/distlock/driver"
)

// wrappedConn is a connection of a driver around the driver, as those are that
// trace: it can't be seen whether a context is watched.
type wrappedConn struct{ sqldriver.Conn }

func (c wrappedConn) QueryContext(ctx context.Context, q string, a []sqldriver.NamedValue) (sqldriver.Rows, error) {
	return c.Conn.(sqldriver.QueryerContext).QueryContext(ctx, q, a)
}

func (c wrappedConn) ExecContext(ctx context.Context, q string, a []sqldriver.NamedValue) (sqldriver.Result, error) {
	return c.Conn.(sqldriver.ExecerContext).ExecContext(ctx, q, a)
}

func (c wrappedConn) PrepareContext(ctx context.Context, q string) (sqldriver.Stmt, error) {
	return c.Conn.(sqldriver.ConnPrepareContext).PrepareContext(ctx, q)
}

type wrappedConnector struct{ sqldriver.Connector }

func (c wrappedConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	return wrappedConn{conn}, err
}

// A statement that gets no answer doesn't keep the connection for ever, whatever
// the driver.
func TestSwallowedStatementOfAWrappedDriver(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		p := newProxy(t, s.addr)
		cfg, err := mysql.ParseDSN(s.dsn(p.Addr()))
		if err != nil {
			t.Fatal(err)
		}
		connector, err := mysql.NewConnector(cfg)
		if err != nil {
			t.Fatal(err)
		}
		db := sql.OpenDB(wrappedConnector{connector})
		defer db.Close()
		b := New(db, &Options{Heartbeat: 500 * time.Millisecond})
		defer b.Close()
		g := insist(t, func() (driver.Grant, error) {
			return b.Acquire(context.Background(), driver.Request{Resource: t.Name()})
		})
		p.Set(true, true)
		if err := g.Hold.Release(context.Background()); !errors.Is(err, driver.ErrLost) {
			t.Errorf("released without an answer: %v", err)
		}
		eventually(t, "the connection is closed", func() bool { return db.Stats().OpenConnections == 0 })
	})
}
