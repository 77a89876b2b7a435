package mysqllock

import (
	"context"
	sqldriver "database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/dbsession"
)

// What a session can be asked for. A result that isn't told is 1 or 0.
const (
	// doRelease gives Key back; NULL or 0 if it wasn't held by this session.
	doRelease = dbsession.FirstVerb + iota
	// doGet takes Key.
	doGet
	// doGetIf takes Key, and gives it back if Checks, one name, isn't free: 2.
	doGetIf
	// doGetIfAll is doGetIf with as many Checks as there are places for readers.
	doGetIfAll
	// doGetLock takes Key, and looks whether any session of the server reads
	// anything: then the result is 3, and it isn't known whether Key has readers.
	doGetLock
	// doLookFree looks whether Key is free.
	doLookFree
	// doCountFree counts which of Checks are free.
	doCountFree

	// doGetAny takes the first of Checks that is free, and results in its number,
	// from 1; or -1 if Key isn't free.
	doGetAny
	// doReleaseAny gives back those of Checks that this session has.
	doReleaseAny
	// doCount increments the fencing counter Key, and results in its new value.
	doCount
	// doCountOwn is doCount for a counter that nobody else counts meanwhile, as who
	// asks holds the lock exclusively.
	doCountOwn
)

// dialect is what MySQL and MariaDB have in common, and where they differ.
type dialect struct {
	slots   int      // places for readers
	marks   []string // of sessions that read
	unread  string   // is 1 as long as there is none
	fence   string   // quoted; empty: none
	vanish  time.Duration
	readers atomic.Int64 // when somebody was seen to read

	mu      sync.Mutex
	server  *server // the one that was seen first
	queries map[shape]string
}

// shape is how many steps of each verb travel together.
type shape [doGetAny]uint8

func newDialect() *dialect { return &dialect{queries: make(map[shape]string)} }

// expression returns the SQL of a verb.
func (d *dialect) expression(v dbsession.Verb) string {
	frees := func(n int) string {
		return strings.TrimPrefix(strings.Repeat("+IS_FREE_LOCK(?)", n), "+")
	}
	switch v {
	case dbsession.Ping:
		return "1"
	case dbsession.Owner:
		return "IS_USED_LOCK(?)"
	case doRelease:
		return "RELEASE_LOCK(?)"
	case doGet, doGetLock:
		return "GET_LOCK(?,0)"
	case doGetIf:
		return "IF(GET_LOCK(?,0),IF(IS_FREE_LOCK(?),1,1+RELEASE_LOCK(?)),0)"
	case doGetIfAll:
		if d.slots == 0 {
			return "GET_LOCK(?,0)"
		}
		return fmt.Sprintf("IF(GET_LOCK(?,0),IF(%s=%d,1,1+RELEASE_LOCK(?)),0)", frees(d.slots), d.slots)
	case doLookFree:
		return "IS_FREE_LOCK(?)"
	case doCountFree:
		return frees(d.slots)
	default:
		panic(fmt.Sprintf("mysqllock: verb %d travels alone", v))
	}
}

// Company implements [dbsession.Dialect].
func (d *dialect) Company(v dbsession.Verb) dbsession.Company {
	switch {
	case v < doGetAny:
		return dbsession.Mixed
	case v == doCountOwn:
		return dbsession.Alike
	default:
		return dbsession.Alone
	}
}

// Undo implements [dbsession.Dialect].
func (d *dialect) Undo(s *dbsession.Step) *dbsession.Step {
	switch s.Verb {
	case doRelease, doGet, doGetLock, doGetIf, doGetIfAll:
		return &dbsession.Step{Verb: doRelease, Key: s.Key}
	case doGetAny:
		return &dbsession.Step{Verb: doReleaseAny, Checks: s.Checks}
	default:
		return nil
	}
}

// Took implements [dbsession.Dialect].
func (d *dialect) Took(s *dbsession.Step) bool {
	switch s.Verb {
	case doGet, doGetIf, doGetIfAll:
		return s.Result == 1
	case doGetAny, doGetLock:
		return s.Result > 0
	default:
		return false
	}
}

// Fills implements [dbsession.Filler].
func (d *dialect) Fills(v dbsession.Verb) bool {
	return v == doRelease || v == doGet || v == doGetLock || v == doCountOwn
}

// neverHeld and noGate are names of locks that nobody takes.
const (
	neverHeld = slotsStart + "never"
	noGate    = slotsStart + "no-gate"
)

// places returns how many places for the verb a statement with n steps has: few
// numbers make few statements, and a place that nobody needs costs little.
func (d *dialect) places(v dbsession.Verb, n int) int {
	if n == 0 || !d.Fills(v) {
		return n
	}
	return 1 << bits.Len(uint(n-1))
}

// Run implements [dbsession.Dialect].
func (d *dialect) Run(_ context.Context, c *dbsession.Conn, steps []*dbsession.Step) error {
	switch v := steps[0].Verb; d.Company(v) {
	case dbsession.Alone:
		return d.runAlone(c, steps[0])
	case dbsession.Alike:
		return d.countOwn(c, steps)
	case dbsession.Mixed:
	}
	var sh shape
	n := 0
	for _, s := range steps {
		sh[s.Verb]++
		n += d.args(s)
	}
	var missing shape
	for v := range sh {
		places := d.places(dbsession.Verb(v), int(sh[v]))
		missing[v] = uint8(places) - sh[v]
		n += int(missing[v])
		sh[v] = uint8(places)
	}
	args := c.Args(n)
	n = 0
	add := func(v any) { args[n].Value = v; n++ }
	for i, s := range steps {
		switch s.Verb {
		case dbsession.Ping:
		case doCountFree:
			for _, check := range s.Checks {
				add(check)
			}
		default:
			add(s.KeyArg())
			if len(s.Checks) > 0 {
				for _, check := range s.Checks {
					add(check)
				}
				add(s.KeyArg())
			}
		}
		if i+1 == len(steps) || steps[i+1].Verb != s.Verb {
			if missing[s.Verb] > 0 {
				// The session has its own mark for as long as it lives, however often it is
				// granted.
				var idle any = neverHeld
				if s.Verb != doRelease {
					idle = c.State
				}
				for range missing[s.Verb] {
					add(idle)
				}
			}
		}
	}
	row, err := d.row(c, d.query(sh), args)
	if err != nil {
		return err
	}
	quiet := true
	if sh[doGetLock] > 0 && d.slots > 0 {
		if quiet, err = d.nobodyReads(row[len(row)-1]); err != nil {
			return err
		}
	}
	for i, s := range steps {
		if err := s.Set(row[i]); err != nil {
			return err
		}
		if s.Verb == doGetLock && s.Result == 1 && !quiet {
			s.Result = 3
		}
		if i+1 < len(steps) && steps[i+1].Verb != s.Verb {
			row = row[missing[s.Verb]:]
		}
	}
	return nil
}

// readingSessions is how many sessions of one server may hold locks in shared
// mode at least. Each has one of as many marks, which are locks too, so that those
// who take a lock exclusively need not look for its readers as long as nobody
// reads anything. They look at all the marks, each time.
const readingSessions = 16

// setReaders sets how many places for readers there are.
func (d *dialect) setReaders(n int) {
	d.slots, d.marks = n, nil
	for i := range max(n, readingSessions) {
		d.marks = append(d.marks, readingName(i))
	}
	d.unread = allFree(d.marks)
}

// allFree returns the SQL of whether none of the names, at least two of this
// package's own, is held. One function of many costs less than many additions: the
// server prepares each for each execution.
func allFree(names []string) string {
	return "LEAST(IS_FREE_LOCK('" + strings.Join(names, "'),IS_FREE_LOCK('") + "'))"
}

// readingKey is what this process claims for the mark that it has.
const readingKey = slotsStart + "reading"

// readingName returns the name of one of these locks.
func readingName(i int) string { return fmt.Sprintf("%sreading/%d", slotsStart, i) }

// nobodyReads reports whether v, the value of unread, says so, and notes when it
// didn't.
func (d *dialect) nobodyReads(v sqldriver.Value) (bool, error) {
	var st dbsession.Step
	if err := st.Set(v); err != nil {
		return false, err
	}
	if st.Result != 1 {
		d.readers.Store(time.Now().UnixNano())
		return false, nil
	}
	return true, nil
}

// quiet reports whether nobody was seen to read of late.
func (d *dialect) quiet() bool {
	seen := d.readers.Load()
	return seen == 0 || time.Now().UnixNano()-seen > int64(time.Second)
}

// args returns how many arguments the step has.
func (d *dialect) args(s *dbsession.Step) int {
	switch {
	case s.Verb == dbsession.Ping:
		return 0
	case s.Verb == doCountFree:
		return len(s.Checks)
	case len(s.Checks) > 0:
		return len(s.Checks) + 2
	default:
		return 1
	}
}

func (d *dialect) query(sh shape) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.queries[sh]
	if q == "" {
		var b strings.Builder
		for v, n := range sh {
			if n > 0 {
				b.WriteString(strings.Repeat(","+d.expression(dbsession.Verb(v)), int(n)))
			}
		}
		if sh[doGetLock] > 0 && d.slots > 0 {
			b.WriteString("," + d.unread)
		}
		q = "SELECT " + b.String()[1:]
		d.queries[sh] = q
	}
	return q
}

func (d *dialect) runAlone(c *dbsession.Conn, s *dbsession.Step) error {
	switch s.Verb {
	case doGetAny:
		// Few lengths make few statements; the last name may come again, as it is
		// asked for only once it was found taken.
		n := 1
		for n < len(s.Checks) {
			n *= 2
		}
		var b strings.Builder
		b.WriteString("SELECT IF(IS_FREE_LOCK(?),CASE")
		args := c.Args(n + 1)
		args[0].Value = s.Key
		for i := range n {
			fmt.Fprintf(&b, " WHEN GET_LOCK(?,0) THEN %d", i+1)
			args[i+1].Value = s.Checks[min(i, len(s.Checks)-1)]
		}
		b.WriteString(" ELSE 0 END,-1)")
		row, err := d.row(c, b.String(), args)
		if err != nil {
			return err
		}
		return s.Set(row[0])
	case doReleaseAny:
		var b strings.Builder
		for _, name := range s.Checks {
			fmt.Fprintf(&b, ",RELEASE_LOCK(%s)", literal(name))
		}
		_, err := c.Text("SELECT " + b.String()[1:])
		return err
	case doCount:
		return d.count(c, s)
	default:
		panic("mysqllock: unknown verb")
	}
}

// row runs a query, prepared if the server has room for one more statement:
// max_prepared_stmt_count is for all clients together.
func (d *dialect) row(c *dbsession.Conn, query string, args []sqldriver.NamedValue) ([]sqldriver.Value, error) {
	row, err := c.Row(query, args)
	if isError(err, errTooManyPrepared) {
		row, err = c.Text(withLiterals(query, args))
	}
	return row, err
}

// exec is row for a statement that is no query.
func (d *dialect) exec(c *dbsession.Conn, query string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	res, err := c.Exec(query, args)
	if isError(err, errTooManyPrepared) {
		res, err = c.Exec(withLiterals(query, args), nil)
	}
	return res, err
}

// withLiterals returns the query with its arguments, which are strings, in it. It
// has no other question marks.
func withLiterals(query string, args []sqldriver.NamedValue) string {
	var b strings.Builder
	for _, a := range args {
		before, after, _ := strings.Cut(query, "?")
		b.WriteString(before)
		b.WriteString(literal(a.Value.(string)))
		query = after
	}
	b.WriteString(query)
	return b.String()
}

// literal returns the SQL of a string, whatever the settings of the session.
func literal(s string) string { return "_utf8mb4 x'" + hex.EncodeToString([]byte(s)) + "'" }

// Wait implements [dbsession.Dialect].
func (d *dialect) Wait(_ context.Context, c *dbsession.Conn, s *dbsession.Step, wait time.Duration) error {
	var hint, seconds string
	if d.known().maria {
		seconds = strconv.FormatFloat(wait.Seconds(), 'f', 6, 64)
	} else {
		// MySQL counts whole seconds; the exact end is that of the statement.
		seconds = strconv.FormatInt(int64(math.Ceil(wait.Seconds())), 10)
		if ms := (wait + time.Millisecond - 1).Milliseconds(); ms < math.MaxUint32 {
			hint = fmt.Sprintf("/*+ MAX_EXECUTION_TIME(%d) */ ", max(ms, 1))
		}
	}
	query := "SELECT " + hint + "GET_LOCK(" + literal(s.Key) + "," + seconds + ")"
	looks := s.Verb == doGetLock && d.slots > 0
	if looks {
		query += "," + d.unread
	}
	row, err := c.Text(query)
	switch {
	case isError(err, errQueryTimeout):
		err, s.Result = nil, 0
	case isError(err, errInterrupted, errStatementTimeout):
		err = dbsession.ErrInterrupted
	case err != nil:
		return err
	default:
		if err := s.Set(row[0]); err != nil {
			return err
		}
		if s.Result == 1 && looks {
			if quiet, err := d.nobodyReads(row[1]); err != nil {
				return err
			} else if !quiet {
				s.Result = 3
			}
		}
		if !s.Null {
			return nil
		}
		err = dbsession.ErrInterrupted
	}
	// It may have been granted all the same, at the last moment.
	if _, failed := c.Text("SELECT RELEASE_LOCK(" + literal(s.Key) + ")"); failed != nil {
		return errors.Join(dbsession.ErrDoubt, failed)
	}
	return err
}

// Interrupt implements [dbsession.Interrupter].
func (d *dialect) Interrupt(_ context.Context, c *dbsession.Conn, other dbsession.Identity) error {
	return d.kill(c, "QUERY ", other)
}

// Kill implements [dbsession.Dialect].
func (d *dialect) Kill(_ context.Context, c *dbsession.Conn, other dbsession.Identity) error {
	return d.kill(c, "", other)
}

// kill kills the other session or its query, if it still is the one that is
// meant: the numbers of sessions start again with the server.
func (d *dialect) kill(c *dbsession.Conn, what string, other dbsession.Identity) error {
	row, err := c.Text("SELECT IS_USED_LOCK(" + literal(other.Mark) + ")")
	if err != nil {
		return err
	}
	var s dbsession.Step
	if err := s.Set(row[0]); err != nil || s.Null || s.Result != other.ID {
		return err
	}
	_, err = c.Exec("KILL "+what+strconv.FormatInt(other.ID, 10), nil)
	if isError(err, errNoSuchThread) {
		return nil
	}
	return err
}

// Answered implements [dbsession.Dialect].
func (d *dialect) Answered(err error) bool {
	var e *mysql.MySQLError
	return errors.Is(err, errUncounted) || errors.As(err, &e) && !isError(err, errConnectionKilled, errServerShutdown, errClientInteraction)
}

// Numbers of the servers' errors.
const (
	errServerShutdown    = 1053
	errNoSuchThread      = 1094
	errNoSuchTable       = 1146
	errLockWait          = 1205 // the row of a table, not a user lock
	errDeadlock          = 1213
	errInterrupted       = 1317
	errConnectionKilled  = 1927
	errTooManyPrepared   = 1461
	errStatementTimeout  = 1969 // MariaDB: max_statement_time
	errQueryTimeout      = 3024 // MySQL: MAX_EXECUTION_TIME
	errUserLockDeadlock  = 3058
	errClientInteraction = 4031 // MySQL: wait_timeout
)

func isError(err error, numbers ...uint16) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && slices.Contains(numbers, e.Number)
}

// explain gives an error the meaning that it has for the caller.
func explain(err error) error {
	if isError(err, errDeadlock, errUserLockDeadlock) {
		return fmt.Errorf("%w: %w", driver.ErrDeadlock, err)
	}
	return err
}

var (
	_ dbsession.Dialect     = (*dialect)(nil)
	_ dbsession.Interrupter = (*dialect)(nil)
	_ dbsession.Filler      = (*dialect)(nil)
)
