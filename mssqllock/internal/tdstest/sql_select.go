package tdstest

import (
	"fmt"
	"slices"
	"sort"
	"strings"
)

// rowEnv is what the names of columns mean.
type rowEnv struct {
	cols  []envColumn
	vals  []value
	group []*rowEnv // all rows, for an aggregate
}

type envColumn struct {
	table string
	column
}

// result is the rows of a query. envs are what each was made of, for ORDER BY.
type result struct {
	cols []column
	rows [][]value
	envs []*rowEnv
}

// maxRows bounds what a join may make, so that no test eats all memory.
const maxRows = 10_000_000

// holds tells whether a condition is true, which it isn't if it is unknown.
func (x *executor) holds(e expr, env *rowEnv) (bool, error) {
	v, err := e.eval(x, env)
	return v.v == int64(1), err
}

// selectStatement runs a SELECT that isn't part of another statement.
func (x *executor) selectStatement(q *query) error {
	to := 0
	for _, it := range q.parts[0].items {
		if it.to != "" {
			to++
		}
	}
	if to > 0 {
		return x.selectInto(q, to)
	}
	res, err := x.query(q, nil)
	if err != nil {
		return err
	}
	names, types := make([]string, len(res.cols)), make([]sqlType, len(res.cols))
	for i, c := range res.cols {
		names[i], types[i] = c.name, c.t
	}
	x.s.w.columns(names, types)
	for _, row := range res.rows {
		x.s.w.row(row, types)
	}
	x.counted(cmdSelect, int64(len(res.rows)))
	return nil
}

// selectInto runs a SELECT that sets variables.
func (x *executor) selectInto(q *query, to int) error {
	core := q.parts[0]
	if len(q.parts) > 1 || len(core.items) != to {
		return abortErr(141, 15, "A SELECT statement that assigns a value to a variable must not be combined with data-retrieval operations.")
	}
	if len(core.from) == 0 && core.where == nil {
		// One variable may be of use to the next.
		for _, it := range core.items {
			v, err := it.e.eval(x, nil)
			if err != nil {
				return err
			}
			if err := x.assign(it.to, v); err != nil {
				return err
			}
		}
		x.rows = 1
		return nil
	}
	res, err := x.query(q, nil)
	if err != nil {
		return err
	}
	for _, row := range res.rows {
		for i, it := range core.items {
			if err := x.assign(it.to, row[i]); err != nil {
				return err
			}
		}
	}
	x.rows = int64(len(res.rows))
	return nil
}

// query runs a query, all of it. outer is the row of the query around it.
func (x *executor) query(q *query, outer *rowEnv) (*result, error) {
	var all *result
	for _, core := range q.parts {
		res, err := x.core(core, outer)
		if err != nil {
			return nil, err
		}
		if all == nil {
			all = res
			continue
		}
		if len(all.cols) != len(res.cols) {
			return nil, abortErr(205, 16, "All queries combined using a UNION, INTERSECT or EXCEPT operator must have an equal number of expressions in their target lists.")
		}
		for i := range all.cols {
			all.cols[i].t = wider(all.cols[i].t, res.cols[i].t)
		}
		all.rows = append(all.rows, res.rows...)
		all.envs = append(all.envs, res.envs...)
	}
	for _, row := range all.rows {
		for i := range row {
			if row[i].t == all.cols[i].t {
				continue
			}
			v, err := convert(row[i], all.cols[i].t)
			if err != nil {
				return nil, err
			}
			row[i] = v
		}
	}
	if err := x.order(q, all); err != nil {
		return nil, err
	}
	if top := q.parts[0].top; top != nil && len(q.parts) == 1 {
		v, err := top.eval(x, outer)
		if err != nil {
			return nil, err
		}
		if n, _ := v.v.(int64); n < int64(len(all.rows)) {
			all.rows = all.rows[:max(n, 0)]
		}
	}
	return all, nil
}

func (x *executor) order(q *query, res *result) error {
	if len(q.order) == 0 {
		return nil
	}
	keys := make([][]value, len(res.rows))
	for i, row := range res.rows {
		keys[i] = make([]value, len(q.order))
		for j, o := range q.order {
			at := -1
			switch e := o.e.(type) {
			case literal:
				if n, ok := e.v.v.(int64); ok && n >= 1 && int(n) <= len(row) {
					at = int(n) - 1
				} else {
					return abortErr(108, 15, "The ORDER BY position number is out of range of the number of items in the select list.")
				}
			case colRef:
				for k, c := range res.cols {
					if e.table == "" && strings.EqualFold(c.name, e.name) {
						at = k
					}
				}
			}
			if at >= 0 {
				keys[i][j] = row[at]
				continue
			}
			v, err := o.e.eval(x, res.envs[i])
			if err != nil {
				return err
			}
			keys[i][j] = v
		}
	}
	at := make([]int, len(res.rows))
	for i := range at {
		at[i] = i
	}
	sort.SliceStable(at, func(a, b int) bool {
		for j, o := range q.order {
			va, vb := keys[at[a]][j], keys[at[b]][j]
			c := 0
			switch {
			case va.null() && vb.null():
			case va.null():
				c = -1
			case vb.null():
				c = 1
			default:
				c, _ = compare(va, vb)
			}
			if c != 0 {
				return (c < 0) != o.desc
			}
		}
		return false
	})
	rows := make([][]value, len(at))
	for i, from := range at {
		rows[i] = res.rows[from]
	}
	res.rows = rows
	return nil
}

func (x *executor) core(core *selectCore, outer *rowEnv) (*result, error) {
	cols, envs, err := x.from(core, outer)
	if err != nil {
		return nil, err
	}
	if core.where != nil {
		kept := envs[:0]
		for _, env := range envs {
			ok, err := x.holds(core.where, env)
			if err != nil {
				return nil, err
			}
			if ok {
				kept = append(kept, env)
			}
		}
		envs = kept
	}
	if core.aggr {
		envs = []*rowEnv{{cols: cols, group: envs}}
		if len(envs[0].group) == 0 {
			envs[0].group = []*rowEnv{}
		}
	}
	type output struct {
		e    expr
		at   int // of the row, if e is nil
		name string
	}
	var outs []output
	for _, it := range core.items {
		if !it.star {
			outs = append(outs, output{e: it.e, name: it.name})
			continue
		}
		n := len(outs)
		for i, c := range cols {
			if it.of == "" || strings.EqualFold(it.of, c.table) {
				outs = append(outs, output{at: i, name: c.name})
			}
		}
		if len(outs) == n {
			return nil, abortErr(263, 16, "Must specify table to select from.")
		}
	}
	res := &result{envs: envs, cols: make([]column, len(outs)), rows: make([][]value, len(envs))}
	for i, o := range outs {
		res.cols[i].name = o.name
		if o.e == nil {
			res.cols[i].t = cols[o.at].t
		} else if ref, ok := o.e.(colRef); ok {
			for _, c := range cols {
				if ref.matches(c) {
					res.cols[i].t = c.t
				}
			}
		}
	}
	for i, env := range envs {
		x.numbers = nil
		row := make([]value, len(outs))
		for j, o := range outs {
			if o.e == nil {
				row[j] = env.vals[o.at]
			} else if row[j], err = o.e.eval(x, env); err != nil {
				return nil, err
			}
			res.cols[j].t = wider(res.cols[j].t, row[j].t)
		}
		res.rows[i] = row
	}
	for _, o := range outs {
		// The names of columns are checked also where there is no row.
		if ref, ok := o.e.(colRef); ok && len(envs) == 0 {
			if _, err := ref.eval(x, &rowEnv{cols: cols, vals: make([]value, len(cols))}); err != nil {
				return nil, err
			}
		}
	}
	return res, nil
}

// from joins the tables. Without any there is one row of nothing.
func (x *executor) from(core *selectCore, outer *rowEnv) ([]envColumn, []*rowEnv, error) {
	var cols, outerCols []envColumn
	var vals []value
	if outer != nil {
		outerCols, vals = outer.cols, outer.vals
	}
	rows := [][]value{{}}
	env := func(row []value) *rowEnv {
		// Names of this query come first.
		return &rowEnv{cols: append(slices.Clip(cols), outerCols...), vals: append(slices.Clip(row), vals...)}
	}
	for _, ref := range core.from {
		right, err := x.table(ref)
		if err != nil {
			return nil, nil, err
		}
		for _, c := range right.cols {
			cols = append(cols, envColumn{ref.alias, c})
		}
		var joined [][]value
		for _, l := range rows {
			matched := false
			for _, r := range right.rows {
				row := append(slices.Clip(l), r...)
				if ref.on != nil {
					ok, err := x.holds(ref.on, env(row))
					if err != nil {
						return nil, nil, err
					}
					if !ok {
						continue
					}
				}
				matched = true
				joined = append(joined, row)
				if len(joined) > maxRows {
					return nil, nil, abortErr(8623, 16, "The query produces too many rows for this server.")
				}
			}
			if !matched && ref.join == 'l' {
				row := slices.Clip(l)
				for _, c := range right.cols {
					row = append(row, nullOf(c.t))
				}
				joined = append(joined, row)
			}
			if err := x.canceled(); err != nil {
				return nil, nil, err
			}
		}
		rows = joined
	}
	envs := make([]*rowEnv, len(rows))
	for i, row := range rows {
		envs[i] = env(row)
	}
	return cols, envs, nil
}

func (x *executor) table(ref tableRef) (*result, error) {
	switch {
	case ref.table != "":
		t := x.tables[ref.table]
		if t == nil {
			return nil, abortErr(1087, 15, fmt.Sprintf("Must declare the table variable \"%s\".", ref.table))
		}
		return &result{cols: t.cols, rows: t.rows}, nil
	case ref.sys != "":
		return x.view(ref)
	}
	var res *result
	if ref.sub != nil {
		var err error
		if res, err = x.query(ref.sub, nil); err != nil {
			return nil, err
		}
	} else {
		core := &result{cols: make([]column, len(ref.rows[0]))}
		for _, exprs := range ref.rows {
			row := make([]value, len(exprs))
			for i, e := range exprs {
				v, err := e.eval(x, nil)
				if err != nil {
					return nil, err
				}
				row[i] = v
				core.cols[i].t = wider(core.cols[i].t, v.t)
			}
			core.rows = append(core.rows, row)
		}
		res = core
	}
	if ref.cols != nil {
		if len(ref.cols) != len(res.cols) {
			return nil, abortErr(8158, 16, fmt.Sprintf("'%s' has more or fewer columns than were specified in the column list.", ref.alias))
		}
		for i, name := range ref.cols {
			res.cols[i].name = name
		}
	}
	return res, nil
}

func (x *executor) insert(st insertStmt) error {
	t := x.tables[st.table]
	if t == nil {
		return abortErr(1087, 15, fmt.Sprintf("Must declare the table variable \"%s\".", st.table))
	}
	at := make([]int, 0, len(t.cols))
	if st.cols == nil {
		for i := range t.cols {
			at = append(at, i)
		}
	}
	for _, name := range st.cols {
		n := len(at)
		for i, c := range t.cols {
			if strings.EqualFold(c.name, name) {
				at = append(at, i)
			}
		}
		if len(at) == n {
			return abortErr(207, 16, fmt.Sprintf("Invalid column name '%s'.", name))
		}
	}
	res, err := x.query(st.q, nil)
	if err != nil {
		return err
	}
	if len(res.cols) != len(at) {
		return abortErr(213, 16, "Column name or number of supplied values does not match table definition.")
	}
	var rows [][]value
	for _, from := range res.rows {
		row := make([]value, len(t.cols))
		for i, c := range t.cols {
			row[i] = nullOf(c.t)
		}
		for i, v := range from {
			if row[at[i]], err = convert(v, t.cols[at[i]].t); err != nil {
				return err
			}
		}
		rows = append(rows, row)
	}
	t.rows = append(t.rows, rows...)
	x.counted(0xc3, int64(len(rows)))
	return nil
}
