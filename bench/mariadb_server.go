//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
)

// mariaDBServer is one that this run has started, in a directory of its own.
type mariaDBServer struct {
	dir, program string
	place        place
	flags        []string
	cmd          *exec.Cmd
	ended        chan struct{} // closed when cmd has
	admin        *sql.DB       // one connection
	about        string        // its version and what else counts
}

func startMariaDB(ctx context.Context) (store, error) {
	program, err := lookUp("mariadbd")
	if err != nil {
		return nil, err
	}
	install, err := lookUp("mariadb-install-db")
	if err != nil {
		return nil, err
	}
	account, err := user.Current()
	if err != nil {
		return nil, err
	}
	if err := mysql.SetLogger(&mysql.NopLogger{}); err != nil { // restarts are no news
		return nil, err
	}
	dir, err := os.MkdirTemp("", "distlock-bench-mariadb-")
	if err != nil {
		return nil, err
	}
	s := &mariaDBServer{dir: dir, program: program, place: place{User: "locker", Secret: rand.Text(), Name: "app"}}
	if s.place.Address, err = freeAddress(ctx); err != nil {
		s.close()
		return nil, err
	}
	_, port, _ := net.SplitHostPort(s.place.Address)
	data := filepath.Join(dir, "data")
	s.flags = []string{
		"--no-defaults", "--datadir=" + data, "--user=" + account.Username, "--socket=" + filepath.Join(dir, "socket"),
		"--port=" + port, "--bind-address=127.0.0.1", "--pid-file=" + filepath.Join(dir, "pid"), "--log-error=" + filepath.Join(dir, "log"),
		"--init-file=" + filepath.Join(dir, "init.sql"), "--max-connections=6000", "--skip-log-bin",
		"--innodb-buffer-pool-size=32M", "--tmpdir=" + dir, // a server that starts removes the temporary tables of others
	}
	init := "CREATE DATABASE IF NOT EXISTS app;\n" +
		"CREATE USER IF NOT EXISTS root@'127.0.0.1';\nGRANT ALL ON *.* TO root@'127.0.0.1';\n" +
		"CREATE USER IF NOT EXISTS locker@'127.0.0.1' IDENTIFIED BY '" + s.place.Secret + "';\nGRANT ALL ON app.* TO locker@'127.0.0.1';\n"
	err = os.WriteFile(filepath.Join(dir, "init.sql"), []byte(init), 0o600)
	if err == nil {
		err = makeData(ctx, install, dir, data, account.Username)
	}
	if err == nil {
		s.admin, err = sql.Open("mysql", "root@tcp("+s.place.Address+")/mysql")
	}
	if err == nil {
		s.admin.SetMaxOpenConns(1)
		err = s.run(ctx)
	}
	if err == nil {
		err = s.describe(ctx)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// makeData makes the server's folder. It tries again, as it has been seen to
// fail on a busy machine.
func makeData(ctx context.Context, install, dir, data, account string) error {
	var err error
	for range 3 {
		if err = os.RemoveAll(data); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, install, "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db", "--user="+account)
		cmd.Dir = dir
		var out []byte
		if out, err = cmd.CombinedOutput(); err == nil {
			return nil
		}
		err = fmt.Errorf("mariadb-install-db: %w: %s", err, out[max(0, len(out)-1000):])
	}
	return err
}

func lookUp(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		path, err = exec.LookPath(filepath.Join("/usr/sbin", program)) // not in everybody's path
	}
	if err != nil {
		return "", fmt.Errorf("%s isn't installed; make servers installs it", program)
	}
	return path, nil
}

// freeAddress returns a port of this host that was free just now, and that the
// system gives to nobody who doesn't ask for it.
func freeAddress(ctx context.Context) (address string, err error) {
	for range 100 {
		address = fmt.Sprintf("127.0.0.1:%d", 10_000+mathrand.IntN(2000))
		var c net.ListenConfig
		var l net.Listener
		if l, err = c.Listen(ctx, "tcp", address); err == nil {
			return address, l.Close()
		}
	}
	return "", err
}

// run starts the server and waits until it answers.
func (s *mariaDBServer) run(ctx context.Context) error {
	s.cmd = exec.CommandContext(ctx, s.program, s.flags...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	cmd, ended := s.cmd, make(chan struct{})
	s.ended = ended
	go func() {
		_ = cmd.Wait() // its log says why it ended
		close(ended)
	}()
	for deadline := time.Now().Add(time.Minute); ; {
		err := s.admin.PingContext(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			return fmt.Errorf("mariadbd ended: %s", log[max(0, len(log)-1000):])
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("mariadbd doesn't answer: %w", err)
		}
	}
}

func (s *mariaDBServer) stop() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.ended:
	case <-time.After(20 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
}

// prepare waits until the connections of the run before are gone. For hold the
// server starts anew, as it doesn't give back all the memory that it had.
func (s *mariaDBServer) prepare(ctx context.Context, test string) (place, error) {
	if test == "hold" {
		s.stop()
		if err := s.run(ctx); err != nil {
			return place{}, err
		}
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var n int
		if err := s.admin.QueryRowContext(ctx, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = ?", s.place.User).Scan(&n); err != nil {
			return place{}, err
		}
		if n == 0 {
			break
		}
		if time.Now().After(deadline) {
			return place{}, fmt.Errorf("%d connections of the run before are still there", n)
		}
	}
	// Since 11.5 the counters of the whole server are reset by a statement of
	// their own. https://mariadb.com/docs/server/reference/sql-statements/administrative-sql-statements/flush-commands/flush
	_, err := s.admin.ExecContext(ctx, "FLUSH GLOBAL STATUS")
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok && e.Number == 1064 {
		_, err = s.admin.ExecContext(ctx, "FLUSH STATUS")
	}
	return s.place, err
}

func (s *mariaDBServer) observe(ctx context.Context) (observation, error) {
	var key string
	var most int
	if err := s.admin.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Max_used_connections'").Scan(&key, &most); err != nil {
		return nothing, err
	}
	memory, err := resident(s.cmd.Process.Pid)
	return observation{connections: most - 1, memory: memory}, err // less our own
}

// describe notes what the server's figures hang on: a token is a commit, and that
// takes as long as a flush of the disk.
func (s *mariaDBServer) describe(ctx context.Context) error {
	var version string
	var flushed int
	if err := s.admin.QueryRowContext(ctx, "SELECT VERSION(), @@innodb_flush_log_at_trx_commit").Scan(&version, &flushed); err != nil {
		return err
	}
	took, err := flushTime(s.dir)
	s.about = fmt.Sprintf("MariaDB %s, innodb_flush_log_at_trx_commit=%d; its data are on %s, where a flush takes %s",
		strings.TrimSuffix(version, "-log"), flushed, fileSystem(s.dir), format(nanoseconds, took))
	return err
}

func (s *mariaDBServer) version() string { return s.about }

func (s *mariaDBServer) close() {
	s.stop()
	if s.admin != nil {
		s.admin.Close()
	}
	os.RemoveAll(s.dir)
}
