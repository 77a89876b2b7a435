package mssqllock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/mssqllock/internal/tdstest"
)

// Statements are canceled only where they wait, and never on a session that holds
// locks.
func TestAttentions(t *testing.T) {
	t.Parallel()
	if theServer(t).tds == nil {
		t.Skip("only the test server tells what is canceled")
	}
	s := ownServer(t, tdstest.Config{})
	var mu sync.Mutex
	attentions := 0
	s.tds.OnAttention(func(spid int) {
		count := func(query string, args ...any) (n int) {
			if err := s.admin.QueryRow(query, args...).Scan(&n); err != nil {
				t.Error(err)
			}
			return n
		}
		if count("SELECT COUNT(*) FROM sys.dm_exec_sessions WHERE session_id = @p1 AND program_name = @p2", spid, adminProgram) != 0 {
			return // it has read one row only
		}
		held := count("SELECT COUNT(*) FROM sys.dm_tran_locks WHERE resource_type = 'APPLICATION' AND request_status = 'GRANT' AND request_session_id = @p1 AND CHARINDEX('distlock/session/', resource_description) = 0", spid)
		if held != 0 {
			t.Errorf("a statement was canceled on a session with %d locks", held)
		}
		mu.Lock()
		defer mu.Unlock()
		attentions++
	})
	defer s.tds.OnAttention(nil)
	seen := func() int {
		mu.Lock()
		defer mu.Unlock()
		return attentions
	}
	var atNext context.CancelFunc // the next statement
	s.tds.OnStatement(func(int, string) {
		mu.Lock()
		defer mu.Unlock()
		if atNext != nil {
			atNext()
		}
		atNext = nil
	})
	l, _ := s.locker(t, s.addr(), nil)
	other, _ := s.locker(t, s.addr(), nil)
	name, gate := t.Name(), namesOf(t.Name()).gate()
	defer mustAcquire(t, other, name).Release()
	defer mustAcquire(t, other, name, distlock.Semaphore(2)).Release()
	own := []*distlock.Lock{
		mustAcquire(t, l, name+"-exclusive"),
		mustAcquire(t, l, name+"-shared", distlock.Shared()),
		mustAcquire(t, l, name+"-upgradeable", distlock.Upgradeable()),
		mustAcquire(t, l, name, distlock.Semaphore(2)),
	}
	reader := mustAcquire(t, other, name+"-upgradeable", distlock.Shared())
	defer reader.Release()
	// Who wants a permit waits at the server behind the first who does.
	first, _ := s.locker(t, s.addr(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	firstEnded := make(chan struct{})
	go func() {
		defer close(firstEnded)
		_, _ = first.Acquire(ctx, name, distlock.Semaphore(2))
	}()
	endFirst := func() {
		cancel()
		<-firstEnded
	}
	defer endFirst()
	eventually(t, "one waits for a permit", func() bool { return s.locks(t, gate) == 1 })

	// What doesn't wait is answered, whoever wants to know.
	for i := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		mu.Lock()
		atNext = cancel
		mu.Unlock()
		if k, err := l.TryAcquire(ctx, fmt.Sprint(name, i)); err == nil {
			mustRelease(t, k)
		} else if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		cancel()
	}
	mustRelease(t, mustAcquire(t, l, name+"-last"))
	if n := seen(); n != 0 {
		t.Errorf("%d statements were canceled, and none waited", n)
	}

	// Waits are canceled, each on a session of its own.
	for what, w := range map[string]struct {
		queue string
		wait  func(ctx context.Context) error
	}{
		"exclusive": {name, func(ctx context.Context) error {
			_, err := l.Acquire(ctx, name)
			return err
		}},
		"shared": {name, func(ctx context.Context) error {
			_, err := l.Acquire(ctx, name, distlock.Shared())
			return err
		}},
		"upgradeable": {name, func(ctx context.Context) error {
			_, err := l.Acquire(ctx, name, distlock.Upgradeable())
			return err
		}},
		"permit": {gate, func(ctx context.Context) error {
			_, err := l.Acquire(ctx, name, distlock.Semaphore(2))
			return err
		}},
		"upgrade": {name + "-upgradeable", func(ctx context.Context) error { return own[2].Upgrade(ctx) }},
	} {
		before := seen()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.wait(ctx) }()
		eventually(t, what+" waits", func() bool { return s.waiters(t, w.queue) == 1 })
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
		eventually(t, what+" is canceled", func() bool { return seen() > before && s.waiters(t, w.queue) == 0 })
	}
	before := seen()
	endFirst()
	eventually(t, "the wait for a permit is canceled, before one comes free", func() bool { return seen() > before })
	for _, k := range own {
		mustRelease(t, k)
	}
}

// What a wait is granted when its attention is on the way is given back, whatever its
// mode, and the connection is kept.
func TestP07_GrantBeforeTheAttentionIsGivenBack(t *testing.T) {
	t.Parallel()
	if theServer(t).tds == nil {
		t.Skip("only the test server can be held up at that moment")
	}
	s := ownServer(t, tdstest.Config{})
	l, _ := s.locker(t, s.addr(), nil)
	other, _ := s.locker(t, s.addr(), nil)
	defer mustAcquire(t, l, "own-"+t.Name()).Release() // the server shows the beginning of a name only
	connections := 0
	for i, opts := range [][]distlock.AcquireOption{nil, {distlock.Shared()}, {distlock.Upgradeable()}, nil} {
		held := mustAcquire(t, other, t.Name())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var once sync.Once
		answered := make(chan struct{})
		s.tds.OnReply(func(_ int, sql string, canceled <-chan struct{}) {
			if strings.Contains(sql, "'Session',@p2;") { // it waited
				once.Do(func() {
					cancel()
					<-canceled
					close(answered)
				})
			}
		})
		ended := make(chan error, 1)
		go func() {
			_, err := l.Acquire(ctx, t.Name(), opts...)
			ended <- err
		}()
		eventually(t, "it waits", func() bool { return s.waiters(t, t.Name()) == 1 })
		mustRelease(t, held)
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%d: %v", i, err)
		}
		<-answered
		eventually(t, "it is given back", func() bool { return s.locks(t, t.Name()) == 0 })
		s.tds.OnReply(nil)
		if connections == 0 {
			connections = s.connections(t)
		}
	}
	if n := s.connections(t); n != connections {
		t.Errorf("%d connections, and %d after the first time", n, connections)
	}
}
