package mssqllock

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/mssqllock/internal/tdstest"
)

// selfSigned returns a certificate for 127.0.0.1, and a file with it.
func selfSigned(t *testing.T) (*tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "tdstest"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "server.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, file
}

// A lock works over TLS of both kinds, and a server that can't be verified is
// refused, with an error that says why.
func TestTLS(t *testing.T) {
	t.Parallel()
	if theServer(t).tds == nil {
		t.Skip("the certificate must be the tests' own")
	}
	certificate, file := selfSigned(t)
	_, another := selfSigned(t)
	s, plain := ownServer(t, tdstest.Config{Certificate: certificate}), ownServer(t, tdstest.Config{})
	with := func(s *testServer, parameters string) string {
		u, err := url.Parse(s.url(s.addr(), ""))
		if err != nil {
			t.Fatal(err)
		}
		u.RawQuery = "database=test&" + parameters
		return u.String()
	}
	at := func(file string) string { return "&certificate=" + url.QueryEscape(file) }
	for _, c := range []struct {
		parameters string
		encrypted  int
	}{
		{"encrypt=true" + at(file), 1},
		{"encrypt=true&trustservercertificate=true", 1},
		{"encrypt=strict" + at(file), 1},
		{"encrypt=strict&servercertificate=" + url.QueryEscape(file), 1},
		{"trustservercertificate=true", 0}, // the login alone
		{"encrypt=disable", 0},
	} {
		b, err := Open(t.Context(), with(s, c.parameters+"&app+name=TestTLS"))
		if err != nil {
			t.Errorf("%s: %v", c.parameters, err)
			continue
		}
		l := distlock.New(b, nil)
		k := mustAcquire(t, l, t.Name())
		const connections = "SELECT COUNT(*) FROM sys.dm_exec_connections c JOIN sys.dm_exec_sessions s ON s.session_id = c.session_id WHERE s.program_name = 'TestTLS' AND c.encrypt_option = @p1"
		if on, off := s.number(t, connections, "TRUE"), s.number(t, connections, "FALSE"); on+off == 0 || (on > 0) != (c.encrypted == 1) || (off > 0) == (c.encrypted == 1) {
			t.Errorf("%s: %d connections are encrypted, %d are not", c.parameters, on, off)
		}
		if n := s.locks(t, t.Name()); n != 1 {
			t.Errorf("%s: %d locks", c.parameters, n)
		}
		mustRelease(t, k)
		l.Close()
		eventually(t, "its connections end", func() bool { return s.number(t, connections, "TRUE")+s.number(t, connections, "FALSE") == 0 })
	}
	for _, c := range []struct {
		server     *testServer
		parameters string
		says       string
	}{
		{s, "encrypt=true", "unknown authority"},
		{s, "encrypt=strict", "unknown authority"},
		{s, "encrypt=true" + at(another), "unknown authority"},
		{s, "encrypt=true&hostnameincertificate=db.example" + at(file), "db.example"},
		{s, "encrypt=strict&servercertificate=" + url.QueryEscape(another), "certificate"},
		{plain, "encrypt=true" + at(file), "does not support encryption"},
	} {
		b, err := Open(t.Context(), with(c.server, c.parameters))
		if err == nil {
			t.Errorf("%s: connected", c.parameters)
			b.Close()
			continue
		}
		if !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "secret") || errors.Is(err, distlock.ErrNotAcquired) || errors.Is(err, distlock.ErrBadArgument) {
			t.Errorf("%s: %v, want %q in it", c.parameters, err, c.says)
		}
	}
}
