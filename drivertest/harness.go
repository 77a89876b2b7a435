package drivertest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock-go/distlock/driver"
)

// Harness is what the suite needs to know of a backend, and what it needs done
// to the store from outside.
//
// Open is required. The functions Sever, Mute, Restart, Process and Resources
// may be nil where they make no sense; Omit must then say why.
type Harness struct {
	// Open returns a new backend. All backends that it returns work on one store
	// and exclude each other, over connections of their own: each is the witness
	// against the others. It is called at least once by each case, and the suite
	// closes what it returns. What Open starts must end with Close; what all
	// backends share (a pool, a server) is to be started before Run.
	Open func(t testing.TB) driver.Backend

	// Tokens says that every grant carries a fencing token. If it is false, none
	// may.
	Tokens bool

	// Sever ends the session behind what b was granted for r, in the way that it
	// would end in the field: it kills the connection at the server, breaks the
	// lease, deletes the file. When it returns the store has begun to see it so.
	// The backend must not be told.
	Sever func(t testing.TB, b driver.Backend, r driver.Request, g driver.Grant)

	// LossBound is how long after Sever the loss may take to show, to the holder
	// and to others. It doesn't cover the pause between renewals. Zero means two
	// seconds. The machine may be slow: more is allowed, but less than a lease.
	LossBound time.Duration

	// Mute makes the store mute towards b: requests still reach it and are carried
	// out, but no answer comes back on any connection of b, old or new, and none
	// is refused. The returned function ends that; what was said meanwhile may
	// arrive late or never. It may be called more than once.
	Mute func(t testing.TB, b driver.Backend) (speak func())

	// Restart stops the store and starts it again with what it keeps over a
	// restart, as an administrator would. It is called while no other case runs.
	Restart func(t testing.TB)

	// Process prepares the store for another process and returns the environment
	// variables, in the form key=value, with which the function passed to Main
	// finds it.
	Process func(t testing.TB) []string

	// Resources counts what a backend could leave behind: connections as the
	// server sees them, open descriptors, waiting requests. It is called while no
	// other case runs.
	Resources func(t testing.TB) map[string]int

	// TTL is the lease to ask for, on backends that lease. Several cases wait until
	// it has run out; shorter than two seconds, what a lease set free can't be told
	// from what was given back. Zero means the shortest that the backend takes, but
	// four seconds at least.
	TTL time.Duration

	// Secrets are strings that must not appear in any error text: the password,
	// the key.
	Secrets []string

	// Omit says why something isn't tested: a missing function by its name
	// ("Restart"), or a case by its name. The suite fails if a function is nil
	// without a reason, and logs what was left out, and why.
	Omit map[string]string

	brief bool // the tests of the suite run most cases very often
}

// functions returns which of the optional functions there are, by name.
func (h *Harness) functions() map[string]bool {
	return map[string]bool{
		"Sever":     h.Sever != nil,
		"Mute":      h.Mute != nil,
		"Restart":   h.Restart != nil,
		"Process":   h.Process != nil,
		"Resources": h.Resources != nil,
	}
}

// check reports what is wrong with the harness itself.
func (h *Harness) check(cases []clause) (problems []string) {
	known := h.functions()
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if !known[name] && h.Omit[name] == "" {
			problems = append(problems, fmt.Sprintf("Harness.%s is nil, and Harness.Omit[%q] doesn't say why", name, name))
		}
		if known[name] && h.Omit[name] != "" {
			problems = append(problems, fmt.Sprintf("Harness.%s is set, and Harness.Omit[%q] says why not", name, name))
		}
	}
	for _, c := range cases {
		known[c.name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(h.Omit)) {
		if _, ok := known[name]; !ok {
			problems = append(problems, fmt.Sprintf("Harness.Omit[%q]: there is no such function or case", name))
		}
	}
	return problems
}

func (h *Harness) lossBound() time.Duration {
	if h.LossBound == 0 {
		return 2 * time.Second
	}
	return h.LossBound
}

// ttl returns the lease to ask a backend for, or 0 if it has none.
func (h *Harness) ttl(info driver.Info) time.Duration {
	if info.MaxTTL == 0 {
		return 0
	}
	if h.TTL == 0 {
		return min(max(4*time.Second, info.MinTTL), info.MaxTTL)
	}
	return h.TTL
}

// A clause is one case of the suite: one sentence of the contract.
type clause struct {
	name  string
	modes driver.Modes // that it is about; the backend must have them
	needs string       // functions of the harness, "tokens", "leases", "bound", "interruptible", separated by blanks
	alone bool         // it measures what other cases would disturb, or disturbs them
	real  bool         // it needs the garbage collector or other processes, and so the real clock
	run   func(t *trial)

	distlock bool // it goes through package distlock
}

// missing returns why the case can't be run, or "".
func (c *clause) missing(h *Harness, info driver.Info) string {
	if reason := h.Omit[c.name]; reason != "" {
		return reason
	}
	functions := h.functions()
	for need := range strings.FieldsSeq(c.needs) {
		switch need {
		case "tokens":
			if !h.Tokens {
				return "Harness.Tokens is false"
			}
		case "leases":
			if info.MaxTTL == 0 {
				return "the backend has no leases"
			}
		case "bound":
			if info.AnswersWithin == 0 {
				return "the backend doesn't say how soon it answers"
			}
		case "interruptible":
			if info.Interruptible == 0 {
				return "the backend is interruptible in no mode"
			}
		default:
			if !functions[need] {
				return h.Omit[need]
			}
		}
	}
	for _, m := range []driver.Mode{driver.Exclusive, driver.Shared, driver.Upgradeable, driver.Permit} {
		if c.modes.Has(m) && !info.Modes.Has(m) {
			return "the backend has no mode " + m.String()
		}
	}
	return ""
}
