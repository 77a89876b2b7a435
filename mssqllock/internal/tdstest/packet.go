package tdstest

import (
	"encoding/binary"
	"errors"
	"io"
	"slices"
)

// Message types, [MS-TDS] 2.2.3.1.1.
const (
	msgBatch     = 0x01
	msgRPC       = 0x03
	msgReply     = 0x04
	msgAttention = 0x06
	msgTranMgr   = 0x0e
	msgLogin     = 0x10
	msgPrelogin  = 0x12
)

// Status bits of a packet, [MS-TDS] 2.2.3.1.2.
const (
	statusLast          = 0x01
	statusIgnore        = 0x02
	statusReset         = 0x08
	statusResetSkipTran = 0x10
)

const (
	headerSize = 8
	// Before LOGIN7 has said otherwise, and what is kept if it asks for nonsense.
	defaultPacketSize = 4096
	maxPacketSize     = 32767
	// What a client may send in one message. A test sends less by far.
	maxMessage = 64 << 20
)

// message is one request, put together from its packets.
type message struct {
	kind   byte
	status byte // of its first packet
	data   []byte
	cancel chan struct{} // closed by an attention, or when the connection ends
}

var errPacket = errors.New("tdstest: malformed packet")

// readMessage reads packets up to the last one of a message.
func readMessage(r io.Reader) (message, error) {
	var m message
	var head [headerSize]byte
	for first := true; ; first = false {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return message{}, err
		}
		size := int(binary.BigEndian.Uint16(head[2:])) - headerSize
		if size < 0 || len(m.data)+size > maxMessage {
			return message{}, errPacket
		}
		if first {
			m.kind, m.status = head[0], head[1]
		} else if m.kind != head[0] {
			return message{}, errPacket
		}
		n := len(m.data)
		m.data = append(m.data, make([]byte, size)...)
		if _, err := io.ReadFull(r, m.data[n:]); err != nil {
			return message{}, err
		}
		if head[1]&statusLast != 0 {
			m.status |= head[1] & statusIgnore
			return m, nil
		}
	}
}

// packetWriter cuts a reply into packets.
type packetWriter struct {
	w    io.Writer
	size int // of a packet, with its header
	spid uint16
	buf  []byte
	seq  byte
	err  error // of an earlier packet; nothing is written after it
}

func (p *packetWriter) Write(b []byte) (int, error) {
	if p.buf == nil {
		p.buf = make([]byte, headerSize, p.size)
	}
	p.buf = append(p.buf, b...)
	for len(p.buf) > p.size {
		p.packet(p.buf[:p.size], 0)
		n := copy(p.buf[headerSize:], p.buf[p.size:])
		p.buf = p.buf[:headerSize+n]
	}
	return len(b), p.err
}

// end sends what is left as the last packet of the message.
func (p *packetWriter) end() error {
	if p.buf == nil {
		p.buf = make([]byte, headerSize, p.size)
	}
	p.packet(p.buf, statusLast)
	p.buf = p.buf[:headerSize]
	p.seq = 0
	return p.err
}

func (p *packetWriter) packet(b []byte, status byte) {
	p.seq++
	b[0], b[1] = msgReply, status
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	binary.BigEndian.PutUint16(b[4:], p.spid)
	b[6], b[7] = p.seq, 0
	if p.err == nil {
		_, p.err = p.w.Write(b)
	}
}

// reader takes little-endian values from a message. After reading past the end
// it yields zeros, and bad is set.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) bytes(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.bad = true
		r.b = nil
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) uint(n int) uint64 {
	b := r.bytes(n)
	var v uint64
	for _, c := range slices.Backward(b) {
		v = v<<8 | uint64(c)
	}
	return v
}

func (r *reader) byte() byte     { return byte(r.uint(1)) }
func (r *reader) uint16() uint16 { return uint16(r.uint(2)) }
func (r *reader) uint32() uint32 { return uint32(r.uint(4)) }

// text reads n UTF-16 units.
func (r *reader) text(n int) string { return fromUTF16(r.bytes(2 * n)) }

// allHeaders skips the ALL_HEADERS of a request, [MS-TDS] 2.2.5.3. What is in
// them (the transaction's descriptor) says nothing new where MARS is off.
func (r *reader) allHeaders() {
	r.bytes(int(r.uint32()) - 4)
}
