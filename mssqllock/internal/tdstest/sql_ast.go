package tdstest

// What the parser makes of a batch.

type statement any

type (
	declareVar struct {
		name string
		t    sqlType
		init expr
	}
	declareTable struct {
		name string
		cols []column
	}
	setVar struct {
		name string
		e    expr
	}
	setOption struct {
		name string
		arg  expr
		text string
	}
	execStmt struct {
		result string // variable, or empty
		name   procName
		args   []procArg
		line   int32
	}
	selectStmt struct {
		q *query
	}
	insertStmt struct {
		table string
		cols  []string
		q     *query
	}
	ifStmt struct {
		cond      expr
		then, els statement
	}
	whileStmt struct {
		cond expr
		body statement
	}
	block      []statement
	breakStmt  struct{ again bool }
	returnStmt struct{ e expr }
	tryStmt    struct{ try, catch block }
	throwStmt  struct{ args []expr }
	raiseStmt  struct{ args []expr }
	printStmt  struct{ e expr }
	tranStmt   struct {
		what byte   // 'b', 'c', 'r', 's'
		name string // empty: none
	}
	waitStmt struct{ e expr }
	killStmt struct{ e expr }
	useStmt  struct{ database string }

	createSequence struct {
		schema string
		seq    sequence
	}
	dropSequence struct {
		schema, name string
		ifExists     bool
	}
)

type procName struct{ schema, name string }

func (p procName) String() string {
	if p.schema == "" {
		return p.name
	}
	return p.schema + "." + p.name
}

type procArg struct {
	name   string
	e      expr
	output string // the variable that takes it
}

type column struct {
	name string
	t    sqlType
}

type query struct {
	parts []*selectCore // of UNION ALL
	order []orderItem
}

type orderItem struct {
	e    expr
	desc bool
}

type selectCore struct {
	top   expr
	items []selectItem
	from  []tableRef
	where expr
	aggr  bool
}

type selectItem struct {
	star bool
	of   string // table that a star is of
	e    expr
	name string
	to   string // variable
}

type tableRef struct {
	join  byte // 0 for the first, 'i', 'l', 'c'
	on    expr
	alias string
	sys   string // view
	table string // variable
	rows  [][]expr
	sub   *query
	cols  []string
}

type expr interface {
	eval(x *executor, env *rowEnv) (value, error)
}

type (
	literal struct{ v value }
	varRef  struct {
		name string
		line int32
	}
	sysVar     struct{ name string }
	colRef     struct{ table, name string }
	unary      struct{ e expr }
	binaryExpr struct {
		op   string
		a, b expr
	}
	notExpr struct{ e expr }
	logic   struct {
		or   bool
		a, b expr
	}
	isNull struct {
		e   expr
		not bool
	}
	inList struct {
		e    expr
		list []expr
		not  bool
	}
	like struct {
		e, pattern expr
		not        bool
	}
	caseExpr struct {
		of    expr
		whens [][2]expr
		els   expr
	}
	castExpr struct {
		e expr
		t sqlType
	}
	collate struct {
		e    expr
		name string // in upper case
	}
	call struct {
		name string
		args []expr
	}
	aggregate struct {
		name string
		e    expr // nil for COUNT(*)
	}
	nextValue struct{ schema, name string }
	exists    struct{ q *query }
	scalar    struct{ q *query }
)
