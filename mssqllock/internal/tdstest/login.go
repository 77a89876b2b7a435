package tdstest

import (
	"encoding/binary"
	"strconv"
	"time"
)

// login is what a client says of itself.
type login struct {
	host, user, password, app, database string
	pid                                 uint32
	packetSize                          int
}

// preloginEncryption returns what a PRELOGIN says of encryption.
func preloginEncryption(data []byte) byte {
	r := reader{b: data}
	for !r.bad {
		option := r.byte()
		if option == 0xff {
			break
		}
		place := r.bytes(4) // offset and length, most significant byte first
		if option != 1 || r.bad {
			continue
		}
		if at := int(binary.BigEndian.Uint16(place)); at < len(data) {
			return data[at]
		}
	}
	return encryptNotSupported
}

// preloginReply answers a PRELOGIN, [MS-TDS] 2.2.6.5: the version, what is
// encrypted, and MARS is off.
func preloginReply(v version, encryption byte) []byte {
	const (
		optVersion    = 0
		optEncryption = 1
		optMARS       = 4
		terminator    = 0xff
	)
	b := []byte{
		optVersion, 0, 16, 0, 6,
		optEncryption, 0, 22, 0, 1,
		optMARS, 0, 23, 0, 1,
		terminator,
		v.major, v.minor, byte(v.build >> 8), byte(v.build), 0, 0,
		encryption,
		0,
	}
	return b
}

// parseLogin reads a LOGIN7, [MS-TDS] 2.2.6.4.
func parseLogin(data []byte) (login, error) {
	r := reader{b: data}
	r.bytes(8)
	l := login{packetSize: int(r.uint32())}
	r.bytes(4)
	l.pid = r.uint32()
	r.bytes(4 + 4 + 4 + 4)
	field := func() []byte {
		offset, length := int(r.uint16()), 2*int(r.uint16())
		if offset+length > len(data) {
			r.bad = true
			return nil
		}
		return data[offset : offset+length]
	}
	l.host = fromUTF16(field())
	l.user = fromUTF16(field())
	secret := append([]byte{}, field()...)
	for i, c := range secret {
		c ^= 0xa5
		secret[i] = c<<4 | c>>4
	}
	l.password = fromUTF16(secret)
	l.app = fromUTF16(field())
	field()    // the server's name
	r.uint32() // extensions: none is granted
	field()    // the library's name
	field()    // language
	l.database = fromUTF16(field())
	if r.bad {
		return login{}, errPacket
	}
	if l.packetSize < 512 || l.packetSize > maxPacketSize {
		l.packetSize = defaultPacketSize
	}
	return l, nil
}

// handshake does PRELOGIN and LOGIN7. It answers false if there is no session.
func (s *session) handshake() bool {
	if err := s.conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return false
	}
	if !s.strict() {
		return false
	}
	m, err := readMessage(s.in)
	if err != nil || m.kind != msgPrelogin {
		return false
	}
	encryption := byte(encryptNotSupported)
	if s.srv.cfg.Certificate != nil && !s.encrypted {
		switch encryption = preloginEncryption(m.data); encryption {
		case encryptOn, encryptRequired:
			encryption = encryptOn
			s.encrypted = true
		case encryptOff:
		default:
			encryption = encryptNotSupported
		}
	}
	_, _ = s.w.p.Write(preloginReply(s.srv.version, encryption)) // end has its error
	if s.w.p.end() != nil {
		return false
	}
	plain, plainWriter := s.in, s.w.p.w
	if encryption != encryptNotSupported && !s.encrypt() {
		return false
	}
	if m, err = readMessage(s.in); err != nil || m.kind != msgLogin {
		return false
	}
	if encryption == encryptOff { // the login has been read
		s.in, s.w.p.w = plain, plainWriter
	}
	l, err := parseLogin(m.data)
	if err != nil {
		return false
	}
	if err := s.conn.SetReadDeadline(time.Time{}); err != nil {
		return false
	}
	s.login = l
	u, ok := s.srv.users[l.user]
	if !ok || u.Password != l.password {
		// learn.microsoft.com: "MSSQLSERVER_18456".
		s.w.message(tokError, sqlErr(18456, 14, "Login failed for user '"+l.user+"'."), s.srv.cfg.ServerName)
		s.w.done(tokDone, doneError, 0, 0)
		_ = s.w.p.end()
		return false
	}
	s.user = u
	s.database = l.database
	if s.database == "" {
		s.database = "master"
	}
	s.loginTime = time.Now()
	w := &s.w
	w.envText(envDatabase, s.database, "master")
	w.envBytes(envCollation, collation, nil)
	w.sized(tokLoginAck, func() {
		w.b = append(w.b, 1, 0x74, 0, 0, 4) // Transact-SQL, TDS 7.4
		w.bText("Microsoft SQL Server")
		w.b = append(w.b, s.srv.version.major, s.srv.version.minor)
		w.b = binary.BigEndian.AppendUint16(w.b, s.srv.version.build)
	})
	w.envText(envPacketSize, strconv.Itoa(l.packetSize), strconv.Itoa(defaultPacketSize))
	w.done(tokDone, 0, 0, 0)
	if w.p.end() != nil {
		return false
	}
	w.p.size, w.p.buf = l.packetSize, nil
	return true
}
