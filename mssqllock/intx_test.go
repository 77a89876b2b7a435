package mssqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/mssqllock/internal/tdstest"
)

// patientInTx is InTx for a connection that does answer, however slow the machine
// is.
func patientInTx(ctx context.Context, tx *sql.Tx, resource string, opts ...distlock.AcquireOption) error {
	b := &txBackend{tx: tx, answer: time.Minute, patience: 2 * time.Minute}
	return b.lock(ctx, resource, opts)
}

func modeInTx(t *testing.T, tx *sql.Tx, resource string) string {
	t.Helper()
	var mode string
	if err := tx.QueryRowContext(t.Context(), "SELECT APPLOCK_MODE('public', @p1, 'Transaction')", resource).Scan(&mode); err != nil {
		t.Fatal(err)
	}
	return mode
}

// While the network is silent the caller is told in time, whatever is under way,
// and the lock that he may have by then ends with the transaction.
func TestInTxMute(t *testing.T) {
	t.Parallel()
	if theServer(t).tds == nil {
		t.Skip("only the test server tells when it is asked")
	}
	for _, c := range []struct {
		name    string
		held    bool // so that it waits
		muted   string
		asked   int           // how often until then
		cancel  int           // at which question
		timeout time.Duration // if it isn't canceled
		stays   bool          // mute
	}{
		{"first question, canceled", false, takeInTx.text, 1, 1, 0, false},
		{"first question, timeout", false, takeInTx.text, 1, 0, 300 * time.Millisecond, false},
		{"wait, canceled", true, takeInTx.text, 2, 2, 0, false},
		{"wait, canceled, for good", true, takeInTx.text, 2, 2, 0, true},
		{"wait, timeout", true, takeInTx.text, 2, 0, 4 * time.Second, false},
		{"giving back", true, undoInTx.text, 1, 2, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := ownServer(t, tdstest.Config{})
			normal, _ := s.locker(t, s.addr(), nil)
			p := newProxy(t, s.addr())
			tx := begin(t, s.pool(t, p.Addr()))
			var held *distlock.Lock
			if c.held {
				held = mustAcquire(t, normal, t.Name())
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			asked := make(map[string]int) // by one goroutine, as there is one session
			ends := make(chan time.Time, 1)
			s.tds.OnRequest(func(_ int, sql string) tdstest.Fault {
				if sql != takeInTx.text && sql != undoInTx.text {
					return tdstest.Continue
				}
				asked[sql]++
				if sql == c.muted && asked[sql] == c.asked {
					p.Set(true, false)
				}
				if sql == takeInTx.text && asked[sql] == c.cancel {
					ends <- time.Now()
					cancel()
				}
				return tdstest.Continue
			})
			var opts []distlock.AcquireOption
			if c.timeout > 0 {
				opts = append(opts, distlock.Timeout(c.timeout))
				ends <- time.Now().Add(c.timeout)
			}
			err := InTx(ctx, tx, t.Name(), opts...)
			// The driver waits for the answer to its attention for five seconds at least.
			if late := time.Since(<-ends); late < 0 || late > 4500*time.Millisecond {
				t.Errorf("it returned after %v more", late)
			}
			if !errors.Is(err, sqldriver.ErrBadConn) || !strings.Contains(err.Error(), "roll the transaction back") {
				t.Errorf("the caller isn't told what to do: %v", err)
			}
			if c.cancel > 0 && !errors.Is(err, context.Canceled) || c.cancel == 0 && !errors.Is(err, distlock.ErrNotAcquired) {
				t.Errorf("nor what was the matter: %v", err)
			}
			mustBeHeld(t, normal, t.Name())
			if !c.stays {
				p.Set(false, false)
			}
			tx.Rollback() // an error, if the driver has given up the connection
			s.tds.OnRequest(nil)
			if c.muted != undoInTx.text && asked[undoInTx.text] != 0 {
				t.Error("it went on asking when the transaction was the caller's")
			}
			if held != nil {
				mustRelease(t, held)
			}
			mustRelease(t, mustAcquire(t, normal, t.Name()))
		})
	}
}

// Neither a timeout nor the end of ctx comes early; each is told apart, and after
// each the transaction goes on, with what it had, and without the lock.
func TestInTxBounds(t *testing.T) {
	t.Parallel()
	s := theServer(t)
	normal, _ := s.locker(t, s.addr(), nil)
	defer mustAcquire(t, normal, t.Name()).Release()
	tx := begin(t, s.pool(t, s.addr()))
	if err := InTx(t.Context(), tx, t.Name()+"-own"); err != nil {
		t.Fatal(err)
	}
	check := func(what string) {
		t.Helper()
		if got, own := modeInTx(t, tx, t.Name()), modeInTx(t, tx, t.Name()+"-own"); got != "NoLock" || own != "Exclusive" {
			t.Errorf("%s: it has the lock in mode %s, and its own in mode %s", what, got, own)
		}
	}
	for _, d := range []time.Duration{0, time.Microsecond, 999 * time.Microsecond, 30 * time.Millisecond, 250*time.Millisecond + 1} {
		start := time.Now()
		err := patientInTx(t.Context(), tx, t.Name(), distlock.Timeout(d))
		if took := time.Since(start); !errors.Is(err, distlock.ErrNotAcquired) || took < d {
			t.Errorf("%v after a timeout of %v: %v", took, d, err)
		}
		check(d.String())
	}
	for _, d := range []time.Duration{20 * time.Millisecond, 250 * time.Millisecond} {
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), d)
		err := patientInTx(ctx, tx, t.Name())
		cancel()
		if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took < d {
			t.Errorf("%v after a deadline of %v: %v", took, d, err)
		}
		check(d.String())
	}
	why := errors.New("a reason")
	ctx, cancel := context.WithCancelCause(t.Context())
	got := make(chan error)
	go func() { got <- patientInTx(ctx, tx, t.Name()) }()
	eventually(t, "it waits", func() bool { return s.waiters(t, t.Name()) == 1 })
	cancel(why)
	if err := <-got; !errors.Is(err, context.Canceled) || !errors.Is(err, why) || !errors.Is(err, distlock.ErrNotAcquired) {
		t.Errorf("canceled: %v", err)
	}
	check("canceled")
	// One that is over takes nothing, free as it may be.
	if err := patientInTx(ctx, tx, t.Name()+"-free"); !errors.Is(err, why) || errors.Is(err, distlock.ErrNotAcquired) {
		t.Errorf("canceled before: %v", err)
	}
	if mode := modeInTx(t, tx, t.Name()+"-free"); mode != "NoLock" {
		t.Errorf("canceled before: it has the lock in mode %s", mode)
	}
	if err := InTx(t.Context(), tx, t.Name()+"-free", distlock.Timeout(0)); err != nil {
		t.Errorf("a try: %v", err)
	}
	if err := tx.Commit(); err != nil {
		t.Error(err)
	}
}

// A try is one question, which doesn't wait; and what can't be is told without
// any.
func TestInTxAsks(t *testing.T) {
	t.Parallel()
	if theServer(t).tds == nil {
		t.Skip("only the test server tells what it is asked")
	}
	s := ownServerWithLog(t)
	normal, _ := s.locker(t, s.addr(), nil)
	defer mustAcquire(t, normal, t.Name()).Release()
	tx := begin(t, s.pool(t, s.addr()))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for what, c := range map[string]struct {
		ctx      context.Context
		resource string
		opts     []distlock.AcquireOption
		want     error
		asks     int
	}{
		"held":     {t.Context(), t.Name(), []distlock.AcquireOption{distlock.Timeout(0)}, distlock.ErrNotAcquired, 1},
		"free":     {t.Context(), t.Name() + "-free", []distlock.AcquireOption{distlock.Timeout(0)}, nil, 1},
		"ended":    {ended, t.Name(), nil, context.Canceled, 0},
		"negative": {t.Context(), t.Name(), []distlock.AcquireOption{distlock.Timeout(-1)}, distlock.ErrBadArgument, 0},
		"no name":  {t.Context(), "", nil, distlock.ErrBadArgument, 0},
		"permit":   {t.Context(), t.Name(), []distlock.AcquireOption{distlock.Semaphore(2)}, errors.ErrUnsupported, 0},
	} {
		n := len(askedInTx(s))
		err := patientInTx(c.ctx, tx, c.resource, c.opts...)
		if got := len(askedInTx(s)) - n; !errors.Is(err, c.want) || got != c.asks {
			t.Errorf("%s: %d questions: %v", what, got, err)
		}
	}
}

// askedInTx returns what InTx has asked.
func askedInTx(s *testServer) []string {
	var asked []string
	for _, sql := range s.log.since(0) {
		if sql == takeInTx.text || sql == undoInTx.text {
			asked = append(asked, sql)
		}
	}
	return asked
}
