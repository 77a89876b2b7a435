package mssqllock

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	mssql "github.com/microsoft/go-mssqldb"
	"github.com/microsoft/go-mssqldb/msdsn"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/internal/dbsession"
	"github.com/distlock-go/distlock/internal/program"
	"github.com/distlock-go/distlock/mssqllock/internal/fedauth"
)

func init() {
	distlock.Register("sqlserver", func(ctx context.Context, u *url.URL) (driver.Backend, error) {
		b, err := openURL(ctx, u)
		if err != nil {
			return nil, err // no Backend in the interface
		}
		return b, nil
	})
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
	if u.Scheme != "sqlserver" {
		return nil, fmt.Errorf("%w: the scheme must be sqlserver", distlock.ErrBadArgument)
	}
	return openURL(ctx, u)
}

func openURL(ctx context.Context, u *url.URL) (*Backend, error) {
	connector, o, err := parseURL(u)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", distlock.ErrBadArgument, err)
	}
	connector.Dialer = dialer{}
	db := sql.OpenDB(connector)
	db.SetMaxIdleConns(-1) // what comes back was cut
	b := newBackend(db, o, func(ctx context.Context) (*sql.Conn, func(), error) { return connect(ctx, db) })
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

// dialed is where a dialer leaves connections for who asked for one: the driver
// may try several addresses, or be sent on by a gateway.
type dialed struct {
	mu    sync.Mutex
	conns []net.Conn
	over  bool
}

type dialedKey struct{}

// cut closes them all, and those that are still to come.
func (d *dialed) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
	for _, c := range d.conns {
		c.Close()
	}
}

type dialer struct{}

func (dialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	nd := net.Dialer{KeepAlive: 30 * time.Second}
	c, err := nd.DialContext(ctx, network, addr)
	if to, ok := ctx.Value(dialedKey{}).(*dialed); ok && err == nil {
		to.mu.Lock()
		defer to.mu.Unlock()
		if to.over {
			c.Close()
		}
		to.conns = append(to.conns, c)
	}
	return c, err
}

// connect opens a connection and returns how to cut it off.
func connect(ctx context.Context, db *sql.DB) (*sql.Conn, func(), error) {
	d := &dialed{}
	stop := context.AfterFunc(ctx, d.cut)
	c, err := connectWithin(context.WithValue(ctx, dialedKey{}, d), db)
	if !stop() && err == nil {
		c.Close()
		return nil, nil, context.Cause(ctx)
	}
	return c, d.cut, err
}

// connectWithin opens a connection. The driver heeds the context while it dials,
// but not while it waits for the first answers.
func connectWithin(ctx context.Context, db *sql.DB) (*sql.Conn, error) {
	type result struct {
		c   *sql.Conn
		err error
	}
	opened := make(chan result)
	go func() {
		c, err := db.Conn(ctx)
		select {
		case opened <- result{c, err}:
		case <-ctx.Done():
			if err == nil {
				c.Close()
			}
		}
	}()
	select {
	case r := <-opened:
		return r.c, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// parameterName is what looks like the name of a parameter.
var parameterName = regexp.MustCompile(`^[a-zA-Z_ -]{1,32}$`)

// ownParameters are those of this package.
var ownParameters = map[string]func(*Options, string) error{
	"prefix":          func(o *Options, v string) error { o.Prefix = v; return nil },
	"max_sessions":    func(o *Options, v string) error { return dbsession.ParseNumber(v, 1, &o.MaxSessions) },
	"max_waiting":     func(o *Options, v string) error { return dbsession.ParseNumber(v, 1, &o.MaxWaiting) },
	"heartbeat":       func(o *Options, v string) error { return dbsession.ParseDuration(v, &o.Heartbeat) },
	"idle_timeout":    func(o *Options, v string) error { return dbsession.ParseDuration(v, &o.IdleTimeout) },
	"sequence":        func(o *Options, v string) error { o.Sequence = v; return nil },
	"create_sequence": func(o *Options, v string) error { return dbsession.ParseBool(v, &o.CreateSequence) },
}

// driverParameters are those of go-mssqldb, which ignores what it doesn't know.
// Those that can't be right for locks aren't here.
var driverParameters = []string{
	msdsn.Database, msdsn.Encrypt, msdsn.ChangePassword, msdsn.TrustServerCertificate, msdsn.Certificate, msdsn.ServerCertificate,
	msdsn.TLSMin, msdsn.PacketSize, msdsn.LogParam, msdsn.HostNameInCertificate, msdsn.KeepAlive, msdsn.ServerSpn,
	msdsn.WorkstationID, msdsn.AppName, msdsn.FailoverPartner, msdsn.FailOverPort, msdsn.FailoverPartnerSpn,
	msdsn.DisableRetry, msdsn.Protocol, msdsn.DialTimeout, msdsn.Pipe, msdsn.MultiSubnetFailover, msdsn.NoTraceID,
	msdsn.GuidConversion, msdsn.Timezone, msdsn.EpaEnabled, msdsn.ApplicationIntent, "columnencryption", "authenticator",
	"krb5-configfile", "krb5-realm", "krb5-keytabfile", "krb5-credcachefile", "krb5-dnslookupkdc", "krb5-udppreferencelimit",
}

// fedauthParameters are those of its package azuread.
var fedauthParameters = []string{
	"fedauth", "applicationclientid", "resource id", "clientcertpath", "serviceconnectionid", "systemtoken", "clientassertion",
	"userassertion", "additionallyallowedtenants", "disableinstancediscovery", "tokenfilepath", "sendcertificatechain",
}

// parseURL returns what the URL says. Its errors hold no value that could be a
// secret.
func parseURL(u *url.URL) (*mssql.Connector, *Options, error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, nil, fmt.Errorf("the URL's parameters can't be parsed: are special characters percent-encoded?")
	}
	if u.Opaque != "" || u.Fragment != "" || u.Hostname() == "" {
		return nil, nil, fmt.Errorf("the URL must have the form sqlserver://user:password@host:1433/instance?database=name&parameter=value")
	}
	o := &Options{}
	forDriver := make(url.Values)
	for name, values := range query {
		lower := strings.ToLower(name)
		set := ownParameters[name]
		if len(values) != 1 || forDriver.Has(lower) {
			if set == nil && !slices.Contains(allParameters(), lower) {
				name = "?" // it may be half of a password
			}
			return nil, nil, fmt.Errorf("parameter %q is given more than once", name)
		}
		switch {
		case set != nil:
			if err := set(o, values[0]); err != nil {
				return nil, nil, fmt.Errorf("parameter %q: %w", name, err)
			}
		case lower == msdsn.ConnectionTimeout:
			return nil, nil, fmt.Errorf("parameter %q would end every wait for a lock after that time: leave it out, see \"dial timeout\" and \"heartbeat\"", name)
		case slices.Contains(driverParameters, lower), slices.Contains(fedauthParameters, lower):
			forDriver[lower] = values
		default:
			what := "a parameter that doesn't exist (are a ? in user and password percent-encoded?)" // it may be half of a password
			if parameterName.MatchString(name) {
				what = fmt.Sprintf("unknown parameter %q", name)
			}
			return nil, nil, fmt.Errorf("%s; there are: %s", what, strings.Join(allParameters(), ", "))
		}
	}
	// A statement that is repeated on another connection wouldn't find the locks
	// of the first.
	forDriver.Set(msdsn.DisableRetry, "true")
	if name := program.Name(); name != "" && !forDriver.Has(msdsn.AppName) {
		forDriver.Set(msdsn.AppName, name)
	}
	full := url.URL{Scheme: u.Scheme, User: u.User, Host: u.Host, Path: u.Path, RawQuery: forDriver.Encode()}
	newConnector := mssql.NewConnector
	if forDriver.Has("fedauth") {
		if newConnector = fedauth.NewConnector; newConnector == nil {
			return nil, nil, fmt.Errorf("parameter \"fedauth\": the program must import github.com/distlock-go/distlock/mssqllock/azuread")
		}
	}
	connector, err := newConnector(full.String())
	if err != nil {
		return nil, nil, fmt.Errorf("go-mssqldb: %w", err)
	}
	return connector, o, nil
}

func allParameters() []string {
	all := slices.Concat(driverParameters, fedauthParameters)
	for name := range ownParameters {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}
