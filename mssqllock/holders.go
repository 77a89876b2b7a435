package mssqllock

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
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
	prefix := shown(n.lock)
	locks, err := b.locks(ctx, prefix)
	if err != nil {
		return nil, err
	}
	sure := true
	if !alike(locks) {
		locks, sure, err = b.exactly(ctx, n.lock, prefix)
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
	client      driver.Owner
}

// shown returns how the server describes a lock, as far as that is known: the
// principal's number (0 is public), 32 characters of the name, and a hash.
// https://learn.microsoft.com/sql/relational-databases/system-dynamic-management-views/sys-dm-tran-locks-transact-sql
func shown(name string) string {
	const most = 32
	start, units := "0:[", 0
	for i, r := range name {
		if units += utf16.RuneLen(r); units > most {
			return start + name[:i]
		}
	}
	return start + name + "]:("
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

// locks returns what is known of the locks whose description begins so.
func (b *Backend) locks(ctx context.Context, prefix string) ([]lock, error) {
	var locks []lock
	var bad error
	err := b.pool.Query(ctx, "SELECT l.resource_description,l.request_mode,l.request_status,l.request_session_id,s.host_name,s.program_name,s.host_process_id"+
		" FROM sys.dm_tran_locks AS l JOIN sys.dm_exec_sessions AS s ON s.session_id=l.request_session_id"+
		" WHERE l.resource_type='APPLICATION' AND l.resource_database_id=DB_ID() AND CHARINDEX("+literal(prefix)+",l.resource_description)=1",
		func(row []sqldriver.Value) {
			var session, pid dbsession.Step
			if err := errors.Join(session.Set(row[3]), pid.Set(row[6])); err != nil {
				bad = err
			}
			l := lock{description: dbsession.Text(row[0]), mode: strings.TrimSpace(dbsession.Text(row[1])), granted: dbsession.Text(row[2]) == "GRANT", session: session.Result}
			l.client = driver.Owner{Host: dbsession.Text(row[4]), Program: dbsession.Text(row[5]), PID: int(pid.Result)}
			// CHARINDEX doesn't tell cases apart, by default.
			if strings.HasPrefix(l.description, prefix) {
				locks = append(locks, l)
			}
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

// exactly is locks for one name, where several begin alike: what a session of
// its own waits for, for a moment and in a mode that excludes only writers, shows
// how the server describes the name. sure is false if there was no such session.
func (b *Backend) exactly(ctx context.Context, name, prefix string) (locks []lock, sure bool, err error) {
	const patience = time.Second
	claim, err := b.oneUse(ctx, name)
	if err != nil {
		return nil, false, err
	}
	asking, cancel := context.WithCancel(ctx)
	gone := make(chan struct{})
	seen := make(chan struct{})
	nothing := make(chan struct{})
	st := &dbsession.Step{Verb: doProbe, Key: name, Cleanup: func() {
		claim.Free()
		close(nothing)
	}}
	go func() {
		defer close(gone)
		s, err := b.pool.Wait(asking, st, patience)
		if err != nil || st.Result != 1 {
			<-nothing
			return
		}
		<-seen
		if claim.Bind(s) {
			h := &hold{b: b, session: s, claim: claim, key: name, release: doRelease}
			h.abandon(nil) //nolint:errcheck // of no interest
		}
	}()
	deadline := time.Now().Add(patience)
	err = dbsession.Poll(ctx, func() time.Duration { return max(time.Until(deadline), 0) }, func() (bool, error) {
		var err error
		if locks, err = b.locks(ctx, prefix); err != nil {
			return false, err
		}
		probes := make(map[string]bool)
		for _, l := range locks {
			if l.mode == "IS" {
				probes[l.description] = true
			}
		}
		if len(probes) != 1 {
			return false, nil // not yet, or somebody else probes another
		}
		var exact []lock
		for _, l := range locks {
			if probes[l.description] {
				exact = append(exact, l)
			}
		}
		locks = exact
		return true, nil
	})
	close(seen)
	cancel()
	select {
	case <-gone:
	case <-ctx.Done():
	}
	if errors.Is(err, driver.ErrHeld) {
		return locks, false, nil
	}
	return locks, true, err
}

// holdersOf returns who is behind a row: the holdings of this backend, or what
// the server tells of the client.
func (b *Backend) holdersOf(l lock, key string, m driver.Mode) []driver.Holder {
	b.mu.Lock()
	defer b.mu.Unlock()
	var own []driver.Holder
	for h := range b.held {
		if h.key == key && h.session.Identity().ID == l.session && !h.session.Dead() {
			own = append(own, driver.Holder{Owner: h.owner, Mode: m, Since: h.since, Token: h.token})
		}
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
	locks, err := b.locks(ctx, "0:["+ownStart+"p")
	if err != nil {
		return nil, err
	}
	hash := n.hash()
	var holders []driver.Holder
	for _, l := range locks {
		m := permitShown.FindStringSubmatch(l.description)
		if m != nil && strings.HasPrefix(hash, m[2]) && l.granted {
			holders = append(holders, b.holdersOf(l, ownStart+"p"+m[1]+"/"+hash, driver.Permit)...)
		}
	}
	return holders, nil
}

var _ driver.Inspector = (*Backend)(nil)
