package mssqllock

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/dbsession"
)

// What a session can be asked for. Where nothing else is told, the result is 1
// or 0, or a return code of sp_getapplock that is an error.
const (
	// doRelease gives Key back.
	doRelease = dbsession.FirstVerb + iota
	// doUnshare is doRelease for one of the times that Key is held in mode Shared.
	doUnshare
	// doUnget gives Key back if it is held in mode Exclusive, and doUnupdate if in
	// mode Update: what the session holds of it in another mode isn't meant.
	doUnget
	doUnupdate
	// doGet takes Key in mode Exclusive. What this session holds is as held as
	// anything else; the server would grant it once more.
	doGet
	// doUpdate takes Key in mode Update. The result is onlyElsewhere if this
	// session has it in mode Shared: it would have but one mode for both.
	doUpdate
	// doShare takes Key in mode Shared, perhaps not for the first time. The result
	// is onlyElsewhere if this session has it in mode Update.
	doShare
	// doUpgrade makes Exclusive of what this session holds in mode Update. The
	// result is notHeld if it doesn't.
	doUpgrade
	// doStandIn waits for Key in mode Exclusive, to keep others behind. It is never
	// done but in a wait.
	doStandIn

	// doGetAny takes the first of Checks that is free, and results in its number,
	// from 1; or -1 if there is a Key, and it isn't free.
	doGetAny
	// doReleaseAny gives back those of Checks that this session has.
	doReleaseAny
	// doCount results in the next number of the sequence.
	doCount

	// doWaitAny waits for any of the first N permits whose names end with Key, and
	// results in its number, from 1. It is never done but in a wait.
	doWaitAny
)

// These are results too. They are none of sp_getapplock's.
const (
	onlyElsewhere = 2
	notHeld       = 3
)

// Return codes of sp_getapplock. All others below zero are errors.
// https://learn.microsoft.com/sql/relational-databases/system-stored-procedures/sp-getapplock-transact-sql
const (
	codeGranted  = 0
	codeWaited   = 1
	codeTimeout  = -1
	codeCanceled = -2
	codeDeadlock = -3
	codeInvalid  = -999
)

// codeError is a return code that means neither granted nor held by another.
type codeError int64

func (e codeError) Error() string {
	what := "which isn't documented"
	switch e {
	case codeCanceled:
		what = "the request was canceled"
	case codeDeadlock:
		what = "the request was chosen as the victim of a deadlock"
	case codeInvalid:
		what = "the call was invalid"
	}
	return fmt.Sprintf("sp_getapplock returned %d: %s", int64(e), what)
}

// Is makes a deadlock known to all.
func (e codeError) Is(target error) bool { return e == codeDeadlock && target == driver.ErrDeadlock }

// checked returns the error that the result of a step is, if it is one.
func checked(st *dbsession.Step) error {
	if st.Result < 0 && st.Verb != doGetAny {
		return codeError(st.Result)
	}
	return nil
}

// dialect is how SQL Server locks.
type dialect struct {
	sequence string // quoted; empty: none

	mu      sync.Mutex
	server  *server // the one that was seen last
	queries map[queryKey]*query
}

type queryKey struct {
	shape
	oneMode bool
}

// shape is how many steps of each verb travel together.
type shape [doGetAny]uint8

// query is a text for sp_executesql, and the declaration of its parameters.
type query struct{ text, params string }

func newDialect() *dialect { return &dialect{queries: make(map[queryKey]*query)} }

// mode is in which mode this session, and no other, holds @p%[1]d.
// https://learn.microsoft.com/sql/t-sql/functions/applock-mode-transact-sql
const mode = "APPLOCK_MODE('public',@p%[1]d,'Session')"

// getOnly is doGet for sessions that hold nothing in another mode.
const getOnly = "EXEC @r%[1]d=sp_getapplock @p%[1]d,'Exclusive','Session',0;"

const executeSQL = "sp_executesql"

// statement returns the SQL of a verb, with the number of the step for its
// parameter and its result, which is set to -1 beforehand. Lock requests never
// wait here: a session that holds locks is never blocked.
func statement(v dbsession.Verb) string {
	switch v {
	case dbsession.Ping:
		return "SET @r%[1]d=0;"
	case dbsession.Owner:
		return "IF APPLOCK_TEST('public',@p%[1]d,'Exclusive','Session')=0 SET @r%[1]d=0;"
	case doRelease, doUnshare:
		return "IF " + mode + "<>'NoLock' EXEC @r%[1]d=sp_releaseapplock @p%[1]d,'Session';"
	case doUnget:
		return "IF " + mode + "='Exclusive' EXEC @r%[1]d=sp_releaseapplock @p%[1]d,'Session';"
	case doUnupdate:
		return "IF " + mode + "='Update' EXEC @r%[1]d=sp_releaseapplock @p%[1]d,'Session';"
	case doGet:
		return "IF " + mode + "='NoLock' EXEC @r%[1]d=sp_getapplock @p%[1]d,'Exclusive','Session',0;"
	case doUpdate:
		return "SET @m=" + mode + ";IF @m='NoLock' EXEC @r%[1]d=sp_getapplock @p%[1]d,'Update','Session',0 ELSE IF @m='Shared' SET @r%[1]d=-100;"
	case doShare:
		// Whoever holds it already is granted it again before all others, so that
		// writers could wait for ever. A transaction is another owner, and has to
		// queue up: only if that gets it, nobody waits.
		return "SET @m=" + mode + ";IF @m='NoLock' EXEC @r%[1]d=sp_getapplock @p%[1]d,'Shared','Session',0" +
			" ELSE IF @m='Update' SET @r%[1]d=-100" +
			" ELSE IF @m='Shared' BEGIN BEGIN TRANSACTION;EXEC @r%[1]d=sp_getapplock @p%[1]d,'Shared','Transaction',0;COMMIT TRANSACTION;" +
			"IF @r%[1]d>=0 EXEC @r%[1]d=sp_getapplock @p%[1]d,'Shared','Session',0 END;"
	case doUpgrade:
		// It is held twice then, and must be given back as often; the mode stays.
		return "SET @m=" + mode + ";IF @m='Update' OR @m='Exclusive' BEGIN EXEC @r%[1]d=sp_getapplock @p%[1]d,'Exclusive','Session',0;" +
			"IF @r%[1]d>=0 EXEC sp_releaseapplock @p%[1]d,'Session' END ELSE SET @r%[1]d=-101;"
	case doStandIn:
		return "SET @r%[1]d=-1;"
	default:
	}
	panic(fmt.Sprintf("mssqllock: verb %d travels alone", v))
}

// Company implements [dbsession.Dialect].
func (d *dialect) Company(v dbsession.Verb) dbsession.Company {
	switch {
	case v < doGetAny:
		return dbsession.Mixed
	case v == doCount:
		return dbsession.Alike
	default:
		return dbsession.Alone
	}
}

// Undo implements [dbsession.Dialect].
func (d *dialect) Undo(s *dbsession.Step) *dbsession.Step {
	switch s.Verb {
	case doRelease:
		return &dbsession.Step{Verb: doRelease, Key: s.Key}
	case doGet, doUnget:
		return &dbsession.Step{Verb: doUnget, Key: s.Key}
	case doUpdate, doUnupdate:
		return &dbsession.Step{Verb: doUnupdate, Key: s.Key}
	case doStandIn:
		if d.Took(s) { // it was in a wait
			return &dbsession.Step{Verb: doRelease, Key: s.Key}
		}
		return nil
	case doShare:
		return &dbsession.Step{Verb: doUnshare, Key: s.Key}
	case doGetAny:
		return &dbsession.Step{Verb: doReleaseAny, Checks: s.Checks}
	case doWaitAny:
		return &dbsession.Step{Verb: doRelease, Key: permitName(int(s.Result)-1, s.Key)}
	default:
		return nil
	}
}

// Took implements [dbsession.Dialect].
func (d *dialect) Took(s *dbsession.Step) bool {
	switch s.Verb {
	case doGet, doUpdate, doShare, doStandIn:
		return s.Result == 1
	case doGetAny, doWaitAny:
		return s.Result > 0
	default:
		return false
	}
}

// counted tells the verbs of which it can't be told afterwards whether they were
// done: the session may hold the same key several times.
func counted(v dbsession.Verb) bool { return v == doUnshare || v == doShare || v == doUpgrade }

// halfDoneError is an answer of the server after which a session can't be used.
type halfDoneError struct{ error }

// Run implements [dbsession.Dialect].
func (d *dialect) Run(ctx context.Context, c *dbsession.Conn, steps []*dbsession.Step) error {
	switch v := steps[0].Verb; d.Company(v) {
	case dbsession.Alone:
		return d.runAlone(ctx, c, steps[0])
	case dbsession.Alike:
		return d.count(ctx, c, steps)
	case dbsession.Mixed:
	}
	if c.State == nil {
		for _, s := range steps {
			if counted(s.Verb) || s.Verb == doUpdate {
				c.State = severalModes{}
			}
		}
	}
	if len(steps) == 1 && c.State == nil && (steps[0].Verb == doGet || steps[0].Verb == doRelease) {
		if err := d.call(ctx, c, steps[0]); !errors.Is(err, dbsession.ErrNoCall) {
			return err
		}
	}
	var sh shape
	for _, s := range steps {
		sh[s.Verb]++
	}
	q := d.query(sh, c.State == nil)
	row, err := execute(ctx, c, q, len(steps), func(i int) any { return steps[i].Key })
	if err != nil {
		for _, s := range steps {
			if counted(s.Verb) {
				return halfDoneError{err}
			}
		}
		return err
	}
	for i, s := range steps {
		if s.Verb == dbsession.Owner {
			// Only that it is held is known, and of a mark one session is the holder.
			var code dbsession.Step
			if err := code.Set(row[i]); err != nil {
				return err
			}
			s.Null = code.Result < 0
			continue
		}
		if err := s.Set(row[i]); err != nil {
			return err
		}
		s.Result = result(s.Result)
	}
	return nil
}

// severalModes is the state of a session that may hold locks in other modes than
// Exclusive. All others can't be granted the same lock twice: of that the claims
// of this process are enough.
type severalModes struct{}

// call does the step by a call of the procedure itself, which is faster.
func (d *dialect) call(ctx context.Context, c *dbsession.Conn, s *dbsession.Step) error {
	status := mssql.ReturnStatus(codeInvalid)
	var err error
	if s.Verb == doGet {
		args := c.Args(4)
		args[0].Value, args[1].Value, args[2].Value, args[3].Value = s.Key, "Exclusive", "Session", int64(0)
		err = c.Call(ctx, "sp_getapplock", args, &status)
	} else {
		args := c.Args(2)
		args[0].Value, args[1].Value = s.Key, "Session"
		err = c.Call(ctx, "sp_releaseapplock", args, &status)
		if isError(err, errNotHeld) {
			status, err = codeTimeout, nil
		}
	}
	s.Null, s.Result = false, result(int64(status))
	return err
}

// result makes a step's result of what its statement set.
func result(code int64) int64 {
	switch code {
	case codeGranted, codeWaited:
		return 1
	case codeTimeout:
		return 0
	case -100:
		return onlyElsewhere
	case -101:
		return notHeld
	}
	return code
}

// execute runs the query with n parameters. It calls sp_executesql by itself: the
// driver would declare each text with its own length, and the server make a plan
// for each combination of them.
func execute(ctx context.Context, c *dbsession.Conn, q *query, n int, param func(i int) any) ([]sqldriver.Value, error) {
	args := c.Args(n + 2)
	args[0].Value, args[1].Value = q.text, q.params
	for i := range n {
		args[i+2].Value = param(i)
	}
	return c.RowUntil(ctx, executeSQL, args)
}

func (d *dialect) query(sh shape, oneMode bool) *query {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := queryKey{sh, oneMode}
	q := d.queries[key]
	if q == nil {
		var declare, body, results, params strings.Builder
		i := 0
		for v, n := range sh {
			text := statement(dbsession.Verb(v))
			if dbsession.Verb(v) == doGet && oneMode {
				text = getOnly
			}
			for range n {
				i++
				fmt.Fprintf(&declare, ",@r%d int=-1", i)
				fmt.Fprintf(&body, text, i)
				fmt.Fprintf(&results, ",@r%d", i)
				fmt.Fprintf(&params, ",@p%d nvarchar(255)", i)
			}
		}
		q = &query{
			text:   "DECLARE @m nvarchar(32)" + declare.String() + ";" + body.String() + "SELECT " + results.String()[1:],
			params: params.String()[1:],
		}
		d.queries[key] = q
	}
	return q
}

// someParams declares n names.
func someParams(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, ",@p%d nvarchar(255)", i+1)
	}
	return b.String()[1:]
}

func (d *dialect) runAlone(ctx context.Context, c *dbsession.Conn, s *dbsession.Step) error {
	// Few lengths make few plans; the last name may come again, as it is asked for
	// only once it was found taken, and given back once.
	n := 1
	for n < len(s.Checks) {
		n *= 2
	}
	check := func(i int) string { return s.Checks[min(i, len(s.Checks)-1)] }
	var b strings.Builder
	var row []sqldriver.Value
	var err error
	switch s.Verb {
	case doGetAny:
		b.WriteString("DECLARE @r int=0,@c int;")
		params := n
		if s.Key != "" {
			params++
			fmt.Fprintf(&b, "IF "+mode+"<>'NoLock' OR APPLOCK_TEST('public',@p%[1]d,'Exclusive','Session')=0 SET @r=-1;", params)
		}
		for i := range n {
			fmt.Fprintf(&b, "IF @r=0 BEGIN EXEC @c=sp_getapplock @p%[1]d,'Exclusive','Session',0;IF @c>=0 SET @r=%[1]d END;", i+1)
		}
		b.WriteString("SELECT @r")
		row, err = execute(ctx, c, &query{b.String(), someParams(params)}, params, func(i int) any {
			if i == n {
				return s.Key
			}
			return check(i)
		})
	case doReleaseAny:
		for i := range n {
			fmt.Fprintf(&b, "IF "+mode+"<>'NoLock' EXEC sp_releaseapplock @p%[1]d,'Session';", i+1)
		}
		b.WriteString("SELECT 0")
		row, err = execute(ctx, c, &query{b.String(), someParams(n)}, n, func(i int) any { return check(i) })
	default:
		panic("mssqllock: unknown verb")
	}
	if err != nil {
		return err
	}
	return s.Set(row[0])
}

// waitModes are those in which can be waited for one lock.
var waitModes = map[dbsession.Verb]string{doGet: "Exclusive", doUpdate: "Update", doShare: "Shared", doStandIn: "Exclusive"}

// Wait implements [dbsession.Dialect]. It is canceled with an attention, after
// which the driver keeps the connection if the context was canceled, and not if
// its deadline was exceeded: a session's has none.
func (d *dialect) Wait(ctx context.Context, c *dbsession.Conn, s *dbsession.Step, wait time.Duration) error {
	if s.Verb != doGet && s.Verb != doWaitAny {
		c.State = severalModes{}
	}
	q := &query{"DECLARE @r int;EXEC @r=sp_getapplock @p1,'" + waitModes[s.Verb] + "','Session',@p2;SELECT @r", "@p1 nvarchar(255),@p2 int"}
	args := []any{s.Key, int64(lockTimeout(wait))}
	if s.Verb == doWaitAny {
		q, args = waitAny, append(permitArgs(s), int64(lockTimeout(wait)), longestStay(s.N).Milliseconds())
	}
	row, err := execute(ctx, c, q, len(args), func(i int) any { return args[i] })
	if err == nil {
		err = s.Set(row[0])
	}
	switch {
	case err == nil && s.Result == codeCanceled, errors.Is(err, context.Canceled):
		// It may have been granted all the same, at the last moment.
		s.Result = 0
		if err := d.giveBack(c, s); err != nil {
			return err
		}
		return dbsession.ErrInterrupted
	case err != nil && d.Answered(err):
		if err := d.giveBack(c, s); err != nil {
			return err
		}
		return err
	case err != nil:
		return err
	}
	if s.Verb != doWaitAny {
		s.Result = result(s.Result)
	}
	return checked(s)
}

// giveBack releases what a session that holds nothing else may have been granted.
func (d *dialect) giveBack(c *dbsession.Conn, s *dbsession.Step) error {
	var err error
	if s.Verb == doWaitAny {
		args := permitArgs(s)
		_, err = execute(context.Background(), c, releaseAny, len(args), func(i int) any { return args[i] })
	} else {
		err = d.Run(context.Background(), c, []*dbsession.Step{{Verb: doRelease, Key: s.Key}})
	}
	if err != nil {
		return halfDoneError{err}
	}
	return nil
}

// waitAny waits for any of @p3 locks, for @p4 milliseconds, or for ever if that is
// less than 0. The server can wait for one lock only: so all are tried, one after the
// other, and then it stays with one for 2 milliseconds, 4, and so on up to @p5. A round
// is one more than there are locks, so that it stays with another each time.
// https://learn.microsoft.com/sql/t-sql/functions/datediff-big-transact-sql
var waitAny = &query{
	"DECLARE @r int=0,@c int,@i bigint=0,@stay int=1,@t int,@left bigint,@n nvarchar(255),@end datetime2=DATEADD(MILLISECOND,@p4,SYSUTCDATETIME());" +
		"WHILE @r=0 BEGIN SET @t=0;" +
		"IF @i%(@p3+1)=@p3 BEGIN " +
		"SET @stay=CASE WHEN 2*@stay<@p5 THEN 2*@stay ELSE @p5 END;SET @t=@stay;" +
		"IF @p4>=0 BEGIN SET @left=(DATEDIFF_BIG(MICROSECOND,SYSUTCDATETIME(),@end)+999)/1000;IF @left<=0 BREAK;IF @left<@t SET @t=@left END END;" +
		"SET @n=CONCAT(@p1,@i%@p3,@p2);SET @c=-999;EXEC @c=sp_getapplock @n,'Exclusive','Session',@t;" +
		"IF @c>=0 SET @r=@i%@p3+1 ELSE IF @c<>-1 SET @r=@c;" +
		"SET @i+=1 END;SELECT @r",
	permitParams + ",@p4 int,@p5 int",
}

// releaseAny gives back those of @p3 locks that the session has.
var releaseAny = &query{
	"DECLARE @i int=0,@n nvarchar(255);" +
		"WHILE @i<@p3 BEGIN SET @n=CONCAT(@p1,@i,@p2);" +
		"IF APPLOCK_MODE('public',@n,'Session')<>'NoLock' EXEC sp_releaseapplock @n,'Session';" +
		"SET @i+=1 END;SELECT 0",
	permitParams,
}

// permitParams are those of a statement that makes the permits' names by itself: no
// statement may have more than 2,100 parameters.
const permitParams = "@p1 nvarchar(255),@p2 nvarchar(255),@p3 int"

func permitArgs(s *dbsession.Step) []any { return []any{ownPermit, s.Key, int64(s.N)} }

// longestStay bounds how long doWaitAny waits for one of n locks before it tries all
// of them again, so that it tries no more than 4,000 a second.
func longestStay(n int) time.Duration {
	return max(20*time.Millisecond, time.Duration(n)*(time.Second/4000))
}

// maxPermits is of how many permits doWaitAny waits for any. To try so many once would
// take the server hours.
const maxPermits = 1 << 30

// lockTimeout returns milliseconds for @LockTimeout: never less than d, and for
// ever only for those who don't tell when to end. Nobody waits longer than what
// the server can count; who would asks again.
func lockTimeout(d time.Duration) int32 {
	const longest = math.MaxInt32 * time.Millisecond
	switch {
	case d >= 365*24*time.Hour:
		return -1
	case d >= longest:
		return math.MaxInt32
	}
	return int32((d + time.Millisecond - 1).Milliseconds())
}

// Kill implements [dbsession.Dialect]. It needs a permission, ALTER ANY
// CONNECTION, or KILL DATABASE CONNECTION in Azure; without that the server has
// to find out by itself that the client has gone.
// https://learn.microsoft.com/sql/t-sql/language-elements/kill-transact-sql
func (d *dialect) Kill(_ context.Context, c *dbsession.Conn, other dbsession.Identity) error {
	// Numbers of sessions are given again; a mark isn't.
	row, err := c.Text("SELECT " + testMark(other.Mark))
	if err != nil {
		return err
	}
	var free dbsession.Step
	if err := free.Set(row[0]); err != nil || free.Result != 0 {
		return err
	}
	_, err = c.Exec("KILL "+strconv.FormatInt(other.ID, 10), nil)
	if isError(err, errNoSuchProcess) {
		return nil
	}
	return err
}

// testMark is 0 if the mark is held by another session.
// https://learn.microsoft.com/sql/t-sql/functions/applock-test-transact-sql
func testMark(mark string) string {
	return "APPLOCK_TEST('public'," + literal(mark) + ",'Exclusive','Session')"
}

// literal returns the SQL of a text.
func literal(s string) string { return "N'" + strings.ReplaceAll(s, "'", "''") + "'" }

// Answered implements [dbsession.Dialect].
func (d *dialect) Answered(err error) bool {
	var half halfDoneError
	var code codeError
	var fatal mssql.ServerError
	var e mssql.Error
	switch {
	case errors.As(err, &half), errors.As(err, &fatal):
		return false
	case errors.As(err, &code):
		return true
	}
	return errors.As(err, &e) && !ends(e)
}

// ends reports whether one of the errors is of a severity that ends the
// connection.
// https://learn.microsoft.com/sql/relational-databases/errors-events/database-engine-error-severities
func ends(e mssql.Error) bool {
	const fatal = 20
	for _, one := range e.All {
		if one.Class >= fatal {
			return true
		}
	}
	return e.Class >= fatal
}

// Numbers of the server's errors.
const (
	errNoSuchObject    = 208
	errNoPermission    = 262 // in the database
	errNoUserAction    = 297
	errNoServerState   = 300
	errLockDeadlock    = 1205
	errNotHeld         = 1223
	errObjectExists    = 2714
	errNoSuchProcess   = 6106
	errObjectPermitted = 229
)

func isError(err error, numbers ...int32) bool {
	var e mssql.Error
	if !errors.As(err, &e) {
		return false
	}
	for _, one := range append(e.All, e) {
		if slices.Contains(numbers, one.Number) {
			return true
		}
	}
	return false
}

// explain gives an error the meaning that it has for the caller.
func explain(err error) error {
	if isError(err, errLockDeadlock) {
		return fmt.Errorf("%w: %w", driver.ErrDeadlock, err)
	}
	return err
}

var _ dbsession.Dialect = (*dialect)(nil)
