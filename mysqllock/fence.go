package mysqllock

import (
	"context"
	sqldriver "database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/dbsession"
)

// FenceTableDDL returns the statement that makes the table of
// [Options.FenceTable].
func FenceTableDDL(table string) (string, error) {
	quoted, err := quoteTable(table)
	if err != nil {
		return "", fmt.Errorf("%w: %w", distlock.ErrBadArgument, err)
	}
	return "CREATE TABLE IF NOT EXISTS " + quoted + ` (
  name   VARBINARY(255)   NOT NULL PRIMARY KEY,
  token  BIGINT UNSIGNED  NOT NULL,
  owner  VARBINARY(255)   NOT NULL DEFAULT '',
  since  TIMESTAMP(6)     NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)
) ENGINE=InnoDB`, nil
}

// quoteTable quotes a table's name, with or without its database.
func quoteTable(table string) (string, error) {
	parts := strings.Split(table, ".")
	if len(parts) > 2 {
		return "", fmt.Errorf("fence table %q: name or database.name is needed", table)
	}
	for i, p := range parts {
		if p == "" || len(p) > 64 || !utf8.ValidString(p) || strings.ContainsAny(p, "\x00") {
			return "", fmt.Errorf("fence table %q: name or database.name is needed", table)
		}
		parts[i] = "`" + strings.ReplaceAll(p, "`", "``") + "`"
	}
	return strings.Join(parts, "."), nil
}

// fence returns the key of the counter; permits have their own.
func (n names) fence(m driver.Mode) string {
	if m == driver.Permit {
		return n.gate()
	}
	return n.lock
}

// count increments the counter of what is held, on the very session that holds
// it: after the loss of that, nothing can be counted any more, and nobody be told
// a token that is larger than the next holder's.
func (b *Backend) count(ctx context.Context, asked time.Time, s *dbsession.Session, n names, who driver.Holder) (uint64, error) {
	if b.dialect.fence == "" {
		return 0, nil
	}
	st := dbsession.Step{Verb: doCount, Key: n.fence(who.Mode), Arg: describe(s.Identity().Mark, who.Owner), Asked: asked}
	if who.Mode == driver.Exclusive {
		st.Verb = doCountOwn
	}
	start := time.Now()
	err := b.pool.DoOn(ctx, s, &st)
	if st.Verb == doCountOwn && b.dialect.Answered(err) {
		st.Verb = doCount // it may have been the fault of those that came along
		err = b.pool.DoOn(ctx, s, &st)
	}
	for isError(err, errDeadlock, errLockWait) && time.Since(start) < b.opt.Heartbeat/2 {
		// Counters that are new at the same moment meet in the table's gaps. Nothing
		// was counted.
		err = b.pool.DoOn(ctx, s, &st)
	}
	if isError(err, errNoSuchTable) && b.opt.CreateFenceTable {
		ddl, _ := FenceTableDDL(b.opt.FenceTable) // quoted before
		making, cancel := b.pool.Within(ctx, asked)
		err = b.pool.Exec(making, s, ddl)
		cancel()
		if err == nil {
			err = b.pool.DoOn(ctx, s, &st)
		}
	}
	switch {
	case isError(err, errNoSuchTable):
		return 0, fmt.Errorf("fence table %s: make it with the statement that FenceTableDDL returns, or set CreateFenceTable (create_fence_table=true in the URL): %w", b.opt.FenceTable, err)
	case err != nil:
		return 0, fmt.Errorf("fence table %s: %w", b.opt.FenceTable, err)
	case st.Result <= 0:
		return 0, errors.New("the fence table counted to nothing")
	}
	return uint64(st.Result), nil
}

// fenceClock is where a new counter starts, and what none falls behind, so that a
// table that was lost, or restored from a copy, or left behind by its replica gives
// no smaller number.
const fenceClock = "CAST(UNIX_TIMESTAMP(NOW(6))*1000000 AS UNSIGNED)"

// count implements the verb doCount.
func (d *dialect) count(c *dbsession.Conn, s *dbsession.Step) error {
	args := c.Args(2)
	args[0].Value, args[1].Value = s.Key, s.Arg
	res, err := d.exec(c, "INSERT INTO "+d.fence+" (name, token, owner) VALUES (CAST(? AS BINARY), LAST_INSERT_ID("+fenceClock+"), CAST(? AS BINARY))"+
		" ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(GREATEST(token + 1, "+fenceClock+")), owner = VALUES(owner), since = NOW(6)", args)
	if err != nil {
		return err
	}
	s.Null = false
	s.Result, err = res.LastInsertId()
	return err
}

// countOwn implements the verb doCountOwn: one statement counts for all, with one
// commit, and another reads what it made of them.
func (d *dialect) countOwn(c *dbsession.Conn, steps []*dbsession.Step) error {
	if len(steps) == 1 {
		return d.count(c, steps[0])
	}
	// All lock their rows in the same order.
	steps = slices.SortedFunc(slices.Values(steps), func(a, b *dbsession.Step) int { return strings.Compare(a.Key, b.Key) })
	// Few lengths make few statements; the last key may come again, and is counted
	// that much further.
	n := (len(steps) + 3) &^ 3
	step := func(i int) *dbsession.Step { return steps[min(i, len(steps)-1)] }
	args := c.Args(2 * n)
	for i := range n {
		args[2*i].Value, args[2*i+1].Value = step(i).Key, step(i).Arg
	}
	rows := strings.Repeat(",(CAST(? AS BINARY), "+fenceClock+", CAST(? AS BINARY))", n)[1:]
	_, err := d.exec(c, "INSERT INTO "+d.fence+" (name, token, owner) VALUES "+rows+
		" ON DUPLICATE KEY UPDATE token = GREATEST(token + 1, "+fenceClock+"), owner = VALUES(owner), since = NOW(6)", args)
	if err != nil {
		return err
	}
	// What the statement made of the rows is read from them. That they are the server's
	// own, and not those of a replica, shows in the owner that was just written.
	at := make(map[string]*dbsession.Step, len(steps))
	var keys strings.Builder
	for _, s := range steps {
		at[s.Key] = s
		keys.WriteString("," + literal(s.Key))
	}
	counted := 0
	err = c.Each("SELECT name, token, owner FROM "+d.fence+" WHERE name IN ("+keys.String()[1:]+") FOR UPDATE", func(row []sqldriver.Value) {
		s := at[dbsession.Text(row[0])]
		if s != nil && dbsession.Text(row[2]) == s.Arg && s.Set(dbsession.Text(row[1])) == nil {
			counted++
		}
	})
	if err == nil && counted != len(steps) {
		err = errUncounted
	}
	return err
}

// errUncounted is the answer of a server that doesn't show what was written just now.
// Each counts by itself then.
var errUncounted = errors.New("the counters of several locks can't be read")

// describe returns the owner as text for the table, another one for each attempt. It
// begins with the mark of the session that holds the lock: the row stays when the lock
// has gone on to somebody who counts nothing.
func describe(mark string, o driver.Owner) string {
	s := fmt.Sprintf("%s #%d %s pid %d, %s", mark, binary.BigEndian.Uint64(o.ID[8:]), o.Host, o.PID, o.Program)
	if o.Note != "" {
		s += ": " + o.Note
	}
	if len(s) > 255 {
		s = strings.ToValidUTF8(s[:255], "")
	}
	return s
}
