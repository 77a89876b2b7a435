package tdstest

import (
	"fmt"
	"strings"
	"time"
)

// boundArg is an argument of a call. name is in lower case, or empty.
type boundArg struct {
	name string
	v    value
	out  *value // takes what an output parameter became
}

// procedure is a stored procedure: its parameters in order, and what it does.
type procedure struct {
	params []column
	run    func(x *executor, args []value) (int64, error)
}

var procedures map[string]procedure

func init() {
	resource := column{"@resource", nvarchar(255)}
	principal := column{"@dbprincipal", nvarchar(128)}
	owner := column{"@lockowner", nvarchar(32)}
	procedures = map[string]procedure{
		"sp_getapplock":     {[]column{resource, {"@lockmode", nvarchar(32)}, owner, {"@locktimeout", tInt}, principal}, getAppLock},
		"sp_releaseapplock": {[]column{resource, owner, principal}, releaseAppLock},
	}
}

// call runs a procedure and answers with its return code.
func (x *executor) call(name procName, args []boundArg) (int64, error) {
	lower := strings.ToLower(name.name)
	schema := strings.ToLower(name.schema)
	system := schema == "" || schema == "sys" || schema == "dbo"
	if system && lower == "sp_executesql" {
		return 0, x.executeSQL(args)
	}
	p, ok := procedures[lower]
	if !ok || !system {
		return codeError, sqlErr(2812, 16, fmt.Sprintf("Could not find stored procedure '%s'.", name))
	}
	vals := make([]value, len(p.params))
	given := make([]bool, len(p.params))
	named := false
	for i, a := range args {
		at := -1
		if a.name == "" {
			if named {
				return codeError, sqlErr(119, 15, fmt.Sprintf("Must pass parameter number %d and subsequent parameters as '@name = value'.", i+1))
			}
			at = i
		} else {
			named = true
			for j, q := range p.params {
				if q.name == a.name {
					at = j
				}
			}
			if at < 0 {
				return codeError, sqlErr(8145, 16, fmt.Sprintf("%s is not a parameter for procedure %s.", a.name, name.name))
			}
		}
		if at >= len(p.params) {
			return codeError, sqlErr(8144, 16, fmt.Sprintf("Procedure or function %s has too many arguments specified.", name.name))
		}
		if given[at] {
			return codeError, sqlErr(8143, 16, fmt.Sprintf("Parameter '%s' was supplied multiple times.", p.params[at].name))
		}
		// learn.microsoft.com: "sp_getapplock", @Resource: longer than
		// nvarchar(255) is truncated.
		v, err := convert(a.v, p.params[at].t)
		if err != nil {
			return codeError, err
		}
		vals[at], given[at] = v, true
	}
	code, err := p.run(x, vals)
	if e, ok := err.(*sqlError); ok && e.proc == "" { //nolint:errorlint // never wrapped
		e.proc = lower
	}
	return code, err
}

func invalidParameter(proc string) *sqlError {
	return sqlErr(15600, 15, "An invalid parameter or option was specified for procedure 'sys."+proc+"'.")
}

// lockTarget checks what all functions and procedures of application locks
// have in common. A nil owner without an error is a session outside of a
// transaction.
func (x *executor) lockTarget(proc string, principal, name, ownerName value) (*owner, resourceKey, error) {
	key := resourceKey{database: strings.ToLower(x.s.database), principal: "public"}
	var ok bool
	if key.name, ok = name.v.(string); !ok {
		return nil, key, invalidParameter(proc)
	}
	key.name = cut(key.name, 255)
	if p, ok := principal.v.(string); ok {
		key.principal = strings.ToLower(p)
	}
	// learn.microsoft.com: "sp_getapplock", Remarks: only a member of the
	// principal can. There are public, dbo and a user for each login, and all logins
	// are members of the first two.
	if key.principal != "public" && key.principal != "dbo" && (key.principal != x.s.userName() || x.s.user.NoOwnLocks) {
		return nil, key, sqlErr(1202, 16, "The database principal '"+key.principal+"' does not exist or user is not a member.")
	}
	o, given := ownerName.v.(string)
	switch {
	case !given || strings.EqualFold(o, "transaction"): // the default
		// "sp_getapplock", @LockOwner: must be executed within a transaction.
		return x.s.tx, key, nil
	case strings.EqualFold(o, "session"):
		return x.s.own, key, nil
	}
	return nil, key, invalidParameter(proc)
}

func noTransaction() *sqlError {
	e := sqlErr(3918, 16, "The statement or function must be executed in the context of a user transaction.")
	return e
}

func modeOf(v value) mode {
	s, _ := v.v.(string)
	for m := intentShared; m <= exclusive; m++ {
		if strings.EqualFold(s, modeNames[m]) && m != sharedIntentExclusive && m != updateIntentExclusive {
			return m
		}
	}
	return noLock
}

// getAppLock is sp_getapplock.
func getAppLock(x *executor, args []value) (int64, error) {
	o, key, err := x.lockTarget("sp_getapplock", args[4], args[0], args[2])
	if err != nil {
		return codeError, err
	}
	m := modeOf(args[1])
	if m == noLock {
		return codeError, invalidParameter("sp_getapplock")
	}
	if o == nil {
		return codeError, noTransaction()
	}
	// "sp_getapplock", @LockTimeout: the default is @@LOCK_TIMEOUT, -1 is for ever.
	timeout := x.s.lockTimeout
	if ms, ok := args[3].v.(int64); ok {
		if ms < -1 {
			return codeError, invalidParameter("sp_getapplock")
		}
		timeout = time.Duration(ms) * time.Millisecond
	}
	if f := x.s.srv.onLock.Load(); f != nil && *f != nil {
		(*f)(key.principal, key.name)
	}
	code := x.s.srv.locks.acquire(o, key, m, timeout, x.cancel)
	return int64(code), x.canceled()
}

// releaseAppLock is sp_releaseapplock.
func releaseAppLock(x *executor, args []value) (int64, error) {
	o, key, err := x.lockTarget("sp_releaseapplock", args[2], args[0], args[1])
	if err != nil {
		return codeError, err
	}
	if o == nil {
		return codeError, noTransaction()
	}
	if !x.s.srv.locks.release(o, key) {
		return codeError, sqlErr(1223, 16, fmt.Sprintf("Cannot release the application lock (Database Principal: '%s', Resource: '%s') because it is not currently held.", key.principal, cut(key.name, 32)))
	}
	return 0, nil
}

// executeSQL is sp_executesql. learn.microsoft.com: "sp_executesql".
func (x *executor) executeSQL(args []boundArg) error {
	if len(args) == 0 {
		return sqlErr(201, 16, "Procedure or function 'sp_executesql' expects parameter '@statement', which was not supplied.")
	}
	text, ok := args[0].v.v.(string)
	if !ok {
		return sqlErr(214, 16, "Procedure expects parameter '@statement' of type 'ntext/nchar/nvarchar'.")
	}
	in := &executor{s: x.s, vars: map[string]*value{}, tables: map[string]*tableVar{}, cancel: x.cancel, inProc: true, tries: x.tries, level: x.level + 1}
	if in.level > 32 {
		return abortErr(217, 16, "Maximum stored procedure, function, trigger, or view nesting level exceeded (limit 32).")
	}
	var decls []column
	if len(args) > 1 {
		s, _ := args[1].v.v.(string)
		var err error
		if decls, err = x.s.srv.decls.get(s, parseDecls); err != nil {
			return err
		}
	}
	outs := map[*value]*value{}
	bound := 0
	for i, d := range decls {
		for j, a := range args[min(2, len(args)):] {
			if a.name == d.name || a.name == "" && i == j {
				v, err := convert(a.v, d.t)
				if err != nil {
					return err
				}
				in.vars[d.name] = &v
				if a.out != nil {
					outs[a.out] = &v
				}
				bound++
			}
		}
		if in.vars[d.name] == nil {
			return sqlErr(8178, 16, fmt.Sprintf("The parameterized query expects the parameter '%s', which was not supplied.", d.name))
		}
	}
	if bound != len(args)-min(2, len(args)) {
		return sqlErr(8144, 16, "Procedure or function sp_executesql has too many arguments specified.")
	}
	err := in.batch(text)
	for to, from := range outs {
		*to = *from
	}
	return err
}
