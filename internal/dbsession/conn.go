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
	// State is the dialect's own.
	State any

	conn    sqldriver.Conn
	life    context.Context // ends when the connection is to be cut
	hasCut  bool            // it is cut otherwise
	watched bool            // the driver watches life, whatever is sent

	prepared map[string]*list.Element
	recent   list.List // of *preparedStmt
	row      []sqldriver.Value
	rest     []sqldriver.Value
	args     []sqldriver.NamedValue
	values   []sqldriver.Value
	open     sqldriver.Rows // of Watch
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
// can end, some with a goroutine that takes as long as a short statement; so it is
// given one only where the connection can't be cut otherwise.
func (c *Conn) context() context.Context {
	if c.hasCut {
		return context.Background()
	}
	return c.life
}

// canCut reports whether a statement that hangs can be ended at any time,
// whoever runs it.
func (c *Conn) canCut() bool { return c.hasCut || c.watched }

// Watch is Text, and leaves the rows open behind the last of them. A driver that
// watches the context of a query until its rows are closed, with a goroutine that
// is woken up for that, goes on watching then; and the methods that know no
// context don't disturb it. So the connection can be cut under each statement to
// come, and none costs the change to another goroutine and back. If watching,
// which is given the driver's connection, says that it isn't so, it is Text.
func (c *Conn) Watch(query string, watching func(dc any) bool) ([]sqldriver.Value, error) {
	q, ok := c.conn.(sqldriver.QueryerContext)
	_, plain := c.conn.(sqldriver.Queryer)    //nolint:staticcheck // see Watch
	_, plainExec := c.conn.(sqldriver.Execer) //nolint:staticcheck // see Watch
	if !ok || !plain || !plainExec || c.canCut() {
		return c.Text(query)
	}
	rows, err := q.QueryContext(c.life, query, nil)
	if err != nil {
		return nil, err
	}
	row, err := c.read(rows)
	if err == nil && watching(c.conn) {
		c.open, c.watched = rows, true
		return row, nil
	}
	if cerr := rows.Close(); err == nil {
		err = cerr
	}
	return row, err
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
	if q, ok := stmt.(sqldriver.StmtQueryContext); ok && !c.watched {
		rows, err = q.QueryContext(ctx, args)
	} else {
		rows, err = stmt.Query(c.plain(args)) //nolint:staticcheck // see Watch; and drivers of old have no other
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
	if c.watched {
		return c.conn.(sqldriver.Queryer).Query(query, nil) //nolint:staticcheck // see Watch
	}
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
	row, err := c.read(rows)
	if cerr := rows.Close(); err == nil {
		err = cerr
	}
	return row, err
}

// read reads the only row, and what may follow it: Close would cancel what is
// still to come, with some drivers, and an error that comes after the row would
// be missed.
func (c *Conn) read(rows sqldriver.Rows) ([]sqldriver.Value, error) {
	n := len(rows.Columns())
	if cap(c.row) < n {
		c.row, c.rest = make([]sqldriver.Value, n, 2*n), make([]sqldriver.Value, n, 2*n)
	}
	row := c.row[:n]
	err := rows.Next(row)
	if errors.Is(err, io.EOF) {
		return row, errNoRow
	}
	for i, v := range row {
		if b, ok := v.([]byte); ok { // the driver's, and only until the next call
			row[i] = string(b)
		}
	}
	for err == nil {
		err = rows.Next(c.rest[:n])
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return row, err
}

// Exec runs a statement as it is.
func (c *Conn) Exec(query string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	if len(args) == 0 {
		if c.watched {
			return c.conn.(sqldriver.Execer).Exec(query, nil) //nolint:staticcheck // see Watch
		}
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
	if e, ok := stmt.(sqldriver.StmtExecContext); ok && !c.watched {
		return e.ExecContext(c.context(), args)
	}
	return stmt.Exec(c.plain(args)) //nolint:staticcheck // see Row
}

// ErrNoCall is the error of [Conn.Call] if the driver can't do that. Nothing has
// been done then.
var ErrNoCall = errors.New("the driver takes no pointer for the return status")

// Call calls a procedure, of which the driver puts the return status into what
// status points to, in its own way.
func (c *Conn) Call(ctx context.Context, procedure string, args []sqldriver.NamedValue, status any) error {
	checker, ok := c.conn.(sqldriver.NamedValueChecker)
	if !ok { // it is wrapped in another
		return ErrNoCall
	}
	stmt, err := c.prepare(procedure)
	if err != nil {
		return err
	}
	e, ok := stmt.(sqldriver.StmtExecContext)
	if !ok {
		return ErrNoCall
	}
	out := sqldriver.NamedValue{Ordinal: len(args) + 1, Value: status}
	if err := checker.CheckNamedValue(&out); !errors.Is(err, sqldriver.ErrRemoveArgument) {
		return errors.Join(ErrNoCall, err)
	}
	_, err = e.ExecContext(ctx, args)
	return err
}

// plain returns the arguments in the form of the methods without context.
func (c *Conn) plain(args []sqldriver.NamedValue) []sqldriver.Value {
	c.values = c.values[:0]
	for _, a := range args {
		c.values = append(c.values, a.Value)
	}
	return c.values
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
	if p, ok := c.conn.(sqldriver.ConnPrepareContext); ok && !c.watched {
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
