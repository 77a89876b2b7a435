package tdstest

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// executor runs one batch, or the text of one sp_executesql.
type executor struct {
	s      *session
	vars   map[string]*value
	tables map[string]*tableVar
	cancel <-chan struct{}
	inProc bool
	tries  int // TRY blocks that it is in
	level  int // of sp_executesql in itself
	caught *sqlError
	rows   int64 // @@ROWCOUNT
	last   int64 // @@ERROR

	// numbers are those of sequences that the statement has, or this row of its
	// result: learn.microsoft.com, "NEXT VALUE FOR": all columns of a row that
	// refer to one sequence have the same.
	numbers map[string]value
}

type tableVar struct {
	cols []column
	rows [][]value
}

// control is where to go on after a statement.
type control int

const (
	onward control = iota
	broken
	again
	returned
)

// errCanceled ends a batch whose client has cancelled it, or is gone.
var errCanceled = errors.New("tdstest: canceled")

// errSent ends a batch after an error that the client has been sent.
var errSent = errors.New("tdstest: failed")

func (x *executor) canceled() error {
	select {
	case <-x.cancel:
		return errCanceled
	default:
		return nil
	}
}

func (x *executor) send(e *sqlError) {
	token := byte(tokError)
	if e.class <= 10 {
		token = tokInfo
	}
	x.s.w.message(token, e, x.s.srv.cfg.ServerName)
}

// batch parses and runs a text. A syntax error leaves all of it undone.
func (x *executor) batch(sql string) error {
	b, err := x.s.srv.batches.get(sql, parse)
	if err != nil {
		return err
	}
	_, err = x.block(b)
	if errors.Is(err, errSent) {
		return errSent
	}
	return err
}

func (x *executor) block(b block) (control, error) {
	for _, st := range b {
		if err := x.canceled(); err != nil {
			return onward, err
		}
		c, err := x.statement(st)
		if err != nil {
			if err = x.failed(err); err != nil {
				return onward, err
			}
		} else if c != onward {
			return c, nil
		}
	}
	return onward, nil
}

// failed does with a statement's error what is due: it is for a CATCH block,
// or it is sent, and ends the batch or not.
func (x *executor) failed(err error) error {
	e, ok := err.(*sqlError) //nolint:errorlint // never wrapped
	if !ok {
		return err
	}
	x.last = int64(e.number)
	// learn.microsoft.com: "SET XACT_ABORT": RAISERROR doesn't honour it. Nor do,
	// here, the errors of the procedures for application locks, of which the
	// documentation says that any rollback must be done manually.
	rollback := x.s.xactAbort && x.s.tranCount > 0 && e.number < 50000 && e.proc == ""
	if x.tries > 0 {
		x.s.doomed = x.s.doomed || rollback
		return err
	}
	x.send(e)
	if rollback {
		x.s.endTran(envRollback)
	}
	if e.abort || rollback || x.s.xactAbort && e.proc == "" && e.number < 50000 {
		return errSent
	}
	x.done(doneError, 0, 0)
	return nil
}

// done ends a statement. More is always to come: handle writes the last DONE.
func (x *executor) done(status, cmd int, rows int64) {
	token := byte(tokDone)
	if x.inProc {
		token = tokDoneInProc
	}
	x.s.w.done(token, status|doneMore, cmd, rows)
}

func (x *executor) counted(cmd int, rows int64) {
	x.rows = rows
	// learn.microsoft.com: "SET NOCOUNT": no message of the rows affected.
	if x.s.noCount {
		if cmd == cmdSelect {
			x.done(0, cmd, 0)
		}
		return
	}
	x.done(doneCount, cmd, rows)
}

func (x *executor) assign(name string, v value) error {
	dst := x.vars[name]
	if dst == nil {
		return abortErr(137, 15, fmt.Sprintf("Must declare the scalar variable \"%s\".", name))
	}
	v, err := convert(v, dst.t)
	if err == nil {
		*dst = v
	}
	return err
}

func (x *executor) statement(st statement) (control, error) {
	x.numbers = nil
	switch st := st.(type) {
	case block:
		return x.block(st)
	case declareVar:
		if x.vars[st.name] != nil && st.init == nil {
			return onward, nil // a declaration in a loop doesn't set it anew
		}
		v := nullOf(st.t)
		x.vars[st.name] = &v
		if st.init == nil {
			return onward, nil
		}
		init, err := st.init.eval(x, nil)
		if err != nil {
			return onward, err
		}
		return onward, x.assign(st.name, init)
	case declareTable:
		if x.tables[st.name] == nil {
			x.tables[st.name] = &tableVar{cols: st.cols}
		}
		return onward, nil
	case setVar:
		v, err := st.e.eval(x, nil)
		if err != nil {
			return onward, err
		}
		return onward, x.assign(st.name, v)
	case setOption:
		return onward, x.setOption(st)
	case execStmt:
		return onward, x.exec(st)
	case selectStmt:
		return onward, x.selectStatement(st.q)
	case insertStmt:
		return onward, x.insert(st)
	case ifStmt:
		ok, err := x.holds(st.cond, nil)
		switch {
		case err != nil:
			return onward, err
		case ok:
			return x.statement(st.then)
		case st.els != nil:
			return x.statement(st.els)
		}
		return onward, nil
	case whileStmt:
		for {
			if err := x.canceled(); err != nil {
				return onward, err
			}
			ok, err := x.holds(st.cond, nil)
			if err != nil || !ok {
				return onward, err
			}
			c, err := x.statement(st.body)
			if err != nil {
				return onward, err
			}
			if c == broken {
				return onward, nil
			}
			if c == returned {
				return c, nil
			}
		}
	case breakStmt:
		if st.again {
			return again, nil
		}
		return broken, nil
	case returnStmt:
		if st.e != nil {
			return onward, sqlErr(178, 15, "A RETURN statement with a return value cannot be used in this context.")
		}
		return returned, nil
	case tryStmt:
		x.tries++
		c, err := x.block(st.try)
		x.tries--
		e, ok := err.(*sqlError) //nolint:errorlint // never wrapped
		if !ok {
			return c, err
		}
		before := x.caught
		x.caught = e
		defer func() { x.caught = before }()
		return x.block(st.catch)
	case throwStmt:
		return onward, x.throw(st)
	case raiseStmt:
		return onward, x.raise(st)
	case printStmt:
		v, err := st.e.eval(x, nil)
		if err != nil {
			return onward, err
		}
		if v, err = convert(v, nvarchar(4000)); err != nil {
			return onward, err
		}
		text, _ := v.v.(string)
		x.send(&sqlError{state: 1, message: text, line: 1})
		return onward, nil
	case tranStmt:
		switch st.what {
		case 'b':
			x.s.beginTran(st.name)
			return onward, nil
		case 'c': // its name only documents: "COMMIT TRANSACTION"
			return onward, x.s.commit()
		case 's':
			return onward, x.s.save(st.name)
		}
		return onward, x.s.rollback(st.name)
	case waitStmt:
		return onward, x.waitFor(st)
	case killStmt:
		return onward, x.kill(st)
	case useStmt:
		// learn.microsoft.com: "USE": not between databases of Azure SQL Database.
		if x.s.srv.cfg.EngineEdition == 5 && !strings.EqualFold(st.database, x.s.database) {
			return onward, abortErr(40508, 16, "USE statement is not supported to switch between databases. Use a new connection to connect to a different database.")
		}
		x.s.use(st.database)
		return onward, nil
	case createSequence:
		if x.s.user.NoSequences {
			return onward, sqlErr(262, 14, fmt.Sprintf("CREATE SEQUENCE permission denied in database '%s'.", x.s.database))
		}
		if st.schema == "" {
			st.schema = "dbo"
		}
		st.seq.schema = st.schema
		return onward, x.s.srv.sequences.create(sequenceKey(x.s.database, st.schema, st.seq.name), &st.seq)
	case dropSequence:
		schema := st.schema
		if schema == "" {
			schema = "dbo"
		}
		if !x.s.srv.sequences.drop(sequenceKey(x.s.database, schema, st.name)) && !st.ifExists {
			return onward, sqlErr(3701, 11, fmt.Sprintf("Cannot drop the sequence object '%s', because it does not exist or you do not have permission.", st.name))
		}
		return onward, nil
	}
	return onward, abortErr(102, 15, "Incorrect syntax.")
}

func (x *executor) setOption(st setOption) error {
	var v value
	if st.arg != nil {
		var err error
		if v, err = st.arg.eval(x, nil); err != nil {
			return err
		}
	}
	switch st.name {
	case "lock_timeout":
		ms, ok := v.v.(int64)
		if !ok {
			return sqlErr(1080, 15, "The integer value is out of range.")
		}
		x.s.lockTimeout = time.Duration(max(ms, -1)) * time.Millisecond
	case "nocount":
		x.s.noCount = st.text == "on"
	case "xact_abort":
		x.s.xactAbort = st.text == "on"
	case "implicit_transactions":
		if st.text == "on" {
			return sqlErr(195, 15, "SET IMPLICIT_TRANSACTIONS ON is not supported here.")
		}
	}
	return nil
}

func (x *executor) exec(st execStmt) error {
	args := make([]boundArg, len(st.args))
	outs := map[string]*value{}
	for i, a := range st.args {
		v, err := a.e.eval(x, nil)
		if err != nil {
			return err
		}
		args[i] = boundArg{name: a.name, v: v}
		if a.output != "" {
			args[i].out = &v
			outs[a.output] = &v
		}
	}
	if st.result != "" && x.vars[st.result] == nil {
		return abortErr(137, 15, fmt.Sprintf("Must declare the scalar variable \"%s\".", st.result))
	}
	code, err := x.call(st.name, args)
	if e, ok := err.(*sqlError); ok && x.tries == 0 && !e.abort { //nolint:errorlint // never wrapped
		if err := x.failed(e); err != nil {
			return err
		}
		err = nil
		if e.number == 2812 {
			return nil // nothing has run that could return a code
		}
	}
	if err != nil {
		return err
	}
	for name, v := range outs {
		if err := x.assign(name, *v); err != nil {
			return err
		}
	}
	if st.result != "" {
		if err := x.assign(st.result, intValue(code)); err != nil {
			return err
		}
	}
	if !x.inProc {
		x.s.w.returnStatus(code)
		x.s.w.done(tokDoneProc, doneMore, 0, 0)
	}
	return nil
}

func (x *executor) throw(st throwStmt) error {
	if st.args == nil {
		if x.caught == nil {
			return abortErr(10704, 15, "To rethrow an error, a THROW statement must be used inside a CATCH block.")
		}
		e := *x.caught
		e.abort = true
		return &e
	}
	var v [3]value
	for i, a := range st.args {
		var err error
		if v[i], err = a.eval(x, nil); err != nil {
			return err
		}
	}
	number, _ := v[0].v.(int64)
	text, _ := v[1].v.(string)
	state, _ := v[2].v.(int64)
	if number < 50000 {
		return sqlErr(35100, 16, "Error number in the THROW statement is outside the valid range. Specify an error number in the valid range of 50000 to 2147483647.")
	}
	return &sqlError{number: int32(number), class: 16, state: byte(state), message: text, line: 1, abort: true}
}

// raise is RAISERROR with a text, without formats but %s and %d.
func (x *executor) raise(st raiseStmt) error {
	v := make([]value, len(st.args))
	for i, a := range st.args {
		var err error
		if v[i], err = a.eval(x, nil); err != nil {
			return err
		}
	}
	text, ok := v[0].v.(string)
	class, ok2 := v[1].v.(int64)
	state, ok3 := v[2].v.(int64)
	if !ok || !ok2 || !ok3 || class < 0 || class > 25 {
		return sqlErr(2748, 16, "Cannot specify these parameters for RAISERROR here.")
	}
	if class > 18 {
		return sqlErr(2754, 16, "Error severity levels greater than 18 can only be specified by members of the sysadmin role, using the WITH LOG option.")
	}
	for _, a := range v[3:] {
		at := strings.IndexByte(text, '%')
		if at < 0 || at+1 >= len(text) || text[at+1] != 's' && text[at+1] != 'd' {
			return sqlErr(2787, 16, "Invalid format specification: '"+text+"'.")
		}
		text = text[:at] + fmt.Sprint(a.v) + text[at+2:]
	}
	e := &sqlError{number: 50000, class: byte(class), state: byte(state), message: text, line: 1}
	if class <= 10 {
		x.send(e)
		return nil
	}
	return e
}

func (x *executor) waitFor(st waitStmt) error {
	v, err := st.e.eval(x, nil)
	if err != nil {
		return err
	}
	text, _ := v.v.(string)
	var t time.Time
	for _, layout := range []string{"15:04:05.999", "15:04:05", "15:04"} {
		if t, err = time.Parse(layout, text); err == nil {
			break
		}
	}
	if err != nil {
		return abortErr(148, 15, fmt.Sprintf("Incorrect time syntax in time string '%s' used with WAITFOR.", text))
	}
	timer := time.NewTimer(t.Sub(time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-x.cancel:
		return errCanceled
	}
}

// kill is KILL. learn.microsoft.com: "KILL": not one's own process, and ALTER
// ANY CONNECTION is needed.
func (x *executor) kill(st killStmt) error {
	v, err := st.e.eval(x, nil)
	if err != nil {
		return err
	}
	spid, _ := v.v.(int64)
	switch {
	case x.s.user.NoKill:
		return sqlErr(6102, 14, "User does not have permission to use the KILL statement.")
	case spid == int64(x.s.spid):
		return sqlErr(6104, 16, "Cannot use KILL to kill your own process.")
	case !x.s.srv.Kill(int(spid)):
		return sqlErr(6106, 16, fmt.Sprintf("Process ID %d is not an active process ID.", spid))
	}
	return nil
}
