package tdstest

import (
	"encoding/binary"
	"strconv"
)

// Tokens of a reply, [MS-TDS] 2.2.7.
const (
	tokReturnStatus = 0x79
	tokColMetadata  = 0x81
	tokError        = 0xaa
	tokInfo         = 0xab
	tokReturnValue  = 0xac
	tokLoginAck     = 0xad
	tokRow          = 0xd1
	tokEnvChange    = 0xe3
	tokDone         = 0xfd
	tokDoneProc     = 0xfe
	tokDoneInProc   = 0xff
)

// Status bits of DONE, [MS-TDS] 2.2.7.6.
const (
	doneMore   = 0x01
	doneError  = 0x02
	doneInXact = 0x04
	doneCount  = 0x10
	doneAttn   = 0x20
)

// Kinds of ENVCHANGE, [MS-TDS] 2.2.7.9.
const (
	envDatabase   = 1
	envPacketSize = 4
	envCollation  = 7
	envBegin      = 8
	envCommit     = 9
	envRollback   = 10
	envReset      = 18
)

// cmdSelect is what DONE calls a SELECT.
const cmdSelect = 0xc1

// sqlError is an error as a client gets it. learn.microsoft.com: "Database
// engine error severities" says what the class means.
type sqlError struct {
	number  int32
	state   byte
	class   byte
	message string
	proc    string
	line    int32
	abort   bool // ends the batch, not only the statement
}

func (e *sqlError) Error() string { return strconv.Itoa(int(e.number)) + ": " + e.message }

func sqlErr(number int32, class byte, message string) *sqlError {
	return &sqlError{number: number, state: 1, class: class, message: message, line: 1}
}

func abortErr(number int32, class byte, message string) *sqlError {
	e := sqlErr(number, class, message)
	e.abort = true
	return e
}

// tokenWriter writes tokens.
type tokenWriter struct {
	p packetWriter
	b []byte // scratch
}

func (w *tokenWriter) flush() {
	_, _ = w.p.Write(w.b) // packetWriter keeps its error for end
	w.b = w.b[:0]
}

func (w *tokenWriter) u16(n int)    { w.b = binary.LittleEndian.AppendUint16(w.b, uint16(n)) }
func (w *tokenWriter) u32(n uint32) { w.b = binary.LittleEndian.AppendUint32(w.b, n) }

// bText writes a text of up to 255 units after its length.
func (w *tokenWriter) bText(s string) {
	u := toUTF16(cut(s, 255))
	w.b = append(append(w.b, byte(len(u)/2)), u...)
}

// sized writes the token and what f writes after the length of that.
func (w *tokenWriter) sized(token byte, f func()) {
	w.b = append(w.b, token, 0, 0)
	start := len(w.b)
	f()
	binary.LittleEndian.PutUint16(w.b[start-2:], uint16(len(w.b)-start))
	w.flush()
}

func (w *tokenWriter) message(token byte, e *sqlError, server string) {
	w.sized(token, func() {
		w.u32(uint32(e.number))
		w.b = append(w.b, e.state, e.class)
		text := toUTF16(cut(e.message, 2047))
		w.u16(len(text) / 2)
		w.b = append(w.b, text...)
		w.bText(server)
		w.bText(e.proc)
		w.u32(uint32(e.line))
	})
}

func (w *tokenWriter) envText(kind byte, now, before string) {
	w.sized(tokEnvChange, func() {
		w.b = append(w.b, kind)
		w.bText(now)
		w.bText(before)
	})
}

func (w *tokenWriter) envBytes(kind byte, now, before []byte) {
	w.sized(tokEnvChange, func() {
		w.b = append(append(w.b, kind, byte(len(now))), now...)
		w.b = append(append(w.b, byte(len(before))), before...)
	})
}

func (w *tokenWriter) done(token byte, status int, cmd int, rows int64) {
	w.b = append(w.b, token)
	w.u16(status)
	w.u16(cmd)
	w.b = binary.LittleEndian.AppendUint64(w.b, uint64(rows))
	w.flush()
}

func (w *tokenWriter) returnStatus(n int64) {
	w.b = append(w.b, tokReturnStatus)
	w.u32(uint32(n))
	w.flush()
}

func (w *tokenWriter) returnValue(ordinal int, name string, v value) {
	w.b = append(w.b, tokReturnValue)
	w.u16(ordinal)
	w.bText(name)
	w.b = append(w.b, 1) // an output parameter
	w.u32(0)
	w.u16(1) // may be NULL
	w.b = appendType(w.b, v.t)
	w.b = appendValue(w.b, v, v.t)
	w.flush()
}

func (w *tokenWriter) columns(names []string, types []sqlType) {
	w.b = append(w.b, tokColMetadata)
	w.u16(len(names))
	for i, name := range names {
		w.u32(0)
		w.u16(1) // may be NULL
		w.b = appendType(w.b, types[i])
		w.bText(name)
	}
	w.flush()
}

func (w *tokenWriter) row(row []value, types []sqlType) {
	w.b = append(w.b, tokRow)
	for i, v := range row {
		w.b = appendValue(w.b, v, types[i])
	}
	w.flush()
}
