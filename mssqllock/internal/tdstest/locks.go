package tdstest

import (
	"sync"
	"time"
)

// mode is a lock mode.
type mode byte

// The modes, in no order of strength.
const (
	noLock mode = iota
	intentShared
	shared
	update
	intentExclusive
	sharedIntentExclusive // by union only
	updateIntentExclusive // by union only
	exclusive
)

// modeNames are those of sp_getapplock and APPLOCK_MODE, modeShort those of
// sys.dm_tran_locks.request_mode.
var (
	modeNames = [...]string{"NoLock", "IntentShared", "Shared", "Update", "IntentExclusive", "SharedIntentExclusive", "UpdateIntentExclusive", "Exclusive"}
	modeShort = [...]string{"", "IS", "S", "U", "IX", "SIX", "UIX", "X"}
)

// compatible has a bit for each mode that may be granted beside the index.
// learn.microsoft.com: "Transaction locking and row versioning guide", Lock
// compatibility.
var compatible = [...]uint16{
	intentShared:          1<<intentShared | 1<<shared | 1<<update | 1<<intentExclusive | 1<<sharedIntentExclusive | 1<<updateIntentExclusive,
	shared:                1<<intentShared | 1<<shared | 1<<update,
	update:                1<<intentShared | 1<<shared,
	intentExclusive:       1<<intentShared | 1<<intentExclusive,
	sharedIntentExclusive: 1 << intentShared,
	updateIntentExclusive: 1 << intentShared,
	exclusive:             0,
}

// union is what is held after a second request in another mode.
// learn.microsoft.com: "sp_getapplock", Remarks: the effect is a union of the
// two modes. "APPLOCK_MODE" names the two modes that only a union makes.
func union(a, b mode) mode {
	if a > b {
		a, b = b, a
	}
	switch {
	case a == noLock || a == b || b == exclusive || a == intentShared:
		return b
	case a == shared && b == update:
		return update
	case a == shared && b <= sharedIntentExclusive:
		return sharedIntentExclusive
	case a == intentExclusive && b == sharedIntentExclusive:
		return sharedIntentExclusive
	}
	return updateIntentExclusive // of Update and an intent to write, in any way
}

// Return codes of sp_getapplock. learn.microsoft.com: "sp_getapplock", Return
// code values.
const (
	codeGranted  = 0
	codeWaited   = 1
	codeTimeout  = -1
	codeCanceled = -2
	codeDeadlock = -3
	codeError    = -999
)

// resourceKey identifies a resource. learn.microsoft.com: "sp_getapplock",
// Remarks: by database, by database principal and by name. Names are compared
// as binary.
type resourceKey struct {
	database, principal, name string
}

// owner owns locks: a session, or a transaction of it. They are two owners:
// learn.microsoft.com "sys.dm_tran_locks", Remarks. No page says that what one
// of them holds lets the other in, so they exclude each other as strangers do.
type owner struct {
	s     *session
	tx    bool
	held  map[resourceKey]*request
	ended bool // nothing is granted to it any more
}

func newOwner(s *session, tx bool) *owner {
	return &owner{s: s, tx: tx, held: map[resourceKey]*request{}}
}

// request is a lock of an owner, or one that it waits for. While a conversion
// waits, mode is what is held, and wanted what it is to become.
type request struct {
	o      *owner
	res    *resource
	mode   mode
	wanted mode // noLock if nothing is waited for
	count  int
	number uint64   // of its grant, among all
	result chan int // takes the return code of a wait, once
}

func (r *request) converts() bool { return r.mode != noLock && r.wanted != noLock }

type resource struct {
	key     resourceKey
	granted []*request
	waiting []*request // conversions first
}

// lockManager has all locks, under one mutex.
type lockManager struct {
	mu        sync.Mutex
	resources map[resourceKey]*resource
	waits     map[*session]*request // a session waits for one lock at most
	grants    uint64
}

func newLockManager() *lockManager {
	return &lockManager{resources: map[resourceKey]*resource{}, waits: map[*session]*request{}}
}

// fits tells whether the owner could have the mode beside what others hold.
func (res *resource) fits(o *owner, m mode) bool {
	for _, g := range res.granted {
		if g.o != o && compatible[m]&(1<<g.mode) == 0 {
			return false
		}
	}
	return true
}

// acquire is sp_getapplock with valid arguments. A negative timeout waits for
// ever. A closed cancel ends the wait.
func (lm *lockManager) acquire(o *owner, key resourceKey, m mode, timeout time.Duration, cancel <-chan struct{}) int {
	lm.mu.Lock()
	r, code := lm.try(o, key, m, timeout != 0)
	lm.mu.Unlock()
	if r == nil {
		return code
	}
	var expired <-chan time.Time
	if timeout > 0 {
		t := time.NewTimer(timeout)
		defer t.Stop()
		expired = t.C
	}
	select {
	case code = <-r.result:
		return code
	case <-expired:
		code = codeTimeout
	case <-cancel:
		code = codeCanceled
	}
	lm.mu.Lock()
	defer lm.mu.Unlock()
	select {
	case granted := <-r.result: // it came meanwhile
		return granted
	default:
	}
	lm.unwait(r)
	return code
}

// try grants at once, or answers with the request to wait for, or a code.
func (lm *lockManager) try(o *owner, key resourceKey, m mode, wait bool) (*request, int) {
	if o.ended {
		return nil, codeCanceled
	}
	res := lm.resources[key]
	if res == nil {
		res = &resource{key: key}
		lm.resources[key] = res
	}
	r := o.held[key]
	if r != nil {
		// learn.microsoft.com: "sp_getapplock", Remarks: called several times for
		// the same resource it must be released as often. A conversion goes ahead
		// of those that hold nothing.
		m = union(r.mode, m)
		if m == r.mode || res.fits(o, m) {
			r.mode = m
			r.count++
			return nil, codeGranted
		}
	} else if len(res.waiting) == 0 && res.fits(o, m) {
		lm.grants++
		r = &request{o: o, res: res, mode: m, count: 1, number: lm.grants}
		res.granted = append(res.granted, r)
		o.held[key] = r
		return nil, codeGranted
	}
	if !wait {
		lm.drop(res)
		return nil, codeTimeout
	}
	if r == nil {
		r = &request{o: o, res: res}
	}
	r.wanted = m
	r.result = make(chan int, 1)
	at := len(res.waiting)
	if r.converts() {
		for at = 0; at < len(res.waiting) && res.waiting[at].converts(); at++ {
		}
	}
	res.waiting = append(res.waiting, nil)
	copy(res.waiting[at+1:], res.waiting[at:])
	res.waiting[at] = r
	lm.waits[o.s] = r
	if lm.deadlocked(r) {
		// Which one is the victim is the server's choice; here it is who closes
		// the circle. Its transaction goes on: "sp_getapplock", Remarks.
		lm.unwait(r)
		return nil, codeDeadlock
	}
	return r, 0
}

// deadlocked tells whether r's session waits for itself, in however many steps.
// learn.microsoft.com: "Deadlocks guide". A waiting request waits for the
// holders that it doesn't fit beside, and for the one before it in the queue,
// which stands for all before that.
func (lm *lockManager) deadlocked(r *request) bool {
	seen := map[*session]bool{}
	var reaches func(from *request) bool
	follow := func(s *session) bool {
		if s == r.o.s {
			return true
		}
		if seen[s] {
			return false
		}
		seen[s] = true
		next := lm.waits[s]
		return next != nil && reaches(next)
	}
	reaches = func(from *request) bool {
		for _, g := range from.res.granted {
			if g.o != from.o && compatible[from.wanted]&(1<<g.mode) == 0 && follow(g.o.s) {
				return true
			}
		}
		for i, w := range from.res.waiting {
			if w == from {
				return i > 0 && follow(from.res.waiting[i-1].o.s)
			}
		}
		return false
	}
	return reaches(r)
}

// unwait takes r out of the queue. What it holds it keeps.
func (lm *lockManager) unwait(r *request) {
	for i, w := range r.res.waiting {
		if w == r {
			r.res.waiting = append(r.res.waiting[:i], r.res.waiting[i+1:]...)
			break
		}
	}
	r.wanted = noLock
	delete(lm.waits, r.o.s)
	lm.grant(r.res)
}

// grant grants what can be granted: of the conversions any, of the others those
// before the first that must wait on.
func (lm *lockManager) grant(res *resource) {
	for i := 0; i < len(res.waiting); {
		w := res.waiting[i]
		if !res.fits(w.o, w.wanted) {
			if !w.converts() {
				break
			}
			i++
			continue
		}
		if !w.converts() {
			if i > 0 {
				break // a conversion is still ahead
			}
			lm.grants++
			w.number = lm.grants
			res.granted = append(res.granted, w)
			w.o.held[res.key] = w
		}
		w.mode, w.wanted = w.wanted, noLock
		w.count++
		res.waiting = append(res.waiting[:i], res.waiting[i+1:]...)
		delete(lm.waits, w.o.s)
		w.result <- codeWaited
	}
	lm.drop(res)
}

// drop forgets a resource that nobody wants.
func (lm *lockManager) drop(res *resource) {
	if len(res.granted) == 0 && len(res.waiting) == 0 {
		delete(lm.resources, res.key)
	}
}

// release is sp_releaseapplock. It answers false if the owner doesn't hold it.
// learn.microsoft.com: "sp_getapplock", Remarks: the mode stays the strongest
// until the last release.
func (lm *lockManager) release(o *owner, key resourceKey) bool {
	lm.mu.Lock()
	defer lm.mu.Unlock()
	r := o.held[key]
	if r == nil {
		return false
	}
	r.count--
	if r.count == 0 {
		lm.remove(r)
	}
	return true
}

func (lm *lockManager) remove(r *request) {
	delete(r.o.held, r.res.key)
	for i, g := range r.res.granted {
		if g == r {
			r.res.granted = append(r.res.granted[:i], r.res.granted[i+1:]...)
			break
		}
	}
	lm.grant(r.res)
}

// end frees all that the owner holds, and ends its wait. last is for an owner
// that is gone for good.
func (lm *lockManager) end(o *owner, last bool) {
	if o == nil {
		return
	}
	lm.mu.Lock()
	defer lm.mu.Unlock()
	o.ended = o.ended || last
	if r := lm.waits[o.s]; r != nil && r.o == o {
		lm.unwait(r)
		r.result <- codeCanceled
	}
	for _, r := range o.held {
		lm.remove(r)
	}
}

// count is how many locks have been granted that weren't held before.
func (lm *lockManager) count() uint64 {
	lm.mu.Lock()
	defer lm.mu.Unlock()
	return lm.grants
}

// endSince frees what the owner was granted since. learn.microsoft.com:
// "ROLLBACK TRANSACTION", Locking behavior: conversions stay as they are.
func (lm *lockManager) endSince(o *owner, grants uint64) {
	lm.mu.Lock()
	defer lm.mu.Unlock()
	for _, r := range o.held {
		if r.number > grants {
			lm.remove(r)
		}
	}
}

// held is APPLOCK_MODE.
func (lm *lockManager) held(o *owner, key resourceKey) mode {
	lm.mu.Lock()
	defer lm.mu.Unlock()
	if o == nil || o.held[key] == nil {
		return noLock
	}
	return o.held[key].mode
}

// grantable is APPLOCK_TEST: what acquire without waiting would do.
func (lm *lockManager) grantable(o *owner, key resourceKey, m mode) bool {
	lm.mu.Lock()
	defer lm.mu.Unlock()
	res := lm.resources[key]
	if res == nil {
		return true
	}
	if r := o.held[key]; r != nil {
		m = union(r.mode, m)
		return m == r.mode || res.fits(o, m)
	}
	return len(res.waiting) == 0 && res.fits(o, m)
}
