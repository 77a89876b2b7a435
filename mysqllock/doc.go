// Package mysqllock locks with GET_LOCK on MySQL and MariaDB servers: thousands
// of locks over a handful of connections.
//
//	import _ "github.com/distlock-go/distlock/mysqllock"
//
//	locks, err := distlock.Open(ctx, "mysql://user:password@host/db", nil)
//
// or, with a pool that the program has already,
//
//	locks := distlock.New(mysqllock.New(db, nil), nil)
//
// # Requirements
//
// MySQL 5.7 or later, or MariaDB 10.2 or later. No table and no privilege is
// needed, but for tokens. Refused, with an error that says so, are older servers,
// nodes of a Galera cluster, replication groups with several primaries, read-only
// servers (locks taken on a replica exclude nobody on the primary), TiDB and
// Vitess. Between client and server there must be nothing that shares connections
// or spreads them over servers; each connection that is opened is checked against
// one that is open already.
//
// [New] takes connections from a pool of the caller's, [Open] opens its own, and
// [OnConn] locks on a connection of the caller's. The pool is one of
// github.com/go-sql-driver/mysql; with a driver that wraps it, locks take longer.
// A transaction that was left open on a connection of the pool is rolled back. The
// URL is mysql://user:password@host:3306/database, or mariadb://. Its parameters
// are the [Options] (prefix, max_sessions, max_waiting, readers, heartbeat,
// idle_timeout, fence_table, create_fence_table), socket (a path, instead of a
// host), timeout (of opening a connection, 10 s by default), tls (true, false, skip-verify, preferred),
// tls_ca, tls_cert, tls_key and tls_server_name.
//
// # How it locks
//
// An exclusive lock is the lock of GET_LOCK that [LockName] names. The .NET
// library Medallion.Threading takes the same, so that services of both kinds
// exclude each other. A try is GET_LOCK with timeout 0. Many locks are held on
// one connection; what many goroutines ask at once travels in one statement. The
// server would grant a lock twice to one connection, and so the backend keeps a
// table of what it holds.
//
//	NAME                     exclusive
//	distlock/r000/HASH, …    one for each process that has NAME in shared mode
//	distlock/reading/0, …    one for each connection that holds anything shared
//	distlock/p0/HASH, …      one for each permit of a semaphore
//	distlock/wait/HASH       of the first who waits for a permit
//	distlock/session/ID      of each connection, to tell that it lives
//
// No resource has one of these names for NAME; see [LockName].
//
// A reader takes a place among the readers and then looks whether the lock itself
// is free; who wants that takes it first and then looks for readers. A writer that
// waits for readers has the lock already, so that new readers don't get in. When a
// reader's connection dies, its place is free at once. Upgradeable locks are not
// supported.
//
// # Waiting
//
// A wait takes a connection of its own, which holds nothing else, and stands in
// the server's queue until it is granted; MySQL counts the timeout of GET_LOCK in
// seconds, so that the exact end comes by MAX_EXECUTION_TIME, and on MariaDB by
// its fraction. It is canceled with KILL QUERY from another connection; what was
// granted at the last moment is given back. With all of [Options.MaxWaiting]
// connections waiting, further waiters ask together, in common statements, every
// 20 ms to a second, and move up when a connection becomes free. So do all
// waiters where the pool has too few connections. The first who waits for a permit,
// or for readers to leave, asks every 2 to 50 ms.
//
// The server finds no deadlocks between these waits, as they hold nothing: use
// timeouts, or AcquireAll.
//
// # Loss
//
// A lock lives as long as its connection. Every [Options.Heartbeat] (5 s) each
// connection that holds locks must answer; one that doesn't, or breaks, is
// closed, and everything on it reported lost, at the latest two heartbeats after
// its last answer. Should the server not notice that a client is gone, it frees
// the locks after three heartbeats, by the session's wait_timeout. A process that
// was stopped for longer sees the loss when it wakes.
//
// # Tokens
//
// With [Options.FenceTable], a row for each resource counts. It is incremented
// after the grant, on the connection that holds the lock, in a transaction of its
// own, or in one with those of other resources that are granted at the same moment:
// as durable as innodb_flush_log_at_trx_commit makes it. Numbers start at
// the clock (microseconds since 1970) and never fall behind it, so that a table
// that was lost or restored doesn't repeat any. Without the table there are no
// tokens. [FenceTableDDL] returns the statement that makes it; needed are INSERT,
// UPDATE and SELECT on it.
//
// # Limits
//
// Locks of GET_LOCK are those of the whole server and not of a database; see
// [Options.Prefix]. They aren't replicated, and after a fail-over the new primary
// knows none of them: holders lose theirs with their connections.
//
// .NET knows exclusive locks only: it gets no lock that a Go process has, but
// doesn't see Go's readers. At most [Options.Readers] processes have a resource
// in shared mode at once, and 16 of one server, or as many if that is more,
// anything at all.
// While anybody reads something, exclusive locks take longer.
//
// A reader that has waited has the lock itself for a moment, on the way to its
// place. A single try of another reader that meets it looks again for 10 ms; where
// the server is far or slow it may be refused although nobody writes.
//
// A connection that has served for locks is closed when it is not needed any
// more, and never goes back to the pool. Of a pool with a limit the backend takes
// half at most; of a pool of one it takes the one, and the application gets none
// as long as a lock is held.
package mysqllock
