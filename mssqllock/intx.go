package mssqllock

import (
	"context"
	"database/sql"
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
// no other lock is as safe. A rollback to a savepoint that was set before the call
// releases it, too: lock first, or anew after that.
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
// back only if the caller has set XACT_ABORT. Rows of the transaction must be closed
// before the call, as before any other statement.
func InTx(ctx context.Context, tx *sql.Tx, resource string, opts ...distlock.AcquireOption) error {
	b := &txBackend{tx: tx}
	_, err := distlock.New(b, nil).Acquire(ctx, resource, opts...)
	return errors.Join(err, b.end(err == nil))
}

// txBackend takes one lock in a transaction, which has to release it.
type txBackend struct {
	tx *sql.Tx

	mu     sync.Mutex // held while a statement runs
	over   bool       // nothing is sent any more
	before string     // the mode that the transaction had, if it is known
	got    string     // the name that was granted
}

// end waits for the statement under way, and gives back what came too late.
func (b *txBackend) end(keep bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	if keep || b.got == "" || b.before != "NoLock" {
		return nil
	}
	return b.giveBack(b.got)
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
	defer context.AfterFunc(ctx, cancel)()
	if err := b.ask(canceled, takeInTx, []any{&code, &before}, name, want, int64(lockTimeout(r.Wait))); err != nil {
		if canceled.Err() != nil && b.before == "NoLock" {
			// It may have been granted at the last moment.
			if err := b.giveBack(name); err != nil {
				return driver.Grant{}, errors.Join(context.Cause(ctx), err)
			}
		}
		if canceled.Err() != nil {
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

var giveBackInTx = &query{
	"DECLARE @r int=0;IF APPLOCK_MODE('public',@p1,'Transaction')<>'NoLock' EXEC @r=sp_releaseapplock @p1,'Transaction';SELECT @r",
	"@p1 nvarchar(255)",
}

// giveBack releases what the transaction didn't have before; b.mu is held.
func (b *txBackend) giveBack(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var code int64
	if err := b.ask(ctx, giveBackInTx, []any{&code}, name); err != nil {
		return fmt.Errorf("giving back a lock that came too late: %w", err)
	}
	return nil
}

// txHold is the transaction's.
type txHold struct{}

// Release implements [driver.Hold]. What came too late InTx gives back.
func (txHold) Release(context.Context) error { return nil }
