package mysqllock

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/dbsession"
)

// permitsAtOnce is how many permits one statement looks at. Nobody knows how
// many there are: if none of so many is held, no more are looked at.
const permitsAtOnce = 256

// Holders implements [driver.Inspector]. Of its own holdings the backend knows
// all. Of others the server tells host and user, if the account may see them
// (privilege PROCESS for those of other accounts), and program and process number
// from the connection's attributes, if there is a performance_schema. If it is who
// was given the last token that holds the lock, the fence table tells who that is,
// since when, and the token.
func (b *Backend) Holders(ctx context.Context, resource string, mode driver.Mode) ([]driver.Holder, error) {
	if b.bad != nil {
		return nil, b.bad
	}
	n := namesOf(b.opt.Prefix + resource)
	var held []heldName
	var err error
	if mode != driver.Permit {
		held, err = b.whoHas(ctx, append([]string{n.lock}, n.slots(b.opt.Readers)...))
	}
	for from := 0; mode == driver.Permit && err == nil; from += permitsAtOnce {
		permits := make([]string, permitsAtOnce)
		name := n.permits()
		for i := range permits {
			permits[i] = name(from + i)
		}
		var more []heldName
		more, err = b.whoHas(ctx, permits)
		held = append(held, more...)
		if len(more) == 0 {
			break
		}
	}
	if err != nil || len(held) == 0 {
		return nil, err
	}
	clients := b.clients(ctx, held)
	var holders []driver.Holder
	for _, h := range held {
		m := mode
		if mode != driver.Permit {
			m = driver.Shared
			if h.name == n.lock {
				m = driver.Exclusive
			}
		}
		own := b.own(h.name, n.hash())
		if len(own) == 0 {
			c := clients[h.id]
			c.Mode = m
			own = []driver.Holder{c}
			if m == driver.Exclusive {
				b.fromFence(ctx, n, h.id, &own[0])
			}
		}
		holders = append(holders, own...)
	}
	return holders, nil
}

type heldName struct {
	name string
	id   int64
}

// whoHas returns which of the names are held, and by which connection.
func (b *Backend) whoHas(ctx context.Context, names []string) ([]heldName, error) {
	var q strings.Builder
	for _, name := range names {
		fmt.Fprintf(&q, ",IS_USED_LOCK(%s)", literal(name))
	}
	var held []heldName
	var bad error
	err := b.pool.Query(ctx, "SELECT "+q.String()[1:], func(row []sqldriver.Value) {
		for i, v := range row {
			var st dbsession.Step
			if err := st.Set(dbsession.Text(v)); v != nil && err == nil {
				held = append(held, heldName{names[i], st.Result})
			} else if v != nil {
				bad = err
			}
		}
	})
	return held, errors.Join(err, bad)
}

// own returns the holdings of this backend that stand behind a name.
func (b *Backend) own(name, hash string) []driver.Holder {
	own := b.pool.Holders(name, 0)
	b.mu.Lock()
	defer b.mu.Unlock()
	for h := range b.sharing {
		if who, noted := h.Who(); noted && !h.Session.Dead() && h.Key == name && h.share.hash == hash {
			own = append(own, who)
		}
	}
	return own
}

// clients returns what the server tells about connections; what it doesn't, or
// doesn't tell this account, is left out.
func (b *Backend) clients(ctx context.Context, held []heldName) map[int64]driver.Holder {
	ids := make([]string, len(held))
	clients := make(map[int64]driver.Holder)
	for i, h := range held {
		ids[i] = strconv.FormatInt(h.id, 10)
		clients[h.id] = driver.Holder{Owner: driver.Owner{Note: "connection " + ids[i]}}
	}
	list := strings.Join(ids, ",")
	change := func(id string, f func(o *driver.Owner)) {
		n, err := strconv.ParseInt(id, 10, 64)
		if c, ok := clients[n]; ok && err == nil {
			f(&c.Owner)
			clients[n] = c
		}
	}
	// Errors are missing privileges, or tables.
	_ = b.pool.Query(ctx, "SELECT ID, HOST, USER FROM information_schema.PROCESSLIST WHERE ID IN ("+list+")", func(row []sqldriver.Value) {
		change(dbsession.Text(row[0]), func(o *driver.Owner) {
			o.Host = dbsession.Text(row[1])
			if host, _, err := net.SplitHostPort(o.Host); err == nil {
				o.Host = host
			}
			o.Note += " of " + dbsession.Text(row[2])
		})
	})
	// The first of these tables shows every account its own connections.
	for _, table := range []string{"session_account_connect_attrs", "session_connect_attrs"} {
		_ = b.pool.Query(ctx, "SELECT PROCESSLIST_ID, ATTR_NAME, ATTR_VALUE FROM performance_schema."+table+
			" WHERE PROCESSLIST_ID IN ("+list+") AND ATTR_NAME IN ('program_name', '_pid')", func(row []sqldriver.Value) {
			change(dbsession.Text(row[0]), func(o *driver.Owner) {
				if dbsession.Text(row[1]) == "_pid" {
					o.PID, _ = strconv.Atoi(dbsession.Text(row[2]))
				} else {
					o.Program = dbsession.Text(row[2])
				}
			})
		})
	}
	return clients
}

var ownerText = regexp.MustCompile(`^(\S+) #\d+ (\S*) pid (\d+), ([^:]*)(?:: (.*))?$`)

// fromFence adds who was given the last token, if that is the connection id.
func (b *Backend) fromFence(ctx context.Context, n names, id int64, h *driver.Holder) {
	if b.dialect.fence == "" {
		return
	}
	var mark string
	last := *h
	// An error is the table that isn't there yet.
	_ = b.pool.Query(ctx, "SELECT owner, UNIX_TIMESTAMP(since)*1000000, token FROM "+b.dialect.fence+
		" WHERE name = CAST("+literal(n.fence(driver.Exclusive))+" AS BINARY)", func(row []sqldriver.Value) {
		m := ownerText.FindStringSubmatch(dbsession.Text(row[0]))
		if m == nil {
			return
		}
		mark, last.Owner.Host, last.Owner.Program, last.Owner.Note = m[1], m[2], m[4], m[5]
		last.Owner.PID, _ = strconv.Atoi(m[3])
		if micros, err := strconv.ParseFloat(dbsession.Text(row[1]), 64); err == nil {
			last.Since = time.UnixMicro(int64(micros))
		}
		last.Token, _ = strconv.ParseUint(dbsession.Text(row[2]), 10, 64)
	})
	if mark == "" {
		return
	}
	// The number of a connection may come again, its mark doesn't.
	if has, err := b.whoHas(ctx, []string{mark}); err == nil && len(has) == 1 && has[0].id == id {
		*h = last
	}
}

var _ driver.Inspector = (*Backend)(nil)
