package mysqllock

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/distlock-go/distlock/internal/dbsession"
)

// server is what is known of the one that was connected to.
type server struct {
	maria        bool
	major, minor int
	version      string
}

// known returns the server that was seen first.
func (d *dialect) known() *server {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.server
}

// variables are what the judgement of a server is made of. One that the server
// doesn't have isn't there.
var variables = []string{
	"version", "version_comment", "read_only", "super_read_only", "innodb_read_only",
	"wsrep_on", "pxc_strict_mode", "group_replication_group_name", "group_replication_single_primary_mode",
	"max_statement_time", "max_execution_time",
}

var showVariables = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('" + strings.Join(variables, "','") + "')"

var versionNumber = regexp.MustCompile(`^(?:5\.5\.5-)?(\d+)\.(\d+)\.`)

// judge finds out what server it is, and why it can't be used.
func judge(v map[string]string) (*server, error) {
	s := &server{version: v["version"]}
	lower := strings.ToLower(v["version"] + " " + v["version_comment"])
	on := func(name string) bool { return v[name] == "ON" || v[name] == "1" }
	switch {
	case strings.Contains(lower, "tidb"):
		return nil, s.refuse("TiDB ends locks of GET_LOCK with its own rules (a lease kept by the TiDB node, one hour at most): use another backend")
	case strings.Contains(lower, "vitess"), strings.Contains(lower, "planetscale"):
		return nil, s.refuse("Vitess keeps locks of GET_LOCK in one shard over connections that it chooses itself: connect to a MySQL server directly")
	case strings.Contains(lower, "oceanbase"), strings.Contains(lower, "clickhouse"), strings.Contains(lower, "doris"), strings.Contains(lower, "starrocks"):
		return nil, s.refuse("it speaks MySQL's protocol, but isn't a MySQL or MariaDB server")
	}
	m := versionNumber.FindStringSubmatch(v["version"])
	if m == nil {
		return nil, s.refuse("the version can't be understood")
	}
	s.major, _ = strconv.Atoi(m[1]) // digits
	s.minor, _ = strconv.Atoi(m[2])
	s.maria = strings.Contains(lower, "mariadb")
	since := [2]int{5, 7}
	if s.maria {
		since = [2]int{10, 2}
	}
	if s.major < since[0] || s.major == since[0] && s.minor < since[1] {
		return nil, s.refuse("MySQL 5.7 or MariaDB 10.2 is needed: before, taking a second lock could free the first")
	}
	switch {
	case on("wsrep_on"):
		return nil, s.refuse("it is a node of a Galera cluster (wsrep_on): locks of GET_LOCK exist on one node only, and are refused by most")
	case strings.EqualFold(v["pxc_strict_mode"], "ENFORCING"), strings.EqualFold(v["pxc_strict_mode"], "MASTER"):
		return nil, s.refuse("pxc_strict_mode doesn't allow GET_LOCK")
	case v["group_replication_group_name"] != "" && v["group_replication_single_primary_mode"] == "OFF":
		return nil, s.refuse("it is one of several primaries of a replication group, and locks of GET_LOCK exist on one of them only")
	case on("read_only"), on("super_read_only"), on("innodb_read_only"):
		return nil, s.refuse("it is read-only, as replicas are, and locks taken there exclude nobody on the primary: connect to the primary")
	}
	return s, nil
}

// refuse words why the server can't be used.
func (s *server) refuse(why string) error {
	return fmt.Errorf("server %q can't be used for locks: %s", s.version, why)
}

// Setup implements [dbsession.Dialect].
func (d *dialect) Setup(_ context.Context, c *dbsession.Conn, mark string, peer *dbsession.Identity) (int64, error) {
	// A connection of a caller's pool may come with a transaction that was left
	// open: what is counted would be a part of that, and kept from all others.
	if _, err := c.Exec("ROLLBACK", nil); err != nil {
		return 0, err
	}
	found := make(map[string]string, len(variables))
	err := c.Each(showVariables, func(row []sqldriver.Value) {
		found[dbsession.Text(row[0])] = dbsession.Text(row[1])
	})
	if err != nil {
		return 0, err
	}
	s, err := judge(found)
	if err != nil {
		return 0, err
	}
	d.mu.Lock()
	if d.server == nil || d.server.maria != s.maria {
		d.server = s
	}
	d.mu.Unlock()

	set := fmt.Sprintf("SET NAMES utf8mb4, autocommit=1, wait_timeout=%d, net_read_timeout=30, net_write_timeout=30", int(math.Ceil(d.vanish.Seconds())))
	if d.fence != "" {
		// Somebody else's lock on the fence table is not to keep the session from
		// proving that it lives.
		set += ", innodb_lock_wait_timeout=1, lock_wait_timeout=1"
	}
	if _, ok := found["max_statement_time"]; ok {
		set += ", max_statement_time=0"
	}
	if _, ok := found["max_execution_time"]; ok {
		set += ", max_execution_time=0"
	}
	if _, err := c.Exec(set, nil); err != nil {
		return 0, err
	}

	other := mark
	if peer != nil {
		other = peer.Mark
	}
	row, err := c.Watch(fmt.Sprintf("SELECT CONNECTION_ID(), GET_LOCK(%s,0), IS_USED_LOCK(%[1]s), IS_USED_LOCK(%s)", literal(mark), literal(other)), watching)
	if err != nil {
		return 0, err
	}
	var id, got, mine, its dbsession.Step
	if err := errors.Join(id.Set(row[0]), got.Set(row[1]), mine.Set(row[2]), its.Set(row[3])); err != nil {
		return 0, err
	}
	switch {
	case got.Result != 1 || mine.Result != id.Result:
		return 0, s.refuse(fmt.Sprintf("GET_LOCK on connection %d made connection %d the holder: is there a proxy between that shares connections?", id.Result, mine.Result))
	case peer != nil && its.Result != peer.ID:
		return 0, s.refuse("a lock that is held on one connection isn't seen on the next: is there a proxy or load balancer between that spreads connections over several servers?")
	}
	c.State = mark // what stands in a statement for a lock that isn't to be taken
	return id.Result, nil
}

// watching reports whether the driver's connection watches the context of a query
// whose rows aren't closed yet, for as long as that. It is the field of the driver
// that tells the driver itself; a driver that has it no more may do otherwise.
func watching(dc any) bool {
	c := reflect.Indirect(reflect.ValueOf(dc))
	if c.Kind() != reflect.Struct {
		return false
	}
	f := c.FieldByName("watching")
	return f.IsValid() && f.Kind() == reflect.Bool && f.Bool()
}
