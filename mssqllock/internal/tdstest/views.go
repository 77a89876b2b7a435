package tdstest

import (
	"fmt"
	"hash/fnv"
	"strings"
	"time"
)

// view answers what a system view has. learn.microsoft.com has a page of the
// name of each; columns that a lock library has no use for are left out.
func (x *executor) view(ref tableRef) (*result, error) {
	switch ref.sys {
	case "sys.dm_tran_locks":
		if err := x.mayViewState(); err != nil {
			return nil, err
		}
		return &result{cols: lockColumns, rows: x.s.srv.locks.rows()}, nil
	case "sys.dm_exec_sessions":
		return &result{cols: sessionColumns, rows: x.sessionRows()}, nil
	case "sys.dm_exec_connections":
		if err := x.mayViewState(); err != nil {
			return nil, err
		}
		return &result{cols: connectionColumns, rows: x.connectionRows()}, nil
	case "sys.dm_exec_requests":
		return &result{cols: requestColumns, rows: x.requestRows()}, nil
	case "sys.sequences":
		return &result{cols: sequenceColumns, rows: x.s.srv.sequences.rows(x.s.database)}, nil
	case "sys.schemas":
		return &result{cols: []column{{"name", nvarchar(128)}, {"schema_id", tInt}}, rows: [][]value{{textValue("dbo"), intValue(1)}}}, nil
	}
	return nil, abortErr(208, 16, fmt.Sprintf("Invalid object name '%s'.", strings.TrimPrefix(ref.sys, ".")))
}

// mayViewState checks VIEW SERVER STATE, or on Azure VIEW DATABASE STATE, as
// sys.dm_tran_locks demands: errors 300 and 297, or 262 and 297.
func (x *executor) mayViewState() error {
	if !x.s.user.NoViewServerState {
		return nil
	}
	e := sqlErr(300, 14, "VIEW SERVER STATE permission was denied on object 'server', database 'master'.")
	if x.s.srv.cfg.EngineEdition == 5 {
		e = sqlErr(262, 14, fmt.Sprintf("VIEW DATABASE STATE permission denied in database '%s'.", x.s.database))
	}
	if x.tries == 0 {
		x.send(e)
	}
	return abortErr(297, 16, "The user does not have permission to perform this action.")
}

var lockColumns = []column{
	{"resource_type", nvarchar(60)},
	{"resource_subtype", nvarchar(60)},
	{"resource_database_id", tInt},
	{"resource_description", nvarchar(256)},
	{"resource_associated_entity_id", tBigInt},
	{"resource_lock_partition", tInt},
	{"request_mode", nvarchar(60)},
	{"request_type", nvarchar(60)},
	{"request_status", nvarchar(60)},
	{"request_reference_count", sqlType{kind: kSmallInt}},
	{"request_session_id", tInt},
	{"request_owner_type", nvarchar(60)},
}

// describe is resource_description of an application lock. learn.microsoft.com:
// "sys.dm_tran_locks", Resource details: principal id, up to 32 characters of the
// name, and a hash of all of it, which here is any.
func (k resourceKey) describe() string {
	id := 5 // a user, whichever
	switch k.principal {
	case "public":
		id = 0
	case "dbo":
		id = 1
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(k.name)) // never fails
	return fmt.Sprintf("%d:[%s]:(%08x)", id, cut(k.name, 32), h.Sum32())
}

// rows is sys.dm_tran_locks. A conversion has two: what is granted, and what is
// waited for.
func (lm *lockManager) rows() [][]value {
	lm.mu.Lock()
	defer lm.mu.Unlock()
	var rows [][]value
	for _, res := range lm.resources {
		add := func(r *request, m mode, status string) {
			kind := "SESSION"
			if r.o.tx {
				kind = "TRANSACTION"
			}
			rows = append(rows, []value{
				textValue("APPLICATION"), textValue(""), intValue(databaseID(res.key.database)),
				textValue(res.key.describe()), bigValue(0), intValue(0),
				textValue(modeShort[m]), textValue("LOCK"), textValue(status),
				{t: sqlType{kind: kSmallInt}, v: int64(r.count)},
				intValue(int64(r.o.s.spid)), textValue(kind),
			})
		}
		for _, r := range res.granted {
			add(r, r.mode, "GRANT")
		}
		for _, r := range res.waiting {
			if r.converts() {
				add(r, r.wanted, "CONVERT")
			} else {
				add(r, r.wanted, "WAIT")
			}
		}
	}
	return rows
}

var sessionColumns = []column{
	{"session_id", sqlType{kind: kSmallInt}},
	{"login_time", tTime},
	{"host_name", nvarchar(128)},
	{"program_name", nvarchar(128)},
	{"host_process_id", tInt},
	{"login_name", nvarchar(128)},
	{"original_login_name", nvarchar(128)},
	{"status", nvarchar(30)},
	{"last_request_start_time", tTime},
	{"is_user_process", tBit},
	{"database_id", sqlType{kind: kSmallInt}},
	{"open_transaction_count", tInt},
	{"lock_timeout", tInt},
}

// visible are the sessions that the login may see: "sys.dm_exec_sessions",
// Permissions: everyone can see their own.
func (x *executor) visible() []*session {
	if x.s.user.NoViewServerState {
		return []*session{x.s}
	}
	return x.s.srv.list()
}

func (x *executor) sessionRows() [][]value {
	var rows [][]value
	for _, s := range x.visible() {
		s.mu.Lock()
		status := "sleeping"
		if s.running {
			status = "running"
		}
		last, database := s.last, s.database
		open := intValue(0)
		if s.tx != nil {
			open = intValue(1)
		}
		s.mu.Unlock()
		if last.IsZero() {
			last = s.loginTime
		}
		rows = append(rows, []value{
			{t: sqlType{kind: kSmallInt}, v: int64(s.spid)},
			timeValue(s.loginTime), textValue(s.login.host), textValue(s.login.app),
			intValue(int64(int32(s.login.pid))), textValue(s.login.user), textValue(s.login.user),
			textValue(status), timeValue(last), boolValue(true),
			{t: sqlType{kind: kSmallInt}, v: databaseID(database)},
			open, intValue(-1),
		})
	}
	return rows
}

var connectionColumns = []column{
	{"session_id", tInt},
	{"encrypt_option", nvarchar(40)},
}

func (x *executor) connectionRows() [][]value {
	var rows [][]value
	for _, s := range x.s.srv.list() {
		option := map[bool]string{false: "FALSE", true: "TRUE"}[s.encrypted]
		rows = append(rows, []value{intValue(int64(s.spid)), textValue(option)})
	}
	return rows
}

var requestColumns = []column{
	{"session_id", sqlType{kind: kSmallInt}},
	{"status", nvarchar(30)},
	{"blocking_session_id", sqlType{kind: kSmallInt}},
	{"wait_type", nvarchar(60)},
	{"wait_time", tInt},
	{"wait_resource", nvarchar(256)},
	{"start_time", tTime},
}

// blocked is a session that waits, and for what.
type blocked struct {
	by       int
	wait     string
	resource string
}

func (lm *lockManager) blocked() map[*session]blocked {
	lm.mu.Lock()
	defer lm.mu.Unlock()
	all := map[*session]blocked{}
	for s, r := range lm.waits {
		b := blocked{wait: "LCK_M_" + modeShort[r.wanted], resource: "APPLICATION: " + r.res.key.describe()}
		for _, g := range r.res.granted {
			if g.o != r.o && compatible[r.wanted]&(1<<g.mode) == 0 {
				b.by = g.o.s.spid
			}
		}
		if b.by == 0 && r.res.waiting[0] != r {
			b.by = r.res.waiting[0].o.s.spid
		}
		all[s] = b
	}
	return all
}

func (x *executor) requestRows() [][]value {
	waits := x.s.srv.locks.blocked()
	var rows [][]value
	for _, s := range x.visible() {
		s.mu.Lock()
		running, start := s.running, s.last
		s.mu.Unlock()
		if !running {
			continue
		}
		b, waiting := waits[s]
		row := []value{
			{t: sqlType{kind: kSmallInt}, v: int64(s.spid)},
			textValue("running"),
			{t: sqlType{kind: kSmallInt}, v: int64(b.by)},
			nullOf(nvarchar(60)), intValue(0), textValue(b.resource), timeValue(start),
		}
		if waiting {
			row[1], row[3] = textValue("suspended"), textValue(b.wait)
			row[4] = intValue(time.Since(start).Milliseconds())
		}
		rows = append(rows, row)
	}
	return rows
}

var sequenceColumns = []column{
	{"name", nvarchar(128)},
	{"object_id", tInt},
	{"schema_id", tInt},
	{"start_value", tBigInt},
	{"increment", tBigInt},
	{"minimum_value", tBigInt},
	{"maximum_value", tBigInt},
	{"is_cycling", tBit},
	{"is_cached", tBit},
	{"current_value", tBigInt},
}
