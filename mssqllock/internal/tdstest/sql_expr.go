package tdstest

import (
	"fmt"
	"math"
	"strings"
	"time"
)

func (e literal) eval(*executor, *rowEnv) (value, error) { return e.v, nil }

func (e varRef) eval(x *executor, _ *rowEnv) (value, error) {
	v := x.vars[e.name]
	if v == nil {
		err := abortErr(137, 15, fmt.Sprintf("Must declare the scalar variable \"%s\".", e.name))
		err.line = max(e.line, 1)
		return value{}, err
	}
	return *v, nil
}

func (e colRef) matches(c envColumn) bool {
	return strings.EqualFold(e.name, c.name) && (e.table == "" || strings.EqualFold(e.table, c.table))
}

func (e colRef) eval(_ *executor, env *rowEnv) (value, error) {
	if env != nil {
		if env.group != nil {
			return value{}, abortErr(8120, 16, fmt.Sprintf("Column '%s' is invalid in the select list because it is not contained in either an aggregate function or the GROUP BY clause.", e.name))
		}
		for i, c := range env.cols {
			if e.matches(c) {
				return env.vals[i], nil
			}
		}
	}
	if e.table != "" {
		return value{}, abortErr(4104, 16, fmt.Sprintf("The multi-part identifier \"%s.%s\" could not be bound.", e.table, e.name))
	}
	return value{}, abortErr(207, 16, fmt.Sprintf("Invalid column name '%s'.", e.name))
}

func (e sysVar) eval(x *executor, _ *rowEnv) (value, error) { return sysVars[e.name](x), nil }

var sysVars map[string]func(x *executor) value

func init() {
	sysVars = map[string]func(x *executor) value{
		"@@spid":      func(x *executor) value { return value{t: sqlType{kind: kSmallInt}, v: int64(x.s.spid)} },
		"@@trancount": func(x *executor) value { return intValue(int64(x.s.tranCount)) },
		"@@lock_timeout": func(x *executor) value {
			return intValue(int64(max(x.s.lockTimeout, -time.Millisecond) / time.Millisecond))
		},
		"@@rowcount":    func(x *executor) value { return intValue(x.rows) },
		"@@error":       func(x *executor) value { return intValue(x.last) },
		"@@servername":  func(x *executor) value { return textValue(x.s.srv.cfg.ServerName) },
		"@@servicename": func(*executor) value { return textValue("MSSQLSERVER") },
		"@@version": func(x *executor) value {
			name := "Microsoft SQL Server"
			if x.s.srv.cfg.EngineEdition == 5 {
				name = "Microsoft SQL Azure (RTM)"
			}
			return textValue(fmt.Sprintf("%s - %s (X64) (github.com/distlock-go/distlock, a test server that is not SQL Server)", name, x.s.srv.version.text))
		},
	}
}

// commonCollation is the one by which two texts are compared. learn.microsoft.com:
// "Collation precedence": an explicit one goes before all others, and two of them
// that differ are an error.
func commonCollation(a, b value) (string, error) {
	switch {
	case a.coll == "" || a.coll == b.coll:
		return b.coll, nil
	case b.coll == "":
		return a.coll, nil
	}
	return "", abortErr(468, 16, fmt.Sprintf("Cannot resolve the collation conflict between \"%s\" and \"%s\".", a.coll, b.coll))
}

// folded is what is compared of two texts by a collation. learn.microsoft.com:
// "Collation and Unicode support": _CI doesn't tell cases apart, _CS, _BIN and
// _BIN2 do. The databases have SQL_Latin1_General_CP1_CI_AS.
func folded(coll, x, y string) (string, string) {
	if coll == "" || strings.Contains(coll, "_CI_") {
		return strings.ToLower(x), strings.ToLower(y)
	}
	return x, y
}

// compare orders two values that aren't NULL, as the wider of their types. Texts
// are compared by their collation, and without regard to spaces at the end.
func compare(a, b value) (int, error) {
	t := wider(a.t, b.t)
	coll, err := commonCollation(a, b)
	if err != nil {
		return 0, err
	}
	if t.kind == kBit {
		t.kind = kTinyInt
	}
	if t.kind.text() {
		t.size = 0
	}
	if a, err = convert(a, t); err != nil {
		return 0, err
	}
	if b, err = convert(b, t); err != nil {
		return 0, err
	}
	switch x := a.v.(type) {
	case int64:
		y := b.v.(int64)
		switch {
		case x < y:
			return -1, nil
		case x > y:
			return 1, nil
		}
		return 0, nil
	case float64:
		y := b.v.(float64)
		switch {
		case x < y:
			return -1, nil
		case x > y:
			return 1, nil
		}
		return 0, nil
	case time.Time:
		return x.Compare(b.v.(time.Time)), nil
	case []byte:
		return strings.Compare(string(x), string(b.v.([]byte))), nil
	case string:
		y := b.v.(string)
		x, y = strings.TrimRight(x, " "), strings.TrimRight(y, " ")
		return strings.Compare(folded(coll, x, y)), nil
	}
	return 0, noConversion()
}

func (e unary) eval(x *executor, env *rowEnv) (value, error) {
	return binaryExpr{"-", literal{intValue(0)}, e.e}.eval(x, env)
}

func (e binaryExpr) eval(x *executor, env *rowEnv) (value, error) {
	a, err := e.a.eval(x, env)
	if err != nil {
		return a, err
	}
	b, err := e.b.eval(x, env)
	if err != nil {
		return b, err
	}
	switch e.op {
	case "=", "<", ">", "<=", ">=", "<>", "!=":
		if a.null() || b.null() {
			return nullOf(tBit), nil
		}
		c, err := compare(a, b)
		if err != nil {
			return value{}, err
		}
		switch e.op {
		case "=":
			return boolValue(c == 0), nil
		case "<":
			return boolValue(c < 0), nil
		case ">":
			return boolValue(c > 0), nil
		case "<=":
			return boolValue(c <= 0), nil
		case ">=":
			return boolValue(c >= 0), nil
		}
		return boolValue(c != 0), nil
	}
	t := wider(a.t, b.t)
	if t.kind.text() && e.op == "+" {
		t.size = 0
		if a.null() || b.null() {
			return nullOf(t), nil
		}
		l, _ := a.v.(string)
		r, _ := b.v.(string)
		if t.size = units(l + r); t.size > 4000 {
			t.size = 0
		}
		t.size = max(t.size, 1)
		coll, err := commonCollation(a, b)
		return value{t: t, v: l + r, coll: coll}, err
	}
	if t.kind == kBit || t.kind == kNull {
		t.kind = kInt
	}
	if !t.kind.integer() && t.kind != kFloat {
		return value{}, sqlErr(402, 16, "The data types are incompatible in the operator '"+e.op+"'.")
	}
	if a, err = convert(a, t); err != nil {
		return a, err
	}
	if b, err = convert(b, t); err != nil || a.null() || b.null() {
		return nullOf(t), err
	}
	if t.kind == kFloat {
		return arithFloat(e.op, a.v.(float64), b.v.(float64), t)
	}
	return arithInt(e.op, a.v.(int64), b.v.(int64), t)
}

func divByZero() error { return sqlErr(8134, 16, "Divide by zero error encountered.") }

func arithFloat(op string, l, r float64, t sqlType) (value, error) {
	switch op {
	case "+":
		l += r
	case "-":
		l -= r
	case "*":
		l *= r
	case "/":
		if r == 0 {
			return value{}, divByZero()
		}
		l /= r
	default:
		return value{}, sqlErr(402, 16, "The data types are incompatible in the operator '"+op+"'.")
	}
	return value{t: t, v: l}, nil
}

func arithInt(op string, l, r int64, t sqlType) (value, error) {
	n, over := int64(0), false
	switch op {
	case "+":
		n = l + r
		over = (n > l) != (r > 0) && r != 0
	case "-":
		n = l - r
		over = (n < l) != (r > 0) && r != 0
	case "*":
		n = l * r
		over = l != 0 && (n/l != r || l == -1 && r == math.MinInt64)
	case "/", "%":
		if r == 0 {
			return value{}, divByZero()
		}
		if r == -1 { // the one quotient that may not fit
			n, over = -l, op == "/" && l == math.MinInt64
			if op == "%" {
				n = 0
			}
		} else if op == "/" {
			n = l / r
		} else {
			n = l % r
		}
	case "&":
		n = l & r
	case "|":
		n = l | r
	case "^":
		n = l ^ r
	}
	if lim := intRanges[t.kind]; over || n < lim[0] || n > lim[1] {
		return value{}, sqlErr(8115, 16, "Arithmetic overflow error converting expression to data type int.")
	}
	return value{t: t, v: n}, nil
}

func (e notExpr) eval(x *executor, env *rowEnv) (value, error) {
	v, err := e.e.eval(x, env)
	if err != nil || v.null() {
		return v, err
	}
	return boolValue(v.v == int64(0)), nil
}

func (e logic) eval(x *executor, env *rowEnv) (value, error) {
	a, err := e.a.eval(x, env)
	if err != nil {
		return a, err
	}
	if !a.null() && (a.v == int64(1)) == e.or {
		return a, nil
	}
	b, err := e.b.eval(x, env)
	if err != nil || a.null() && (b.null() || (b.v == int64(1)) != e.or) {
		return nullOf(tBit), err
	}
	return b, nil
}

func (e isNull) eval(x *executor, env *rowEnv) (value, error) {
	v, err := e.e.eval(x, env)
	return boolValue(v.null() != e.not), err
}

func (e inList) eval(x *executor, env *rowEnv) (value, error) {
	var found expr = literal{boolValue(false)}
	for _, m := range e.list {
		found = logic{true, found, binaryExpr{"=", e.e, m}}
	}
	if e.not {
		found = notExpr{found}
	}
	return found.eval(x, env)
}

func (e like) eval(x *executor, env *rowEnv) (value, error) {
	a, err := e.e.eval(x, env)
	if err != nil {
		return a, err
	}
	b, err := e.pattern.eval(x, env)
	if err != nil {
		return b, err
	}
	s, ok := a.v.(string)
	pattern, ok2 := b.v.(string)
	if !ok || !ok2 {
		return nullOf(tBit), nil
	}
	coll, err := commonCollation(a, b)
	if err != nil {
		return value{}, err
	}
	s, pattern = folded(coll, s, pattern)
	return boolValue(likes([]rune(s), []rune(pattern)) != e.not), nil
}

// likes matches %, _ and [set].
func likes(s, p []rune) bool {
	for len(p) > 0 {
		switch p[0] {
		case '%':
			for i := 0; i <= len(s); i++ {
				if likes(s[i:], p[1:]) {
					return true
				}
			}
			return false
		case '[':
			end := 1
			for end < len(p) && (p[end] != ']' || end == 1) {
				end++
			}
			if len(s) == 0 || end >= len(p) {
				return false
			}
			set, not, in := p[1:end], false, false
			if len(set) > 1 && set[0] == '^' {
				set, not = set[1:], true
			}
			for i := 0; i < len(set); i++ {
				if i+2 < len(set) && set[i+1] == '-' {
					in = in || s[0] >= set[i] && s[0] <= set[i+2]
					i += 2
				} else {
					in = in || s[0] == set[i]
				}
			}
			if in == not {
				return false
			}
			s, p = s[1:], p[end+1:]
			continue
		case '_':
			if len(s) == 0 {
				return false
			}
		default:
			if len(s) == 0 || s[0] != p[0] {
				return false
			}
		}
		s, p = s[1:], p[1:]
	}
	return len(s) == 0
}

func (e caseExpr) eval(x *executor, env *rowEnv) (value, error) {
	for _, w := range e.whens {
		cond := w[0]
		if e.of != nil {
			cond = binaryExpr{"=", e.of, cond}
		}
		ok, err := x.holds(cond, env)
		if err != nil {
			return value{}, err
		}
		if ok {
			return w[1].eval(x, env)
		}
	}
	if e.els == nil {
		return value{}, nil
	}
	return e.els.eval(x, env)
}

func (e castExpr) eval(x *executor, env *rowEnv) (value, error) {
	v, err := e.e.eval(x, env)
	if err != nil {
		return v, err
	}
	return convert(v, e.t)
}

func (e collate) eval(x *executor, env *rowEnv) (value, error) {
	v, err := e.e.eval(x, env)
	if err == nil && !v.null() && !v.t.kind.text() {
		return v, abortErr(447, 16, "Expression type is invalid for COLLATE clause.")
	}
	v.coll = e.name
	return v, err
}

func (e nextValue) eval(x *executor, _ *rowEnv) (value, error) {
	schema := e.schema
	if schema == "" {
		schema = "dbo"
	}
	key := sequenceKey(x.s.database, schema, e.name)
	if v, ok := x.numbers[key]; ok {
		return v, nil
	}
	v, err := x.s.srv.sequences.next(key)
	if err == nil {
		if x.numbers == nil {
			x.numbers = make(map[string]value)
		}
		x.numbers[key] = v
	}
	if se, ok := err.(*sqlError); ok && se.number == 208 { //nolint:errorlint // never wrapped
		se.message = fmt.Sprintf("Invalid object name '%s'.", procName(e))
	}
	return v, err
}

func (e exists) eval(x *executor, env *rowEnv) (value, error) {
	res, err := x.query(e.q, env)
	if err != nil {
		return value{}, err
	}
	return boolValue(len(res.rows) > 0), nil
}

func (e scalar) eval(x *executor, env *rowEnv) (value, error) {
	res, err := x.query(e.q, env)
	switch {
	case err != nil:
		return value{}, err
	case len(res.cols) != 1:
		return value{}, abortErr(116, 16, "Only one expression can be specified in the select list when the subquery is not introduced with EXISTS.")
	case len(res.rows) > 1:
		return value{}, sqlErr(512, 16, "Subquery returned more than 1 value.")
	case len(res.rows) == 0:
		return nullOf(res.cols[0].t), nil
	}
	return res.rows[0][0], nil
}

func (e aggregate) eval(x *executor, env *rowEnv) (value, error) {
	if env == nil || env.group == nil {
		return value{}, abortErr(147, 15, "An aggregate may not appear here.")
	}
	var n int64
	var best value
	for _, row := range env.group {
		if e.e == nil {
			n++
			continue
		}
		v, err := e.e.eval(x, row)
		if err != nil {
			return value{}, err
		}
		if v.null() {
			continue
		}
		n++
		if best.null() {
			best = v
			continue
		}
		if e.name == "sum" {
			if best, err = (binaryExpr{"+", literal{best}, literal{v}}).eval(x, nil); err != nil {
				return value{}, err
			}
			continue
		}
		c, err := compare(v, best)
		if err != nil {
			return value{}, err
		}
		if e.name == "min" && c < 0 || e.name == "max" && c > 0 {
			best = v
		}
	}
	switch e.name {
	case "count":
		return intValue(n), nil
	case "count_big":
		return bigValue(n), nil
	}
	return best, nil
}

// function is a built-in function; min and max are numbers of arguments.
type function struct {
	min, max int
	f        func(x *executor, args []value) (value, error)
}

func (e call) eval(x *executor, env *rowEnv) (value, error) {
	args := make([]value, len(e.args))
	for i, a := range e.args {
		var err error
		if args[i], err = a.eval(x, env); err != nil {
			return value{}, err
		}
	}
	return functions[e.name].f(x, args)
}

var functions map[string]function

// of makes a function of what needs no arguments.
func of(f func(x *executor) value) function {
	return function{0, 0, func(x *executor, _ []value) (value, error) { return f(x), nil }}
}

// onText makes a function of a text; NULL stays NULL.
func onText(f func(s string) value) function {
	return function{1, 1, func(_ *executor, args []value) (value, error) {
		v, err := convert(args[0], nvarchar(0))
		if s, ok := v.v.(string); ok {
			return f(s), nil
		}
		return value{}, err
	}}
}

// ofError makes a function that says something of the error in a CATCH block.
func ofError(f func(e *sqlError) value) function {
	return of(func(x *executor) value {
		if x.caught == nil {
			return value{}
		}
		return f(x.caught)
	})
}

func init() {
	first := function{2, 100, func(_ *executor, args []value) (value, error) {
		for _, a := range args {
			if !a.null() {
				return a, nil
			}
		}
		return args[0], nil
	}}
	now := of(func(*executor) value { return timeValue(time.Now()) })
	utc := of(func(*executor) value { return timeValue(time.Now().UTC()) })
	loginName := of(func(x *executor) value { return textValue(x.s.login.user) })
	functions = map[string]function{
		"isnull": {2, 2, func(_ *executor, args []value) (value, error) {
			if args[0].null() {
				if args[0].t.kind == kNull {
					return args[1], nil
				}
				return convert(args[1], args[0].t) // "ISNULL": of the type of the first
			}
			return args[0], nil
		}},
		"coalesce": first,
		"nullif": {2, 2, func(_ *executor, args []value) (value, error) {
			if args[0].null() || args[1].null() {
				return args[0], nil
			}
			c, err := compare(args[0], args[1])
			if c == 0 && err == nil {
				return nullOf(args[0].t), nil
			}
			return args[0], err
		}},
		"concat": {2, 254, func(_ *executor, args []value) (value, error) {
			var b strings.Builder
			for _, a := range args {
				v, err := convert(a, nvarchar(0))
				if err != nil {
					return v, err
				}
				s, _ := v.v.(string)
				b.WriteString(s)
			}
			return textValue(b.String()), nil
		}},
		"len":   onText(func(s string) value { return intValue(int64(units(strings.TrimRight(s, " ")))) }),
		"upper": onText(func(s string) value { return textValue(strings.ToUpper(s)) }),
		"lower": onText(func(s string) value { return textValue(strings.ToLower(s)) }),
		"ltrim": onText(func(s string) value { return textValue(strings.TrimLeft(s, " ")) }),
		"rtrim": onText(func(s string) value { return textValue(strings.TrimRight(s, " ")) }),
		"quotename": onText(func(s string) value {
			return textValue("[" + strings.ReplaceAll(s, "]", "]]") + "]")
		}),
		"datalength": {1, 1, func(_ *executor, args []value) (value, error) {
			switch v := args[0].v.(type) {
			case nil:
				return nullOf(tInt), nil
			case string:
				if args[0].t.kind == kNVarChar {
					return intValue(int64(len(toUTF16(v)))), nil
				}
				return intValue(int64(len(v))), nil
			case []byte:
				return intValue(int64(len(v))), nil
			case int64:
				return intValue(max(1, int64(intSizes[args[0].t.kind]))), nil
			}
			return intValue(8), nil
		}},
		"left":           {2, 2, func(_ *executor, args []value) (value, error) { return substring(args[0], intValue(1), args[1]) }},
		"substring":      {3, 3, func(_ *executor, args []value) (value, error) { return substring(args[0], args[1], args[2]) }},
		"charindex":      {2, 2, charIndex},
		"dateadd":        {3, 3, dateAdd},
		"datediff_big":   {3, 3, dateDiffBig},
		"getdate":        now,
		"sysdatetime":    now,
		"getutcdate":     utc,
		"sysutcdatetime": utc,
		"db_name":        of(func(x *executor) value { return textValue(x.s.database) }),
		"db_id": {0, 1, func(x *executor, args []value) (value, error) {
			if len(args) == 1 {
				name, _ := args[0].v.(string)
				return intValue(databaseID(name)), nil
			}
			return intValue(databaseID(x.s.database)), nil
		}},
		"original_login": loginName,
		"suser_sname":    loginName,
		"suser_name":     loginName,
		"user_name":      of(func(x *executor) value { return textValue(x.s.userName()) }),
		"host_name":      of(func(x *executor) value { return textValue(x.s.login.host) }),
		"app_name":       of(func(x *executor) value { return textValue(x.s.login.app) }),
		"xact_state": of(func(x *executor) value {
			n := int64(0)
			if x.s.doomed {
				n = -1
			} else if x.s.tranCount > 0 {
				n = 1
			}
			return value{t: sqlType{kind: kSmallInt}, v: n}
		}),
		"error_number":       ofError(func(e *sqlError) value { return intValue(int64(e.number)) }),
		"error_message":      ofError(func(e *sqlError) value { return textValue(e.message) }),
		"error_severity":     ofError(func(e *sqlError) value { return intValue(int64(e.class)) }),
		"error_state":        ofError(func(e *sqlError) value { return intValue(int64(e.state)) }),
		"error_line":         ofError(func(e *sqlError) value { return intValue(int64(e.line)) }),
		"error_procedure":    ofError(func(e *sqlError) value { return textValue(e.proc) }),
		"serverproperty":     {1, 1, serverProperty},
		"databasepropertyex": {2, 2, databaseProperty},
		"has_perms_by_name":  {3, 3, hasPerms},
		"object_id":          {1, 2, findObject},
		"applock_mode":       {3, 3, appLockMode},
		"applock_test":       {4, 4, appLockTest},
	}
}

func substring(v, from, n value) (value, error) {
	v, err := convert(v, nvarchar(0))
	s, ok := v.v.(string)
	start, ok2 := from.v.(int64)
	count, ok3 := n.v.(int64)
	if err != nil || !ok || !ok2 || !ok3 {
		return value{}, err
	}
	if count < 0 {
		return value{}, sqlErr(537, 16, "Invalid length parameter passed to the LEFT or SUBSTRING function.")
	}
	u := []rune(s)
	end := min(start-1+count, int64(len(u)))
	start = max(start-1, 0)
	if start >= end {
		return textValue(""), nil
	}
	return textValue(string(u[start:end])), nil
}

// charIndex is CHARINDEX. learn.microsoft.com: "CHARINDEX": it compares by the
// collation of the input.
func charIndex(_ *executor, args []value) (value, error) {
	what, ok := args[0].v.(string)
	in, ok2 := args[1].v.(string)
	if !ok || !ok2 {
		return nullOf(tInt), nil
	}
	coll, err := commonCollation(args[0], args[1])
	if err != nil {
		return value{}, err
	}
	what, in = folded(coll, what, in)
	at := strings.Index(in, what)
	if at < 0 || what == "" {
		return intValue(0), nil
	}
	return intValue(int64(units(in[:at])) + 1), nil
}

// dateParts are those that DATEADD and DATEDIFF_BIG know here. learn.microsoft.com:
// "DATEADD", datepart.
var dateParts = map[string]time.Duration{
	"hour": time.Hour, "hh": time.Hour, "minute": time.Minute, "mi": time.Minute, "n": time.Minute,
	"second": time.Second, "ss": time.Second, "s": time.Second, "millisecond": time.Millisecond, "ms": time.Millisecond,
	"microsecond": time.Microsecond, "mcs": time.Microsecond,
}

// datePart reads the first argument of DATEADD and DATEDIFF_BIG, which is a word.
func (p *parser) datePart() expr {
	word := strings.ToLower(p.name())
	if dateParts[word] == 0 {
		panic(abortErr(155, 15, fmt.Sprintf("'%s' is not a recognized datepart option.", word)))
	}
	return literal{textValue(word)}
}

// aDate returns a date; ok is false for NULL.
func aDate(v value) (t time.Time, ok bool, err error) {
	if v, err = convert(v, tTime); err == nil {
		t, ok = v.v.(time.Time)
	}
	return t, ok, err
}

// dateAdd is DATEADD. learn.microsoft.com: "DATEADD": the number is an int.
func dateAdd(_ *executor, args []value) (value, error) {
	n, err := convert(args[1], tInt)
	if err != nil {
		return value{}, err
	}
	t, ok, err := aDate(args[2])
	if err != nil || !ok || n.null() {
		return nullOf(tTime), err
	}
	part := dateParts[args[0].v.(string)]
	return timeValue(t.Add(time.Duration(n.v.(int64)) * part)), nil //nolint:durationcheck // a number of them
}

// dateDiffBig is DATEDIFF_BIG. learn.microsoft.com: "DATEDIFF_BIG": it counts the
// boundaries between the two, and not the time.
func dateDiffBig(_ *executor, args []value) (value, error) {
	from, ok, err := aDate(args[1])
	if err != nil || !ok {
		return nullOf(tBigInt), err
	}
	to, ok, err := aDate(args[2])
	if err != nil || !ok {
		return nullOf(tBigInt), err
	}
	part := dateParts[args[0].v.(string)]
	return bigValue(int64(to.Round(0).Truncate(part).Sub(from.Round(0).Truncate(part)) / part)), nil
}

// databaseID makes up an id for a database; those of the system are as they are.
func databaseID(name string) int64 {
	switch strings.ToLower(name) {
	case "master":
		return 1
	case "tempdb":
		return 2
	}
	return 5 + objectID(strings.ToLower(name))%30000
}

// serverProperty is SERVERPROPERTY. learn.microsoft.com: "SERVERPROPERTY": NULL
// for a name that isn't known.
func serverProperty(x *executor, args []value) (value, error) {
	name, _ := args[0].v.(string)
	v := x.s.srv.version
	switch strings.ToLower(name) {
	case "engineedition":
		return intValue(int64(x.s.srv.cfg.EngineEdition)), nil
	case "productversion":
		return textValue(v.text), nil
	case "productmajorversion":
		return textValue(fmt.Sprint(v.major)), nil
	case "productminorversion":
		return textValue(fmt.Sprint(v.minor)), nil
	case "productbuild":
		return textValue(fmt.Sprint(v.build)), nil
	case "productlevel":
		return textValue("RTM"), nil
	case "edition":
		if x.s.srv.cfg.EngineEdition == 5 {
			return textValue("SQL Azure"), nil
		}
		return textValue("Developer Edition (64-bit)"), nil
	case "servername", "machinename":
		return textValue(x.s.srv.cfg.ServerName), nil
	case "collation":
		return textValue("SQL_Latin1_General_CP1_CI_AS"), nil
	case "ishadrenabled", "isclustered":
		return intValue(0), nil
	}
	return value{}, nil
}

// databaseProperty is DATABASEPROPERTYEX. learn.microsoft.com:
// "DATABASEPROPERTYEX": NULL for a name that isn't known, and for a database that
// isn't.
func databaseProperty(x *executor, args []value) (value, error) {
	database, _ := args[0].v.(string)
	name, _ := args[1].v.(string)
	if !strings.EqualFold(database, x.s.database) {
		return value{}, nil
	}
	switch strings.ToLower(name) {
	case "updateability":
		return textValue(map[bool]string{false: "READ_WRITE", true: "READ_ONLY"}[x.s.srv.cfg.ReadOnly]), nil
	case "status":
		return textValue("ONLINE"), nil
	}
	return value{}, nil
}

// hasPerms is HAS_PERMS_BY_NAME. learn.microsoft.com: "HAS_PERMS_BY_NAME": NULL
// for a permission that isn't known.
func hasPerms(x *executor, args []value) (value, error) {
	permission, _ := args[2].v.(string)
	denied := false
	switch strings.ToLower(permission) {
	case "view server state", "view server performance state", "view database state", "view database performance state":
		denied = x.s.user.NoViewServerState
	case "alter any connection", "kill database connection":
		denied = x.s.user.NoKill
	case "create sequence":
		denied = x.s.user.NoSequences
	case "execute", "update", "connect", "select":
	default:
		return nullOf(tInt), nil
	}
	return intValue(map[bool]int64{false: 1}[denied]), nil
}

// findObject is OBJECT_ID, of sequences.
func findObject(x *executor, args []value) (value, error) {
	text, _ := args[0].v.(string)
	n, err := parseProcName(text)
	if err != nil {
		return nullOf(tInt), nil //nolint:nilerr // "OBJECT_ID": NULL for what is no name
	}
	if n.schema == "" {
		n.schema = "dbo"
	}
	key := sequenceKey(x.s.database, n.schema, n.name)
	if len(args) == 2 {
		if kind, _ := args[1].v.(string); !strings.EqualFold(strings.TrimSpace(kind), "SO") {
			return nullOf(tInt), nil
		}
	}
	if x.s.srv.sequences.get(key) == nil {
		return nullOf(tInt), nil
	}
	return intValue(objectID(key)), nil
}

// appLockMode is APPLOCK_MODE. learn.microsoft.com: "APPLOCK_MODE".
func appLockMode(x *executor, args []value) (value, error) {
	o, key, err := x.lockTarget("applock_mode", args[0], args[1], args[2])
	if err != nil {
		return value{}, err
	}
	return value{t: nvarchar(32), v: modeNames[x.s.srv.locks.held(o, key)]}, nil
}

// appLockTest is APPLOCK_TEST. learn.microsoft.com: "APPLOCK_TEST": for a
// transaction as the owner it must be executed within one.
func appLockTest(x *executor, args []value) (value, error) {
	o, key, err := x.lockTarget("applock_test", args[0], args[1], args[3])
	if err != nil {
		return value{}, err
	}
	m := modeOf(args[2])
	switch {
	case m == noLock:
		return value{}, invalidParameter("applock_test")
	case o == nil:
		return value{}, noTransaction()
	}
	n := int64(0)
	if x.s.srv.locks.grantable(o, key, m) {
		n = 1
	}
	return value{t: sqlType{kind: kSmallInt}, v: n}, nil
}
