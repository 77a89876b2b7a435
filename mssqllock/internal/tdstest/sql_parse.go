package tdstest

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// collationName is the form of those of Windows and of SQL Server.
// learn.microsoft.com: "Windows collation name", "SQL Server collation name".
var collationName = regexp.MustCompile("^(SQL_)?[A-Z0-9_]+_(BIN2?|C[IS]_A[IS](_KS)?(_WS)?(_SC)?)$")

// maxDepth bounds how deep a batch nests, so that none exhausts the stack.
const maxDepth = 200

type parser struct {
	tokens []sqlToken
	at     int
	depth  int
	tries  int // of what was read in vain, see notCond
}

// parse parses a batch. learn.microsoft.com: "Transact-SQL reference" has the
// syntax; only a part of it is understood, and all else is a syntax error.
func parse(sql string) (b block, err error) {
	tokens, err := lex(sql)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens}
	defer p.caught(&err)
	for p.peek().kind != tEnd {
		if p.take(";") {
			continue
		}
		if t := p.peek(); len(b) == 0 && (t.kind == tWord || t.kind == tQuoted) && !keywords[strings.ToLower(t.text)] {
			b = append(b, p.exec()) // a procedure may be called without EXEC first of all
			continue
		}
		b = append(b, p.statement())
	}
	return b, nil
}

// caught makes an error of what fail has panicked with.
func (p *parser) caught(err *error) {
	switch e := recover().(type) {
	case nil:
	case *sqlError:
		*err = e
	default:
		panic(e)
	}
}

var keywords = map[string]bool{}

func init() {
	for w := range strings.FieldsSeq(`add all alter and as asc begin between break by case cast catch close coalesce
		collate commit continue convert create cross current database declare default delete desc distinct drop else end
		except exec execute exists for from full goto grant group having if in inner insert intersect into is join key
		kill left like merge next not null nullif of on open option or order outer over print proc procedure raiserror
		return revert right rollback save select set shutdown table then throw to top tran transaction truncate try union
		update use values view waitfor when where while with`) {
		keywords[w] = true
	}
	for _, w := range []string{"next", "catch", "try", "throw", "cast"} {
		delete(keywords, w) // not reserved
	}
	keywords["throw"] = true // starts a statement here
}

func (p *parser) peek() sqlToken { return p.tokens[p.at] }

func (p *parser) ahead(n int) sqlToken { return p.tokens[min(p.at+n, len(p.tokens)-1)] }

func (p *parser) next() sqlToken {
	t := p.tokens[p.at]
	if t.kind != tEnd {
		p.at++
	}
	return t
}

func (p *parser) fail() { panic(syntaxNear(p.peek())) }

func (p *parser) take(s string) bool {
	if p.peek().is(s) {
		p.at++
		return true
	}
	return false
}

func (p *parser) need(words ...string) {
	for _, s := range words {
		if !p.take(s) {
			p.fail()
		}
	}
}

func (p *parser) deeper() func() {
	p.depth++
	if p.depth > maxDepth {
		panic(abortErr(191, 15, "Some part of your SQL statement is nested too deeply. Rewrite the query or break it up into smaller queries."))
	}
	return func() { p.depth-- }
}

func (p *parser) isName() bool {
	t := p.peek()
	return t.kind == tQuoted || t.kind == tWord && !keywords[strings.ToLower(t.text)]
}

func (p *parser) name() string {
	if !p.isName() {
		p.fail()
	}
	return p.next().text
}

func (p *parser) variable() string {
	t := p.peek()
	if t.kind != tVariable || strings.HasPrefix(t.text, "@@") {
		p.fail()
	}
	p.at++
	return t.text
}

// object reads [schema.]name.
func (p *parser) object() (schema, name string) {
	name = p.name()
	if p.take(".") {
		schema, name = name, p.name()
	}
	return schema, name
}

func (p *parser) statement() statement {
	defer p.deeper()()
	t := p.peek()
	if t.kind == tSign && t.text == "(" {
		return selectStmt{p.query()}
	}
	if t.kind != tWord {
		p.fail()
	}
	switch strings.ToLower(t.text) {
	case "declare":
		p.at++
		return p.declare()
	case "set":
		p.at++
		return p.set()
	case "exec", "execute":
		p.at++
		return p.exec()
	case "select":
		return selectStmt{p.query()}
	case "insert":
		p.at++
		return p.insert()
	case "if":
		p.at++
		s := ifStmt{cond: p.cond()}
		s.then = p.statement()
		for p.peek().is(";") && p.ahead(1).is("else") {
			p.at++
		}
		if p.take("else") {
			s.els = p.statement()
		}
		return s
	case "while":
		p.at++
		return whileStmt{p.cond(), p.statement()}
	case "break":
		p.at++
		return breakStmt{}
	case "continue":
		p.at++
		return breakStmt{again: true}
	case "return":
		p.at++
		s := returnStmt{}
		if t := p.peek(); t.kind == tNumber || t.kind == tVariable || t.is("(") || t.is("-") {
			s.e = p.expr()
		}
		return s
	case "begin":
		p.at++
		switch {
		case p.take("tran") || p.take("transaction"):
			return tranStmt{'b', p.tranName()}
		case p.take("try"):
			s := tryStmt{try: p.until("end", "try")}
			p.take(";")
			p.need("begin", "catch")
			s.catch = p.until("end", "catch")
			return s
		}
		return p.until("end")
	case "commit":
		p.at++
		s := tranStmt{what: 'c'}
		if p.take("tran") || p.take("transaction") {
			s.name = p.tranName()
		} else {
			p.take("work")
		}
		return s
	case "rollback":
		p.at++
		s := tranStmt{what: 'r'}
		if p.take("tran") || p.take("transaction") {
			s.name = p.tranName()
		} else {
			p.take("work")
		}
		return s
	case "save":
		p.at++
		if !p.take("tran") {
			p.need("transaction")
		}
		if !p.isName() {
			p.fail()
		}
		return tranStmt{'s', p.tranName()}
	case "throw":
		p.at++
		s := throwStmt{}
		if k := p.peek().kind; k == tNumber || k == tVariable {
			s.args = []expr{p.expr()}
			for p.take(",") {
				s.args = append(s.args, p.expr())
			}
			if len(s.args) != 3 {
				p.fail()
			}
		}
		return s
	case "raiserror":
		p.at++
		p.need("(")
		s := raiseStmt{args: p.list()}
		p.need(")")
		if len(s.args) < 3 {
			p.fail()
		}
		if p.take("with") {
			p.need("nowait")
		}
		return s
	case "print":
		p.at++
		return printStmt{p.expr()}
	case "waitfor":
		p.at++
		p.need("delay")
		return waitStmt{p.expr()}
	case "kill":
		p.at++
		if k := p.peek().kind; k != tNumber {
			p.fail()
		}
		return killStmt{p.primary()}
	case "use":
		p.at++
		return useStmt{p.name()}
	case "create":
		p.at++
		p.need("sequence")
		return p.createSequence()
	case "drop":
		p.at++
		p.need("sequence")
		s := dropSequence{}
		if p.take("if") {
			p.need("exists")
			s.ifExists = true
		}
		s.schema, s.name = p.object()
		return s
	}
	if keywords[strings.ToLower(t.text)] {
		e := abortErr(156, 15, fmt.Sprintf("Incorrect syntax near the keyword '%s'.", t.text))
		e.line = t.line
		panic(e)
	}
	p.fail()
	return nil
}

// tranName reads the name of a transaction or savepoint, if there is one.
func (p *parser) tranName() string {
	if p.isName() {
		return p.name()
	}
	return ""
}

func (p *parser) until(words ...string) block {
	b := block{}
	for {
		for p.take(";") {
		}
		if p.peek().is(words[0]) {
			p.need(words...)
			return b
		}
		b = append(b, p.statement())
	}
}

// dataType reads a data type. short is the length of a text without one:
// learn.microsoft.com "nchar and nvarchar": 1 in a declaration, 30 in CAST.
func (p *parser) dataType(short int) sqlType {
	name := strings.ToLower(p.name())
	size, sized := 0, false
	if p.take("(") {
		sized = true
		if !p.take("max") {
			t := p.next()
			n, err := strconv.Atoi(t.text)
			if t.kind != tNumber || err != nil || n < 1 || n > 8000 {
				p.at--
				p.fail()
			}
			size = n
		}
		p.need(")")
	}
	text := func(k kind) sqlType {
		if !sized {
			size = short
		}
		return sqlType{k, size}
	}
	switch name {
	case "bit":
		return tBit
	case "tinyint":
		return sqlType{kind: kTinyInt}
	case "smallint":
		return sqlType{kind: kSmallInt}
	case "int", "integer":
		return tInt
	case "bigint":
		return tBigInt
	case "float":
		return sqlType{kind: kFloat}
	case "datetime2":
		return tTime
	case "sysname":
		return nvarchar(128)
	case "nvarchar", "nchar":
		return text(kNVarChar)
	case "varchar", "char":
		return text(kVarChar)
	case "varbinary", "binary":
		return text(kVarBinary)
	}
	panic(abortErr(2715, 16, fmt.Sprintf("Cannot find data type %s.", name)))
}

func (p *parser) declare() statement {
	var b block
	for {
		name := p.variable()
		p.take("as")
		if p.take("table") {
			d := declareTable{name: name}
			p.need("(")
			for {
				c := column{name: p.name()}
				c.t = p.dataType(1)
				for { // constraints say nothing that a lock library relies on
					if p.take("not") || p.take("primary") {
						if !p.take("null") {
							p.need("key")
						}
					} else if !p.take("null") {
						break
					}
				}
				d.cols = append(d.cols, c)
				if !p.take(",") {
					break
				}
			}
			p.need(")")
			b = append(b, d)
		} else {
			d := declareVar{name: name, t: p.dataType(1)}
			if p.take("=") {
				d.init = p.expr()
			}
			b = append(b, d)
		}
		if !p.take(",") {
			return b
		}
	}
}

// parseDecls reads the declarations of sp_executesql's parameters.
func parseDecls(s string) (decls []column, err error) {
	tokens, err := lex(s)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens}
	defer p.caught(&err)
	for p.peek().kind != tEnd {
		d := column{name: p.variable()}
		d.t = p.dataType(1)
		decls = append(decls, d)
		if !p.take("output") { // what is one is for the call to say
			p.take("out")
		}
		if !p.take(",") && p.peek().kind != tEnd {
			p.fail()
		}
	}
	return decls, nil
}

func (p *parser) set() statement {
	if p.peek().kind == tVariable {
		s := setVar{name: p.variable()}
		switch {
		case p.take("="):
			s.e = p.expr()
		case p.take("+="):
			s.e = binaryExpr{"+", varRef{name: s.name}, p.expr()}
		case p.take("-="):
			s.e = binaryExpr{"-", varRef{name: s.name}, p.expr()}
		default:
			p.fail()
		}
		return s
	}
	if p.take("transaction") {
		p.need("isolation", "level")
		switch {
		case p.take("read"):
			if !p.take("committed") {
				p.need("uncommitted")
			}
		case p.take("repeatable"):
			p.need("read")
		case !p.take("serializable"):
			p.need("snapshot")
		}
		return setOption{name: "isolation"}
	}
	name := strings.ToLower(p.name())
	switch name {
	case "lock_timeout":
		return setOption{name: name, arg: p.expr()}
	case "context_info", "deadlock_priority", "textsize", "rowcount":
		if name == "deadlock_priority" && p.isName() {
			return setOption{name: name, text: p.name()}
		}
		return setOption{name: name, arg: p.expr()}
	case "nocount", "xact_abort", "ansi_nulls", "ansi_padding", "ansi_warnings", "arithabort", "quoted_identifier",
		"concat_null_yields_null", "implicit_transactions", "numeric_roundabort":
		s := setOption{name: name, text: "on"}
		if !p.take("on") {
			s.text = strings.ToLower(p.name())
			if s.text != "off" {
				p.at--
				p.fail()
			}
		}
		return s
	}
	panic(abortErr(195, 15, fmt.Sprintf("'%s' is not a recognized SET option.", name)))
}

func (p *parser) exec() statement {
	s := execStmt{line: p.peek().line}
	if p.peek().kind == tVariable {
		s.result = p.variable()
		p.need("=")
	}
	s.name.schema, s.name.name = p.object()
	for {
		t := p.peek()
		a := procArg{}
		if t.kind == tVariable && p.ahead(1).is("=") {
			a.name = p.variable()
			p.at++
		} else if len(s.args) == 0 && t.kind != tVariable && t.kind != tText && t.kind != tNational && t.kind != tNumber && !t.is("-") && !t.is("null") {
			return s
		}
		t = p.peek()
		switch {
		case t.kind == tVariable:
			a.e = p.primary()
			if p.take("output") || p.take("out") {
				a.output = t.text
			}
		case t.kind == tWord && !t.is("null") && !keywords[strings.ToLower(t.text)]:
			p.at++ // a bare word is a text here
			a.e = literal{textValue(t.text)}
		case t.is("-"):
			p.at++
			a.e = unary{p.primary()}
		default:
			a.e = p.primary()
		}
		s.args = append(s.args, a)
		if !p.take(",") {
			return s
		}
	}
}

func (p *parser) insert() statement {
	p.take("into")
	s := insertStmt{table: p.variable()}
	if p.peek().is("(") && !p.ahead(1).is("select") {
		p.at++
		for {
			s.cols = append(s.cols, p.name())
			if !p.take(",") {
				break
			}
		}
		p.need(")")
	}
	if p.peek().is("values") {
		core := &selectCore{items: []selectItem{{star: true}}, from: []tableRef{{rows: p.values()}}}
		s.q = &query{parts: []*selectCore{core}}
		return s
	}
	s.q = p.query()
	return s
}

func (p *parser) values() [][]expr {
	p.need("values")
	var rows [][]expr
	for {
		p.need("(")
		row := p.list()
		p.need(")")
		if len(rows) > 0 && len(row) != len(rows[0]) {
			panic(abortErr(10709, 16, "The number of columns for each row in a table value constructor must be the same."))
		}
		rows = append(rows, row)
		if !p.take(",") {
			return rows
		}
	}
}

func (p *parser) createSequence() statement {
	s := createSequence{}
	s.schema, s.seq.name = p.object()
	s.seq.kind, s.seq.increment, s.seq.cached = kBigInt, 1, true
	if p.take("as") {
		s.seq.kind = p.dataType(1).kind
		if !s.seq.kind.integer() || s.seq.kind == kBit {
			panic(abortErr(11702, 16, "The sequence object must be of an integer type."))
		}
	}
	number := func() int64 {
		text := ""
		if p.take("-") {
			text = "-"
		}
		t := p.next()
		n, err := strconv.ParseInt(text+t.text, 10, 64)
		if t.kind != tNumber || err != nil {
			p.at--
			p.fail()
		}
		return n
	}
	s.seq.low, s.seq.high = intRanges[s.seq.kind][0], intRanges[s.seq.kind][1]
	started := false
	for {
		switch {
		case p.take("start"):
			p.need("with")
			s.seq.start, started = number(), true
		case p.take("increment"):
			p.need("by")
			s.seq.increment = number()
		case p.take("minvalue"):
			s.seq.low = number()
		case p.take("maxvalue"):
			s.seq.high = number()
		case p.take("cycle"):
			s.seq.cycling = true
		case p.take("cache"):
			if p.peek().kind == tNumber {
				number()
			}
		case p.take("no"):
			if p.take("cache") {
				s.seq.cached = false
			} else if !p.take("cycle") && !p.take("minvalue") {
				p.need("maxvalue")
			}
		default:
			if s.seq.increment == 0 {
				panic(abortErr(11700, 16, "The increment for sequence object '"+s.seq.name+"' cannot be zero."))
			}
			if !started {
				s.seq.start = s.seq.low
				if s.seq.increment < 0 {
					s.seq.start = s.seq.high
				}
			}
			if s.seq.start < s.seq.low || s.seq.start > s.seq.high {
				panic(abortErr(11703, 16, "The start value for sequence object '"+s.seq.name+"' must be between the minimum and maximum value of the sequence object."))
			}
			return s
		}
	}
}

func (p *parser) query() *query {
	defer p.deeper()()
	q := &query{parts: []*selectCore{p.core()}}
	for p.take("union") {
		p.need("all")
		q.parts = append(q.parts, p.core())
	}
	if p.take("order") {
		p.need("by")
		for {
			o := orderItem{e: p.expr()}
			if p.take("desc") {
				o.desc = true
			} else {
				p.take("asc")
			}
			q.order = append(q.order, o)
			if !p.take(",") {
				break
			}
		}
	}
	return q
}

func (p *parser) core() *selectCore {
	p.need("select")
	c := &selectCore{}
	if p.take("top") {
		if p.take("(") {
			c.top = p.expr()
			p.need(")")
		} else {
			c.top = p.primary()
		}
	}
	for {
		c.items = append(c.items, p.item())
		if !p.take(",") {
			break
		}
	}
	for _, it := range c.items {
		c.aggr = c.aggr || hasAggregate(it.e)
	}
	if p.take("from") {
		c.from = append(c.from, p.tableRef())
		for {
			var join byte
			switch {
			case p.take("join"):
				join = 'i'
			case p.take("inner"):
				p.need("join")
				join = 'i'
			case p.take("left"):
				p.take("outer")
				p.need("join")
				join = 'l'
			case p.take("cross"):
				p.need("join")
				join = 'c'
			case p.take(","):
				join = 'c'
			}
			if join == 0 {
				break
			}
			r := p.tableRef()
			r.join = join
			if join != 'c' {
				p.need("on")
				r.on = p.cond()
			}
			c.from = append(c.from, r)
		}
	}
	if p.take("where") {
		c.where = p.cond()
	}
	return c
}

func hasAggregate(e expr) bool {
	switch n := e.(type) {
	case aggregate:
		return true
	case castExpr:
		return hasAggregate(n.e)
	case binaryExpr:
		return hasAggregate(n.a) || hasAggregate(n.b)
	case call:
		return slices.ContainsFunc(n.args, hasAggregate)
	}
	return false
}

func (p *parser) item() selectItem {
	t := p.peek()
	switch {
	case p.take("*"):
		return selectItem{star: true}
	case p.isName() && p.ahead(1).is(".") && p.ahead(2).is("*"):
		p.at += 3
		return selectItem{star: true, of: t.text}
	case p.isName() && p.ahead(1).is("="):
		p.at += 2
		return selectItem{name: t.text, e: p.expr()}
	case t.kind == tVariable && p.ahead(1).is("="):
		p.at += 2
		return selectItem{to: t.text, e: p.expr()}
	case t.kind == tVariable && p.ahead(1).is("+="):
		p.at += 2
		return selectItem{to: t.text, e: binaryExpr{"+", varRef{name: t.text}, p.expr()}}
	}
	it := selectItem{e: p.expr()}
	if c, ok := it.e.(colRef); ok {
		it.name = c.name
	}
	if p.take("as") {
		if k := p.peek().kind; k == tText || k == tNational {
			it.name = p.next().text
		} else {
			it.name = p.name()
		}
	} else if p.isName() {
		it.name = p.name()
	}
	return it
}

func (p *parser) tableRef() tableRef {
	r := tableRef{}
	switch {
	case p.peek().kind == tVariable:
		r.table = p.variable()
	case p.take("("):
		if p.peek().is("values") {
			r.rows = p.values()
		} else {
			r.sub = p.query()
		}
		p.need(")")
		p.take("as")
		r.alias = p.name()
		if p.take("(") {
			for {
				r.cols = append(r.cols, p.name())
				if !p.take(",") {
					break
				}
			}
			p.need(")")
		}
		return r
	default:
		schema, name := p.object()
		if p.take(".") { // of a database
			schema, name = name, p.name()
		}
		r.sys = strings.ToLower(schema + "." + name)
		r.alias = name
	}
	if p.take("as") {
		r.alias = p.name()
	} else if p.isName() {
		r.alias = p.name()
	}
	return r
}

func (p *parser) list() []expr {
	l := []expr{p.expr()}
	for p.take(",") {
		l = append(l, p.expr())
	}
	return l
}

// cond reads a condition, which isn't a value in this language.
func (p *parser) cond() expr {
	defer p.deeper()()
	e := p.andCond()
	for p.take("or") {
		e = logic{true, e, p.andCond()}
	}
	return e
}

func (p *parser) andCond() expr {
	e := p.notCond()
	for p.take("and") {
		e = logic{false, e, p.notCond()}
	}
	return e
}

func (p *parser) notCond() expr {
	if p.take("not") {
		defer p.deeper()()
		return notExpr{p.notCond()}
	}
	if p.take("exists") {
		p.need("(")
		q := p.query()
		p.need(")")
		return exists{q}
	}
	if p.peek().is("(") {
		// Of a condition, or of a value that is compared?
		at, depth := p.at, p.depth
		if p.tries++; p.tries > 10000 {
			p.depth = maxDepth
			defer p.deeper()()
		}
		var err error
		e := func() (e expr) {
			defer p.caught(&err)
			p.at++
			e = p.cond()
			p.need(")")
			return e
		}()
		if err == nil {
			return e
		}
		p.at, p.depth = at, depth
	}
	e := p.expr()
	not := p.take("not")
	switch {
	case !not && p.take("is"):
		n := p.take("not")
		p.need("null")
		return isNull{e, n}
	case p.take("in"):
		p.need("(")
		l := inList{e: e, list: p.list(), not: not}
		p.need(")")
		return l
	case p.take("like"):
		return like{e, p.expr(), not}
	case p.take("between"):
		low := p.expr()
		p.need("and")
		var b expr = logic{false, binaryExpr{">=", e, low}, binaryExpr{"<=", e, p.expr()}}
		if not {
			b = notExpr{b}
		}
		return b
	case not:
		p.fail()
	}
	switch t := p.peek(); t.text {
	case "=", "<", ">", "<=", ">=", "<>", "!=":
		if t.kind == tSign {
			p.at++
			return binaryExpr{t.text, e, p.expr()}
		}
	}
	e2 := abortErr(4145, 15, fmt.Sprintf("An expression of non-boolean type specified in a context where a condition is expected, near '%s'.", p.peek().text))
	e2.line = p.peek().line
	panic(e2)
}

func (p *parser) expr() expr {
	defer p.deeper()()
	e := p.term()
	for {
		switch t := p.peek(); {
		case t.kind == tSign && (t.text == "+" || t.text == "-" || t.text == "&" || t.text == "|" || t.text == "^"):
			p.at++
			e = binaryExpr{t.text, e, p.term()}
		default:
			return e
		}
	}
}

func (p *parser) term() expr {
	e := p.factor()
	for {
		switch t := p.peek(); {
		case t.kind == tSign && (t.text == "*" || t.text == "/" || t.text == "%"):
			p.at++
			e = binaryExpr{t.text, e, p.factor()}
		default:
			return e
		}
	}
}

func (p *parser) factor() expr {
	if p.take("-") {
		defer p.deeper()()
		return unary{p.factor()}
	}
	if p.take("+") {
		defer p.deeper()()
		return p.factor()
	}
	e := p.primary()
	if p.take("collate") { // once: learn.microsoft.com "Collation precedence"
		name := p.name()
		c := collate{e, strings.ToUpper(name)}
		switch {
		case c.name == "DATABASE_DEFAULT":
			c.name = ""
		case !collationName.MatchString(c.name):
			panic(abortErr(448, 16, fmt.Sprintf("Invalid collation '%s'.", name)))
		}
		e = c
	}
	return e
}

func (p *parser) primary() expr {
	t := p.next()
	switch t.kind {
	case tText:
		return literal{value{t: sqlType{kVarChar, min(max(1, len(t.text)), 8000)}, v: t.text}}
	case tNational:
		return literal{textValue(t.text)}
	case tNumber:
		if n, err := strconv.ParseInt(t.text, 10, 64); err == nil {
			if n > math.MaxInt32 {
				return literal{bigValue(n)}
			}
			return literal{intValue(n)}
		}
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			p.at--
			p.fail()
		}
		return literal{value{t: sqlType{kind: kFloat}, v: f}}
	case tVariable:
		if strings.HasPrefix(t.text, "@@") {
			if sysVars[t.text] == nil {
				panic(abortErr(137, 15, fmt.Sprintf("Must declare the scalar variable \"%s\".", t.text)))
			}
			return sysVar{t.text}
		}
		return varRef{t.text, t.line}
	case tSign:
		if t.text == "(" {
			if p.peek().is("select") {
				q := p.query()
				p.need(")")
				return scalar{q}
			}
			e := p.expr()
			p.need(")")
			return e
		}
	case tEnd: // nothing was taken
		p.fail()
	case tQuoted, tWord:
		p.at--
		if t.kind == tWord {
			if e := p.special(strings.ToLower(t.text)); e != nil {
				return e
			}
		}
		name := p.name()
		if p.take(".") {
			return colRef{name, p.name()}
		}
		if p.take("(") {
			return p.call(name)
		}
		return colRef{"", name}
	}
	p.at--
	p.fail()
	return nil
}

// special reads what looks like no function or column.
func (p *parser) special(word string) expr {
	called := p.ahead(1).is("(")
	switch {
	case word == "null":
		p.at++
		return literal{}
	case word == "case":
		p.at++
		c := caseExpr{}
		if !p.peek().is("when") {
			c.of = p.expr()
		}
		for p.take("when") {
			var w [2]expr
			if c.of != nil {
				w[0] = p.expr()
			} else {
				w[0] = p.cond()
			}
			p.need("then")
			w[1] = p.expr()
			c.whens = append(c.whens, w)
		}
		if len(c.whens) == 0 {
			p.fail()
		}
		if p.take("else") {
			c.els = p.expr()
		}
		p.need("end")
		return c
	case word == "next" && p.ahead(1).is("value"):
		p.at += 2
		p.need("for")
		schema, name := p.object()
		return nextValue{schema, name}
	case (word == "cast" || word == "try_cast") && called:
		p.at += 2
		e := p.expr()
		p.need("as")
		c := castExpr{e, p.dataType(30)}
		p.need(")")
		return c
	case word == "convert" && called:
		p.at += 2
		t := p.dataType(30)
		p.need(",")
		c := castExpr{p.expr(), t}
		p.need(")")
		return c
	case word == "iif" && called:
		p.at += 2
		c := caseExpr{whens: make([][2]expr, 1)}
		c.whens[0][0] = p.cond()
		p.need(",")
		c.whens[0][1] = p.expr()
		p.need(",")
		c.els = p.expr()
		p.need(")")
		return c
	case (word == "coalesce" || word == "nullif") && called:
		p.at += 2
		return p.call(word)
	case word == "current_timestamp":
		p.at++
		return call{name: "sysdatetime"}
	}
	return nil
}

func (p *parser) call(name string) expr {
	name = strings.ToLower(name)
	switch name {
	case "count", "count_big", "min", "max", "sum":
		a := aggregate{name: name}
		if !strings.HasPrefix(name, "count") || !p.take("*") {
			a.e = p.expr()
		}
		p.need(")")
		return a
	}
	c := call{name: name}
	if name == "dateadd" || name == "datediff_big" {
		c.args = append(c.args, p.datePart())
		p.need(",")
	}
	if !p.take(")") {
		c.args = append(c.args, p.list()...)
		p.need(")")
	}
	f, ok := functions[name]
	if !ok {
		panic(abortErr(195, 15, fmt.Sprintf("'%s' is not a recognized built-in function name.", name)))
	}
	if len(c.args) < f.min || len(c.args) > f.max {
		panic(abortErr(174, 15, fmt.Sprintf("The %s function requires %d argument(s).", name, f.min)))
	}
	return c
}
