package tdstest

import (
	"math"
	"strings"
	"sync"
)

// sequence is a SEQUENCE. learn.microsoft.com: "CREATE SEQUENCE". Its numbers
// are consumed whatever becomes of the transaction.
type sequence struct {
	schema, name                string
	kind                        kind
	start, increment, low, high int64
	current                     int64
	used                        bool
	cached, cycling             bool
}

type sequences struct {
	mu  sync.Mutex
	all map[string]*sequence // by database, schema and name, in lower case
}

func sequenceKey(database, schema, name string) string {
	return strings.ToLower(database + "\x00" + schema + "\x00" + name)
}

func (q *sequences) get(key string) *sequence {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.all[key]
}

func (q *sequences) create(key string, s *sequence) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.all[key] != nil {
		return sqlErr(2714, 16, "There is already an object named '"+s.name+"' in the database.")
	}
	q.all[key] = s
	return nil
}

func (q *sequences) drop(key string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	ok := q.all[key] != nil
	delete(q.all, key)
	return ok
}

// next is NEXT VALUE FOR.
func (q *sequences) next(key string) (value, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.all[key]
	if s == nil {
		return value{}, abortErr(208, 16, "Invalid object name.")
	}
	n := s.start
	if s.used {
		n = s.current + s.increment
		over := s.increment > 0 && (n > s.high || n < s.current) || s.increment < 0 && (n < s.low || n > s.current)
		switch {
		case over && !s.cycling:
			return value{}, sqlErr(11728, 16, "The sequence object '"+s.name+"' has reached its minimum or maximum value. Restart the sequence object to allow new values to be generated.")
		case over && s.increment > 0:
			n = s.low
		case over:
			n = s.high
		}
	}
	s.current, s.used = n, true
	return value{t: sqlType{kind: s.kind}, v: n}, nil
}

// rows is sys.sequences of a database.
func (q *sequences) rows(database string) [][]value {
	q.mu.Lock()
	defer q.mu.Unlock()
	prefix := strings.ToLower(database) + "\x00"
	var rows [][]value
	for key, s := range q.all {
		if !strings.HasPrefix(key, prefix) {
			continue
		}
		current := s.current
		if !s.used {
			current = s.start
		}
		rows = append(rows, []value{
			textValue(s.name), intValue(objectID(key)), intValue(1), bigValue(s.start), bigValue(s.increment),
			bigValue(s.low), bigValue(s.high), boolValue(s.cycling), boolValue(s.cached), bigValue(current),
		})
	}
	return rows
}

// objectID makes up an id of a name.
func objectID(key string) int64 {
	h := uint32(2166136261)
	for _, c := range []byte(key) {
		h = (h ^ uint32(c)) * 16777619
	}
	return int64(h&math.MaxInt32) | 1
}
