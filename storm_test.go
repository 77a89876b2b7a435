package distlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
	"github.com/distlock-go/distlock/driver"
)

// stormStore is a store whose sessions die, whose answers get lost and late, and that
// frees what ran out.
type stormStore struct {
	t       *testing.T
	mu      sync.Mutex
	rng     *rand.Rand
	calm    bool
	holders map[string]map[*stormHold]struct{}
	token   uint64
	grants  int
	tokens  bool
	fast    bool
}

// stormBackend is what one process has of it.
type stormBackend struct {
	*stormStore
	pooled bool
	own    bool // a session is the hold's own, and the hold itself
	within time.Duration
	ttl    time.Duration
	conn   *stormSession
}

type stormSession struct {
	s        *stormStore
	lease    driver.Lease
	lost     chan struct{}
	dead     bool
	until    time.Time
	renewing atomic.Bool
	gaveUp   atomic.Int32
	released time.Time
}

type stormHold struct {
	s    *stormStore
	sess *stormSession
	name string
	mode driver.Mode
	busy atomic.Bool
	gone bool
}

// stormLease is a hold that is its own session.
type stormLease struct {
	*stormHold
	*stormSession
}

func (s *stormStore) roll(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.calm && s.rng.IntN(n) == 0
}

func (s *stormStore) nap(most time.Duration) {
	s.mu.Lock()
	if s.fast {
		most /= 50
	}
	d := time.Duration(s.rng.Int64N(int64(most) + 1))
	s.mu.Unlock()
	if d > 0 {
		time.Sleep(d)
	}
}

func (b *stormBackend) Info() driver.Info {
	i := driver.Info{
		Name: "storm", Modes: driver.ModesOf(driver.Exclusive, driver.Shared, driver.Upgradeable, driver.Permit),
		PollMin: time.Millisecond, PollMax: 20 * time.Millisecond, AnswersWithin: b.within,
	}
	if !b.pooled {
		i.MinTTL, i.MaxTTL = 10*time.Millisecond, time.Minute
	}
	return i
}
func (b *stormBackend) Close() error { return nil }

// expire drops what ran out. s.mu is held.
func (s *stormStore) expire(name string) {
	for h := range s.holders[name] {
		if h.sess != nil && (h.sess.lease.TTL > 0 && time.Now().After(h.sess.until)) {
			h.sess.dead = true
			h.gone = true
			delete(s.holders[name], h)
		}
	}
}

func (s *stormStore) free(name string, mode driver.Mode, limit int, but *stormHold) bool {
	s.expire(name)
	n := 0
	for h := range s.holders[name] {
		if h == but {
			continue
		}
		n++
		if mode != driver.Permit {
			if h.mode == driver.Exclusive || mode == driver.Exclusive || h.mode == driver.Upgradeable && mode == driver.Upgradeable {
				return false
			}
		}
	}
	return mode != driver.Permit || n < limit
}

func (b *stormBackend) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	s := b.stormStore
	sent := time.Now()
	s.nap(3 * time.Millisecond)
	if s.roll(20) {
		return driver.Grant{}, errors.New("nothing done")
	}
	if s.roll(40) && b.within == 0 {
		<-ctx.Done()
		return driver.Grant{}, ctx.Err()
	}
	name := r.Resource
	if r.Mode == driver.Permit {
		name = "permits " + name
	}
	s.mu.Lock()
	if !s.free(name, r.Mode, r.Limit, nil) {
		s.mu.Unlock()
		return driver.Grant{}, driver.ErrHeld
	}
	s.grants++
	var sess *stormSession
	if b.pooled {
		if b.conn == nil || b.conn.dead {
			b.conn = &stormSession{
				s: s, lost: make(chan struct{}), until: time.Now().Add(b.ttl),
				lease: driver.Lease{TTL: b.ttl, Every: b.ttl / 3, Pooled: true},
			}
		}
		sess = b.conn
		sess.until = time.Now().Add(b.ttl)
	} else {
		sess = &stormSession{s: s, lost: make(chan struct{}), until: time.Now().Add(b.ttl), lease: driver.Lease{TTL: b.ttl}}
	}
	h := &stormHold{s: s, sess: sess, name: name, mode: r.Mode}
	if s.holders[name] == nil {
		s.holders[name] = make(map[*stormHold]struct{})
	}
	s.holders[name][h] = struct{}{}
	s.token++
	g := driver.Grant{Hold: h, Session: sess, Sent: sent}
	if b.own {
		one := &stormLease{h, sess}
		g.Hold, g.Session = one, one
	}
	if s.tokens {
		g.Token = s.token
	}
	s.mu.Unlock()
	if s.roll(20) { // the answer is lost
		s.nap(time.Millisecond)
		s.mu.Lock()
		h.gone = true
		delete(s.holders[name], h) // as if by Undo
		s.mu.Unlock()
		return driver.Grant{}, errors.New("no answer")
	}
	s.nap(2 * time.Millisecond)
	return g, nil
}

func (h *stormHold) alone() func() {
	if h.busy.Swap(true) {
		panic("two calls of one hold at once")
	}
	return func() { h.busy.Store(false) }
}

func (h *stormHold) Release(ctx context.Context) error {
	defer h.alone()()
	h.s.nap(2 * time.Millisecond)
	if h.s.roll(20) {
		return errors.New("not released")
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.s.expire(h.name)
	if h.gone {
		return driver.ErrLost
	}
	h.gone = true
	delete(h.s.holders[h.name], h)
	if !h.sess.lease.Pooled {
		h.sess.released = time.Now()
	}
	return nil
}

func (h *stormHold) Upgrade(context.Context, time.Duration) (uint64, error) {
	defer h.alone()()
	h.s.nap(2 * time.Millisecond)
	if h.s.roll(10) {
		return 0, errors.New("not upgraded")
	}
	h.s.mu.Lock()
	h.s.expire(h.name)
	if h.gone {
		h.s.mu.Unlock()
		return 0, driver.ErrLost
	}
	if !h.s.free(h.name, driver.Exclusive, 0, h) {
		h.s.mu.Unlock()
		return 0, driver.ErrHeld
	}
	h.mode = driver.Exclusive
	h.s.token++
	token := h.s.token
	if !h.s.tokens {
		token = 0
	}
	h.s.mu.Unlock()
	h.s.nap(2 * time.Millisecond)
	return token, nil
}

func (x *stormSession) Lease() driver.Lease   { return x.lease }
func (x *stormSession) Lost() <-chan struct{} { return x.lost }
func (x *stormSession) Abandon() {
	if x.gaveUp.Add(1) > 1 {
		x.s.t.Error("abandoned twice")
	}
	x.kill(false)
}

func (x *stormSession) kill(tell bool) {
	x.s.mu.Lock()
	if x.dead {
		x.s.mu.Unlock()
		return
	}
	x.dead = true
	x.s.mu.Unlock()
	if tell {
		close(x.lost)
		time.Sleep(time.Microsecond)
	}
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	for name, hs := range x.s.holders {
		for h := range hs {
			if h.sess == x {
				h.gone = true
				delete(x.s.holders[name], h)
			}
		}
	}
}

func (x *stormSession) Renew(ctx context.Context) error {
	if x.renewing.Swap(true) {
		panic("two renewals at once")
	}
	defer x.renewing.Store(false)
	s := x.s
	s.mu.Lock()
	if !x.released.IsZero() && time.Now().After(x.released) {
		s.t.Error("renewed after the release")
	}
	s.mu.Unlock()
	if s.roll(10) {
		<-ctx.Done()
		return ctx.Err()
	}
	s.nap(3 * time.Millisecond)
	if s.roll(4) {
		return errors.New("not renewed")
	}
	s.mu.Lock()
	if x.lease.TTL > 0 && time.Now().After(x.until) {
		x.dead = true
	}
	dead := x.dead
	if !dead {
		x.until = time.Now().Add(x.lease.TTL)
	}
	s.mu.Unlock()
	if dead {
		return driver.ErrLost
	}
	if ctx.Err() != nil && s.roll(2) {
		return ctx.Err()
	}
	return nil
}

type stormEntry struct {
	lock *distlock.Lock
	mode driver.Mode
}

// stormLong runs all of the storms: it takes minutes.
var stormLong = os.Getenv("DISTLOCK_TEST_STORM") != ""

// All kinds of lock from four processes, against a store that is slow and fails, on sessions
// that die, while processes close and clocks jump: nobody is beside whom he excludes, what was
// lost is told once, and nothing is left.
func TestStormOfAllKinds(t *testing.T) {
	for seed := range uint64(256) {
		if seed%47 != 0 && !stormLong {
			continue
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) { storm(t, seed) })
		})
		if t.Failed() {
			return
		}
	}
}

func storm(t *testing.T, seed uint64) {
	s := &stormStore{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), holders: make(map[string]map[*stormHold]struct{}),
		tokens: seed%2 == 0, fast: seed/64%4 != 0,
	}
	killEvery := time.Duration([]int{5, 30, 100, 1000}[seed/2%4]) * time.Millisecond
	quick := seed/8%2 == 0
	mostly := seed / 16 % 4
	var passed, lostTold, lostSeen, got atomic.Int32
	var mu sync.Mutex
	backends := []*stormBackend{}
	newProcess := func(i int) *distlock.Locker {
		b := &stormBackend{stormStore: s, pooled: i%2 == 1, own: i%4 == 0, ttl: 200 * time.Millisecond}
		if i%3 == 0 {
			b.within = 50 * time.Millisecond
		}
		mu.Lock()
		backends = append(backends, b)
		mu.Unlock()
		o := &distlock.Options{Trace: &distlock.Trace{
			Lost: func(distlock.Event) { lostTold.Add(1) },
			Acquired: func(_ context.Context, e distlock.Event) {
				if e.Passed {
					passed.Add(1)
				}
			},
		}}
		if seed/4%2 == 0 {
			o.HandoffTime = 500 * time.Millisecond
		}
		if !b.pooled {
			o.TTL = b.ttl
		}
		if i%4 == 3 {
			o.HandoffCount = 3
		}
		return distlock.New(b, o)
	}
	state := map[string]map[*stormEntry]struct{}{}
	latest := map[string]uint64{}
	compatible := func(a, b driver.Mode) bool {
		return a != driver.Exclusive && b != driver.Exclusive && (a == driver.Shared || b == driver.Shared)
	}
	enter := func(name string, e *stormEntry) {
		mu.Lock()
		defer mu.Unlock()
		if e.lock.Err() == nil && e.mode != driver.Permit {
			for o := range state[name] {
				if o != e && !compatible(o.mode, e.mode) && o.lock.Err() == nil && e.lock.Err() == nil {
					t.Errorf("%s: %v beside %v", name, e.mode, o.mode)
				}
			}
		}
		token, ok := e.lock.Token()
		if ok != s.tokens {
			t.Error("no token")
		}
		if ok && e.mode == driver.Exclusive && e.lock.Err() == nil && token <= latest[name] {
			t.Errorf("%s: token %d after %d", name, token, latest[name])
		}
		latest[name] = max(latest[name], token)
		if state[name] == nil {
			state[name] = map[*stormEntry]struct{}{}
		}
		state[name][e] = struct{}{}
	}
	worker := func(l *distlock.Locker, rng *rand.Rand, n int) {
		for range n {
			name := string(rune('a' + rng.IntN(2)))
			var opts []distlock.AcquireOption
			mode := driver.Exclusive
			kind := rng.IntN(6)
			if rng.IntN(10) > 0 {
				switch mostly {
				case 0:
					kind = 0
				case 1:
					kind = 5 // exclusive
				case 2:
					kind = rng.IntN(2) * 2
				}
			}
			switch kind {
			case 0, 1:
				mode = driver.Shared
				opts = append(opts, distlock.Shared())
			case 2:
				mode = driver.Upgradeable
				opts = append(opts, distlock.Upgradeable())
			case 3:
				mode = driver.Permit
				name = "permits " + name
				opts = append(opts, distlock.Semaphore(2))
			}
			ctx, cancel := context.WithCancel(context.Background())
			if rng.IntN(3) == 0 {
				time.AfterFunc(time.Duration(rng.IntN(20000))*time.Microsecond, cancel)
			}
			var limit time.Duration
			switch rng.IntN(4) {
			case 0:
				limit = time.Duration(rng.IntN(30000)) * time.Microsecond
				opts = append(opts, distlock.Timeout(limit))
			case 1:
				opts = append(opts, distlock.Timeout(0))
			}
			start := time.Now()
			lock, err := l.Acquire(ctx, name, opts...)
			if took := time.Since(start); limit > 0 && took > max(limit, 0)+151*time.Millisecond {
				t.Errorf("timeout %v, took %v: %v", limit, took, err)
			}
			cancel()
			if errors.Is(err, distlock.ErrClosed) {
				return
			}
			if err != nil {
				time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
				continue
			}
			got.Add(1)
			time.Sleep(time.Nanosecond)
			e := &stormEntry{lock, mode}
			enter(name, e)
			how := rng.IntN(12)
			if quick && rng.IntN(20) > 0 {
				how = 1
				time.Sleep(time.Duration(rng.IntN(100)) * time.Microsecond)
			}
			switch how {
			case 0:
				time.Sleep(time.Duration(rng.IntN(500)) * time.Millisecond)
			case 1, 2, 3, 4:
			default:
				time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
			}
			if mode == driver.Upgradeable && rng.IntN(2) == 0 {
				if rng.IntN(3) == 0 {
					go func() { time.Sleep(time.Duration(seed%7) * time.Millisecond); lock.Release() }()
				}
				err := lock.Upgrade(context.Background(), distlock.Timeout(time.Duration(rng.IntN(20))*time.Millisecond))
				if err == nil {
					mu.Lock()
					delete(state[name], e)
					mu.Unlock()
					e = &stormEntry{lock, driver.Exclusive}
					time.Sleep(time.Nanosecond)
					enter(name, e)
					time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
				}
			}
			mu.Lock()
			delete(state[name], e)
			mu.Unlock()
			err = lock.Release()
			lost := errors.Is(lock.Err(), distlock.ErrLost)
			if lost {
				lostSeen.Add(1)
				if !errors.Is(err, distlock.ErrLost) {
					t.Errorf("lost, and Release returned %v", err)
				}
			}
			if again := lock.Release(); (again == nil) != (err == nil) {
				t.Errorf("Release returned %v, then %v", err, again)
			}
		}
	}
	var all sync.WaitGroup
	rng := rand.New(rand.NewPCG(seed, 2))
	for p := range 4 {
		l := newProcess(p)
		for range 6 {
			r := rand.New(rand.NewPCG(seed, rng.Uint64()))
			all.Go(func() { worker(l, r, 100) })
		}
		closeAt := time.Duration(50+rng.IntN(800)) * time.Millisecond
		if p < 2 {
			closeAt = time.Hour
		}
		time.AfterFunc(closeAt, func() { l.Close() })
		if p < 2 {
			defer func() {
				all.Wait()
				l.Close()
				time.Sleep(2 * time.Minute)
				if n := distlock.Keepers(l); n > 0 {
					t.Errorf("%d keepers", n)
				}
			}()
		}
	}
	stop := make(chan struct{})
	if seed%3 == 0 {
		time.AfterFunc(100*time.Millisecond, func() { distlock.SkewClocks(150 * time.Millisecond) })
		time.AfterFunc(300*time.Millisecond, func() { distlock.SkewClocks(-150 * time.Millisecond) })
	}
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		for {
			select {
			case <-stop:
				return
			case <-time.After(killEvery):
			}
			s.mu.Lock()
			var victim *stormSession
			for _, hs := range s.holders {
				for h := range hs {
					victim = h.sess
				}
			}
			s.mu.Unlock()
			if victim != nil {
				victim.kill(true)
			}
		}
	}()
	all.Wait()
	close(stop)
	<-killed
	s.mu.Lock()
	s.calm = true
	s.mu.Unlock()
	time.Sleep(2 * time.Minute)
	if got.Load() < 50 {
		t.Errorf("only %d holdings", got.Load())
	}
	s.mu.Lock()
	grants := s.grants
	s.mu.Unlock()
	t.Logf("%d passed, %d holdings, %d grants, %d lost, %d told", passed.Load(), got.Load(), grants, lostSeen.Load(), lostTold.Load())
	if lostTold.Load() < lostSeen.Load() {
		t.Errorf("%d were lost, %d told", lostSeen.Load(), lostTold.Load())
	}
	s.mu.Lock()
	for name, hs := range s.holders {
		s.expire(name)
		if len(hs) > 0 {
			t.Errorf("%d left of %s", len(hs), name)
		}
	}
	s.mu.Unlock()
}
