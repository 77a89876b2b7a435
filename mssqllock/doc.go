// Package mssqllock locks with sp_getapplock on SQL Server, Azure SQL Database
// and Azure SQL Managed Instance: thousands of locks over a handful of
// connections.
//
// Each rule below names the page of learn.microsoft.com/sql that it rests on.
//
//	import _ "github.com/distlock-go/distlock/mssqllock"
//
//	locks, err := distlock.Open(ctx, "sqlserver://user:password@host?database=db", nil)
//
// or, with a pool that the program has already,
//
//	locks := distlock.New(mssqllock.New(db, nil), nil)
//
// # Requirements
//
// SQL Server 2016 or later, Azure SQL Database, or a Managed Instance, known by
// their engine edition and version (see [serverproperty-transact-sql]). Azure Synapse
// Analytics and Fabric are refused, and databases that are read-only, as on a
// secondary replica (see [databasepropertyex-transact-sql]): locks taken there
// exclude nobody on the primary. No table and no permission is needed beyond
// connecting to the database: any member of public may lock (see
// [sp-getapplock-transact-sql]). Each connection that is opened is checked against
// one that is open already: both must lead to one database of one server.
//
// [New] takes connections from a pool of the caller's, [Open] opens its own,
// [InTx] locks inside a transaction of the caller's, and [OnConn] on a connection
// of his. Where the work is done in that very database, [InTx] is the safest: lock
// and data live and die together.
//
// The URL is go-mssqldb's, sqlserver://user:password@host:1433?database=app, or
// with /instance before the question mark, and with all of its parameters but
// "connection timeout", which would end waits. Besides there are the [Options]:
// prefix, max_sessions, max_waiting, heartbeat, idle_timeout, sequence,
// create_sequence. Without encrypt= the driver encrypts the login only, and verifies
// nobody; with encrypt=true or encrypt=strict it encrypts all, and verifies the
// server's certificate. With fedauth=… it logs in with Microsoft Entra ID, if the
// program imports package azuread beside this.
//
// # How it locks
//
// A lock is an application lock of the database and of the principal public,
// named as [LockName] tells, in mode Exclusive; a shared one in mode Shared, an
// upgradeable one in mode Update, which becomes Exclusive on the session that has
// it. The server has their compatibility (see [sp-getapplock-transact-sql]):
//
//	             shared  upgradeable  exclusive
//	shared       yes     yes          no
//	upgradeable  yes     no           no
//	exclusive    no      no           no
//
// The .NET library Medallion.Threading takes the same locks, so that services of
// both kinds exclude each other. Locks are owned by sessions: many on one
// connection, and what many goroutines ask at once travels in one batch. The
// server grants a session what it has already; so each batch looks for that first
// (see [applock-mode-transact-sql]), and no session ever has a lock in two modes.
//
//	NAME                  exclusive, shared or upgradeable
//	distlock/p0/HASH, …   one for each permit of a semaphore
//	distlock/wait/HASH    of the first who waits for a permit
//	distlock/session/ID   of each connection, to tell that it lives
//	distlock/name/HASH    of a resource whose name could be one of these, or another's
//
// # Waiting
//
// A wait takes a connection of its own, which holds nothing else, and stands in
// the server's queue, first come first served, with @LockTimeout in milliseconds,
// rounded up (see [sp-getapplock-transact-sql]). It is canceled by an attention, which
// keeps the connection; what was granted at the last moment is given back. No
// other statement waits, or is canceled. With all of [Options.MaxWaiting]
// connections waiting, further waiters ask together, in common batches, every
// 20 ms to a second, and move up when a connection becomes free. So do all
// waiters where the pool has too few connections.
//
// A writer that waits isn't passed by new readers, those of processes that read
// already included. An upgrade that waits for readers to leave asks every 2 to
// 50 ms, as its session holds other locks too, while a connection of its own
// stands in the queue for it and keeps new readers out.
//
// Those who wait for a permit of a semaphore, one of each process, stand in the
// server's queue for a lock (distlock/wait/HASH). Who has that waits for a permit,
// on a connection of its own, with one statement. As the server has no queue for any of
// several locks, the statement tries all permits, and waits for one of them, for 2
// to 20 ms, or a quarter of a millisecond for each permit if that is longer; and so
// on with the next one (see [datediff-big-transact-sql] for the end). Without a
// connection to wait on it is asked every 2 to 50 ms instead.
//
// Return codes of sp_getapplock: 0 and 1 are grants, -1 is held by another, -2
// a canceled request, -3 a deadlock and [driver.ErrDeadlock], as is error 1205;
// -999 is an error. The server finds no deadlocks between waits of [New] and
// [Open], as they hold nothing: use timeouts, or AcquireAll. It does among [InTx].
//
// # Loss
//
// A lock lives as long as its session. Every [Options.Heartbeat] (5 s) each
// connection that holds locks must answer, which also keeps Azure's gateway from
// cutting it off after 30 idle minutes
// (see the pages on connectivity issues and connection resiliency). One that
// doesn't, or breaks, is closed, and everything on it reported lost, at the latest
// two heartbeats after its last answer. The server frees the locks of a
// connection that is closed, or reset, at once. Of a client whose host vanished it
// learns by TCP's keep-alive, after some 30 seconds unless it is set otherwise;
// before, if the process still runs and may KILL (ALTER ANY CONNECTION, in Azure
// KILL DATABASE CONNECTION; see [kill-transact-sql]). The driver's retries, which
// would send a statement on another connection, never apply.
//
// # Tokens
//
// With [Options.Sequence], tokens are NEXT VALUE FOR a sequence, asked on the
// session that holds the lock: they rise over all resources (see
// [next-value-for-transact-sql]). Numbers that a server has cached and lost leave
// gaps only, so NO CACHE isn't needed (see [create-sequence-transact-sql]). A
// sequence that falls back, because the database was restored, or failed over to a
// replica that lagged behind, must be set forward by hand (ALTER SEQUENCE … RESTART
// WITH). Without a sequence there are no tokens. [SequenceDDL] returns the statement
// that makes it; needed is UPDATE on it.
//
// # Limits
//
// Locks belong to a database, and exclude nobody in another of the same server.
// They aren't replicated: after a fail-over the new primary knows none of them,
// and holders lose theirs with their connections.
//
// Names are compared as binary, and longer ones than 255 UTF-16 units are cut off
// by the server, so [LockName] hashes those. Connections of the caller's whose DSN
// has "connection timeout" break when a wait takes longer than that. A connection
// of the caller's pool to which the server never answers while it is opened keeps
// its goroutine until TCP gives up; [Open] has no such limit.
//
// A connection that has served for locks is closed when it is not needed any
// more, and never goes back to the pool, where it would keep them until its next
// use. Of a pool with a limit the backend takes half at most; of a pool of one it
// takes the one, and the application gets none as long as a lock is held. With one
// connection, or with all waiting, a process that has a resource upgradeable can't
// have it shared too.
//
// [serverproperty-transact-sql]: https://learn.microsoft.com/sql/t-sql/functions/serverproperty-transact-sql
// [databasepropertyex-transact-sql]: https://learn.microsoft.com/sql/t-sql/functions/databasepropertyex-transact-sql
// [sp-getapplock-transact-sql]: https://learn.microsoft.com/sql/relational-databases/system-stored-procedures/sp-getapplock-transact-sql
// [applock-mode-transact-sql]: https://learn.microsoft.com/sql/t-sql/functions/applock-mode-transact-sql
// [kill-transact-sql]: https://learn.microsoft.com/sql/t-sql/language-elements/kill-transact-sql
// [next-value-for-transact-sql]: https://learn.microsoft.com/sql/t-sql/functions/next-value-for-transact-sql
// [datediff-big-transact-sql]: https://learn.microsoft.com/sql/t-sql/functions/datediff-big-transact-sql
// [create-sequence-transact-sql]: https://learn.microsoft.com/sql/t-sql/statements/create-sequence-transact-sql
package mssqllock
