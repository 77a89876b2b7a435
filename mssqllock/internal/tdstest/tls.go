package tdstest

import (
	"bufio"
	"context"
	"crypto/tls"
	"net"
)

// What the option ENCRYPTION of a PRELOGIN says, [MS-TDS] 2.2.6.5.
const (
	encryptOff          = 0 // of the login alone
	encryptOn           = 1
	encryptNotSupported = 2
	encryptRequired     = 3
)

// tlsRecord begins each record of a TLS handshake.
const tlsRecord = 0x16

func (s *session) tlsConfig() *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{*s.srv.cfg.Certificate}, MinVersion: tls.VersionTLS12, NextProtos: []string{"tds/8.0"},
		SessionTicketsDisabled: true, // they would come after the handshake, in no packet
	}
}

// secure has TLS around all that follows.
func (s *session) secure(c *tls.Conn) bool {
	if c.HandshakeContext(context.Background()) != nil {
		return false
	}
	s.in, s.w.p.w = bufio.NewReaderSize(c, 8192), c
	return true
}

// strict begins TLS before all else if the client does: TDS 8.0.
func (s *session) strict() bool {
	first, err := s.in.Peek(1)
	if err != nil || first[0] != tlsRecord {
		return err == nil
	}
	if s.srv.cfg.Certificate == nil {
		return false
	}
	s.encrypted = true
	return s.secure(tls.Server(&bufferedConn{s.conn, s.in}, s.tlsConfig()))
}

// bufferedConn is a connection of which something has been read.
type bufferedConn struct {
	net.Conn
	in *bufio.Reader
}

func (c *bufferedConn) Read(b []byte) (int, error) { return c.in.Read(b) }

// packetConn has the messages of a TLS handshake in packets, and after that
// none: [MS-TDS] 2.2.6.5, 3.2.5.2.
type packetConn struct {
	bufferedConn
	w    *packetWriter
	left []byte // of the last packet
	over bool
}

func (c *packetConn) Read(b []byte) (int, error) {
	if c.over {
		return c.bufferedConn.Read(b)
	}
	if len(c.left) == 0 {
		m, err := readMessage(c.in)
		if err != nil {
			return 0, err
		}
		if m.kind != msgPrelogin {
			return 0, errPacket
		}
		c.left = m.data
	}
	n := copy(b, c.left)
	c.left = c.left[n:]
	return n, nil
}

func (c *packetConn) Write(b []byte) (int, error) {
	if c.over {
		return c.Conn.Write(b)
	}
	n, err := c.w.Write(b)
	if err == nil {
		err = c.w.end()
	}
	return n, err
}

// encrypt does the handshake after a PRELOGIN.
func (s *session) encrypt() bool {
	w := s.w.p
	w.buf = nil
	c := &packetConn{bufferedConn: bufferedConn{s.conn, s.in}, w: &w}
	if !s.secure(tls.Server(c, s.tlsConfig())) {
		return false
	}
	c.over = true
	return true
}
