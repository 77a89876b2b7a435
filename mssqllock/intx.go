package mssqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/dbsession"
)

// InTx locks the resource for the rest of the transaction. The lock belongs to
// the transaction at the server and ends with it, by commit, by rollback, or with
// its connection: what is written in the transaction is written under the lock,
// or not at all. There is no Release, no loss to watch for, and no need of tokens;
// no other lock is as safe. A rollback to a savepoint releases what was locked
// after that was set: lock first, or anew after the rollback. One that the
// transaction had before in a weaker mode stays, in the stronger
// (see [rollback-transaction-transact-sql], Locking behavior).
//
// The options are [distlock.Timeout], [distlock.Shared] and
// [distlock.Upgradeable]. A wait stands in the server's queue. What the
// transaction has already it is granted again, and a stronger mode than it has is
// an upgrade, for which [distlock.Upgradeable] locks are made: of two transactions
// that hold the resource shared and both want it exclusively, one gets
// [distlock.ErrDeadlock]. The transaction goes on after that, and after all other
// errors that don't break the connection. Errors are those of
// [distlock.Locker.Acquire].
//
// The end of ctx ends the wait with an attention, which rolls the transaction
// back only if the caller has set XACT_ABORT. What was granted at that moment is
// given back, if the transaction didn't have it before; if it did, it may be left
// with the stronger mode. Whether it did is known from the first question, which
// doesn't wait; so when ctx ends, that is given half a second to be answered, and
// an attention only then. If the transaction holds the lock after that, an error
// says so, beside that of ctx: it can't be told whether it did before, and the lock
// stays until the transaction ends. Rows of the transaction must be closed before
// the call, as before any other statement.
//
// InTx returns about a second after the end of ctx, or of the time, at the latest.
// If the connection hasn't answered by then, an error beside the other says so,
// which matches [database/sql/driver.ErrBadConn]. Then nothing may be done with
// the transaction but to roll it back, as it may be granted the lock after all.
// Rollback waits until the statement is answered, or the driver gives up the
// connection, which takes it five to ten seconds.
//
// There is no [Options.Prefix] here: put one before the resource yourself.
//
// [rollback-transaction-transact-sql]: https://learn.microsoft.com/sql/t-sql/language-elements/rollback-transaction-transact-sql
func InTx(ctx context.Context, tx *sql.Tx, resource string, opts ...distlock.AcquireOption) error {
	b := &txBackend{tx: tx, answer: time.Second / 2, patience: time.Second}
	return b.lock(ctx, resource, opts)
}

// txBackend takes one lock in a transaction, which has to release it.
type txBackend struct {
	tx *sql.Tx

	// When ctx or the time is over, answer is how long the first question may still
	// take before it is canceled, and patience how long the call waits for the end of
	// all that was sent.
	answer, patience time.Duration

	called context.Context // ends with the call: nothing is begun after that

	mu     sync.Mutex // held while a statement runs
	over   bool       // nothing is sent any more
	before string     // the mode that the transaction had, if it is known
	got    string     // the name that was granted
	left   error      // what can't be undone
}

// lock is what InTx does.
func (b *txBackend) lock(ctx context.Context, resource string, opts []distlock.AcquireOption) error {
	called, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	b.called = called
	_, err := distlock.New(b, nil).Acquire(ctx, resource, opts...)
	if err == nil {
		return nil
	}
	ended := make(chan error, 1)
	go func() { ended <- b.end() }()
	timer := time.NewTimer(b.patience)
	defer timer.Stop()
	select {
	case left := <-ended:
		return errors.Join(err, left)
	case <-timer.C:
		// What is under way goes on. The driver finishes it before it lets the caller
		// do something else, and nothing is given back after that: the statement could
		// meet rows that the caller has opened.
		return errors.Join(err, errUnanswered)
	}
}

var errUnanswered = fmt.Errorf("the connection does not answer: roll the transaction back, as it may be granted the lock yet: %w", sqldriver.ErrBadConn)

// end waits for the statement under way, and gives back what came too late.
func (b *txBackend) end() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	if b.got != "" {
		b.undo(b.got)
	}
	return b.left
}

// Info implements [driver.Backend].
func (b *txBackend) Info() driver.Info {
	return driver.Info{Name: "sqlserver", Modes: driver.ModesOf(driver.Exclusive, driver.Shared, driver.Upgradeable)}
}

// Close implements [driver.Backend].
func (b *txBackend) Close() error { return nil }

var takeInTx = &query{
	"DECLARE @r int,@m nvarchar(32)=APPLOCK_MODE('public',@p1,'Transaction');EXEC @r=sp_getapplock @p1,@p2,'Transaction',@p3;SELECT @r,@m",
	"@p1 nvarchar(255),@p2 nvarchar(32),@p3 int",
}

// Acquire implements [driver.Backend].
func (b *txBackend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	want, ok := modeNames[r.Mode]
	if !ok {
		return driver.Grant{}, errors.ErrUnsupported
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return driver.Grant{}, errors.New("the call has ended")
	}
	name := LockName(r.Resource)
	var code int64
	var before string
	// After a deadline the driver would give up the connection.
	canceled, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	patience := time.Duration(0)
	if b.before == "" {
		patience = b.answer
	}
	defer context.AfterFunc(ctx, func() { time.AfterFunc(patience, cancel) })()
	if err := b.ask(canceled, takeInTx, []any{&code, &before}, name, want, int64(lockTimeout(r.Wait))); err != nil {
		if canceled.Err() != nil {
			b.undo(name) // it may have been granted at the last moment
			return driver.Grant{}, context.Cause(ctx)
		}
		return driver.Grant{}, explain(err)
	}
	if b.before == "" {
		b.before = before
	}
	st := dbsession.Step{Result: result(code)}
	if err := checked(&st); err != nil {
		return driver.Grant{}, err
	}
	if st.Result != 1 {
		return driver.Grant{}, driver.ErrHeld
	}
	b.got = name
	return driver.Grant{Hold: txHold{}}, nil
}

// ask runs the query and reads all of the answer, which has one row.
func (b *txBackend) ask(ctx context.Context, q *query, to []any, args ...any) error {
	rows, err := b.tx.QueryContext(ctx, executeSQL, append([]any{q.text, q.params}, args...)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	read := false
	for rows.Next() {
		if err := rows.Scan(to...); err != nil {
			return err
		}
		read = true
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if !read {
		return errors.New("the server sent no row")
	}
	return nil
}

// undoInTx releases the lock if that is wanted, and results in the mode in which
// it was held.
var undoInTx = &query{
	"DECLARE @m nvarchar(32)=APPLOCK_MODE('public',@p1,'Transaction');IF @m<>'NoLock' AND @p2=1 EXEC sp_releaseapplock @p1,'Transaction';SELECT @m",
	"@p1 nvarchar(255),@p2 int",
}

// undo releases what the transaction didn't have before; b.mu is held.
func (b *txBackend) undo(name string) {
	if b.before != "NoLock" && b.before != "" {
		return
	}
	release := int64(0)
	if b.before == "NoLock" {
		release = 1
	}
	var mode string
	switch err := b.ask(b.called, undoInTx, []any{&mode}, name, release); {
	case err != nil:
		b.left = fmt.Errorf("giving back a lock that came too late: %w", err)
	case release == 0 && mode != "NoLock":
		b.left = fmt.Errorf("the transaction holds the lock in mode %s, perhaps since before the call, and keeps it until it ends", mode)
	}
	b.got = ""
}

// txHold is the transaction's.
type txHold struct{}

// Release implements [driver.Hold]. What came too late InTx gives back.
func (txHold) Release(context.Context) error { return nil }
