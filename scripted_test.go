package distlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

// A store is a scripted store of locks. Unless told otherwise it grants what is
// free and answers ErrHeld else, at once.
type store struct {
	info driver.Info

	// answer, if not nil, is asked first. It returns false for the usual answer.
	answer func(ctx context.Context, r driver.Request) (driver.Grant, bool, error)

	session func() driver.Session // nil: none
	tokens  bool
	release func(ctx context.Context, h *hold) error // before the usual release
	undo    func(ctx context.Context, r driver.Request) error
	upgrade func(ctx context.Context, wait time.Duration) error

	mu      sync.Mutex
	holders map[string][]*hold
	token   uint64
	calls   []call
	asking  map[string]int // calls of Acquire under way, by resource
	most    int            // of these at once for one resource
	closed  int
}

type call struct {
	what string
	at   time.Time
	req  driver.Request
}

func newStore() *store {
	return &store{
		info: driver.Info{
			Name:  "scripted",
			Modes: driver.ModesOf(driver.Exclusive, driver.Shared, driver.Upgradeable, driver.Permit),
		},
		holders: make(map[string][]*hold),
		asking:  make(map[string]int),
	}
}

func (s *store) note(what string, r driver.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, call{what, time.Now(), r})
}

// count returns how many calls there were.
func (s *store) count(what string) int { return len(s.times(what)) }

func (s *store) times(what string) (at []time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if c.what == what {
			at = append(at, c.at)
		}
	}
	return at
}

func (s *store) held(resource string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.holders[resource])
}

func (s *store) Info() driver.Info { return s.info }

func (s *store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed++
	return nil
}

func (s *store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	s.note("acquire", r)
	s.mu.Lock()
	s.asking[r.Resource]++
	s.most = max(s.most, s.asking[r.Resource])
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asking[r.Resource]--
	}()
	if s.answer != nil {
		if g, ok, err := s.answer(ctx, r); ok {
			return g, err
		}
	}
	return s.grant(r)
}

// grant is the usual answer.
func (s *store) grant(r driver.Request) (driver.Grant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.holders[r.Resource] {
		shared := h.mode != driver.Exclusive && r.Mode != driver.Exclusive && (h.mode == driver.Shared || r.Mode == driver.Shared)
		if r.Mode != driver.Permit && !shared {
			return driver.Grant{}, driver.ErrHeld
		}
	}
	if r.Mode == driver.Permit && len(s.holders[r.Resource]) >= r.Limit {
		return driver.Grant{}, driver.ErrHeld
	}
	h := &hold{store: s, resource: r.Resource, mode: r.Mode, owner: r.Owner.ID}
	s.holders[r.Resource] = append(s.holders[r.Resource], h)
	g := driver.Grant{Hold: h, Token: s.nextToken()}
	if s.session != nil {
		g.Session = s.session()
	}
	return g, nil
}

func (s *store) nextToken() uint64 {
	if !s.tokens {
		return 0
	}
	s.token++
	return s.token
}

func (s *store) Undo(ctx context.Context, r driver.Request) error {
	s.note("undo", r)
	if s.undo != nil {
		if err := s.undo(ctx, r); err != nil {
			return err
		}
	}
	s.free(r.Resource, func(h *hold) bool { return h.owner == r.Owner.ID })
	return nil
}

func (s *store) free(resource string, which func(*hold) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holders[resource] = slices.DeleteFunc(s.holders[resource], which)
}

type hold struct {
	store    *store
	resource string
	mode     driver.Mode
	owner    driver.ID

	mu   sync.Mutex
	busy bool
}

// alone panics if two calls of the hold overlap.
func (h *hold) alone() (done func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.busy {
		panic("two calls of one hold at once")
	}
	h.busy = true
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.busy = false
	}
}

func (h *hold) Release(ctx context.Context) error {
	defer h.alone()()
	h.store.note("release", driver.Request{Resource: h.resource})
	if h.store.release != nil {
		if err := h.store.release(ctx, h); err != nil {
			return err
		}
	}
	h.store.free(h.resource, func(other *hold) bool { return other == h })
	return nil
}

func (h *hold) Upgrade(ctx context.Context, wait time.Duration) (uint64, error) {
	defer h.alone()()
	h.store.note("upgrade", driver.Request{Resource: h.resource, Wait: wait})
	if h.store.upgrade != nil {
		if err := h.store.upgrade(ctx, wait); err != nil {
			return 0, err
		}
	}
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	if len(h.store.holders[h.resource]) > 1 {
		return 0, driver.ErrHeld
	}
	h.mode = driver.Exclusive
	return h.store.nextToken(), nil
}

// A lease is a scripted session.
type lease struct {
	lease     driver.Lease
	renew     func(ctx context.Context) error
	lost      chan struct{}
	abandoned chan struct{}

	mu       sync.Mutex
	renewals []time.Time
	renewing bool
}

func newLease(ttl time.Duration) *lease {
	return &lease{lease: driver.Lease{TTL: ttl}, lost: make(chan struct{}), abandoned: make(chan struct{})}
}

func (l *lease) Lease() driver.Lease   { return l.lease }
func (l *lease) Lost() <-chan struct{} { return l.lost }
func (l *lease) Abandon()              { close(l.abandoned) }

func (l *lease) Renew(ctx context.Context) error {
	l.mu.Lock()
	if l.renewing {
		panic("two renewals of one session at once")
	}
	l.renewing = true
	l.renewals = append(l.renewals, time.Now())
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.renewing = false
	}()
	if l.renew != nil {
		return l.renew(ctx)
	}
	return nil
}

func (l *lease) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.renewals)
}

// last returns when the last renewal began.
func (l *lease) last() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.renewals[len(l.renewals)-1]
}

// bubble runs f on a clock of its own. What it leaves running fails it.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// newLocker returns a Locker that is closed at the end.
func newLocker(t *testing.T, s *store, o *distlock.Options) *distlock.Locker {
	t.Helper()
	l := distlock.New(s, o)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Logf("Close: %v", err)
		}
	})
	return l
}

func mustAcquire(t *testing.T, l *distlock.Locker, resource string, opts ...distlock.AcquireOption) *distlock.Lock {
	t.Helper()
	lock, err := l.Acquire(t.Context(), resource, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func mustRelease(t *testing.T, lock *distlock.Lock) {
	t.Helper()
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
}

// wantErr fails the test unless err matches all of want and none of not.
func wantErr(t *testing.T, err error, want []error, not ...error) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %v", want)
	}
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("%q doesn't match %q", err, w)
		}
	}
	for _, n := range not {
		if errors.Is(err, n) {
			t.Errorf("%q matches %q", err, n)
		}
	}
	if e := (*distlock.Error)(nil); !errors.As(err, &e) {
		t.Errorf("%q is no *Error", err)
	}
}

// isClosed reports whether a channel is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// hang is an answer that never comes while the caller listens.
func hang(ctx context.Context, _ driver.Request) (driver.Grant, bool, error) {
	<-ctx.Done()
	return driver.Grant{}, true, ctx.Err()
}

// heldByAnother is an answer to all questions; it takes the time to wait.
func heldByAnother(ctx context.Context, r driver.Request) (driver.Grant, bool, error) {
	if r.Wait > 0 {
		select {
		case <-time.After(r.Wait):
		case <-ctx.Done():
			return driver.Grant{}, true, ctx.Err()
		}
	}
	return driver.Grant{}, true, driver.ErrHeld
}

type storeError struct{ code int }

func (e *storeError) Error() string { return fmt.Sprintf("store error %d", e.code) }

func heldByAnotherAtOnce(context.Context, driver.Request) (driver.Grant, bool, error) {
	return driver.Grant{}, true, driver.ErrHeld
}
