package tdstest

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
)

// kind is one of the few data types that there are here.
type kind byte

const (
	kNull kind = iota // NULL without a type
	kBit
	kTinyInt
	kSmallInt
	kInt
	kBigInt
	kFloat
	kDateTime2
	kVarBinary
	kVarChar
	kNVarChar
)

// sqlType is a data type; size is in UTF-16 units or bytes, and 0 for max.
type sqlType struct {
	kind kind
	size int
}

// value is a value of a type: nil (NULL), int64, float64, string, []byte or
// time.Time. A bit is an int64, too.
type value struct {
	t sqlType
	v any
	// coll is the collation of an explicit COLLATE, in upper case; of all others it
	// is the database's.
	coll string
}

var (
	tInt    = sqlType{kind: kInt}
	tBigInt = sqlType{kind: kBigInt}
	tBit    = sqlType{kind: kBit}
	tTime   = sqlType{kind: kDateTime2}
)

func nvarchar(n int) sqlType      { return sqlType{kind: kNVarChar, size: n} }
func intValue(n int64) value      { return value{t: tInt, v: n} }
func bigValue(n int64) value      { return value{t: tBigInt, v: n} }
func textValue(s string) value    { return value{t: nvarchar(min(max(1, units(s)), 4000)), v: s} }
func timeValue(t time.Time) value { return value{t: tTime, v: t} }
func (v value) null() bool        { return v.v == nil }
func (k kind) integer() bool      { return k >= kBit && k <= kBigInt }
func (k kind) text() bool         { return k == kVarChar || k == kNVarChar }
func units(s string) int          { return len(utf16.Encode([]rune(s))) }
func nullOf(t sqlType) value      { return value{t: t} }

func boolValue(b bool) value {
	if b {
		return value{t: tBit, v: int64(1)}
	}
	return value{t: tBit, v: int64(0)}
}

// toUTF16 keeps what is no valid text as it is: a lone surrogate comes in as
// U+FFFD, which is what Go has for it.
func toUTF16(s string) []byte {
	u := utf16.Encode([]rune(s))
	b := make([]byte, 0, 2*len(u))
	for _, c := range u {
		b = binary.LittleEndian.AppendUint16(b, c)
	}
	return b
}

func fromUTF16(b []byte) string {
	ascii := make([]byte, 0, len(b)/2)
	u := []uint16(nil)
	for i := 0; i+1 < len(b); i += 2 {
		c := binary.LittleEndian.Uint16(b[i:])
		if u == nil && c >= 0x80 {
			u = make([]uint16, 0, len(b)/2)
			for _, a := range ascii {
				u = append(u, uint16(a))
			}
		}
		if u != nil {
			u = append(u, c)
		} else {
			ascii = append(ascii, byte(c))
		}
	}
	if u != nil {
		return string(utf16.Decode(u))
	}
	return string(ascii)
}

// cut shortens s to n UTF-16 units.
func cut(s string, n int) string {
	if len(s) <= n {
		return s // a unit is at least one byte
	}
	u := utf16.Encode([]rune(s))
	if len(u) <= n {
		return s
	}
	return string(utf16.Decode(u[:n]))
}

var intRanges = map[kind][2]int64{
	kTinyInt:  {0, 255},
	kSmallInt: {math.MinInt16, math.MaxInt16},
	kInt:      {math.MinInt32, math.MaxInt32},
	kBigInt:   {math.MinInt64, math.MaxInt64},
}

// convert is what CAST and an assignment do.
// learn.microsoft.com: "CAST and CONVERT (Transact-SQL)".
func convert(v value, t sqlType) (value, error) {
	if v.null() {
		return nullOf(t), nil
	}
	out := value{t: t, coll: v.coll}
	switch {
	case t.kind == kBit:
		n, err := toInt(v, kBigInt)
		if err != nil {
			return out, err
		}
		return boolValue(n != 0), nil
	case t.kind.integer():
		n, err := toInt(v, t.kind)
		out.v = n
		return out, err
	case t.kind == kFloat:
		switch n := v.v.(type) {
		case int64:
			out.v = float64(n)
		case float64:
			out.v = n
		case string:
			f, err := strconv.ParseFloat(strings.TrimSpace(n), 64)
			if err != nil {
				return out, sqlErr(8114, 16, "Error converting data type nvarchar to float.")
			}
			out.v = f
		default:
			return out, noConversion()
		}
		return out, nil
	case t.kind.text():
		var s string
		switch n := v.v.(type) {
		case string:
			s = n
		case int64:
			s = strconv.FormatInt(n, 10)
		case float64:
			s = strconv.FormatFloat(n, 'g', 6, 64)
		case time.Time:
			s = n.Format("2006-01-02 15:04:05.0000000")
		default:
			return out, noConversion()
		}
		if t.size > 0 {
			s = cut(s, t.size)
		}
		out.v = s
		return out, nil
	case t.kind == kVarBinary:
		switch n := v.v.(type) {
		case []byte:
			out.v = n
		case string:
			if v.t.kind == kVarChar {
				out.v = []byte(n)
			} else {
				out.v = toUTF16(n)
			}
		default:
			return out, noConversion()
		}
		if b := out.v.([]byte); t.size > 0 && len(b) > t.size {
			out.v = b[:t.size]
		}
		return out, nil
	case t.kind == kDateTime2 && v.t.kind == kDateTime2:
		out.v = v.v
		return out, nil
	case t.kind == kDateTime2 && v.t.kind.text():
		// learn.microsoft.com: "datetime2", of the formats of texts only ISO 8601.
		at, err := time.Parse("2006-01-02T15:04:05", strings.TrimSpace(v.v.(string)))
		if err != nil {
			return out, sqlErr(241, 16, "Conversion failed when converting date and/or time from character string.")
		}
		out.v = at
		return out, nil
	}
	return out, noConversion()
}

func noConversion() error {
	return sqlErr(529, 16, "Explicit conversion between these data types is not allowed.")
}

func toInt(v value, k kind) (int64, error) {
	var n int64
	switch x := v.v.(type) {
	case int64:
		n = x
	case float64:
		n = int64(x)
	case string:
		var err error
		if n, err = strconv.ParseInt(strings.TrimSpace(x), 10, 64); err != nil && strings.TrimSpace(x) != "" {
			return 0, abortErr(245, 16, fmt.Sprintf("Conversion failed when converting the nvarchar value '%s' to data type int.", x))
		}
	default:
		return 0, noConversion()
	}
	if r := intRanges[k]; n < r[0] || n > r[1] {
		return 0, sqlErr(8115, 16, "Arithmetic overflow error converting expression to data type int.")
	}
	return n, nil
}

// wider is the type of a column that has values of both types.
func wider(a, b sqlType) sqlType {
	if a.kind.text() && b.kind.text() {
		t := sqlType{kind: max(a.kind, b.kind), size: max(a.size, b.size)}
		if a.size == 0 || b.size == 0 {
			t.size = 0
		}
		return t
	}
	if a.kind == kNull {
		return b
	}
	if b.kind == kNull || a.kind == b.kind {
		return a
	}
	// A text among numbers is converted to a number.
	if a.kind.text() {
		return b
	}
	if b.kind.text() || a.kind > b.kind {
		return a
	}
	return b
}

// Data types on the wire, [MS-TDS] 2.2.5.4.
const (
	wireNull      = 0x1f
	wireGUID      = 0x24
	wireIntN      = 0x26
	wireDateTime2 = 0x2a
	wireTimeOff   = 0x2b
	wireInt1      = 0x30
	wireBit       = 0x32
	wireInt2      = 0x34
	wireInt4      = 0x38
	wireBitN      = 0x68
	wireFltN      = 0x6d
	wireInt8      = 0x7f
	wireVarBinary = 0xa5
	wireVarChar   = 0xa7
	wireChar      = 0xaf
	wireNVarChar  = 0xe7
	wireNChar     = 0xef
)

// Latin1_General, case-insensitive.
var collation = []byte{0x09, 0x04, 0xd0, 0x00, 0x34}

var intSizes = map[kind]byte{kTinyInt: 1, kSmallInt: 2, kInt: 4, kBigInt: 8}

// appendType writes a TYPE_INFO.
func appendType(b []byte, t sqlType) []byte {
	length := func(n int) {
		if n == 0 || n > 8000 {
			n = 0xffff // max
		}
		b = binary.LittleEndian.AppendUint16(b, uint16(n))
	}
	switch t.kind {
	case kNull:
		return append(b, wireIntN, 4)
	case kBit:
		return append(b, wireBitN, 1)
	case kFloat:
		return append(b, wireFltN, 8)
	case kDateTime2:
		return append(b, wireDateTime2, 7)
	case kVarBinary:
		b = append(b, wireVarBinary)
		length(t.size)
		return b
	case kVarChar:
		b = append(b, wireVarChar)
		length(t.size)
		return append(b, collation...)
	case kNVarChar:
		b = append(b, wireNVarChar)
		length(2 * t.size)
		return append(b, collation...)
	default:
		return append(b, wireIntN, intSizes[t.kind])
	}
}

// appendValue writes a value as the type that appendType has written.
func appendValue(b []byte, v value, t sqlType) []byte {
	if t.kind >= kVarBinary {
		size := t.size
		if t.kind == kNVarChar {
			size *= 2
		}
		long := size == 0 || size > 8000
		var data []byte
		switch x := v.v.(type) {
		case nil:
			if long {
				return binary.LittleEndian.AppendUint64(b, math.MaxUint64)
			}
			return append(b, 0xff, 0xff)
		case []byte:
			data = x
		case string:
			data = []byte(x)
			if t.kind == kNVarChar {
				data = toUTF16(x)
			}
		}
		if !long {
			b = binary.LittleEndian.AppendUint16(b, uint16(len(data)))
			return append(b, data...)
		}
		// Partially length-prefixed, [MS-TDS] 2.2.5.2.3: one chunk, then the end.
		b = binary.LittleEndian.AppendUint64(b, uint64(len(data)))
		if len(data) > 0 {
			b = binary.LittleEndian.AppendUint32(b, uint32(len(data)))
			b = append(b, data...)
		}
		return append(b, 0, 0, 0, 0)
	}
	switch x := v.v.(type) {
	case nil:
		return append(b, 0)
	case float64:
		return binary.LittleEndian.AppendUint64(append(b, 8), math.Float64bits(x))
	case time.Time:
		midnight := time.Date(x.Year(), x.Month(), x.Day(), 0, 0, 0, 0, x.Location())
		ticks := uint64(x.Sub(midnight) / 100)
		days := midnight.In(time.UTC).Unix()/86400 + 719162 // from 0001-01-01
		b = append(b, 8, byte(ticks), byte(ticks>>8), byte(ticks>>16), byte(ticks>>24), byte(ticks>>32))
		return append(b, byte(days), byte(days>>8), byte(days>>16))
	case int64:
		n := intSizes[t.kind]
		if t.kind == kBit {
			n = 1
		} else if n == 0 {
			n = 4
		}
		b = append(b, n)
		for range n {
			b = append(b, byte(x))
			x >>= 8
		}
	}
	return b
}

// readValue reads a TYPE_INFO and a value of that type.
func readValue(r *reader) (value, error) {
	id := r.byte()
	integer := func(n int, k kind) value {
		x := int64(r.uint(n))
		if n > 1 {
			x = x << (64 - 8*n) >> (64 - 8*n)
		}
		return value{t: sqlType{kind: k}, v: x}
	}
	switch id {
	case wireNull:
		return value{}, nil
	case wireInt1:
		return integer(1, kTinyInt), nil
	case wireBit:
		return integer(1, kBit), nil
	case wireInt2:
		return integer(2, kSmallInt), nil
	case wireInt4:
		return integer(4, kInt), nil
	case wireInt8:
		return integer(8, kBigInt), nil
	case wireIntN, wireBitN:
		size := r.byte()
		k, ok := map[byte]kind{1: kTinyInt, 2: kSmallInt, 4: kInt, 8: kBigInt}[size]
		if id == wireBitN {
			k = kBit
		}
		n := int(r.byte())
		switch {
		case n == 0:
			return nullOf(sqlType{kind: k}), nil
		case !ok || n != int(size):
			return value{}, errPacket
		}
		return integer(n, k), nil
	case wireFltN:
		r.byte()
		switch r.byte() {
		case 0:
			return nullOf(sqlType{kind: kFloat}), nil
		case 4:
			return value{t: sqlType{kind: kFloat}, v: float64(math.Float32frombits(r.uint32()))}, nil
		case 8:
			return value{t: sqlType{kind: kFloat}, v: math.Float64frombits(r.uint(8))}, nil
		}
		return value{}, errPacket
	case wireVarBinary, wireVarChar, wireChar, wireNVarChar, wireNChar:
		size := int(r.uint16())
		t := sqlType{kind: kVarBinary, size: size}
		if id != wireVarBinary {
			r.bytes(5)
			t.kind = kVarChar
		}
		if id == wireNVarChar || id == wireNChar {
			t.kind = kNVarChar
			t.size = size / 2
		}
		var data []byte
		if size == 0xffff {
			t.size = 0
			if r.uint(8) == math.MaxUint64 {
				return nullOf(t), nil
			}
			for n := r.uint32(); n != 0; n = r.uint32() {
				data = append(data, r.bytes(int(n))...)
			}
		} else {
			n := int(r.uint16())
			if n == 0xffff {
				return nullOf(t), nil
			}
			data = r.bytes(n)
		}
		switch t.kind {
		case kVarBinary:
			return value{t: t, v: append([]byte{}, data...)}, nil
		case kVarChar:
			return value{t: t, v: string(data)}, nil
		default:
			return value{t: t, v: fromUTF16(data)}, nil
		}
	}
	return value{}, sqlErr(8009, 16, fmt.Sprintf("The incoming tabular data stream (TDS) remote procedure call (RPC) protocol stream is incorrect. A parameter has data type 0x%02X, which is unknown here.", id))
}
