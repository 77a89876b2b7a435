// Package tdstest is a server for tests that speaks TDS, the protocol of SQL
// Server, well enough for github.com/microsoft/go-mssqldb.
//
// This is not SQL Server: it implements what the documentation says of
// application locks, their functions and views, sequences, sessions and
// transactions, and of the Transact-SQL around them. It answers an unknown
// statement with an error. The pages of learn.microsoft.com are named at each
// rule; [MS-TDS] is the protocol's specification there.
package tdstest

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Config says what server it is. The zero value is SQL Server 2022 with the
// login sa, whose password is Pass-word1.
type Config struct {
	// Version is ProductVersion. Default 16.0.4135.4.
	Version string
	// EngineEdition is SERVERPROPERTY('EngineEdition'): default 3, Enterprise; 5 is
	// Azure SQL Database, 8 a Managed Instance.
	EngineEdition int
	// ReadOnly makes the databases read-only, as those of a secondary are.
	ReadOnly bool
	// ServerName is @@SERVERNAME. Default TDSTEST.
	ServerName string
	// Certificate is for TLS, which the server has only with one.
	Certificate *tls.Certificate
	// Users are the logins, by name. Each is a member of public and of dbo.
	Users map[string]User
}

// User is a login.
type User struct {
	Password          string
	NoViewServerState bool // may see only itself in the views
	NoKill            bool
	NoSequences       bool // may not create any
	NoOwnLocks        bool // may not lock for the principal that is its own user
}

// Default login.
const (
	DefaultUser     = "sa"
	DefaultPassword = "Pass-word1"
)

// Fault is what a hook makes of a request.
type Fault int

// The faults.
const (
	Continue   Fault = iota // nothing
	DropBefore              // close the connection, don't run the request
	DropAfter               // run the request, then close the connection in place of a reply
)

type version struct {
	text         string
	major, minor byte
	build        uint16
}

// Server is a running server.
type Server struct {
	cfg       Config
	version   version
	users     map[string]User
	locks     *lockManager
	sequences sequences
	batches   plans[block]
	decls     plans[[]column]
	nextTran  atomic.Uint64
	started   time.Time
	addr      string

	onStatement atomic.Pointer[func(spid int, sql string)]
	onRequest   atomic.Pointer[func(spid int, sql string) Fault]
	onReply     atomic.Pointer[func(spid int, sql string, canceled <-chan struct{})]
	onLock      atomic.Pointer[func(principal, name string)]
	onAttention atomic.Pointer[func(spid int)]

	mu       sync.Mutex
	listener net.Listener
	sessions map[int]*session // that are connected, also those not logged in yet
	loggedOn map[*session]bool
	running  sync.WaitGroup
}

// New starts a server on a free port of the loopback interface.
func New(cfg Config) (*Server, error) {
	if cfg.Version == "" {
		cfg.Version = "16.0.4135.4"
	}
	if cfg.EngineEdition == 0 {
		cfg.EngineEdition = 3
	}
	if cfg.ServerName == "" {
		cfg.ServerName = "TDSTEST"
	}
	if cfg.Users == nil {
		cfg.Users = map[string]User{DefaultUser: {Password: DefaultPassword}}
	}
	srv := &Server{
		cfg: cfg, users: cfg.Users, locks: newLockManager(), started: time.Now(),
		sequences: sequences{all: map[string]*sequence{}},
		sessions:  map[int]*session{}, loggedOn: map[*session]bool{},
	}
	srv.version.text = cfg.Version
	parts := strings.Split(cfg.Version, ".")
	if len(parts) < 3 {
		return nil, fmt.Errorf("tdstest: version %q is not of the form 16.0.4135.4", cfg.Version)
	}
	for i, bits := range []int{8, 8, 16} {
		n, err := strconv.ParseUint(parts[i], 10, bits)
		if err != nil {
			return nil, fmt.Errorf("tdstest: version %q is not of the form 16.0.4135.4", cfg.Version)
		}
		switch i {
		case 0:
			srv.version.major = byte(n)
		case 1:
			srv.version.minor = byte(n)
		case 2:
			srv.version.build = uint16(n)
		}
	}
	if err := srv.listen("127.0.0.1:0"); err != nil {
		return nil, err
	}
	return srv, nil
}

func (srv *Server) listen(addr string) error {
	l, err := net.Listen("tcp", addr) //nolint:noctx // it is not waited for
	if err != nil {
		return fmt.Errorf("tdstest: %w", err)
	}
	srv.mu.Lock()
	srv.listener, srv.addr = l, l.Addr().String()
	srv.mu.Unlock()
	srv.running.Go(func() { srv.accept(l) })
	return nil
}

func (srv *Server) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return // closed
		}
		s := &session{srv: srv, conn: conn, in: bufio.NewReaderSize(conn, 8192)}
		s.own = newOwner(s, false)
		s.resetOptions()
		srv.mu.Lock()
		if srv.listener != l { // closed meanwhile
			srv.mu.Unlock()
			s.close()
			return
		}
		s.spid = 51 // the first that is a user's
		for srv.sessions[s.spid] != nil {
			s.spid++ // "KILL": a number that has become free is given again
		}
		srv.sessions[s.spid] = s
		srv.mu.Unlock()
		s.w.p = packetWriter{w: conn, size: defaultPacketSize, spid: uint16(s.spid)}
		srv.running.Go(s.serve)
	}
}

func (srv *Server) loggedIn(s *session) {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	srv.loggedOn[s] = true
}

// ended is called when the session's goroutine ends.
func (srv *Server) ended(s *session) {
	srv.locks.end(s.own, true)
	srv.mu.Lock()
	defer srv.mu.Unlock()
	delete(srv.sessions, s.spid)
	delete(srv.loggedOn, s)
}

// Addr is the server's address, host and port.
func (srv *Server) Addr() string { return srv.addr }

// URL is a DSN for go-mssqldb, as the default user or the one that params
// names as "user" and "password". Other params are added to its query;
// "database" is "test" if it isn't given.
func (srv *Server) URL(params url.Values) string {
	q := url.Values{"database": {"test"}, "encrypt": {"disable"}}
	user, password := DefaultUser, DefaultPassword
	for k, v := range params {
		switch k {
		case "user":
			user = v[0]
		case "password":
			password = v[0]
		default:
			q[k] = v
		}
	}
	u := url.URL{Scheme: "sqlserver", User: url.UserPassword(user, password), Host: srv.addr, RawQuery: q.Encode()}
	return u.String()
}

// Sessions are the numbers of the sessions that are logged in, ascending.
func (srv *Server) Sessions() []int {
	var ids []int
	for _, s := range srv.list() {
		ids = append(ids, s.spid)
	}
	return ids
}

func (srv *Server) list() []*session {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	all := make([]*session, 0, len(srv.loggedOn))
	for s := range srv.loggedOn {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *session) int { return a.spid - b.spid })
	return all
}

// Kill ends a session as KILL does, and tells whether there was one. Its locks
// are free when Kill returns.
func (srv *Server) Kill(spid int) bool {
	for _, s := range srv.list() {
		if s.spid == spid {
			s.kill()
			return true
		}
	}
	return false
}

// KillAll ends all sessions.
func (srv *Server) KillAll() {
	srv.mu.Lock()
	all := make([]*session, 0, len(srv.sessions))
	for _, s := range srv.sessions {
		all = append(all, s)
	}
	srv.mu.Unlock()
	for _, s := range all {
		s.kill()
	}
}

// Locks is how many locks are held.
func (srv *Server) Locks() int {
	srv.locks.mu.Lock()
	defer srv.locks.mu.Unlock()
	n := 0
	for _, res := range srv.locks.resources {
		n += len(res.granted)
	}
	return n
}

// Waiters is how many sessions wait for a lock.
func (srv *Server) Waiters() int {
	srv.locks.mu.Lock()
	defer srv.locks.mu.Unlock()
	return len(srv.locks.waits)
}

// OnStatement has f called with every request before it runs: the text of a
// batch or of sp_executesql, EXEC and the name of another procedure, or BEGIN,
// COMMIT or ROLLBACK TRANSACTION. Each is one round trip. f is called by many
// goroutines; nil ends it.
func (srv *Server) OnStatement(f func(spid int, sql string)) { srv.onStatement.Store(&f) }

// OnRequest has f called as OnStatement does; f may wait, which delays the
// request, and says what becomes of it. nil ends it.
func (srv *Server) OnRequest(f func(spid int, sql string) Fault) { srv.onRequest.Store(&f) }

// OnReply has f called when a request has run, before the end of its reply is
// sent; f may wait. canceled is closed when the client has sent an attention
// meanwhile, or is gone: what was done stays done then. nil ends it.
func (srv *Server) OnReply(f func(spid int, sql string, canceled <-chan struct{})) {
	srv.onReply.Store(&f)
}

// OnLock has f called before each lock that sp_getapplock is asked for. nil ends
// it.
func (srv *Server) OnLock(f func(principal, name string)) { srv.onLock.Store(&f) }

// OnAttention has f called with every attention, by the goroutine that reads what
// the client sends. nil ends it.
func (srv *Server) OnAttention(f func(spid int)) { srv.onAttention.Store(&f) }

func (srv *Server) logged(spid int, sql string) {
	if f := srv.onStatement.Load(); f != nil && *f != nil {
		(*f)(spid, sql)
	}
}

func (srv *Server) faultHook() func(int, string) Fault {
	if f := srv.onRequest.Load(); f != nil {
		return *f
	}
	return nil
}

// Close ends all sessions and the server, and waits until it has ended.
func (srv *Server) Close() {
	srv.mu.Lock()
	l := srv.listener
	srv.listener = nil
	srv.mu.Unlock()
	if l != nil {
		_ = l.Close()
	}
	srv.KillAll()
	srv.running.Wait()
}

// Restart does what Close does and starts again at the same address. All locks
// are free then; sequences go on.
func (srv *Server) Restart() error {
	srv.Close()
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		// Somebody's connection may have been given the port meanwhile.
		err := srv.listen(srv.addr)
		if err == nil || time.Since(begun) > time.Minute {
			return err
		}
	}
}
