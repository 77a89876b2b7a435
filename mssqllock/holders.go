package mssqllock

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf16"

	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/dbsession"
)

// Holders implements [driver.Inspector]. Of its own holdings the backend knows
// all. Of others the server tells host, program and process, if the account
// may see that: VIEW SERVER STATE (SQL Server up to 2019), VIEW SERVER PERFORMANCE
// STATE (later), VIEW DATABASE STATE (Azure SQL Database).
func (b *Backend) Holders(ctx context.Context, resource string, mode driver.Mode) ([]driver.Holder, error) {
	if b.bad != nil {
		return nil, b.bad
	}
	n := namesOf(b.opt.Prefix + resource)
	if mode == driver.Permit {
		return b.permitHolders(ctx, n)
	}
	var free, mine dbsession.Step
	var bad error
	name := literal(n.lock)
	err := b.pool.Query(ctx, "SELECT APPLOCK_TEST('public',"+name+",'Exclusive','Session'),CASE APPLOCK_MODE('public',"+name+",'Session') WHEN 'NoLock' THEN 0 ELSE 1 END",
		func(row []sqldriver.Value) { bad = errors.Join(free.Set(row[0]), mine.Set(row[1])) })
	if err := errors.Join(err, bad); err != nil {
		return nil, err
	}
	if free.Result == 1 && mine.Result == 0 {
		return nil, nil
	}
	locks, err := b.locks(ctx, "", beginsWith(shown(n.lock)), "")
	if err != nil {
		return nil, err
	}
	sure := true
	if !alike(locks) {
		locks, sure, err = b.exactly(ctx, n.lock)
		if err != nil {
			return nil, err
		}
	}
	var holders []driver.Holder
	for _, l := range locks {
		if m, ok := modes[l.mode]; ok && l.granted {
			found := b.holdersOf(l, n.lock, m)
			for i := range found {
				if !sure && found[i].Owner.ID == (driver.ID{}) {
					found[i].Owner.Note = "or of another resource whose name begins alike"
				}
			}
			holders = append(holders, found...)
		}
	}
	return holders, nil
}

// modes are those of sys.dm_tran_locks. Others aren't this package's.
var modes = map[string]driver.Mode{"S": driver.Shared, "U": driver.Upgradeable, "X": driver.Exclusive}

// lock is a row of sys.dm_tran_locks, and of sys.dm_exec_sessions.
type lock struct {
	description string
	mode        string
	granted     bool
	session     int64
	asking      int64 // the session that looks
	client      driver.Owner
}

// shown returns how the server describes a lock, as far as that is known: the
// principal's number (0 is public), 32 characters of the name, and a hash of all
// of it.
// https://learn.microsoft.com/sql/relational-databases/system-dynamic-management-views/sys-dm-tran-locks-transact-sql
func shown(name string) string {
	const most = 32
	start, units := public+":[", 0
	for i, r := range name {
		if units += utf16.RuneLen(r); units > most {
			return start + name[:i]
		}
	}
	return start + name + "]:("
}

// public is the number of the principal that locks are taken for.
const public = "0"

// binary compares as names of locks are compared, whatever the collation of the
// database is.
// https://learn.microsoft.com/sql/t-sql/statements/collation-precedence-transact-sql
const binary = " COLLATE Latin1_General_BIN2"

// beginsWith is the condition that a lock's description begins so.
func beginsWith(s string) string {
	return "CHARINDEX(" + literal(s) + binary + ",l.resource_description)=1"
}

// alike reports whether all rows are about one name.
func alike(locks []lock) bool {
	for _, l := range locks {
		if l.description != locks[0].description {
			return false
		}
	}
	return true
}

// locks returns what is known of the locks for which the condition holds. What
// is to be done before and after that is SQL that answers nothing.
func (b *Backend) locks(ctx context.Context, before, condition, after string) ([]lock, error) {
	var locks []lock
	var bad error
	err := b.pool.Query(ctx, before+"SELECT l.resource_description,l.request_mode,l.request_status,l.request_session_id,@@SPID,s.host_name,s.program_name,s.host_process_id"+
		" FROM sys.dm_tran_locks AS l JOIN sys.dm_exec_sessions AS s ON s.session_id=l.request_session_id"+
		" WHERE l.resource_type='APPLICATION' AND l.resource_database_id=DB_ID() AND "+condition+";"+after,
		func(row []sqldriver.Value) {
			var session, asking, pid dbsession.Step
			if err := errors.Join(session.Set(row[3]), asking.Set(row[4]), pid.Set(row[7])); err != nil {
				bad = err
			}
			locks = append(locks, lock{
				description: dbsession.Text(row[0]), mode: strings.TrimSpace(dbsession.Text(row[1])),
				granted: strings.HasPrefix(dbsession.Text(row[2]), "GRANT"), // GRANTED, says the page
				session: session.Result, asking: asking.Result,
				client: driver.Owner{Host: dbsession.Text(row[5]), Program: dbsession.Text(row[6]), PID: int(pid.Result)},
			})
		})
	if isError(err, errNoServerState, errNoPermission, errNoUserAction) {
		needed := "VIEW SERVER STATE (from SQL Server 2022 on VIEW SERVER PERFORMANCE STATE)"
		if b.dialect.known().edition == editionAzure {
			needed = "VIEW DATABASE STATE"
		}
		return nil, fmt.Errorf("the account needs the permission %s to see who holds a lock: %w", needed, err)
	}
	return locks, errors.Join(err, bad)
}

// exactly is locks for one name, where several begin alike. The server shows a
// hash of the whole name, which is the same for all principals: the account's own
// user takes the name for a moment, which is another lock and disturbs nobody.
// sure is false if it may not.
// https://learn.microsoft.com/sql/relational-databases/system-dynamic-management-views/sys-dm-tran-locks-transact-sql
func (b *Backend) exactly(ctx context.Context, name string) (locks []lock, sure bool, err error) {
	start := shown(name)
	all, err := b.locks(ctx,
		"DECLARE @r int=-1,@u nvarchar(128)=USER_NAME();"+
			"BEGIN TRY EXEC @r=sp_getapplock "+literal(name)+",'IntentShared','Session',0,@u END TRY BEGIN CATCH END CATCH;",
		"CHARINDEX("+literal(strings.TrimPrefix(start, public))+binary+",l.resource_description)>1",
		"IF @r>=0 EXEC sp_releaseapplock "+literal(name)+",'Session',@u")
	if err != nil {
		return nil, false, err
	}
	var ours string
	for _, l := range all {
		if principal, rest, _ := strings.Cut(l.description, ":"); l.session == l.asking && l.mode == "IS" && principal != public {
			ours = rest
		}
	}
	for _, l := range all {
		if l.description == public+":"+ours || ours == "" && strings.HasPrefix(l.description, start) {
			locks = append(locks, l)
		}
	}
	return locks, ours != "", nil
}

// holdersOf returns who is behind a row: the holdings of this backend, or what
// the server tells of the client.
func (b *Backend) holdersOf(l lock, key string, m driver.Mode) []driver.Holder {
	own := b.pool.Holders(key, l.session)
	for i := range own {
		own[i].Mode = m
	}
	if len(own) == 0 {
		own = []driver.Holder{{Owner: l.client, Mode: m}}
	}
	return own
}

var permitShown = regexp.MustCompile(`^0:\[distlock/p(\d+)/([0-9a-f]+)\]`)

// permitHolders returns the holders of the permits. The hash that their names
// end with is shown in part, which is long enough to be no other's.
func (b *Backend) permitHolders(ctx context.Context, n names) ([]driver.Holder, error) {
	locks, err := b.locks(ctx, "", beginsWith(public+":["+ownPermit), "")
	if err != nil {
		return nil, err
	}
	hash := halfHash(n.resource)
	var holders []driver.Holder
	for _, l := range locks {
		m := permitShown.FindStringSubmatch(l.description)
		if m != nil && strings.HasPrefix(hash, m[2]) && l.granted {
			holders = append(holders, b.holdersOf(l, ownPermit+m[1]+"/"+hash, driver.Permit)...)
		}
	}
	return holders, nil
}

var _ driver.Inspector = (*Backend)(nil)
