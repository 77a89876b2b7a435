//go:build unix

package mysqllock

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/distlock-go/distlock/driver"
)

// The files of a server's directory that hold the authority which has signed the
// certificates, and those of server and client, with their keys.
const (
	caFile     = "ca.pem"
	serverFile = "server.pem"
	clientFile = "client.pem"

	serverName = "db.distlock.test"

	errAccessDenied = 1045
)

// makeCertificates makes the files. The server is 127.0.0.1 as well as serverName.
func makeCertificates(dir string) error {
	authority := &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caKey, err := certify(filepath.Join(dir, caFile), authority, authority, nil)
	if err != nil {
		return err
	}
	_, server := certify(filepath.Join(dir, serverFile), &x509.Certificate{
		Subject: pkix.Name{CommonName: "server"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{serverName},
	}, authority, caKey)
	_, client := certify(filepath.Join(dir, clientFile), &x509.Certificate{
		Subject: pkix.Name{CommonName: "client"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, authority, caKey)
	return errors.Join(server, client)
}

// certify writes a certificate and its new key into the file. Without a key of
// the authority it is signed with its own.
func certify(file string, c, authority *x509.Certificate, caKey *ecdsa.PrivateKey) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if caKey == nil {
		caKey = key
	}
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, c, authority, key.Public(), caKey)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})...)
	return key, os.WriteFile(file, text, 0o600)
}

// withoutTLS is a proxy to the server that hides that the server can encrypt, and
// returns its address.
func withoutTLS(t *testing.T, server string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	serve := func(client net.Conn) {
		defer client.Close()
		c, err := net.Dial("tcp", server)
		if err != nil {
			return // the client will see it
		}
		defer c.Close()
		head := make([]byte, 4)
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		greeting := make([]byte, int(head[0])|int(head[1])<<8|int(head[2])<<16)
		if _, err := io.ReadFull(c, greeting); err != nil {
			return
		}
		// https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_connection_phase_packets_protocol_handshake_v10.html
		version := bytes.IndexByte(greeting[1:], 0) + 1
		const threadID, authData, filler = 4, 8, 1
		const ssl = 1 << 11
		greeting[1+version+threadID+authData+filler+1] &^= ssl >> 8
		if _, err := client.Write(slices.Concat(head, greeting)); err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(c, client)
			c.Close()
		}()
		_, _ = io.Copy(client, c)
	}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go serve(client)
		}
	}()
	return l.Addr().String()
}

// Each of the URL's parameters about TLS does what it says, and what can't be
// verified is refused.
func TestTLS(t *testing.T) {
	onServers(t, func(t *testing.T, s *testServer) {
		if s.cmd == nil {
			t.Skip("the certificates must be the tests' own")
		}
		const certified = "certified"
		s.exec(t, fmt.Sprintf("CREATE USER IF NOT EXISTS %s@'127.0.0.1' IDENTIFIED BY '%s' REQUIRE X509", certified, s.password))
		s.exec(t, fmt.Sprintf("GRANT ALL ON app.* TO %s@'127.0.0.1'", certified))

		ca, client := filepath.Join(s.dir, caFile), filepath.Join(s.dir, clientFile)
		foreign := t.TempDir()
		if err := makeCertificates(foreign); err != nil {
			t.Fatal(err)
		}
		plain := withoutTLS(t, s.addr)
		unknown := func(err error) bool { return errors.As(err, new(x509.UnknownAuthorityError)) }
		otherName := func(err error) bool { return errors.As(err, new(x509.HostnameError)) }
		noTLS := func(err error) bool { return errors.Is(err, mysql.ErrNoTLS) }
		denied := func(err error) bool { return isError(err, errAccessDenied) }
		for what, c := range map[string]struct {
			user, addr string // those of s, if not given
			parameters []string
			encrypted  bool
			refused    func(error) bool // nil: it isn't
		}{
			"skip-verify":                 {parameters: []string{"tls=skip-verify"}, encrypted: true},
			"preferred":                   {parameters: []string{"tls=preferred"}, encrypted: true},
			"preferred, without":          {addr: plain, parameters: []string{"tls=preferred"}},
			"without":                     {},
			"unknown authority":           {parameters: []string{"tls=true"}, refused: unknown},
			"another authority":           {parameters: []string{"tls_ca=" + filepath.Join(foreign, caFile)}, refused: unknown},
			"authority":                   {parameters: []string{"tls_ca=" + ca}, encrypted: true},
			"authority, true":             {parameters: []string{"tls=true", "tls_ca=" + ca}, encrypted: true},
			"name":                        {parameters: []string{"tls_ca=" + ca, "tls_server_name=" + serverName}, encrypted: true},
			"another name":                {parameters: []string{"tls_ca=" + ca, "tls_server_name=other.test"}, refused: otherName},
			"true, without":               {addr: plain, parameters: []string{"tls_ca=" + ca}, refused: noTLS},
			"client":                      {user: certified, parameters: []string{"tls_ca=" + ca, "tls_cert=" + client, "tls_key=" + client}, encrypted: true},
			"client without certificate":  {user: certified, parameters: []string{"tls_ca=" + ca}, refused: denied},
			"client without verification": {user: certified, parameters: []string{"tls=skip-verify", "tls_cert=" + client, "tls_key=" + client}, encrypted: true},
		} {
			t.Run(what, func(t *testing.T) {
				u := url.URL{Scheme: "mysql", User: url.UserPassword(s.user, s.password), Host: s.addr, Path: "/" + s.database, RawQuery: strings.Join(c.parameters, "&")}
				if c.user != "" {
					u.User = url.UserPassword(c.user, s.password)
				}
				if c.addr != "" {
					u.Host = c.addr
				}
				b, err := Open(t.Context(), u.String())
				if c.refused != nil {
					if err == nil {
						b.Close()
					}
					if err == nil || !c.refused(err) || strings.Contains(err.Error(), s.password) {
						t.Errorf("got %v", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				defer b.Close()
				g, err := b.Acquire(t.Context(), driver.Request{Resource: t.Name()})
				if err != nil {
					t.Fatal(err)
				}
				var name, cipher string
				if err := b.db.QueryRow("SHOW SESSION STATUS LIKE 'Ssl_cipher'").Scan(&name, &cipher); err != nil || c.encrypted != (cipher != "") {
					t.Errorf("cipher %q, %v", cipher, err)
				}
				if err := g.Hold.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	})
}
