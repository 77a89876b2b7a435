package tdstest

import "strings"

// rpc is a remote procedure call, [MS-TDS] 2.2.6.6.
type rpc struct {
	name string
	args []rpcArg
}

type rpcArg struct {
	name  string
	byRef bool
	v     value
}

// The number of the only procedure that go-mssqldb calls by number.
const procExecuteSQL = 10

func parseRPC(r *reader) (rpc, error) {
	var c rpc
	n := r.uint16()
	if n == 0xffff {
		if id := r.uint16(); id != procExecuteSQL {
			return c, abortErr(2812, 16, "Could not find the stored procedure of this number.")
		}
		c.name = "sp_executesql"
	} else {
		c.name = r.text(int(n))
	}
	r.uint16()
	for len(r.b) > 0 {
		if r.b[0] == 0xff || r.b[0] == 0x80 {
			return c, abortErr(8009, 16, "More than one remote procedure call in a message is not supported here.")
		}
		a := rpcArg{name: strings.ToLower(r.text(int(r.byte())))}
		flags := r.byte()
		a.byRef = flags&1 != 0
		var err error
		if a.v, err = readValue(r); err != nil {
			return c, err
		}
		if flags&2 == 0 { // not the default value
			c.args = append(c.args, a)
		}
		if r.bad {
			break
		}
	}
	return c, nil
}

// text is what a log of statements shows.
func (c rpc) text() string {
	if strings.EqualFold(c.name, "sp_executesql") && len(c.args) > 0 {
		s, _ := c.args[0].v.v.(string)
		return s
	}
	return "EXEC " + c.name
}

func (c rpc) run(x *executor) error {
	name, err := parseProcName(c.name)
	if err != nil {
		return err
	}
	args := make([]boundArg, len(c.args))
	for i, a := range c.args {
		args[i] = boundArg{name: a.name, v: a.v}
		if a.byRef {
			args[i].out = &c.args[i].v
		}
	}
	code, err := x.call(name, args)
	if err != nil {
		e, ok := err.(*sqlError) //nolint:errorlint // never wrapped
		if !ok || e.abort {
			return err
		}
		x.send(e)
	}
	x.s.w.returnStatus(code)
	for i, a := range c.args {
		if a.byRef {
			x.s.w.returnValue(i, a.name, a.v)
		}
	}
	return nil
}

func parseProcName(s string) (procName, error) {
	tokens, err := lex(s)
	if err != nil {
		return procName{}, err
	}
	p := &parser{tokens: tokens}
	var n procName
	func() {
		defer p.caught(&err)
		n.schema, n.name = p.object()
		if p.peek().kind != tEnd {
			p.fail()
		}
	}()
	return n, err
}
