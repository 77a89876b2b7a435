package mssqllock

import (
	"database/sql"
	"net/url"
	"testing"

	"github.com/distlock-go/distlock"
)

// A prefix is a part of the names of all locks: it keeps those who have it apart from
// those who haven't, and .NET, which has none, is excluded by the whole name.
func TestPrefix(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	name := t.Name()
	plain, _ := s.locker(t, s.addr(), nil)
	byPool, _ := s.locker(t, s.addr(), &Options{Prefix: "app:"})
	byURL := opened(t, s.url(s.addr(), "prefix=app:&heartbeat="+patience.String()))
	for _, l := range []*distlock.Locker{byPool, byURL} {
		for _, c := range []struct{ held, other []distlock.AcquireOption }{
			{},
			{held: []distlock.AcquireOption{distlock.Shared()}},
			{held: []distlock.AcquireOption{distlock.Upgradeable()}},
			{[]distlock.AcquireOption{distlock.Semaphore(1)}, []distlock.AcquireOption{distlock.Semaphore(1)}},
		} {
			k := mustAcquire(t, l, name, c.held...)
			mustRelease(t, mustAcquire(t, plain, name, c.other...))
			mustBeHeld(t, plain, "app:"+name, c.other...)
			for resource, l := range map[string]*distlock.Locker{name: l, "app:" + name: plain} {
				if holders, err := l.Holders(t.Context(), resource, c.other...); err != nil || len(holders) != 1 {
					t.Errorf("holders of %s: %v, %v", resource, holders, err)
				}
			}
			mustRelease(t, k)
		}
	}
}

// Locks are of a database: one of another database is another lock.
func TestDatabases(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	here, _ := s.locker(t, s.addr(), nil)
	u, err := url.Parse(s.url(s.addr(), ""))
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("database", "master")
	u.RawQuery = q.Encode()
	db, err := sql.Open("sqlserver", u.String())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	there := distlock.New(New(db, &Options{Heartbeat: patience}), nil)
	defer there.Close()
	for _, o := range [][]distlock.AcquireOption{nil, {distlock.Semaphore(1)}} {
		one, two := mustAcquire(t, here, t.Name(), o...), mustAcquire(t, there, t.Name(), o...)
		for _, l := range []*distlock.Locker{here, there} {
			mustBeHeld(t, l, t.Name(), o...)
			if holders, err := l.Holders(t.Context(), t.Name(), o...); err != nil || len(holders) != 1 {
				t.Errorf("holders: %v, %v", holders, err)
			}
		}
		mustRelease(t, one)
		mustRelease(t, two)
	}
}
