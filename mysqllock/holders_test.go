//go:build unix

package mysqllock

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

// The fence table tells of the holder only if it is he who was given the last
// token.
func TestHolderIsNotWhoHadTheLastToken(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		const note = "job of yesterday"
		name := strings.ToLower(t.Name())
		o := &Options{FenceTable: "fences", CreateFenceTable: true}
		fenced := distlock.New(New(s.pool(t, s.addr), o), &distlock.Options{Note: note})
		defer fenced.Close()
		defer mustAcquire(t, fenced, name+"/other").Release() // its connection stays, though the lock goes on
		watcher, _ := s.locker(t, s.addr, o)
		holder := func() driver.Holder {
			t.Helper()
			holders, err := watcher.Holders(t.Context(), name)
			if err != nil || len(holders) != 1 {
				t.Fatal(holders, err)
			}
			return holders[0]
		}

		k := mustAcquire(t, fenced, name)
		host, _ := os.Hostname()
		h := holder()
		if h.Owner.Note != note || h.Owner.Host != host || h.Owner.PID != os.Getpid() || h.Owner.Program != filepath.Base(os.Args[0]) {
			t.Errorf("who was given the last token: %+v", h.Owner)
		}
		if token, _ := k.Token(); h.Since.IsZero() || h.Token != token {
			t.Errorf("since %v, token %d of %d", h.Since, h.Token, token)
		}
		if err := k.Release(); err != nil {
			t.Fatal(err)
		}

		for what, take := range map[string]func() (release func() error){
			"plain": func() func() error {
				c, err := s.pool(t, s.addr).Conn(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				var one int
				if err := c.QueryRowContext(t.Context(), "SELECT GET_LOCK(?,0)", LockName(name)).Scan(&one); err != nil || one != 1 {
					t.Fatal(one, err)
				}
				return func() error {
					defer c.Close()
					_, err := c.ExecContext(t.Context(), "DO RELEASE_LOCK(?)", LockName(name))
					return err
				}
			},
			"without a fence table": func() func() error {
				l, _ := s.locker(t, s.addr, nil)
				return mustAcquire(t, l, name).Release
			},
			"OnConn": func() func() error {
				_, _, l := s.onConn(t)
				return mustAcquire(t, l, name).Release
			},
		} {
			release := take()
			h := holder()
			if !strings.Contains(h.Owner.Note, "connection ") || strings.Contains(h.Owner.Note, note) || h.Token != 0 || !h.Since.IsZero() {
				t.Errorf("%s: %+v", what, h)
			}
			if err := release(); err != nil {
				t.Error(err)
			}
		}
	})
}
