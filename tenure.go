package distlock

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/distlock-go/distlock/driver"
)

// A tenure is one grant of the store, from its arrival until it is given back.
// It is handed on from one holding to the next, and readers join that of another
// reader; the tenure is what stays.
type tenure struct {
	hold   driver.Hold
	keeper *keeper       // nil: the session can't end
	at     int           // in keeper.tenures; guarded by Locker.keepersMu
	since  time.Duration // by the monotonic clock

	mu      sync.Mutex
	holders []*holding // none: it is on its way from one to the next, or over
	token   uint64     // of the last holding; 0: none
	handed  int32      // how many holdings it had after the first
	lost    bool
	alone   bool // the store grants nothing beside it

	room [1]*holding // of holders: most have one
}

// newTenure returns the tenure of a new grant.
func newTenure(hold driver.Hold, h *holding, r *request) *tenure {
	t := &tenure{hold: hold, since: monotonic()}
	t.alone = r.mode == driver.Exclusive || r.mode == driver.Permit && r.limit == 1
	t.holders = append(t.room[:0], h)
	return t
}

// handoffBits is how much of a fencing token counts the hand-offs of one grant;
// the rest is the store's token. Together they fit into a signed 64-bit integer,
// as which databases keep them.
const handoffBits = 10

// mostHandoffs is how many hand-offs of one grant can be counted.
const mostHandoffs = 1<<handoffBits - 1

// fencingToken returns the token of the first holding of a grant.
func fencingToken(store uint64) (uint64, error) {
	const most uint64 = 1<<(63-handoffBits) - 1
	if store > most {
		return 0, fmt.Errorf("the store's fencing token is %d, and can be %d at most: let its counter start lower", store, most)
	}
	return store << handoffBits, nil
}

// A way is how a holding comes to a tenure that exists.
type way bool

const (
	succeed way = false // the one before has left it
	join    way = true  // others have it too
)

// admit makes h a holder and returns its token. It reports false if the tenure
// isn't there any more in that way.
func (t *tenure) admit(h *holding, w way) (token uint64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lost || (len(t.holders) > 0) != bool(w) || t.keeper != nil && t.keeper.expired() {
		return 0, false
	}
	t.holders = append(t.holders, h)
	t.handed++
	if t.token != 0 {
		t.token++
	}
	return t.token, true
}

// leave takes h off the tenure, which is h's to give back or to hand on if it
// was the last. If h isn't a holder any more, the tenure is lost.
func (t *tenure) leave(h *holding) (last, lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(t.holders, h)
	if i < 0 {
		return false, true
	}
	t.holders = slices.Delete(t.holders, i, i+1)
	return len(t.holders) == 0, false
}

// end ends the tenure as lost and returns who has to be told.
func (t *tenure) end() []*holding {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost = true
	holders := t.holders
	t.holders = nil
	return holders
}

// upgraded notes the token of an upgrade, and returns the holder's.
func (t *tenure) upgraded(token uint64) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.alone = true
	if token != 0 {
		token += uint64(t.handed)
	}
	t.token = token
	return token
}

// resource returns the name of what the holders hold, or "" if there is none at
// the moment.
func (t *tenure) resource() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.holders) == 0 {
		return ""
	}
	return t.holders[0].resource()
}

// mayGoOn reports whether the tenure may have one more holding before other
// processes get their turn. If others can be granted the resource meanwhile, they
// get larger tokens, and the next one here must come from the store too.
func (l *Locker) mayGoOn(t *tenure) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return (t.alone || t.token == 0) && int(t.handed) < l.options.HandoffCount && monotonic()-t.since < l.options.HandoffTime && !l.gate.Closed()
}
