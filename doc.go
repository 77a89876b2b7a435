// Package distlock is one interface for named locks and a choice of places
// where they live: within a process, in the files of a directory, on a MySQL
// server or in a SQL Server database, or in Azure Storage.
//
// # Getting started
//
// A [Locker] stands for one store. It is opened from a URL, so that the choice
// of the store is configuration:
//
//	import _ "github.com/distlock-go/distlock/filelock"
//
//	locks, err := distlock.Open(ctx, os.Getenv("DISTLOCK_URL"), nil)
//	if err != nil {
//		return err
//	}
//	defer locks.Close()
//
// [Locker.Do] runs a function while it holds a resource, which is a name of the
// caller's choice:
//
//	err = locks.Do(ctx, "inventory:"+productID, func(ctx context.Context) error {
//		return deduct(ctx, productID)
//	}, distlock.Timeout(5*time.Second))
//	if errors.Is(err, distlock.ErrNotAcquired) {
//		return errBusy // contended: answer 429, try later
//	}
//	return err
//
// [Locker.Acquire] returns a [Lock] instead, for holdings that don't fit into a
// function. Everything that it returns must be given back:
//
//	lock, err := locks.Acquire(ctx, "inventory:"+productID)
//	if err != nil {
//		return err
//	}
//	defer lock.Release()
//
// Words are used as follows. A resource is a name; a lock is one holding of it;
// a backend is the store that says who holds; a session is what a holding's
// life hangs on (a connection, a lease, an open file); a holding is lost when it
// ends without Release.
//
// # Choosing a backend
//
// Package locallock locks within the process and needs nothing. Package filelock
// locks files, for all processes of a host, and over hosts where a network file
// system has locks that work. Modules of their own are mysqllock, for all clients
// of a MySQL or MariaDB server, mssqllock, for those of a SQL Server's database,
// and azurelock, which leases blobs in Azure Storage. What each needs and promises
// is in its package comment, under the same headings everywhere.
//
// A program links the backends that its URLs may name, by importing their
// packages. [New] makes a Locker from a backend that was built by hand, with
// options that no URL has.
//
// # How long to wait
//
// [Timeout] says how long to wait for others to release the resource. Without
// it Acquire waits as long as its context lives. [Locker.TryAcquire], which is
// Timeout(0), asks once. The time is for all that has to be done until the lock
// is held, and Acquire returns when it is over, whatever the store does; what it
// leaves unfinished is undone in the background. Only the first question is given
// a minimum of time to be answered: 100 ms, and five seconds if it is the only
// one.
//
// The context bounds the same wait. Neither ends a holding: a lock stays held
// when the context that it was acquired with is done.
//
// The goroutines of one process that wait for one resource through one Locker
// are served first come, first served, over all kinds of lock. Between
// processes the backend decides.
//
// # What an error means
//
// Acquire fails in ways that call for different reactions:
//
//   - [ErrNotAcquired]: the time to wait is over. Somebody else has the resource:
//     tell the user to try later, or skip the work, which somebody else is probably
//     doing. Or the store gave no answer in that time, which the text then says;
//     after a single try, that is an error of the store.
//   - context.Canceled, context.DeadlineExceeded and the context's cause: the
//     caller isn't interested any more. If the resource was seen to be held, the
//     error matches ErrNotAcquired too.
//   - [ErrBadArgument], errors.ErrUnsupported, [ErrClosed]: a mistake in the
//     program or its configuration. Nothing was sent to the store, except by a
//     waiter that Close woke with ErrClosed: it has asked before.
//   - [ErrDeadlock]: the store found a cycle of waiting. Release what is held
//     and start over.
//   - Anything else is the store's own error, for errors.As: it is down, refuses
//     the login, has no space left. What the store says of itself never matches
//     ErrNotAcquired.
//
// A nil error means that the lock was held when Acquire returned; with any other
// nothing is held. All errors are of type *[Error], or, where there is more than
// one, joined from them; but Do returns its function's own error as it is.
//
// # Losing a lock
//
// A lock can end without Release: its connection breaks, its lease can't be
// renewed, an administrator removes it. Then [Lock.Done] is closed, [Lock.Err]
// matches [ErrLost], and contexts from [Lock.Context], which Do gives its
// function, are canceled with that as their cause. Release returns it too. Code
// that holds a lock for longer than a moment should work under such a context,
// and look at it before steps that can't be taken back.
//
// How soon a loss is noticed is the backend's matter and in its package comment.
// A lease that runs out is announced before the store can grant the resource to
// somebody else: a tenth of it is kept back for that. Err and Done look at the
// clocks when they are called, so that a process that was stopped, or a machine
// that slept, sees the loss before it goes on. What no client can do is to stop
// a write that is already on its way. For that there are fencing tokens.
//
// # Fencing tokens
//
// [Lock.Token] is a number that grows with every grant of a resource. If it is
// sent along with each write, and the receiver refuses numbers smaller than the
// largest that it has seen, then a holder that was overtaken unawares can't do
// harm. The file docs/safety.md in the repository shows this in SQL, and says
// what to do where the receiver can't compare.
//
// # Do or Acquire
//
// Do can't be used wrongly in the two usual ways: the lock is released on every
// way out, panics and [runtime.Goexit] included, and its function's context ends
// with the lock. It returns the function's error joined with the loss, if there
// was one, or with Release's. Use Acquire where a holding begins in one function
// and ends in another.
//
// A lock isn't re-entrant. To acquire what the caller holds already waits, or
// fails, like for anybody else.
//
// # Kinds of lock
//
// The default is exclusive. [Shared] is a reader's lock: any number at once, but
// none beside an exclusive one. [Upgradeable] is held by one at a time, beside
// readers, and becomes exclusive with [Lock.Upgrade] without letting go in
// between: read under it, decide, then write. [Semaphore] is one of a number of
// permits; semaphores have names of their own. A kind that a backend doesn't have
// is errors.ErrUnsupported at once.
//
// [Locker.AcquireAll] takes several resources, all or none, in an order in which
// two callers can't block each other.
//
// # One Locker for each store
//
// A process should have one Locker for each store and use it everywhere: its
// queue is what keeps the waiters of a process from all asking the store, hands
// a resource on from one goroutine to the next without a trip there, and keeps
// sessions alive once for all locks on them. Two Lockers on one store exclude
// each other as two processes do.
//
// [Options] have defaults that need no change in most programs. A Logger is
// worth setting: what no caller can be told (a failed renewal, a lock that was
// dropped without Release, and where it was acquired) goes there. [Trace] is
// for metrics and tracing.
//
// # Testing
//
// Code under test takes a *Locker like any other. Give it one on a store of its
// own, which is as strict as the real ones and needs nothing:
//
//	locks := distlock.New(locallock.New(), nil)
//	t.Cleanup(func() { locks.Close() })
//
// To see how the code behaves when a resource is busy, acquire it in the test.
//
// # Writing a backend
//
// A backend implements the few methods of package driver, which says what each
// may do and must leave behind. Policy (waiting, queues, renewal, loss, clean-up,
// error texts) isn't its business. Package drivertest checks it. [Register]
// gives it a URL scheme.
package distlock
