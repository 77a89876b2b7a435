package dbsession

import (
	"container/list"
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
)

// Conn is a connection as a [Dialect] uses it: without the layers of
// database/sql that check, watch and convert.
type Conn struct {
	conn    sqldriver.Conn
	life    context.Context // ends when the connection is to be cut
	hasCut  bool            // it is cut otherwise
	careful bool            // the next statement may have to be ended by life

	prepared map[string]*list.Element
	recent   list.List // of *preparedStmt
	row      []sqldriver.Value
	rest     []sqldriver.Value
	args     []sqldriver.NamedValue
}

type preparedStmt struct {
	query string
	stmt  sqldriver.Stmt
}

// maxPrepared bounds the prepared statements of a session.
const maxPrepared = 128

var errNoRow = errors.New("the server sent no row")

// Wrap makes a Conn of what sql.Conn.Raw gives, for the time of that.
func Wrap(dc any) (*Conn, error) {
	conn, ok := dc.(sqldriver.Conn)
	if !ok {
		return nil, fmt.Errorf("a %T is no database/sql/driver.Conn", dc)
	}
	return &Conn{conn: conn, life: context.Background()}, nil
}

// context returns what a statement is run with. Drivers watch a context that
// can end, with a goroutine, which doubles the time of a short statement; so it
// is given one only where there is reason.
func (c *Conn) context() context.Context {
	if c.careful && !c.hasCut {
		return c.life
	}
	return context.Background()
}

// Args returns a slice for n arguments, which is used again.
func (c *Conn) Args(n int) []sqldriver.NamedValue {
	if cap(c.args) < n {
		c.args = make([]sqldriver.NamedValue, n, 2*n)
		for i := range c.args[:cap(c.args)] {
			c.args[:cap(c.args)][i].Ordinal = i + 1
		}
	}
	return c.args[:n]
}

// Row runs a prepared query and returns its only row, which is valid until the
// next query.
func (c *Conn) Row(query string, args []sqldriver.NamedValue) ([]sqldriver.Value, error) {
	return c.RowUntil(c.context(), query, args)
}

// RowUntil is Row with a context that may end the statement, for drivers that
// keep the connection then, and watch a context at no cost.
func (c *Conn) RowUntil(ctx context.Context, query string, args []sqldriver.NamedValue) ([]sqldriver.Value, error) {
	stmt, err := c.prepare(query)
	if err != nil {
		return nil, err
	}
	var rows sqldriver.Rows
	if q, ok := stmt.(sqldriver.StmtQueryContext); ok {
		rows, err = q.QueryContext(ctx, args)
	} else {
		rows, err = stmt.Query(values(args)) //nolint:staticcheck // drivers of old have no other
	}
	if err != nil {
		return nil, err
	}
	return c.one(rows)
}

// Text runs a query as it is and returns its only row.
func (c *Conn) Text(query string) ([]sqldriver.Value, error) {
	rows, err := c.rows(query)
	if err != nil {
		return nil, err
	}
	return c.one(rows)
}

// Each runs a query as it is and calls f for each row.
func (c *Conn) Each(query string, f func(row []sqldriver.Value)) error {
	rows, err := c.rows(query)
	if err != nil {
		return err
	}
	row := make([]sqldriver.Value, len(rows.Columns()))
	for {
		if err = rows.Next(row); err != nil {
			break
		}
		f(row)
	}
	if cerr := rows.Close(); errors.Is(err, io.EOF) {
		err = cerr
	}
	return err
}

func (c *Conn) rows(query string) (sqldriver.Rows, error) {
	if q, ok := c.conn.(sqldriver.QueryerContext); ok {
		rows, err := q.QueryContext(c.context(), query, nil)
		if !errors.Is(err, sqldriver.ErrSkip) {
			return rows, err
		}
	}
	stmt, err := c.prepare(query)
	if err != nil {
		return nil, err
	}
	if q, ok := stmt.(sqldriver.StmtQueryContext); ok {
		return q.QueryContext(c.context(), nil)
	}
	return stmt.Query(nil) //nolint:staticcheck // see Row
}

func (c *Conn) one(rows sqldriver.Rows) ([]sqldriver.Value, error) {
	n := len(rows.Columns())
	if cap(c.row) < n {
		c.row, c.rest = make([]sqldriver.Value, n, 2*n), make([]sqldriver.Value, n, 2*n)
	}
	row := c.row[:n]
	err := rows.Next(row)
	if errors.Is(err, io.EOF) {
		err = errNoRow
	}
	if err == nil {
		// Byte slices belong to the driver, and only until the next call.
		for i, v := range row {
			if b, ok := v.([]byte); ok {
				row[i] = string(b)
			}
		}
		// Close would cancel what is still to come, with some drivers, and an error
		// that comes after the row would be missed.
		for err == nil {
			err = rows.Next(c.rest[:n])
		}
		if err == io.EOF {
			err = nil
		}
	}
	if cerr := rows.Close(); err == nil {
		err = cerr
	}
	return row, err
}

// Exec runs a statement as it is.
func (c *Conn) Exec(query string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	if len(args) == 0 {
		if e, ok := c.conn.(sqldriver.ExecerContext); ok {
			res, err := e.ExecContext(c.context(), query, nil)
			if !errors.Is(err, sqldriver.ErrSkip) {
				return res, err
			}
		}
	}
	stmt, err := c.prepare(query)
	if err != nil {
		return nil, err
	}
	if e, ok := stmt.(sqldriver.StmtExecContext); ok {
		return e.ExecContext(c.context(), args)
	}
	return stmt.Exec(values(args)) //nolint:staticcheck // see Row
}

func values(args []sqldriver.NamedValue) []sqldriver.Value {
	vs := make([]sqldriver.Value, len(args))
	for i, a := range args {
		vs[i] = a.Value
	}
	return vs
}

// prepare returns the prepared statement, and closes the one that was not used
// for longest if there are too many.
func (c *Conn) prepare(query string) (sqldriver.Stmt, error) {
	if e := c.prepared[query]; e != nil {
		c.recent.MoveToFront(e)
		return e.Value.(*preparedStmt).stmt, nil
	}
	var stmt sqldriver.Stmt
	var err error
	if p, ok := c.conn.(sqldriver.ConnPrepareContext); ok {
		stmt, err = p.PrepareContext(c.context(), query)
	} else {
		stmt, err = c.conn.Prepare(query)
	}
	if err != nil {
		return nil, err
	}
	if c.prepared == nil {
		c.prepared = make(map[string]*list.Element)
	}
	if c.recent.Len() >= maxPrepared {
		last := c.recent.Remove(c.recent.Back()).(*preparedStmt)
		delete(c.prepared, last.query)
		if err := last.stmt.Close(); err != nil {
			return nil, fmt.Errorf("closing a prepared statement: %w", err)
		}
	}
	c.prepared[query] = c.recent.PushFront(&preparedStmt{query, stmt})
	return stmt, nil
}
