package mysqllock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/dbsession"
	"github.com/distlock-go/distlock/internal/program"
)

func init() {
	open := func(ctx context.Context, u *url.URL) (driver.Backend, error) {
		b, err := openURL(ctx, u)
		if err != nil {
			return nil, err // no Backend in the interface
		}
		return b, nil
	}
	distlock.Register("mysql", open)
	distlock.Register("mariadb", open)
}

// Open returns a backend with connections of its own, to the server that the URL
// names; see the package comment. It connects once to see that the server is one
// that can be used. The [Options] are parameters of the URL.
func Open(ctx context.Context, rawURL string) (*Backend, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		// The parser's error quotes the URL, and so the password.
		return nil, fmt.Errorf("%w: the URL can't be parsed: are special characters in user, password and path percent-encoded?", distlock.ErrBadArgument)
	}
	if u.Scheme != "mysql" && u.Scheme != "mariadb" {
		return nil, fmt.Errorf("%w: the scheme must be mysql", distlock.ErrBadArgument)
	}
	return openURL(ctx, u)
}

func openURL(ctx context.Context, u *url.URL) (*Backend, error) {
	cfg, o, err := parseURL(u)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", distlock.ErrBadArgument, err)
	}
	cfg.DialFunc = dial
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", distlock.ErrBadArgument, err)
	}
	db := sql.OpenDB(connector)
	b := newBackend(db, o, cfg.Timeout, func(ctx context.Context) (*sql.Conn, func(), error) { return connect(ctx, db) })
	b.ownDB = true
	if b.bad != nil {
		db.Close()
		return nil, b.bad
	}
	if err := b.pool.Open(ctx); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// dialed is where dial leaves a connection for who asked for it.
type dialed struct{ conn net.Conn }

type dialedKey struct{}

func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	if err == nil {
		if to, ok := ctx.Value(dialedKey{}).(*dialed); ok {
			to.conn = c
		}
	}
	return c, err
}

// connect opens a connection and returns how to cut it off.
func connect(ctx context.Context, db *sql.DB) (*sql.Conn, func(), error) {
	d := &dialed{}
	c, err := db.Conn(context.WithValue(ctx, dialedKey{}, d))
	if err != nil || d.conn == nil {
		return c, nil, err
	}
	return c, func() { d.conn.Close() }, nil
}

// parameterName is what looks like the name of a parameter.
var parameterName = regexp.MustCompile(`^[a-zA-Z_]{1,32}$`)

// parameters are those that a URL may have.
var parameters = map[string]func(*urlOptions, string) error{
	"socket":  func(o *urlOptions, v string) error { o.socket = v; return nil },
	"timeout": func(o *urlOptions, v string) error { return dbsession.ParseDuration(v, &o.timeout) },
	"tls": func(o *urlOptions, v string) error {
		o.tls = v
		if !slices.Contains([]string{"true", "false", "skip-verify", "preferred"}, v) {
			return fmt.Errorf("must be true, false, skip-verify or preferred")
		}
		return nil
	},
	"tls_ca":             func(o *urlOptions, v string) error { o.tlsCA = v; return nil },
	"tls_cert":           func(o *urlOptions, v string) error { o.tlsCert = v; return nil },
	"tls_key":            func(o *urlOptions, v string) error { o.tlsKey = v; return nil },
	"tls_server_name":    func(o *urlOptions, v string) error { o.tlsServerName = v; return nil },
	"prefix":             func(o *urlOptions, v string) error { o.Prefix = v; return nil },
	"max_sessions":       func(o *urlOptions, v string) error { return dbsession.ParseNumber(v, 1, &o.MaxSessions) },
	"max_waiting":        func(o *urlOptions, v string) error { return dbsession.ParseNumber(v, 1, &o.MaxWaiting) },
	"readers":            func(o *urlOptions, v string) error { return dbsession.ParseNumber(v, -1, &o.Readers) },
	"heartbeat":          func(o *urlOptions, v string) error { return dbsession.ParseDuration(v, &o.Heartbeat) },
	"idle_timeout":       func(o *urlOptions, v string) error { return dbsession.ParseDuration(v, &o.IdleTimeout) },
	"fence_table":        func(o *urlOptions, v string) error { o.FenceTable = v; return nil },
	"create_fence_table": func(o *urlOptions, v string) error { return dbsession.ParseBool(v, &o.CreateFenceTable) },
}

type urlOptions struct {
	Options
	socket, tls, tlsCA, tlsCert, tlsKey, tlsServerName string
	timeout                                            time.Duration
}

// parseURL returns what the URL says. Its errors hold no value that could be a
// secret.
func parseURL(u *url.URL) (*mysql.Config, *Options, error) {
	o := urlOptions{timeout: dbsession.ConnectTimeout}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, nil, fmt.Errorf("the URL's parameters can't be parsed: are special characters percent-encoded?")
	}
	for name, values := range query {
		set := parameters[name]
		if set == nil {
			known := make([]string, 0, len(parameters))
			for p := range parameters {
				known = append(known, p)
			}
			slices.Sort(known)
			what := "a parameter that doesn't exist (is a ? in the password not percent-encoded?)" // it may be half of a password
			if parameterName.MatchString(name) {
				what = fmt.Sprintf("unknown parameter %q", name)
			}
			return nil, nil, fmt.Errorf("%s; there are: %s", what, strings.Join(known, ", "))
		}
		if len(values) != 1 {
			return nil, nil, fmt.Errorf("parameter %q is given more than once", name)
		}
		if err := set(&o, values[0]); err != nil {
			return nil, nil, fmt.Errorf("parameter %q: %w", name, err)
		}
	}
	cfg := mysql.NewConfig()
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	cfg.DBName = strings.TrimPrefix(u.Path, "/")
	if strings.Contains(u.Path, "@") { // the host would be a part of the password
		return nil, nil, errors.New("an @ after the host: are special characters in user and password percent-encoded?")
	}
	cfg.Timeout = o.timeout
	cfg.Logger = &mysql.NopLogger{}
	if name := program.Name(); name != "" && !strings.ContainsAny(name, ":,") {
		cfg.ConnectionAttributes = "program_name:" + name
	}
	switch {
	case u.Opaque != "" || u.Fragment != "":
		return nil, nil, fmt.Errorf("the URL must have the form mysql://user:password@host:3306/database?parameter=value")
	case o.socket != "":
		if u.Host != "" {
			return nil, nil, fmt.Errorf("a host and the parameter \"socket\" exclude each other")
		}
		cfg.Net, cfg.Addr = "unix", o.socket
	case u.Hostname() == "":
		return nil, nil, fmt.Errorf("the URL names no host, nor the parameter \"socket\"")
	default:
		port := u.Port()
		if port == "" {
			port = "3306"
		}
		cfg.Net, cfg.Addr = "tcp", net.JoinHostPort(u.Hostname(), port)
	}
	if err := o.setTLS(cfg, u.Hostname()); err != nil {
		return nil, nil, err
	}
	return cfg, &o.Options, nil
}

// setTLS sets up encryption as the parameters say.
func (o *urlOptions) setTLS(cfg *mysql.Config, host string) error {
	files := o.tlsCA != "" || o.tlsCert != "" || o.tlsKey != "" || o.tlsServerName != ""
	if o.tls == "" && files {
		o.tls = "true"
	}
	switch {
	case o.tls == "" || o.tls == "false":
		if files {
			return fmt.Errorf("parameters of TLS with tls=false")
		}
		return nil
	case o.tls != "true" && (o.tlsCA != "" || o.tlsServerName != ""):
		return fmt.Errorf("tls=%s verifies nothing, so \"tls_ca\" and \"tls_server_name\" have no effect: use tls=true", o.tls)
	case (o.tlsCert == "") != (o.tlsKey == ""):
		return fmt.Errorf("the parameters \"tls_cert\" and \"tls_key\" go together")
	}
	c := &tls.Config{ServerName: o.tlsServerName, MinVersion: tls.VersionTLS12}
	if c.ServerName == "" {
		c.ServerName = host
	}
	if o.tls == "skip-verify" || o.tls == "preferred" {
		c.InsecureSkipVerify = true //nolint:gosec // asked for
	}
	cfg.AllowFallbackToPlaintext = o.tls == "preferred"
	if o.tlsCA != "" {
		pem, err := os.ReadFile(o.tlsCA)
		if err != nil {
			return fmt.Errorf("parameter \"tls_ca\": %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("parameter \"tls_ca\": no certificates in %s", o.tlsCA)
		}
	}
	if o.tlsCert != "" {
		pair, err := tls.LoadX509KeyPair(o.tlsCert, o.tlsKey)
		if err != nil {
			return fmt.Errorf("parameters \"tls_cert\" and \"tls_key\": %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	cfg.TLS = c
	return nil
}
