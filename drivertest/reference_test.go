package drivertest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock-go/distlock/driver"
)

// A store is the reference: an in-memory store that keeps the contract to the
// letter, or breaks it at the one point that defect names.
type store struct {
	defect  string
	leases  bool          // holdings hang on leases; else on connections
	latency time.Duration // each way
	end     chan struct{} // closed when goroutines that a defect leaves behind may go

	mu       sync.Mutex
	tokens   uint64
	locks    map[string]*entry
	permits  map[string]*entry
	sessions map[*session]bool
	leftover int // what failed tries left behind
}

type entry struct {
	records   []*record
	waiters   []*parked
	upgrading *record
	tokens    uint64
}

type parked struct {
	ready chan struct{}
	gone  bool
}

type record struct {
	key      string
	request  driver.Request
	mode     driver.Mode
	token    uint64
	since    time.Time
	session  *session
	released bool
	lost     bool
}

func newStore(defect string, leases bool) *store {
	return &store{
		defect: defect, leases: leases, end: make(chan struct{}),
		locks: make(map[string]*entry), permits: make(map[string]*entry), sessions: make(map[*session]bool),
	}
}

func (s *store) is(defect string) bool { return s.defect == defect }

const (
	secret  = "hunter2"
	leasing = 10 * time.Second

	answering = 3 * time.Second // at the latest
)

func (s *store) harness() *Harness {
	h := &Harness{
		Open:    func(testing.TB) driver.Backend { return &memory{store: s} },
		Tokens:  true,
		TTL:     leasing,
		Secrets: []string{secret},
		Sever: func(_ testing.TB, _ driver.Backend, _ driver.Request, g driver.Grant) {
			s.mu.Lock()
			defer s.mu.Unlock()
			g.Session.(interface{ base() *session }).base().die()
		},
		Mute: func(_ testing.TB, b driver.Backend) func() {
			m := b.(*memory)
			muted := make(chan struct{})
			m.mu.Lock()
			m.muted = muted
			m.mu.Unlock()
			return sync.OnceFunc(func() { close(muted) })
		},
		Restart: func(testing.TB) { s.restart() },
		Resources: func(testing.TB) map[string]int {
			s.mu.Lock()
			defer s.mu.Unlock()
			return map[string]int{"attempts": s.leftover}
		},
		Omit: map[string]string{"Process": "it is in memory"},
	}
	return h
}

func (s *store) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.is("token restarts with the store") {
		s.tokens = 0
	}
	if s.is("restart frees silently") {
		for _, e := range s.locks {
			for _, r := range slices.Clone(e.records) {
				s.remove(r)
			}
		}
	}
	for c := range s.sessions {
		if !s.leases {
			c.die()
		}
		c.restarted = true
	}
}

// key is what the store makes of a name.
func (s *store) key(b *memory, name string) string {
	switch s.defect {
	case "names in lower case":
		return strings.ToLower(name)
	case "names are trimmed":
		return strings.TrimSpace(name)
	case "slashes become underscores":
		return strings.NewReplacer("/", "_", "\\", "_", ":", "_").Replace(name)
	case "trailing dots are cut":
		return strings.TrimRight(name, ".")
	case "names end at NUL":
		name, _, _ = strings.Cut(name, "\x00")
		return name
	case "quotes are dropped":
		return strings.NewReplacer("'", "", `"`, "").Replace(name)
	case "three bytes a character":
		return strings.Map(func(r rune) rune {
			if r > 0xffff {
				return '?'
			}
			return r
		}, name)
	case "names are normalised":
		return strings.NewReplacer("e\u0301", "\u00e9", "A\u030a", "\u00c5", "\u212b", "\u00c5").Replace(name)
	case "names of 255 bytes":
		return name[:min(len(name), 255)]
	case "names of the last 255 bytes":
		return name[max(0, len(name)-255):]
	case "wide names are cut":
		if r := []rune(name); len(name) > 3*len(r)/2 && len(r) > 60 {
			return string(r[:60])
		}
	case "names hashed to 14 bits":
		sum := sha256.Sum256([]byte(name))
		return fmt.Sprint(sum[0], sum[1]&0x3f)
	case "names are Latin-1":
		return strings.Map(func(r rune) rune { return r & 0xff }, name)
	case "names differ by backend":
		if strings.Contains(name, "Ä") {
			return fmt.Sprintf("%p%s", b, name)
		}
	}
	return name
}

// table returns where the state of the resource is, and under which key.
func (s *store) table(key string, permit bool) (map[string]*entry, string) {
	switch {
	case !permit || s.is("semaphores share the locks' names"):
		return s.locks, key
	case s.is("permits are locks of derived names"):
		return s.locks, key + ".permit-0"
	}
	return s.permits, key
}

// entry returns the state of the resource. The caller holds s.mu.
func (s *store) entry(key string, permit bool) *entry {
	table, key := s.table(key, permit)
	e := table[key]
	if e == nil {
		e = &entry{}
		table[key] = e
	}
	return e
}

// remove takes the record out of the store. The caller holds s.mu.
func (s *store) remove(r *record) {
	e := s.entry(r.key, r.mode == driver.Permit)
	i := slices.Index(e.records, r)
	if i >= 0 {
		e.records = slices.Delete(e.records, i, i+1)
	}
	if e.upgrading == r {
		e.upgrading = nil
	}
	if s.is("token restarts after release") && len(e.records) == 0 {
		e.tokens = 0
	}
	if s.is("first reader to leave frees all") && r.mode == driver.Shared {
		e.records = nil
	}
	s.wake(e)
	s.forget(r.key, r.mode == driver.Permit)
}

// forget takes the entry out of the table if there is nothing in it. The caller
// holds s.mu.
func (s *store) forget(key string, permit bool) {
	table, key := s.table(key, permit)
	if e := table[key]; e != nil && len(e.records) == 0 && len(e.waiters) == 0 && e.tokens == 0 && !s.is("names are never forgotten") {
		delete(table, key)
	}
}

// wake makes all who wait for the entry look again. The caller holds s.mu.
func (s *store) wake(e *entry) {
	if s.is("cancelled waiter swallows the wake-up") {
		if i := slices.IndexFunc(e.waiters, func(p *parked) bool { return p.gone }); i >= 0 {
			e.waiters = slices.Delete(e.waiters, i, i+1)
			return
		}
	}
	gone := slices.DeleteFunc(slices.Clone(e.waiters), func(p *parked) bool { return !p.gone })
	for i, p := range e.waiters {
		if p.gone {
			continue
		}
		close(p.ready)
		if s.is("one of the waiting readers is woken") {
			e.waiters = e.waiters[i+1:]
			return
		}
	}
	e.waiters = gone // none, but for a defect
}

// expire ends the leases that have run out. The caller holds s.mu.
func (s *store) expire() {
	now := time.Now()
	for c := range s.sessions {
		if c.ttl > 0 && now.After(c.end()) {
			c.die()
		}
	}
}

// end returns when the lease runs out.
func (c *session) end() time.Time {
	switch c.memory.store.defect {
	case "leases end early", "leases end early and nobody is told":
		return c.expires.Add(-c.ttl / 2)
	case "leases never end":
		return c.expires.Add(time.Hour)
	}
	return c.expires
}

// conflicts reports whether the entry's holders exclude the request. The caller
// holds s.mu.
func (s *store) conflicts(b *memory, e *entry, r driver.Request) bool {
	if r.Mode == driver.Permit {
		limit := r.Limit
		switch s.defect {
		case "one permit too many":
			limit++
		case "one permit too few":
			limit = max(1, limit-1)
		case "permits start at two":
			limit = max(2, limit)
		}
		n := len(e.records)
		if s.is("permits counted by backend") {
			n = 0
			for _, have := range e.records {
				if have.session.memory == b {
					n++
				}
			}
		}
		return n >= limit
	}
	if r.Mode == driver.Shared && e.upgrading != nil {
		return true
	}
	for _, have := range e.records {
		switch {
		case s.is("re-entrant on one backend") && have.session.memory == b,
			s.is("exclusion within a backend only") && have.session.memory != b,
			s.is("readers don't exclude writers") && have.mode == driver.Shared && r.Mode == driver.Exclusive,
			s.is("writers don't exclude readers") && have.mode == driver.Exclusive && r.Mode == driver.Shared,
			s.is("upgraded holdings let readers in") && have.request.Mode == driver.Upgradeable && r.Mode == driver.Shared,
			s.is("many upgradeable at once") && have.mode == driver.Upgradeable && r.Mode == driver.Upgradeable,
			s.is("upgradeable doesn't exclude writers") && have.mode == driver.Upgradeable && r.Mode == driver.Exclusive,
			s.is("writers don't exclude upgradeable") && have.mode == driver.Exclusive && r.Mode == driver.Upgradeable:
		case s.is("reader excludes reader of another backend") && have.session.memory != b,
			s.is("reader excludes reader of the same backend") && have.session.memory == b,
			s.is("upgradeable excludes readers") && (have.mode == driver.Upgradeable || r.Mode == driver.Upgradeable):
			return true
		case have.mode == driver.Exclusive || r.Mode == driver.Exclusive,
			have.mode == driver.Upgradeable && r.Mode == driver.Upgradeable:
			return true
		}
	}
	return false
}

// memory is a backend on a store.
type memory struct {
	store *store

	mu     sync.Mutex
	muted  chan struct{}
	closed bool

	connection *session // guarded by store.mu; nil, or shared by all grants
	broken     error    // guarded by store.mu; why a defect made it unusable
	spoilt     string   // the same for one name
	tokens     uint64
}

func (m *memory) Info() driver.Info {
	i := driver.Info{
		Name:  "memory",
		Modes: driver.ModesOf(driver.Exclusive, driver.Shared, driver.Upgradeable, driver.Permit),
	}
	switch m.store.defect {
	case "", "never gives up by itself", "hangs while the store is mute", "a mute store is ErrHeld", "settled before it is":
		// With the others package distlock is to give its questions a context that ends.
		i.AnswersWithin = answering
		i.Interruptible = driver.ModesOf(driver.Exclusive)
	}
	if strings.HasPrefix(m.store.defect, "a missing mode") {
		i.Modes = driver.ModesOf(driver.Exclusive)
	}
	if m.store.leases {
		i.MinTTL, i.MaxTTL = time.Millisecond, time.Hour
	}
	return i
}

// travel is the way to the store or back.
func (m *memory) travel(ctx context.Context) error {
	if m.store.latency == 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(m.store.latency):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answer is the way back, which is closed while the store is mute.
func (m *memory) answer(ctx context.Context) error {
	m.mu.Lock()
	muted := m.muted
	m.mu.Unlock()
	if muted != nil {
		select {
		case <-muted:
		default:
			if m.store.is("hangs while the store is mute") {
				select {
				case <-m.store.end:
				case <-muted:
				}
				return context.DeadlineExceeded
			}
			if m.store.is("a mute store is ErrHeld") {
				return driver.ErrHeld
			}
			bound := time.After(answering)
			if m.store.is("never gives up by itself") {
				bound = nil
			}
			select {
			case <-muted:
			case <-ctx.Done():
				return ctx.Err()
			case <-bound:
				return context.DeadlineExceeded
			}
		}
	}
	return m.travel(ctx)
}

// leave adds to what Harness.Resources counts.
func (s *store) leave(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leftover += n
}

var errStore = errors.New("the store is not well")

func (m *memory) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := m.acquire(ctx, r)
	s := m.store
	if err != nil && g.Hold == nil {
		if s.is("failed tries leave something behind") {
			s.leave(1)
		}
		if s.is("failed tries leave a goroutine") {
			go func() { <-s.end }()
		}
	}
	switch {
	case err == nil:
	case s.is("nil error for contention") && errors.Is(err, driver.ErrHeld):
		return driver.Grant{}, nil
	case s.is("grant beside an error") && errors.Is(err, driver.ErrHeld):
		return driver.Grant{Hold: &hold{}}, err
	case s.is("contention is some error") && errors.Is(err, driver.ErrHeld):
		return driver.Grant{}, errStore
	case s.is("contention is some error after a wait") && errors.Is(err, driver.ErrHeld) && r.Wait > 0:
		return driver.Grant{}, context.DeadlineExceeded
	case s.is("failure is ErrHeld") && errors.Is(err, context.Canceled):
		return driver.Grant{}, driver.ErrHeld
	case s.is("closed is ErrHeld") && errors.Is(err, errClosed):
		return driver.Grant{}, driver.ErrHeld
	case s.is("secrets in errors") && !errors.Is(err, driver.ErrHeld):
		return driver.Grant{}, fmt.Errorf("memory://me:%s@store: %w", secret, err)
	}
	return g, err
}

var errClosed = errors.New("the backend is closed")

func (m *memory) acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	s := m.store
	switch err := ctx.Err(); {
	case err == nil:
	case s.is("done context is ignored"):
		ctx = context.WithoutCancel(ctx)
	case s.is("passed deadline is ignored") && errors.Is(err, context.DeadlineExceeded):
		ctx = context.WithoutCancel(ctx)
	case s.is("done context leaves a grant"):
		r.Owner.ID = driver.ID{}
		m.grant(r)
		return driver.Grant{}, err
	default:
		return driver.Grant{}, err
	}
	m.mu.Lock()
	closed := m.closed
	m.mu.Unlock()
	if closed && !s.is("works on when closed") {
		return driver.Grant{}, errClosed
	}
	if !m.Info().Modes.Has(r.Mode) && !s.is("a missing mode is exclusive") {
		if s.is("a missing mode is some error") {
			return driver.Grant{}, errStore
		}
		return driver.Grant{}, fmt.Errorf("%w: mode %v", errors.ErrUnsupported, r.Mode)
	}
	s.mu.Lock()
	broken := m.broken
	if s.is("a released name is spoilt") && m.spoilt == r.Resource {
		broken = driver.ErrHeld
	}
	if c := m.connection; c != nil && c.dead && s.is("a lost connection is used on") {
		broken = errStore
	}
	s.mu.Unlock()
	if broken != nil {
		return driver.Grant{}, broken
	}
	if s.is("racy") {
		s.mu.Lock()
		free := !s.conflicts(m, s.entry(s.key(m, r.Resource), r.Mode == driver.Permit), r)
		s.mu.Unlock()
		time.Sleep(10 * time.Microsecond)
		if free {
			return m.insert(r, time.Now()), nil
		}
	}
	if err := m.travel(ctx); err != nil {
		return driver.Grant{}, err
	}
	if s.is("a thousand locks are too many") {
		s.mu.Lock()
		n := len(s.locks)
		s.mu.Unlock()
		if n > 500 {
			return driver.Grant{}, errStore
		}
	}
	g, err := m.await(ctx, r)
	if err != nil {
		return driver.Grant{}, err
	}
	if err := m.answer(ctx); err != nil {
		if s.is("lost answer is kept") {
			g.Hold.(*hold).record.request.Owner.ID = driver.ID{}
		}
		if ctx.Err() != nil && m.Info().Interruptible.Has(r.Mode) {
			return driver.Grant{}, m.takeBack(g, err)
		}
		return driver.Grant{}, err
	}
	if s.is("context ends the holding") {
		context.AfterFunc(ctx, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			g.Session.(*session).die()
		})
	}
	return g, nil
}

// takeBack gives back what was granted too late, when the store speaks again.
func (m *memory) takeBack(g driver.Grant, err error) error {
	settled := make(chan struct{})
	if m.store.is("settled before it is") {
		close(settled)
	} else {
		go func() {
			defer close(settled)
			_ = m.answer(context.Background())
			_ = g.Hold.Release(context.Background())
		}()
	}
	return &driver.UnsettledError{Err: err, Settled: settled}
}

// grant grants the request if nothing speaks against it.
func (m *memory) grant(r driver.Request) (driver.Grant, bool) {
	s := m.store
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	e := s.entry(s.key(m, r.Resource), r.Mode == driver.Permit)
	if s.conflicts(m, e, r) || s.is("Queue is always refused") && r.Queue || r.Queue && r.Wait == 0 && len(e.waiters) > 0 {
		return driver.Grant{}, false
	}
	return m.insertLocked(r, time.Now()), true
}

func (m *memory) insert(r driver.Request, sent time.Time) driver.Grant {
	m.store.mu.Lock()
	defer m.store.mu.Unlock()
	return m.insertLocked(r, sent)
}

func (m *memory) insertLocked(r driver.Request, sent time.Time) driver.Grant {
	s := m.store
	key := s.key(m, r.Resource)
	e := s.entry(key, r.Mode == driver.Permit)
	rec := &record{key: key, request: r, mode: r.Mode, since: sent, session: m.session(r)}
	if s.is("a missing mode is exclusive") {
		rec.mode = driver.Exclusive
	}
	rec.token = s.nextToken(m, e, r.Mode)
	e.records = append(e.records, rec)
	rec.session.records = append(rec.session.records, rec)
	h, session := m.dress(&hold{memory: m, record: rec}, rec.session)
	return driver.Grant{Hold: h, Token: rec.token, Session: session, Sent: m.sent(sent)}
}

func (m *memory) sent(at time.Time) time.Time {
	switch m.store.defect {
	case "Sent is missing":
		return time.Time{}
	case "Sent lies ahead":
		return at.Add(time.Second)
	case "Sent lies before the call":
		return at.Add(-time.Minute)
	}
	return at
}

// nextToken returns the token of a grant. The caller holds s.mu.
func (s *store) nextToken(m *memory, e *entry, mode driver.Mode) uint64 {
	switch s.defect {
	case "no token for permits":
		if mode == driver.Permit {
			return 0
		}
	case "token restarts after release":
		e.tokens++
		return e.tokens
	case "tokens counted by backend":
		m.tokens++
		return m.tokens
	case "readers have one token":
		if mode == driver.Shared {
			return max(1, s.tokens)
		}
	case "shared tokens are apart":
		if mode == driver.Shared {
			e.tokens++
			return e.tokens
		}
	case "upgradeable tokens are apart":
		if mode == driver.Upgradeable {
			e.tokens++
			return e.tokens
		}
	case "permits have one token":
		if mode == driver.Permit {
			return 1
		}
	}
	s.tokens++
	return s.tokens
}

// await asks until the request is granted or its wait is over.
func (m *memory) await(ctx context.Context, r driver.Request) (driver.Grant, error) {
	s := m.store
	wait := r.Wait
	switch {
	case wait > 0 && wait < driver.Forever && s.is("waits are rounded up to seconds"):
		wait = (wait + time.Second - 1).Truncate(time.Second)
	case wait > 0 && wait < driver.Forever && s.is("waits last twice as long"):
		wait *= 2
	case wait > 0 && wait < time.Millisecond && s.is("waits below a millisecond last for ever"):
		wait = driver.Forever
	case wait > 0 && wait < time.Second && s.is("waits below a second are refused"),
		wait == driver.Forever && s.is("Forever is an overflow"):
		return driver.Grant{}, errStore
	case wait == 0 && s.is("waits though Wait is zero"):
		wait = driver.Forever
	}
	var over <-chan time.Time
	if wait > 0 && wait < driver.Forever {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		over = timer.C
	}
	var own <-chan time.Time
	if s.is("gives up by itself after a second") {
		own = time.After(time.Second)
	}
	token := uint64(0)
	if s.is("token is drawn before the grant") {
		s.mu.Lock()
		s.tokens++
		token = s.tokens
		s.mu.Unlock()
	}
	if wait > 0 && s.is("waiting takes connections") {
		s.leave(50)
		defer s.leave(-50)
	}
	if wait > 0 && s.is("crossed waits are some error") && m.crosses(r) {
		return driver.Grant{}, errStore
	}
	for {
		g, ok := m.grant(r)
		if ok {
			if token != 0 {
				g.Token = token
				s.mu.Lock()
				g.Hold.(*hold).record.token = token
				s.mu.Unlock()
			}
			return g, nil
		}
		if wait == 0 {
			if err := m.answer(ctx); err != nil {
				return driver.Grant{}, err
			}
			return driver.Grant{}, driver.ErrHeld
		}
		p, next := m.park(r)
		var expiry <-chan time.Time
		if next > 0 {
			expiry = time.After(next)
		}
		done := ctx.Done()
		if s.is("cancel doesn't end a wait") {
			done = nil
		}
		if _, ok := ctx.Deadline(); ok && s.is("deadline doesn't end a wait") {
			done = nil
		}
		select {
		case <-p.ready:
		case <-expiry:
			m.unpark(r, p)
		case <-over:
			m.unpark(r, p)
			if s.is("ended wait is granted later") {
				go m.linger(r)
			}
			return driver.Grant{}, driver.ErrHeld
		case <-own:
			m.unpark(r, p)
			return driver.Grant{}, errStore
		case <-done:
			m.unpark(r, p)
			if s.is("cancelled wait is granted later") {
				go m.linger(r)
			}
			return driver.Grant{}, ctx.Err()
		case <-s.end:
			return driver.Grant{}, errStore
		}
	}
}

// crosses reports whether somebody waits for what the backend holds beside the
// resource that it asks for.
func (m *memory) crosses(r driver.Request) bool {
	s := m.store
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, e := range s.locks {
		if key != r.Resource && len(e.waiters) > 0 && slices.ContainsFunc(e.records, func(r *record) bool { return r.session.memory == m }) {
			return true
		}
	}
	return false
}

// linger waits on for nobody.
func (m *memory) linger(r driver.Request) {
	r.Owner.ID = driver.ID{}
	for {
		if _, ok := m.grant(r); ok {
			return
		}
		p, _ := m.park(r)
		select {
		case <-p.ready:
		case <-m.store.end:
			return
		}
	}
}

// park notes that somebody waits, and returns when the first of the leases in
// the way runs out at the latest.
func (m *memory) park(r driver.Request) (p *parked, next time.Duration) {
	s := m.store
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entry(s.key(m, r.Resource), r.Mode == driver.Permit)
	p = &parked{ready: make(chan struct{})}
	if !s.conflicts(m, e, r) && !s.is("Queue is always refused") {
		close(p.ready) // it came free in between
		return p, 0
	}
	sleepsOn := s.is("waiters sleep on") || s.is("waiters of the same backend sleep on") && e.records[0].session.memory == m
	if !sleepsOn {
		e.waiters = append(e.waiters, p)
	}
	for _, have := range e.records {
		if have.session.ttl > 0 {
			if left := time.Until(have.session.end()) + time.Millisecond; next == 0 || left < next {
				next = max(left, time.Millisecond)
			}
		}
	}
	return p, next
}

func (m *memory) unpark(r driver.Request, p *parked) {
	s := m.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.is("cancelled waiter swallows the wake-up") || s.is("queue counts those who gave up") {
		p.gone = true
		return
	}
	e := s.entry(s.key(m, r.Resource), r.Mode == driver.Permit)
	e.waiters = slices.DeleteFunc(e.waiters, func(q *parked) bool { return q == p })
	s.forget(s.key(m, r.Resource), r.Mode == driver.Permit)
}

func (m *memory) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	s := m.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.is("closing loses the counter") {
		s.tokens = 0
	}
	for c := range s.sessions {
		if !s.is("closing frees everything") && (c.memory != m || c.ttl > 0 || s.is("closing keeps the connection")) {
			continue
		}
		c.die()
	}
	return nil
}

func (m *memory) Undo(_ context.Context, r driver.Request) error {
	s := m.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.is("Undo does nothing") {
		return nil
	}
	found := false
	for _, table := range []map[string]*entry{s.locks, s.permits} {
		for _, e := range table {
			for _, rec := range slices.Clone(e.records) {
				switch {
				case s.is("Undo of one's own only") && rec.session.memory != m:
				case s.is("Undo by name") && rec.request.Resource == r.Resource, rec.request.Owner.ID == r.Owner.ID:
					found = true
					s.remove(rec)
				}
			}
		}
	}
	if s.is("Undo of nothing fails") && !found {
		return errStore
	}
	return nil
}

func (m *memory) Holders(_ context.Context, resource string, mode driver.Mode) ([]driver.Holder, error) {
	s := m.store
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	key := s.key(m, resource)
	records := s.entry(key, mode == driver.Permit).records
	if s.is("holders of permits are shown as those of the lock") && mode != driver.Permit {
		records = append(slices.Clone(records), s.entry(key, true).records...)
	}
	var all []driver.Holder
	for _, r := range records {
		h := driver.Holder{Owner: r.request.Owner, Mode: r.mode, Since: r.since, Token: r.token}
		if s.is("holders are shown as oneself") {
			h.Owner.PID++
		}
		if s.is("readers are shown as writers") {
			h.Mode = driver.Exclusive
		}
		all = append(all, h)
	}
	if s.is("somebody always holds") && len(all) == 0 {
		all = append(all, driver.Holder{Mode: mode})
	}
	if s.is("nobody is ever shown") {
		return nil, nil
	}
	return all, nil
}
