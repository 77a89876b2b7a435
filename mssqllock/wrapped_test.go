package mssqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"testing"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/distlock-go/distlock"
)

// wrappedConn is a connection of a driver around the driver, as those are that
// trace.
type wrappedConn struct{ sqldriver.Conn }

func (c wrappedConn) PrepareContext(ctx context.Context, q string) (sqldriver.Stmt, error) {
	return c.Conn.(sqldriver.ConnPrepareContext).PrepareContext(ctx, q)
}

type wrappedConnector struct{ sqldriver.Connector }

func (c wrappedConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	return wrappedConn{conn}, err
}

func TestWrappedDriver(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	connector, err := mssql.NewConnector(s.url(s.addr(), ""))
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(wrappedConnector{connector})
	defer db.Close()
	l := distlock.New(New(db, nil), nil)
	defer l.Close()
	other, _ := s.locker(t, s.addr(), nil)
	k := mustAcquire(t, l, t.Name())
	mustBeHeld(t, other, t.Name())
	mustRelease(t, k)
	mustRelease(t, mustAcquire(t, other, t.Name()))
}
