package mssqllock

import (
	"bufio"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/microsoft/go-mssqldb"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/drivertest"
	"github.com/distlock-go/distlock/internal/dbsession"
	"github.com/distlock-go/distlock/mssqllock/internal/tdstest"
)

const (
	childURL  = "DISTLOCK_TEST_CHILD_URL"
	serverURL = "DISTLOCK_TEST_SQLSERVER_URL"
	serveTDS  = "DISTLOCK_TEST_SERVE"

	adminProgram = "distlock-test-admin"

	// patience is how long tests wait for what comes at once on a machine that isn't
	// busy, and the heartbeat where that isn't the subject: a machine that stalls
	// isn't to be taken for a server that is dead.
	patience = time.Minute
)

func TestMain(m *testing.M) {
	if u := os.Getenv(childURL); u != "" {
		drivertest.Main(m, func() (driver.Backend, error) { return Open(context.Background(), u) })
	}
	if os.Getenv(serveTDS) != "" {
		serve()
	}
	code := m.Run()
	stopServers()
	if code == 0 {
		if left := leftGoroutines(); left != "" {
			fmt.Fprintf(os.Stderr, "goroutines are left after the tests:\n\n%s\n", left)
			code = 1
		}
	}
	os.Exit(code)
}

// serve is the test server as a process of its own: it prints its URL and runs
// until nobody holds the other end of its standard input.
func serve() {
	s, err := tdstest.New(tdstest.Config{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(s.URL(nil))
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.Close()
	os.Exit(0)
}

// otherServer returns the URL of a test server in another process.
func otherServer(t testing.TB) string {
	t.Helper()
	server := exec.Command(os.Args[0])
	server.Env = append(os.Environ(), serveTDS+"=1")
	server.Stderr = os.Stderr
	in, err := server.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := server.Wait(); err != nil {
			t.Error(err)
		}
	})
	u, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(u)
}

// The tests run against a server that isn't theirs, kills included; here against
// another process, and of the conformance suite, which takes long, only a part.
func TestAgainstOtherServer(t *testing.T) {
	t.Parallel()
	if os.Getenv(serverURL) != "" {
		t.Skip("they do already")
	}
	const some = "^Test([^D]|Deadlock)|^TestDriver$/^url$/^(P09|P07_S07|P23_readers)"
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	tests := exec.CommandContext(ctx, os.Args[0], "-test.v", "-test.run", some)
	tests.Env = append(os.Environ(), serverURL+"="+otherServer(t))
	out, err := tests.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, one := range []string{"TestKilledHolder", "TestInTxBounds", "TestHoldersCase", "TestDeadlock", "TestDriver/url/P23_readers_share_over_backends"} {
		if !strings.Contains(string(out), "--- PASS: "+one+" ") {
			t.Errorf("%s did not run:\n%s", one, out)
		}
	}
}

// leftGoroutines returns the stacks of those of this package and of what it
// uses.
func leftGoroutines() string {
	var left []string
	room := make([]byte, 4<<20)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		stacks := room[:runtime.Stack(room, true)]
		left = left[:0]
		for i, stack := range strings.Split(string(stacks), "\n\n") {
			if i > 0 && (strings.Contains(stack, "distlock/") || strings.Contains(stack, "go-mssqldb")) {
				left = append(left, stack)
			}
		}
		if len(left) == 0 {
			return ""
		}
	}
	return strings.Join(left, "\n\n")
}

// A testServer is the test server of this repository, or a real SQL Server.
type testServer struct {
	tds  *tdstest.Server // nil: a real one
	base *url.URL
	// The account of the tests, if it isn't that of base.
	user, password string
	admin          *sql.DB
	log            *statementLog
}

// A statementLog is what a test server was asked, but by the tests themselves.
type statementLog struct {
	mu  sync.Mutex
	all []string
}

func (l *statementLog) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}

func (l *statementLog) since(n int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all[n:])
}

func ownServerWithLog(t testing.TB) *testServer {
	t.Helper()
	s := ownServer(t, tdstest.Config{})
	s.log = &statementLog{}
	s.tds.OnStatement(func(_ int, sql string) {
		s.log.mu.Lock()
		defer s.log.mu.Unlock()
		s.log.all = append(s.log.all, sql)
	})
	return s
}

var (
	serversMu sync.Mutex
	shared    *testServer
	started   []*testServer
)

// theServer returns the server that most tests share.
func theServer(t testing.TB) *testServer {
	t.Helper()
	serversMu.Lock()
	defer serversMu.Unlock()
	if shared == nil {
		raw := os.Getenv(serverURL)
		if raw == "" {
			shared = startTDS(t, tdstest.Config{})
			return shared
		}
		u, err := url.Parse(raw)
		if err != nil || u.Scheme != "sqlserver" {
			t.Fatalf("%s can't be parsed", serverURL)
		}
		shared = &testServer{base: u, user: u.User.Username()}
		shared.password, _ = u.User.Password()
		shared.connectAdmin(t)
	}
	return shared
}

// ownServer returns a test server that the test may break. It stands for a real
// one that can't be broken, or made to be another.
func ownServer(t testing.TB, cfg tdstest.Config) *testServer {
	t.Helper()
	serversMu.Lock()
	defer serversMu.Unlock()
	return startTDS(t, cfg)
}

func startTDS(t testing.TB, cfg tdstest.Config) *testServer {
	t.Helper()
	s := &testServer{user: "locker", password: "pass word/%-secret"}
	limited := tdstest.User{Password: s.password, NoViewServerState: true, NoKill: true, NoSequences: true, NoOwnLocks: true}
	cfg.Users = map[string]tdstest.User{
		tdstest.DefaultUser: {Password: tdstest.DefaultPassword},
		s.user:              {Password: s.password},
		"limited":           limited,
		"outsider":          {Password: s.password, NoOwnLocks: true},
	}
	var err error
	if s.tds, err = tdstest.New(cfg); err != nil {
		t.Fatal(err)
	}
	started = append(started, s)
	if s.base, err = url.Parse(s.tds.URL(nil)); err != nil {
		t.Fatal(err)
	}
	s.connectAdmin(t)
	return s
}

func stopServers() {
	serversMu.Lock()
	defer serversMu.Unlock()
	for _, s := range started {
		s.admin.Close()
		s.tds.Close()
	}
	if shared != nil && shared.tds == nil {
		shared.admin.Close()
	}
}

func (s *testServer) connectAdmin(t testing.TB) {
	t.Helper()
	u := *s.base
	q := u.Query()
	q.Set("app name", adminProgram)
	u.RawQuery = q.Encode()
	var err error
	if s.admin, err = sql.Open("sqlserver", u.String()); err != nil {
		t.Fatal(err)
	}
	s.admin.SetMaxIdleConns(2)
	if err := s.admin.Ping(); err != nil {
		t.Fatal(err)
	}
}

// restart stops the test server and starts it again.
func (s *testServer) restart() error {
	done := make(chan error)
	go func() {
		pprof.SetGoroutineLabels(context.Background()) // it is no case of the suite
		done <- s.tds.Restart()
	}()
	// The connections of the pool are dead, and don't know it.
	s.admin.SetMaxIdleConns(-1)
	s.admin.SetMaxIdleConns(2)
	return <-done
}

func (s *testServer) addr() string { return s.base.Host }

// url returns the URL of the server by an address of it, with more parameters.
func (s *testServer) url(addr, parameters string) string {
	u := *s.base
	u.Host, u.User = addr, url.UserPassword(s.user, s.password)
	if parameters != "" {
		u.RawQuery += "&" + parameters
	}
	return u.String()
}

// pool returns a *sql.DB of its own on the server.
func (s *testServer) pool(t testing.TB, addr string) *sql.DB {
	t.Helper()
	// As Open says it, and who looks for holders.
	db, err := sql.Open("sqlserver", s.url(addr, "app+name="+url.QueryEscape(filepath.Base(os.Args[0]))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// locker returns a Locker on a new backend. What counts as dead is patient, if o
// doesn't say otherwise.
func (s *testServer) locker(t testing.TB, addr string, o *Options) (*distlock.Locker, *sql.DB) {
	t.Helper()
	var full Options
	if o != nil {
		full = *o
	}
	full.Heartbeat = cmp.Or(full.Heartbeat, patience)
	db := s.pool(t, addr)
	l := distlock.New(New(db, &full), nil)
	t.Cleanup(func() { l.Close() })
	return l, db
}

func (s *testServer) exec(t testing.TB, query string, args ...any) {
	t.Helper()
	if _, err := s.admin.Exec(query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func (s *testServer) number(t testing.TB, query string, args ...any) int {
	t.Helper()
	var n sql.NullInt64
	if err := s.admin.QueryRow(query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return int(n.Int64)
}

// connections counts those of the tests.
func (s *testServer) connections(t testing.TB) int {
	t.Helper()
	return s.number(t, "SELECT COUNT(*) FROM sys.dm_exec_sessions WHERE is_user_process = 1 AND program_name <> @p1", adminProgram)
}

// locks counts the locks of a name.
func (s *testServer) locks(t testing.TB, name string) int {
	t.Helper()
	return s.number(t, "SELECT COUNT(*) FROM sys.dm_tran_locks WHERE resource_type = 'APPLICATION' AND CHARINDEX(@p1, resource_description) = 1", shown(name))
}

const waitingFor = "FROM sys.dm_tran_locks WHERE resource_type = 'APPLICATION' AND request_status IN ('WAIT', 'CONVERT') AND CHARINDEX(@p1, resource_description) = 1"

// waiters counts the sessions that wait for the name at the server.
func (s *testServer) waiters(t testing.TB, name string) int {
	t.Helper()
	return s.number(t, "SELECT COUNT(*) "+waitingFor, shown(name))
}

// kill ends the session that the grant hangs on.
func (s *testServer) kill(t testing.TB, g driver.Grant) {
	t.Helper()
	s.exec(t, fmt.Sprintf("KILL %d", g.Session.(*dbsession.Session).Identity().ID))
}

func mustAcquire(t testing.TB, l *distlock.Locker, resource string, opts ...distlock.AcquireOption) *distlock.Lock {
	t.Helper()
	k, err := l.Acquire(t.Context(), resource, append([]distlock.AcquireOption{distlock.Timeout(20 * time.Second)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func mustRelease(t testing.TB, k *distlock.Lock) {
	t.Helper()
	if err := k.Release(); err != nil {
		t.Fatal(err)
	}
}

func mustBeHeld(t testing.TB, l *distlock.Locker, resource string, opts ...distlock.AcquireOption) {
	t.Helper()
	var k *distlock.Lock
	var err error
	eventually(t, "a single try is answered within its five seconds", func() bool {
		k, err = l.TryAcquire(t.Context(), resource, opts...)
		return err == nil || !strings.Contains(err.Error(), "did not answer in time")
	})
	if !errors.Is(err, distlock.ErrNotAcquired) {
		t.Errorf("%s: %v, %v", resource, k, err)
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
