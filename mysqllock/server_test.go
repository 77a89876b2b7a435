//go:build unix

package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/drivertest"
)

const childURL = "DISTLOCK_TEST_CHILD_URL"

func TestMain(m *testing.M) {
	// The driver tells stderr of each connection that it loses, which is what many
	// of these tests are about.
	mysql.SetLogger(&mysql.NopLogger{})
	if u := os.Getenv(childURL); u != "" {
		drivertest.Main(m, func() (driver.Backend, error) { return Open(context.Background(), u) })
	}
	if u := os.Getenv(passURL); u != "" {
		if err := passOn(u); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	for _, s := range servers {
		s.stop(syscall.SIGKILL)
		if s.admin != nil {
			s.admin.Close()
		}
		if s.dir != "" {
			os.RemoveAll(s.dir)
		}
	}
	if code == 0 {
		if left := leftGoroutines(); left != "" {
			fmt.Fprintf(os.Stderr, "goroutines are left after the tests:\n\n%s\n", left)
			code = 1
		}
	}
	os.Exit(code)
}

// leftGoroutines returns the stacks of those of this package and of what it
// uses.
func leftGoroutines() string {
	var left []string
	room := make([]byte, 4<<20)
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		stacks := room[:runtime.Stack(room, true)]
		left = left[:0]
		for i, stack := range strings.Split(string(stacks), "\n\n") {
			if i > 0 && (strings.Contains(stack, "distlock/") || strings.Contains(stack, "go-sql-driver")) {
				left = append(left, stack)
			}
		}
		if len(left) == 0 {
			return ""
		}
	}
	return strings.Join(left, "\n\n")
}

// A testServer is a real server, started when it is needed first.
type testServer struct {
	name  string
	setUp func(s *testServer) error

	once    sync.Once
	skipped error
	alone   sync.Mutex // held by tests that change the server for all

	dir      string // empty: not ours
	addr     string
	user     string
	password string
	database string
	command  []string
	cmd      *exec.Cmd
	done     chan struct{} // closed when cmd has ended
	admin    *sql.DB
}

var servers = []*testServer{
	{name: "mariadb", setUp: setUpMariaDB},
	{name: "mysql9", setUp: setUpMySQL9},
}

func init() {
	if raw := os.Getenv("DISTLOCK_TEST_MYSQL_URL"); raw != "" {
		servers = []*testServer{{name: "existing", setUp: func(s *testServer) error {
			u, err := url.Parse(raw)
			if err != nil {
				return errors.New("DISTLOCK_TEST_MYSQL_URL can't be parsed")
			}
			cfg, _, err := parseURL(u)
			if err != nil {
				return err
			}
			s.addr, s.user, s.password, s.database = cfg.Addr, cfg.User, cfg.Passwd, cfg.DBName
			s.admin, err = sql.Open("mysql", s.dsn(s.addr))
			if err != nil {
				return err
			}
			return s.admin.Ping()
		}}}
	}
}

// onServers runs a test against each of the servers, at the same time.
func onServers(t *testing.T, run func(t *testing.T, s *testServer)) {
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.need(t)
			run(t, s)
		})
	}
}

// need starts the server if it isn't running. What can't be had is skipped, but
// MariaDB in CI.
func (s *testServer) need(t testing.TB) {
	t.Helper()
	s.once.Do(func() { s.skipped = s.setUp(s) })
	if s.skipped == nil {
		return
	}
	if os.Getenv("CI") == "true" && s.name != "mysql9" {
		t.Fatalf("%s: %v", s.name, s.skipped)
	}
	fmt.Fprintf(os.Stderr, "NOT TESTED with %s: %v\n", s.name, s.skipped)
	t.Skipf("no %s: %v", s.name, s.skipped)
}

func (s *testServer) dsn(addr string) string {
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.DBName, cfg.Net, cfg.Addr = s.user, s.password, s.database, "tcp", addr
	return cfg.FormatDSN()
}

// dsnOf returns what the driver takes for the URL.
func dsnOf(rawURL string) (string, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return "", err
	}
	cfg, _, err := parseURL(u)
	if err != nil {
		return "", err
	}
	return cfg.FormatDSN(), nil
}

func (s *testServer) url(addr, parameters string) string {
	u := url.URL{
		Scheme: "mysql", User: url.UserPassword(s.user, s.password), Host: addr, Path: "/" + s.database, RawQuery: parameters,
	}
	return u.String()
}

// pool returns a *sql.DB of its own on the server.
func (s *testServer) pool(t testing.TB, addr string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", s.dsn(addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
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

// connections counts those of the lock user.
func (s *testServer) connections(t testing.TB) int {
	t.Helper()
	return s.number(t, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = ?", s.user)
}

func run(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("%s: %w: %s", name, err, lines[max(0, len(lines)-3):])
	}
	return nil
}

// prepare makes the private directory and picks a port: an even one or an odd one,
// and none that the system gives away by itself, or somebody could have it while
// the server is made ready, or restarted.
func (s *testServer) prepare() (err error) {
	if s.dir, err = os.MkdirTemp("", "distlock-"+s.name+"-"); err != nil {
		return err
	}
	if err = os.Mkdir(s.tmp(), 0o700); err != nil {
		return err
	}
	for range 100 {
		port := 12000 + 2*rand.IntN(9000)
		if s.name == "mysql9" {
			port++
		}
		s.addr = fmt.Sprintf("127.0.0.1:%d", port)
		var l net.Listener
		if l, err = net.Listen("tcp", s.addr); err == nil {
			return errors.Join(l.Close(), makeCertificates(s.dir))
		}
	}
	return err
}

// tmp is for temporary tables: a server that starts removes those of others.
func (s *testServer) tmp() string { return filepath.Join(s.dir, "tmp") }

func (s *testServer) log() string { return filepath.Join(s.dir, "log.err") }

// flags are those that both servers are started with.
func (s *testServer) flags() []string {
	_, port, _ := net.SplitHostPort(s.addr)
	return []string{
		"--datadir=" + filepath.Join(s.dir, "data"), "--tmpdir=" + s.tmp(), "--user=" + userName(), "--socket=" + filepath.Join(s.dir, "s"),
		"--port=" + port, "--bind-address=127.0.0.1", "--pid-file=" + filepath.Join(s.dir, "pid"),
		"--max-connections=2000", "--innodb-buffer-pool-size=32M", "--skip-log-bin", "--log-error=" + s.log(),
		"--innodb-flush-log-at-trx-commit=2", "--skip-innodb-doublewrite", // they needn't survive a power cut
		"--init-file=" + filepath.Join(s.dir, "init.sql"), "--wait-timeout=60", "--connect-timeout=60",
		"--ssl-ca=" + filepath.Join(s.dir, caFile), "--ssl-cert=" + filepath.Join(s.dir, serverFile), "--ssl-key=" + filepath.Join(s.dir, serverFile),
	}
}

func userName() string {
	if os.Getuid() == 0 {
		return "root"
	}
	return os.Getenv("USER")
}

// start starts the server and waits until it answers.
func (s *testServer) start() error {
	s.cmd = exec.Command(s.command[0], s.command[1:]...)
	s.cmd.SysProcAttr = dieWithUs()
	// The thread that starts it must not end before it, or the signal comes early.
	started := make(chan error)
	s.done = make(chan struct{})
	done := s.done
	go func() {
		pprof.SetGoroutineLabels(context.Background()) // it is no case of the suite
		runtime.LockOSThread()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			s.cmd.Wait()
		}
		close(done)
	}()
	if err := <-started; err != nil {
		return err
	}
	deadline := time.Now().Add(2 * time.Minute)
	for {
		err := s.admin.Ping()
		if err == nil {
			return nil
		}
		select {
		case <-done:
			log, _ := os.ReadFile(s.log())
			return fmt.Errorf("the server ended: %s", log[max(0, len(log)-1000):])
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

func (s *testServer) stop(sig syscall.Signal) {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	s.cmd.Process.Signal(sig)
	select {
	case <-s.done:
	case <-time.After(time.Minute):
		s.cmd.Process.Kill()
		<-s.done
	}
}

// restart stops the server with the signal and starts it again.
func (s *testServer) restart(t testing.TB, sig syscall.Signal) {
	t.Helper()
	s.stop(sig)
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
}

// firstStart lets the accounts be made, and starts the server.
func (s *testServer) firstStart() error {
	s.user, s.password, s.database = "locker", "pass word/%-secret", "app"
	init := `CREATE DATABASE IF NOT EXISTS app;
CREATE USER IF NOT EXISTS root@'127.0.0.1';
GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;
CREATE USER IF NOT EXISTS locker@'127.0.0.1' IDENTIFIED BY '` + s.password + `';
GRANT ALL ON app.* TO locker@'127.0.0.1';
`
	if err := os.WriteFile(filepath.Join(s.dir, "init.sql"), []byte(init), 0o644); err != nil {
		return err
	}
	var err error
	s.admin, err = sql.Open("mysql", "root@tcp("+s.addr+")/mysql")
	if err != nil {
		return err
	}
	s.admin.SetMaxIdleConns(1)
	return s.start()
}

func setUpMariaDB(s *testServer) error {
	server := lookUp("mariadbd")
	if server == "" {
		if err := install("mariadb-server-core"); err != nil {
			return err
		}
		if server = lookUp("mariadbd"); server == "" {
			return errors.New("no mariadbd, though it was installed")
		}
	}
	if err := s.prepare(); err != nil {
		return err
	}
	data := filepath.Join(s.dir, "data")
	var err error
	for range 3 { // it has been seen to fail on a busy machine
		if err = os.RemoveAll(data); err != nil {
			return err
		}
		err = run(s.dir, lookUp("mariadb-install-db"), "--no-defaults", "--datadir="+data,
			"--auth-root-authentication-method=normal", "--skip-test-db", "--user="+userName(), "--tmpdir="+s.tmp())
		if err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	s.command = append([]string{server, "--no-defaults"}, s.flags()...)
	return s.firstStart()
}

func lookUp(program string) string {
	if path, err := exec.LookPath(program); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/opt/homebrew/bin"} {
		if path := filepath.Join(dir, program); run("", path, "--version") == nil {
			return path
		}
	}
	return ""
}

// install installs a Debian package, if this is Debian and root.
func install(pkg string) error {
	if _, err := exec.LookPath("apt-get"); err != nil || os.Getuid() != 0 {
		return fmt.Errorf("it isn't installed, and only root on Debian can install it by itself: install %s, or set DISTLOCK_TEST_MYSQL_URL", pkg)
	}
	fmt.Fprintln(os.Stderr, "installing", pkg)
	os.Setenv("DEBIAN_FRONTEND", "noninteractive")
	if err := run("", "apt-get", "update", "-qq"); err != nil {
		return err
	}
	return run("", "apt-get", "install", "-qq", "-y", "--no-install-recommends", pkg)
}

// mysql9Packages are MySQL's server and what it is linked with, in Debian's
// unstable suite.
var mysql9Packages = []string{"mysql-server-core", "libc6", "libgcc-s1", "libstdc++6", "zlib1g"}

// setUpMySQL9 runs the MySQL of Debian's unstable suite, unpacked into a folder
// of this repository, with the C library that belongs to it.
func setUpMySQL9(s *testServer) error {
	if runtime.GOOS != "linux" {
		return errors.New("it is run on Linux only")
	}
	tools, err := filepath.Abs("../.tools/mysql9")
	if err != nil {
		return err
	}
	root := filepath.Join(tools, "root")
	if _, err := os.Stat(filepath.Join(root, "usr/sbin/mysqld")); err != nil {
		if err := unpackMySQL9(tools); err != nil {
			return err
		}
	}
	loaders, _ := filepath.Glob(filepath.Join(root, "usr/lib*/ld-linux*"))
	libraries, _ := filepath.Glob(filepath.Join(root, "usr/lib/*-linux-gnu"))
	if len(loaders) == 0 || len(libraries) == 0 {
		return fmt.Errorf("%s: no C library was unpacked: remove it", root)
	}
	if err := s.prepare(); err != nil {
		return err
	}
	s.command = append([]string{
		loaders[0], "--library-path", libraries[0], filepath.Join(root, "usr/sbin/mysqld"),
		"--no-defaults", "--basedir=" + filepath.Join(root, "usr"), "--lc-messages-dir=" + filepath.Join(root, "usr/share/mysql"),
		"--secure-file-priv=", "--mysqlx=OFF",
	}, s.flags()...)
	initialize := append(append([]string{}, s.command[1:]...), "--initialize-insecure")
	for i, arg := range initialize {
		if strings.HasPrefix(arg, "--init-file=") {
			initialize[i] = "--max-connections=2000"
		}
	}
	if err := run(s.dir, s.command[0], initialize...); err != nil {
		return err
	}
	return s.firstStart()
}

// unpackMySQL9 downloads and unpacks the packages. Nothing of the system is
// changed: apt has its lists and its cache in dir.
func unpackMySQL9(dir string) error {
	for _, program := range []string{"apt-get", "apt-cache", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			return errors.New("it is got with Debian's tools only")
		}
	}
	fmt.Fprintln(os.Stderr, "downloading MySQL 9 into", dir)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for _, d := range []string{"state/lists/partial", "cache/archives/partial", "etc", "deb", "unpacking"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	mirror, err := debianMirror()
	if err != nil {
		return err
	}
	conf := filepath.Join(dir, "apt.conf")
	for name, text := range map[string]string{
		conf: fmt.Sprintf(`Dir::State "%[1]s/state";
Dir::State::status "%[1]s/state/status";
Dir::Cache "%[1]s/cache";
Dir::Etc::SourceList "%[1]s/etc/sources.list";
Dir::Etc::SourceParts "%[1]s/etc/none";
APT::Sandbox::User "";
Acquire::Languages "none";
`, dir),
		filepath.Join(dir, "state/status"):     "",
		filepath.Join(dir, "etc/sources.list"): "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] " + mirror + " unstable main\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	deb := filepath.Join(dir, "deb")
	apt := func(program string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Dir = deb
		cmd.Env = append(os.Environ(), "APT_CONFIG="+conf, "LC_ALL=C")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("%s %s: %w: %.300s", program, args[0], err, out)
		}
		return string(out), nil
	}
	if _, err := apt("apt-get", "update", "-qq"); err != nil {
		return err
	}
	depends, err := apt("apt-cache", "depends", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances", "mysql-server-core")
	if err != nil {
		return err
	}
	packages := append([]string{"download", "-qq"}, mysql9Packages...)
	for line := range strings.Lines(depends) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok && strings.HasPrefix(name, "lib") {
			packages = append(packages, name)
		}
	}
	if _, err := apt("apt-get", packages...); err != nil {
		return err
	}
	debs, _ := filepath.Glob(filepath.Join(deb, "*.deb"))
	for _, d := range debs {
		if err := run(dir, "dpkg-deb", "-x", d, filepath.Join(dir, "unpacking")); err != nil {
			return err
		}
	}
	for _, d := range []string{"state", "cache", "deb"} {
		os.RemoveAll(filepath.Join(dir, d))
	}
	return os.Rename(filepath.Join(dir, "unpacking"), filepath.Join(dir, "root"))
}

// debianMirror returns where this machine gets Debian's main packages from.
func debianMirror() (string, error) {
	out, err := exec.Command("apt-get", "indextargets", "--format", "$(REPO_URI)").Output()
	if err != nil {
		return "", err
	}
	for uri := range strings.FieldsSeq(string(out)) {
		if strings.HasSuffix(strings.TrimSuffix(uri, "/"), "/debian") {
			return uri, nil
		}
	}
	return "", errors.New("apt-get knows no mirror of Debian")
}
