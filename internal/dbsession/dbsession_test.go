package dbsession

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock-go/distlock/driver"
)

// The verbs of the tests' database.
const (
	get = FirstVerb + iota
	release
	like // does nothing, beside its like
	lone // does nothing, alone
)

// A server is a database of locks that would grant each twice to the session
// that has it. It is the dialect as well.
type server struct {
	mu      sync.Mutex
	trip    func(s *session, steps []*Step) error // on the way back, if not nil
	setUp   time.Duration                         // what Setup takes
	last    int64
	open    map[int64]*session
	holders map[string]map[int64]int
	freed   chan struct{} // closed when anything is released
	trips   int
	waits   int
	connect time.Duration // how long that takes
	late    func()        // what happens before a wait is interrupted, if not nil
	early   bool          // an interruption comes before the wait, and has no effect
}

// A session is the server's side of a connection.
type session struct {
	id     int64
	killed chan struct{} // closed
	stop   chan struct{} // gets a value when its wait is to end
}

func newServer() *server {
	return &server{open: make(map[int64]*session), holders: make(map[string]map[int64]int), freed: make(chan struct{})}
}

// Connect and Driver make it a database/sql/driver.Connector.
func (v *server) Connect(context.Context) (sqldriver.Conn, error) {
	time.Sleep(v.connect)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.last++
	s := &session{id: v.last, killed: make(chan struct{}), stop: make(chan struct{}, 1)}
	v.open[s.id] = s
	return &conn{v, s}, nil
}
func (v *server) Driver() sqldriver.Driver { return nil }

type conn struct {
	server *server
	*session
}

func (c *conn) Prepare(string) (sqldriver.Stmt, error) { return nil, errors.ErrUnsupported }
func (c *conn) Begin() (sqldriver.Tx, error)           { return nil, errors.ErrUnsupported }
func (c *conn) Close() error                           { c.server.end(c.id); return nil }

// end ends a session, and with it what it holds.
func (v *server) end(id int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := v.open[id]
	if s == nil {
		return
	}
	delete(v.open, id)
	close(s.killed)
	for _, h := range v.holders {
		delete(h, id)
	}
	v.wake()
}

// forget is end, but nobody tells the client.
func (v *server) forget(id int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, h := range v.holders {
		delete(h, id)
	}
}

func (v *server) wake() {
	close(v.freed)
	v.freed = make(chan struct{})
}

// do carries a step out, as the session s.
func (v *server) do(s *session, st *Step) {
	v.mu.Lock()
	defer v.mu.Unlock()
	h := v.holders[st.Key]
	st.Result, st.Null = 0, false
	switch st.Verb {
	case get:
		if len(h) == 0 || h[s.id] > 0 {
			if h == nil {
				h = make(map[int64]int)
				v.holders[st.Key] = h
			}
			h[s.id]++
			st.Result = 1
		}
	case release:
		if h[s.id] > 0 {
			if h[s.id]--; h[s.id] == 0 {
				delete(h, s.id)
			}
			st.Result = 1
			v.wake()
		}
	case Owner:
		st.Null = true
		for id := range h {
			st.Null, st.Result = false, id
		}
	default: // Ping
	}
}

func (v *server) held(key string) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.holders[key])
}

// holding returns the sessions that hold the key.
func (v *server) holding(key string) map[int64]int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.holders[key])
}

func (v *server) sessions() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.open)
}

func (v *server) Setup(ctx context.Context, c *Conn, mark string, _ *Identity) (int64, error) {
	s := c.conn.(*conn).session
	v.mu.Lock()
	takes := v.setUp
	v.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	v.do(s, &Step{Verb: get, Key: mark})
	return s.id, nil
}

func (v *server) Run(_ context.Context, c *Conn, steps []*Step) error {
	s := c.conn.(*conn).session
	v.mu.Lock()
	v.trips++
	trip := v.trip
	v.mu.Unlock()
	select {
	case <-s.killed:
		return io.EOF
	default:
	}
	for _, st := range steps {
		v.do(s, st)
	}
	if trip != nil {
		return trip(s, steps)
	}
	return nil
}

// made returns how many trips there were.
func (v *server) made() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.trips
}

// on makes trip part of each trip from now on, and starts to count them.
func (v *server) on(trip func(s *session, steps []*Step) error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.trip, v.trips = trip, 0
}

func (v *server) Company(verb Verb) Company {
	switch verb {
	case like:
		return Alike
	case lone:
		return Alone
	default:
		return Mixed
	}
}

func (v *server) Wait(_ context.Context, c *Conn, st *Step, d time.Duration) error {
	s := c.conn.(*conn).session
	over := time.After(d)
	v.mu.Lock()
	v.waits++
	v.mu.Unlock()
	for {
		v.mu.Lock()
		freed := v.freed
		v.mu.Unlock()
		if v.do(s, st); st.Result == 1 {
			return nil
		}
		select {
		case <-freed:
		case <-over:
			return nil
		case <-s.stop:
			return ErrInterrupted
		case <-s.killed:
			return io.EOF
		}
	}
}

func (v *server) Undo(st *Step) *Step {
	if st.Verb != get && st.Verb != release {
		return nil
	}
	return &Step{Verb: release, Key: st.Key}
}
func (v *server) Took(st *Step) bool { return st.Verb == get && st.Result == 1 }

func (v *server) Interrupt(_ context.Context, _ *Conn, other Identity) error {
	if v.late != nil {
		v.late()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if s := v.open[other.ID]; s != nil && !v.early {
		s.stop <- struct{}{}
	}
	return nil
}

func (v *server) Kill(_ context.Context, _ *Conn, other Identity) error {
	v.end(other.ID)
	return nil
}

var errRefused = errors.New("refused")

func (v *server) Answered(err error) bool {
	return errors.Is(err, errRefused)
}

const heartbeat = 5 * time.Second

// inBubble runs f with a pool, on a clock of its own. Whatever is still there in
// the end fails it.
func inBubble(t *testing.T, o Options, f func(t *testing.T, v *server, p *Pool)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		v := newServer()
		db := sql.OpenDB(v)
		defer db.Close()
		db.SetMaxIdleConns(-1) // one that was opened too late for its waiter is given back unused
		if o.MaxSessions == 0 {
			o.MaxSessions, o.MaxWaiting = 8, 4
		}
		o.Heartbeat, o.IdleTimeout = heartbeat, 2*heartbeat
		if o.Connect != nil {
			o.Connect = func(ctx context.Context) (*sql.Conn, func(), error) {
				c, err := db.Conn(ctx)
				if err != nil {
					return nil, nil, err
				}
				id := int64(0)
				err = c.Raw(func(dc any) error { id = dc.(*conn).id; return nil })
				return c, func() { v.end(id) }, err
			}
		}
		p := New(db, v, o)
		f(t, v, p)
		p.Close()
		synctest.Wait()
		if n, st := v.sessions(), db.Stats(); n > 0 || st.OpenConnections > 0 {
			t.Errorf("%d sessions at the server, %d connections of the pool are left", n, st.OpenConnections)
		}
		if len(p.claims) > 0 {
			t.Errorf("claims are left: %v", p.claims)
		}
	})
}

// take takes the key, as a backend does.
func take(t *testing.T, p *Pool, key string) (*Claim, *Session) {
	t.Helper()
	c, err := p.Claim(t.Context(), key, 0)
	if c == nil || err != nil {
		t.Fatalf("claim %q: %v, %v", key, c, err)
	}
	st := &Step{Verb: get, Key: key, Cleanup: c.Free}
	s, err := p.Do(t.Context(), st)
	if err != nil || st.Result != 1 || !c.Bind(s) {
		t.Fatalf("take %q: %d, %v", key, st.Result, err)
	}
	return c, s
}

func give(t *testing.T, p *Pool, c *Claim, s *Session) {
	t.Helper()
	st := &Step{Verb: release, Key: c.key}
	if err := p.DoOn(t.Context(), s, st); err != nil || st.Result != 1 {
		t.Errorf("release %q: %d, %v", c.key, st.Result, err)
	}
	c.Free()
}

func TestP20_ManyLocksOnFewSessions(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		type lock struct {
			c *Claim
			s *Session
		}
		var locks []lock
		for i := range 2000 {
			c, s := take(t, p, fmt.Sprint(i))
			locks = append(locks, lock{c, s})
		}
		synctest.Wait() // one more may be on its way
		if n := v.sessions(); n > 8 || n < 2 {
			t.Errorf("2000 locks on %d sessions", n)
		}
		for _, l := range locks {
			give(t, p, l.c, l.s)
		}
		time.Sleep(3 * heartbeat)
		if n := v.sessions(); n > 0 {
			t.Errorf("%d sessions are kept for nothing", n)
		}
	})
}

// What is asked while the session is busy travels together in the next trip.
func TestP20_StepsTravelTogether(t *testing.T) {
	inBubble(t, Options{MaxSessions: 1}, func(t *testing.T, v *server, p *Pool) {
		c, s := take(t, p, "first")
		v.on(func(*session, []*Step) error { time.Sleep(time.Millisecond); return nil })
		var all sync.WaitGroup
		for i := range 33 {
			all.Go(func() { take(t, p, fmt.Sprint(i)) })
		}
		all.Wait()
		if n := v.made(); n > 8 {
			t.Errorf("33 at once took %d trips", n)
		}
		start := time.Now()
		give(t, p, c, s)
		if d := time.Since(start); d != time.Millisecond {
			t.Errorf("alone, it took %v", d)
		}
	})
}

// What is taken and what is given back travel in one trip, and no more than a batch.
func TestP20_TripsAreMixedAndBounded(t *testing.T) {
	inBubble(t, Options{MaxSessions: 1}, func(t *testing.T, v *server, p *Pool) {
		claims := make([]*Claim, maxBatch/2)
		var s *Session
		for i := range claims {
			claims[i], s = take(t, p, fmt.Sprint("held ", i))
		}
		var trips []string
		v.on(func(_ *session, steps []*Step) error {
			var n [3]int
			for _, st := range steps {
				switch st.Verb {
				case get:
					n[0]++
				case release:
					n[1]++
				default:
					n[2]++
				}
			}
			trips = append(trips, fmt.Sprint(n))
			time.Sleep(time.Millisecond)
			return nil
		})
		var all sync.WaitGroup
		ask := func(f func()) {
			all.Go(f)
			synctest.Wait() // it is in the queue
		}
		ask(func() { take(t, p, "first") })
		for i := range 3 * maxBatch / 2 {
			ask(func() { take(t, p, fmt.Sprint(i)) })
		}
		for _, c := range claims {
			ask(func() { give(t, p, c, s) })
		}
		all.Wait()
		half := maxBatch / 2
		want := fmt.Sprintf("[1 0 0] [%d %d 0] [%d 0 0]", half, half, maxBatch)
		if got := strings.Join(trips, " "); got != want {
			t.Errorf("trips %s, want %s", got, want)
		}
	})
}

func TestP20_StepsHaveTheirCompany(t *testing.T) {
	inBubble(t, Options{MaxSessions: 1}, func(t *testing.T, v *server, p *Pool) {
		_, s := take(t, p, "first")
		var trips []string
		v.on(func(_ *session, steps []*Step) error {
			var verbs []byte
			for _, st := range steps {
				verbs = append(verbs, ".o  lL"[st.Verb])
			}
			trips = append(trips, string(verbs))
			time.Sleep(time.Millisecond)
			return nil
		})
		var all sync.WaitGroup
		ask := func(verb Verb) {
			all.Go(func() {
				if err := p.DoOn(t.Context(), s, &Step{Verb: verb}); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait() // it is in the queue
		}
		for _, verb := range []Verb{Ping, Owner, like, lone, like, Ping, lone, like, like} {
			ask(verb)
		}
		all.Wait()
		if got, want := strings.Join(trips, " "), ". .o llll L L"; got != want {
			t.Errorf("trips %s, want %s", got, want)
		}
	})
}

func TestP01_KeyIsNotGrantedTwiceToOneSession(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, _ *server, p *Pool) {
		c, s := take(t, p, "a")
		if again, err := p.Claim(t.Context(), "a", time.Second); again != nil || err != nil {
			t.Errorf("claimed twice: %v", err)
		}
		give(t, p, c, s)
		c, s = take(t, p, "a")
		give(t, p, c, s)
	})
}

func TestP07_GrantThatNobodyWaitsForIsGivenBack(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		take(t, p, "other") // there is a session, and it lives on
		slow := make(chan struct{})
		v.on(func(*session, []*Step) error { <-slow; return nil })
		c, err := p.Claim(t.Context(), "a", 0)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		st := &Step{Verb: get, Key: "a", Cleanup: c.Free}
		if _, err := p.Do(ctx, st); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("error %v", err)
		}
		if v.held("a") != 1 {
			t.Fatal("the server hasn't granted it")
		}
		close(slow)
		synctest.Wait()
		if v.held("a") != 0 {
			t.Error("it was not given back")
		}
		c, s := take(t, p, "a")
		give(t, p, c, s)
	})
}

func TestP11_SilentServerLosesTheSession(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		_, s := take(t, p, "a")
		v.on(func(s *session, _ []*Step) error { <-s.killed; return io.EOF })
		start := time.Now()
		go func() {
			time.Sleep(heartbeat)
			v.end(s.self.ID) // what cut does for real
		}()
		err := s.Renew(t.Context())
		if !errors.Is(err, driver.ErrLost) || time.Since(start) > heartbeat {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		<-s.Lost()
		v.on(nil)
		synctest.Wait()
		c, s := take(t, p, "a") // on another one
		give(t, p, c, s)
	})
}

// Whatever happens to a step, its answer goes to nobody else: steps are used again.
func TestP02_AnswersFindTheirSteps(t *testing.T) {
	for name, o := range map[string]Options{"asked by a session": {}, "asked by the caller": cutting} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, o, func(t *testing.T, v *server, p *Pool) {
				v.on(func(s *session, _ []*Step) error {
					time.Sleep(time.Millisecond)
					switch rand.IntN(200) {
					case 0:
						v.end(s.id)
						return io.EOF
					case 1, 2:
						time.Sleep(heartbeat / 2)
					case 3:
						select {
						case <-time.After(3 * heartbeat / 2):
						case <-s.killed:
							return io.EOF
						}
					case 4, 5, 6:
						return errRefused
					}
					return nil
				})
				within := func() (context.Context, context.CancelFunc) {
					if rand.IntN(2) == 0 {
						return context.Background(), func() {}
					}
					return context.WithTimeout(context.Background(), time.Duration(rand.IntN(5))*time.Millisecond)
				}
				var all sync.WaitGroup
				granted := make([]int, 40)
				for i := range granted {
					key := fmt.Sprint("of ", i)
					all.Go(func() {
						for range 100 {
							h := &Holding{Key: key, GiveBack: release}
							ctx, cancel := within()
							result, err := p.Take(ctx, time.Now(), h, get, nil)
							cancel()
							if unsettled, ok := errors.AsType[*driver.UnsettledError](err); ok {
								<-unsettled.Settled
							}
							if err != nil || result != 1 {
								continue
							}
							s := h.Session
							v.mu.Lock()
							if n := v.holders[key][s.self.ID]; n != 1 && !s.Dead() && v.open[s.self.ID] != nil {
								t.Errorf("%q is held %d times by the session that is said to hold it", key, n)
							}
							v.mu.Unlock()
							granted[i]++
							err = errors.New("not yet")
							for err != nil && !errors.Is(err, driver.ErrLost) {
								ctx, cancel := within()
								err = h.Release(ctx)
								cancel()
								time.Sleep(time.Millisecond)
							}
							if _, held := v.holding(key)[s.self.ID]; held && err == nil {
								t.Errorf("%q is held after it was given back", key)
							}
						}
					})
				}
				all.Wait()
				total := 0
				for _, n := range granted {
					total += n
				}
				if total < 10*len(granted) {
					t.Errorf("only %d of %d were granted", total, 100*len(granted))
				}
				v.on(nil)
				time.Sleep(2 * heartbeat)
				for i := range granted {
					if n := v.held(fmt.Sprint("of ", i)); n != 0 {
						t.Errorf("the key %d is held by %d sessions in the end", i, n)
					}
				}
			})
		})
	}
}

// A session that dies may yet set the result of what it was asked; that is no
// grant of the session that was asked next.
func TestP02_AnswerOfADeadSessionIsNotTaken(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		_, old := take(t, p, "other")
		stranger, _ := v.Connect(t.Context())
		defer stranger.Close()
		v.on(func(s *session, steps []*Step) error {
			if s.id != old.self.ID {
				return nil
			}
			// It was granted, and the session ends before the answer is read.
			p.mu.Lock()
			p.drop(old, errors.New("killed"))
			p.mu.Unlock()
			v.end(s.id)
			v.do(stranger.(*conn).session, &Step{Verb: get, Key: "a"})
			time.Sleep(time.Second) // the second attempt is through
			steps[0].Result = 1
			return nil
		})
		c, err := p.Claim(t.Context(), "a", 0)
		if err != nil {
			t.Fatal(err)
		}
		st := &Step{Verb: get, Key: "a", Cleanup: c.Free}
		if _, err := p.Do(t.Context(), st); err != nil || st.Result != 0 {
			t.Errorf("result %d, %v", st.Result, err)
		}
		time.Sleep(2 * time.Second)
		if st.Result != 0 {
			t.Error("the answer of the dead session was taken")
		}
		c.Free()
	})
}

// A statement that is refused harms nobody else's lock, and leaves nothing.
func TestP07_RefusedStatementLeavesNothing(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		_, s := take(t, p, "other")
		v.on(func(_ *session, steps []*Step) error {
			if steps[0].Verb == get {
				return errRefused
			}
			return nil
		})
		st := &Step{Verb: get, Key: "a"}
		if _, err := p.Do(t.Context(), st); !errors.Is(err, errRefused) {
			t.Errorf("error %v", err)
		}
		if v.held("a") != 0 || v.held("other") != 1 || s.Dead() {
			t.Errorf("a: %d, other: %d, dead: %t", v.held("a"), v.held("other"), s.Dead())
		}
	})
}

// A name that the server refuses fails alone.
func TestP07_RefusedStepHarmsNoNeighbour(t *testing.T) {
	inBubble(t, Options{MaxSessions: 1}, func(t *testing.T, v *server, p *Pool) {
		c, s := take(t, p, "before")
		v.on(func(_ *session, steps []*Step) error {
			time.Sleep(time.Millisecond)
			for _, st := range steps {
				if st.Verb == get && st.Key == "bad" {
					return errRefused
				}
			}
			return nil
		})
		errs := make(map[string]error)
		var mu sync.Mutex
		var all sync.WaitGroup
		for _, key := range []string{"first", "a", "bad", "b", "c"} {
			all.Go(func() {
				_, err := p.Do(t.Context(), &Step{Verb: get, Key: key})
				mu.Lock()
				defer mu.Unlock()
				errs[key] = err
			})
			synctest.Wait()
		}
		all.Go(func() { give(t, p, c, s) }) // in the same trip as all but the first
		all.Wait()
		for key, err := range errs {
			if key == "bad" && (!errors.Is(err, errRefused) || v.held(key) != 0) || key != "bad" && (err != nil || v.held(key) != 1) {
				t.Errorf("%s: %v, held %d times", key, err, v.held(key))
			}
		}
		if v.held("before") != 0 || s.Dead() {
			t.Errorf("what is given back is held %d times; dead: %t", v.held("before"), s.Dead())
		}
	})
}

func TestP20_WaitersBeyondTheLimitShareQuestions(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		v.on(func(*session, []*Step) error { time.Sleep(time.Millisecond); return nil })
		var strangers []*conn
		for i := range 100 {
			c, _ := v.Connect(t.Context())
			strangers = append(strangers, c.(*conn))
			v.do(strangers[i].session, &Step{Verb: get, Key: fmt.Sprint(i)})
		}
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				c, err := p.Claim(t.Context(), fmt.Sprint(i), 0)
				if err != nil {
					t.Error(err)
					return
				}
				st := &Step{Verb: get, Key: c.key, Cleanup: c.Free}
				for st.Result == 0 && err == nil {
					var s *Session
					if s, err = p.Wait(t.Context(), st, time.Hour); err == nil && st.Result == 1 && c.Bind(s) {
						give(t, p, c, s)
					}
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(time.Minute)
		if n := v.sessions(); n > 100+8 {
			t.Errorf("%d sessions for 100 waiters", n-100)
		}
		v.mu.Lock()
		waits := v.waits
		v.mu.Unlock()
		if waits != 4 {
			t.Errorf("%d wait at the server", waits)
		}
		// 20 times a second, in parts that travel together: how many depends on which
		// goroutine runs when, and alone they would be 115,000.
		if trips := v.made(); trips > 60*600 {
			t.Errorf("96 waiters made %d trips in a minute", trips)
		}
		for _, s := range strangers {
			s.Close()
		}
		all.Wait()
	})
}

// What is to end a wait may come when that has just been granted, and would hit what
// its session does next: the session is ended, and what it was granted with it.
func TestP07_LateInterruptionHitsNothingElse(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		take(t, p, "mine")
		sessions := v.sessions()
		stranger, _ := v.Connect(t.Context())
		v.do(stranger.(*conn).session, &Step{Verb: get, Key: "a"})
		v.late = func() {
			stranger.Close()
			time.Sleep(time.Millisecond) // it is granted
		}
		c, _ := p.Claim(t.Context(), "a", 0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.Wait(ctx, &Step{Verb: get, Key: "a", Cleanup: c.Free}, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		time.Sleep(time.Second)
		if v.held("a") != 0 || v.held("mine") != 1 || v.sessions() != sessions {
			t.Errorf("a: %d, mine: %d, %d sessions of before %d", v.held("a"), v.held("mine"), v.sessions(), sessions)
		}
		k, s := take(t, p, "a")
		give(t, p, k, s)
	})
}

// What is to end a wait may come before the statement does, and hit nothing: the session
// is ended then, so that the key is soon anybody's.
func TestP07_EarlyInterruptionIsNoticed(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		take(t, p, "mine")
		stranger, _ := v.Connect(t.Context())
		defer stranger.Close()
		v.do(stranger.(*conn).session, &Step{Verb: get, Key: "a"})
		sessions := v.sessions()
		v.early = true
		c, _ := p.Claim(t.Context(), "a", 0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.Wait(ctx, &Step{Verb: get, Key: "a", Cleanup: c.Free}, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if c, _ = p.Claim(t.Context(), "a", interruptedGrace+time.Millisecond); c == nil {
			t.Error("the claim is left")
		} else {
			c.Free()
		}
		synctest.Wait()
		if v.held("mine") != 1 || v.sessions() != sessions {
			t.Errorf("mine: %d, %d sessions of before %d", v.held("mine"), v.sessions(), sessions)
		}
	})
}

// A wait takes its time and no more, at the server and where there is no room for it.
func TestP04_WaitIsExact(t *testing.T) {
	for name, o := range map[string]Options{"at the server": {}, "asked again": {MaxSessions: 8, MaxWaiting: -1}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, o, func(t *testing.T, v *server, p *Pool) {
				stranger, _ := v.Connect(t.Context())
				defer stranger.Close()
				v.do(stranger.(*conn).session, &Step{Verb: get, Key: "a"})
				take(t, p, "mine")
				for _, d := range []time.Duration{time.Microsecond, time.Millisecond, 400 * time.Millisecond, 1900 * time.Millisecond} {
					c, _ := p.Claim(t.Context(), "a", 0)
					st := &Step{Verb: get, Key: "a", Cleanup: c.Free}
					start := time.Now()
					if _, err := p.Wait(t.Context(), st, d); err != nil || st.Result != 0 {
						t.Errorf("%v: %d, %v", d, st.Result, err)
					}
					if took := time.Since(start); took != d {
						t.Errorf("a wait of %v took %v", d, took)
					}
					time.Sleep(time.Second) // what is done behind it
				}
			})
		})
	}
}

func TestP07_CanceledWaitLeavesNothing(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		take(t, p, "mine")
		stranger, _ := v.Connect(t.Context())
		defer stranger.Close()
		s := stranger.(*conn).session
		v.do(s, &Step{Verb: get, Key: "a"})
		sessions := v.sessions()
		for range 20 {
			c, err := p.Claim(t.Context(), "a", 0)
			if c == nil || err != nil {
				t.Fatal(c, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := p.Wait(ctx, &Step{Verb: get, Key: "a", Cleanup: c.Free}, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
			cancel()
			synctest.Wait()
			if n := v.sessions(); n != sessions+1 {
				t.Fatalf("%d sessions, and one of them for waits, of before %d", n, sessions)
			}
		}
		v.do(s, &Step{Verb: release, Key: "a"})
		synctest.Wait()
		if v.held("a") != 0 || v.held("mine") != 1 {
			t.Errorf("a: %d, mine: %d", v.held("a"), v.held("mine"))
		}
	})
}

// The server forgets a session that waits, which was being opened when the last
// of the others ended.
func TestP11_ForgottenWaitIsNoticed(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		stranger, _ := v.Connect(t.Context())
		defer stranger.Close()
		v.do(stranger.(*conn).session, &Step{Verb: get, Key: "a"})
		_, s := take(t, p, "held")
		for range 4 { // the core's
			time.Sleep(heartbeat / 2)
			if err := s.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		v.connect = time.Second
		ctx, cancel := context.WithTimeout(t.Context(), 10*heartbeat)
		defer cancel()
		answered := make(chan error, 1)
		go func() {
			_, err := p.Wait(ctx, &Step{Verb: get, Key: "a"}, time.Hour)
			answered <- err
		}()
		time.Sleep(tendEvery / 2) // before the first look at who waits
		v.end(s.self.ID)
		if err := s.Renew(t.Context()); err == nil {
			t.Error("a session that was ended is renewed")
		}
		time.Sleep(v.connect)
		p.mu.Lock()
		waiting := p.sessions[len(p.sessions)-1].self.ID
		p.mu.Unlock()
		v.forget(waiting)
		if err := <-answered; err != nil { // it is asked again
			t.Errorf("the wait is not ended: %v", err)
		}
	})
}

// One statement that takes long holds up nobody who asks for something else.
func TestP20_SlowStatementHoldsUpNobody(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		take(t, p, "first")
		v.on(func(_ *session, steps []*Step) error {
			for _, st := range steps {
				if st.Key == "slow" {
					time.Sleep(heartbeat / 2)
				}
			}
			return nil
		})
		var all sync.WaitGroup
		defer all.Wait()
		all.Go(func() { take(t, p, "slow") })
		synctest.Wait()
		for i := range 10 {
			start := time.Now()
			take(t, p, fmt.Sprint("quick", i))
			if d := time.Since(start); d > 2*stuckAfter {
				t.Errorf("number %d was held up for %v", i, d)
			}
		}
		if n := v.sessions(); n > 2 {
			t.Errorf("%d sessions", n)
		}
	})
}

// A server that is slow with all it is asked, or far away, doesn't use up the sessions
// that are for waiting.
func TestP18_SlowServerLeavesSessionsToWaitOn(t *testing.T) {
	for name, trip := range map[string]time.Duration{"far": 400 * time.Millisecond, "slow": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
				stranger, _ := v.Connect(t.Context())
				v.do(stranger.(*conn).session, &Step{Verb: get, Key: "a"})
				take(t, p, "first")
				v.on(func(*session, []*Step) error { time.Sleep(trip); return nil })
				var all sync.WaitGroup
				for i := range 40 {
					all.Go(func() { take(t, p, fmt.Sprint(i)) })
					time.Sleep(trip / 10)
				}
				all.Wait()
				v.on(nil)
				if n := v.sessions() - 1; n > atOnce+1 {
					t.Errorf("%d sessions", n)
				}
				waited := make(chan error, 1)
				go func() {
					_, err := p.Wait(t.Context(), &Step{Verb: get, Key: "a"}, time.Hour)
					waited <- err
				}()
				time.Sleep(time.Second)
				v.mu.Lock()
				if v.waits != 1 {
					t.Errorf("%d wait at the server", v.waits)
				}
				v.mu.Unlock()
				stranger.Close()
				if err := <-waited; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A server that is too slow for one more session to wait on is asked over the one
// that there is: the wait goes on.
func TestP03_SlowSetupFailsNoWait(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		take(t, p, "mine")
		stranger, _ := v.Connect(t.Context())
		v.do(stranger.(*conn).session, &Step{Verb: get, Key: "a"})
		v.mu.Lock()
		v.setUp = waitConnectTimeout + time.Second
		v.mu.Unlock()
		c, err := p.Claim(t.Context(), "a", 0)
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Minute, func() { stranger.Close() })
		st := &Step{Verb: get, Key: "a", Cleanup: c.Free}
		s, err := p.Wait(t.Context(), st, time.Hour)
		if err != nil || st.Result != 1 || !c.Bind(s) {
			t.Errorf("%d, %v", st.Result, err)
			return
		}
		give(t, p, c, s)
	})
}

// The error of a session that couldn't be made in time isn't taken for that of the
// caller's context.
func TestP03_SlowSetupIsNoContextsError(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		v.setUp = ConnectTimeout + time.Second
		_, err := p.Do(t.Context(), &Step{Verb: Ping})
		if !errors.Is(err, ErrSilent) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
}

// Who gets no session because the pool has no connection to give is told so, in time,
// and not that the server is silent, nor that his context has ended.
func TestP20_ExhaustedPoolIsNamed(t *testing.T) {
	for name, o := range map[string]Options{"asked by a session": {}, "asked by the caller": cutting} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, o, func(t *testing.T, _ *server, p *Pool) {
				p.db.SetMaxOpenConns(1)
				c, err := p.db.Conn(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				cancelable, cancel := context.WithCancel(t.Context())
				defer cancel()
				for what, ask := range map[string]func() error{
					"take": func() error {
						_, err := p.Take(context.Background(), time.Now(), &Holding{Key: "a"}, get, nil)
						return err
					},
					"take, cancelable": func() error {
						_, err := p.Take(cancelable, time.Now(), &Holding{Key: "a"}, get, nil)
						return err
					},
					"take, for a second": func() error {
						ctx, cancel := context.WithTimeout(t.Context(), time.Second)
						defer cancel()
						_, err := p.Take(ctx, time.Now(), &Holding{Key: "a"}, get, nil)
						return err
					},
					"do":   func() error { _, err := p.Do(context.Background(), &Step{Verb: Ping}); return err },
					"open": func() error { return p.Open(t.Context()) },
				} {
					start := time.Now()
					err := ask()
					if err == nil || !strings.Contains(err.Error(), "all 1 that DB.SetMaxOpenConns allows are in use") || errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%s: %v", what, err)
					}
					if took := time.Since(start); took > heartbeat && what != "open" || took > ConnectTimeout {
						t.Errorf("%s took %v", what, took)
					}
				}
				time.Sleep(ConnectTimeout) // what still waits for it gives up
				c.Close()
				k, s := take(t, p, "a")
				give(t, p, k, s)
			})
		})
	}
}

// A connection that is the pool's own, and on its way, isn't missing from the *sql.DB:
// if it doesn't come up it is the server that is silent.
func TestP20_SilentServerIsNoExhaustedPool(t *testing.T) {
	for name, slow := range map[string]func(v *server){
		"dialed": func(v *server) { v.connect = time.Minute },
		"set up": func(v *server) { v.setUp = time.Minute },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
				p.db.SetMaxOpenConns(1)
				slow(v)
				if _, err := p.Do(context.Background(), &Step{Verb: Ping}); !errors.Is(err, ErrSilent) {
					t.Error(err)
				}
				if err := p.Open(t.Context()); !errors.Is(err, ErrSilent) {
					t.Error(err)
				}
				time.Sleep(2 * time.Minute) // what is still on its way
			})
		})
	}
}

func TestP25_CloseWakesWaiters(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		stranger, _ := v.Connect(t.Context())
		defer stranger.Close()
		v.do(stranger.(*conn).session, &Step{Verb: get, Key: "a"})
		done := make(chan error)
		go func() {
			c, err := p.Claim(t.Context(), "a", 0)
			if err == nil {
				_, err = p.Wait(t.Context(), &Step{Verb: get, Key: "a", Cleanup: c.Free}, time.Hour)
			}
			done <- err
		}()
		time.Sleep(time.Second)
		p.Close()
		if err := <-done; !errors.Is(err, errClosed) && !errors.Is(err, driver.ErrLost) && err != nil {
			t.Errorf("error %v", err)
		}
	})
}

// cutting are the options of a backend that can cut its connections, so that who
// asks makes the trip himself. inBubble puts the function that does it in place.
var cutting = Options{Connect: func(context.Context) (*sql.Conn, func(), error) { return nil, nil, errors.ErrUnsupported }}

// Nobody waits for a silent server for longer than a heartbeat, be it who makes
// the trip, who comes along or who comes later, and all is forgotten then.
func TestP08_SilentServerIsGivenUpInTime(t *testing.T) {
	for name, o := range map[string]Options{"asked by a session": {}, "asked by the caller": cutting} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, o, func(t *testing.T, v *server, p *Pool) {
				take(t, p, "held")
				v.on(func(s *session, _ []*Step) error {
					if o.Connect == nil {
						go func() { time.Sleep(heartbeat); v.end(s.id) }() // what the driver does when life ends
					}
					<-s.killed
					return io.EOF
				})
				var all sync.WaitGroup
				for i := range 9 {
					all.Go(func() {
						time.Sleep(time.Duration(i) * heartbeat / 5)
						start := time.Now()
						_, err := p.Take(context.Background(), time.Now(), &Holding{Key: fmt.Sprint(i)}, get, nil)
						if took := time.Since(start); err == nil || errors.Is(err, driver.ErrLost) || took > heartbeat {
							t.Errorf("the caller %d, after %v: %v", i, took, err)
						}
					})
				}
				all.Wait()
				time.Sleep(2 * heartbeat) // the driver has noticed by then
			})
		})
	}
}

// Locks are spread over the sessions, and nobody waits for anything but trips
// while they are.
func TestP20_NoStepIsLeftBehind(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		const locks, trip = 3200, 100 * time.Microsecond
		v.on(func(*session, []*Step) error { time.Sleep(trip); return nil })
		start := time.Now()
		var all sync.WaitGroup
		for first := range 64 {
			all.Go(func() {
				for i := first; i < locks; i += 64 {
					take(t, p, fmt.Sprint(i))
				}
			})
		}
		all.Wait()
		trips := v.made()
		if took := time.Since(start); took > time.Duration(trips)*trip {
			t.Errorf("%d trips took %v", trips, took)
		}
		if trips > locks/4 { // most are of 32, but which goroutine runs when is open
			t.Errorf("%d trips for %d locks", trips, locks)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, s := range p.sessions {
			if s.holds > locks/4 {
				t.Errorf("%d of %d locks on one of %d sessions", s.holds, locks, len(p.sessions))
			}
		}
	})
}

// A server that is far away is asked over a second session while the first waits
// for its answer.
func TestP20_FarServerIsAskedOverSeveralSessions(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		const trip = 20 * time.Millisecond
		v.on(func(*session, []*Step) error { time.Sleep(trip); return nil })
		for i := range 2000 { // it is known to be far
			c, s := take(t, p, fmt.Sprint(i))
			give(t, p, c, s)
		}
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() { take(t, p, fmt.Sprint("more", i)) })
		}
		all.Wait()
		time.Sleep(time.Second) // the second may be on its way
		if n := v.sessions(); n < 2 {
			t.Fatalf("%d sessions", n)
		}
		start := time.Now()
		for i := range 2 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				take(t, p, fmt.Sprint("last", i))
			})
		}
		all.Wait()
		if took := time.Since(start); took > trip+time.Millisecond {
			t.Errorf("two, one after the other, took %v", took)
		}
	})
}

// What isn't taken, is taken too late, or can't be asked leaves no claim.
func TestP07_TakeFreesTheClaim(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		take(t, p, "other")
		stranger, _ := v.Connect(t.Context())
		s := stranger.(*conn).session
		v.do(s, &Step{Verb: get, Key: "a"})
		try := func(ctx context.Context) (int64, error) {
			if p.claims["a"] != nil {
				t.Fatal("the claim before is left")
			}
			return p.Take(ctx, time.Now(), &Holding{Key: "a"}, get, nil)
		}
		if result, err := try(t.Context()); err != nil || result != 0 {
			t.Errorf("of another: %d, %v", result, err)
		}
		stranger.Close()
		v.on(func(*session, []*Step) error { time.Sleep(time.Minute / 60); return nil })
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := try(ctx)
		var unsettled *driver.UnsettledError
		if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &unsettled) {
			t.Fatalf("too late: %v", err)
		}
		if c, err := p.Claim(t.Context(), "a", 0); c != nil || err != nil {
			t.Errorf("claimed while it isn't given back yet: %v", err)
		}
		if result, err := p.Take(t.Context(), time.Now(), &Holding{Key: "a"}, get, nil); result != 0 || err != nil {
			t.Errorf("taken while it isn't given back yet: %d, %v", result, err)
		}
		select {
		case <-unsettled.Settled:
			t.Error("settled while it is under way")
		default:
		}
		<-unsettled.Settled
		if v.held("a") > 0 {
			t.Error("it wasn't given back")
		}
		if _, err := try(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a context that has ended: %v", err)
		}
		v.on(func(*session, []*Step) error { return errRefused })
		if _, err := try(t.Context()); !errors.Is(err, errRefused) && !errors.Is(err, ErrDoubt) {
			t.Errorf("refused: %v", err)
		}
		v.on(nil)
		result, err := try(t.Context())
		if err != nil || result != 1 {
			t.Errorf("free: %d, %v", result, err)
		}
	})
}

// atTimes calls take after each of the times and returns how long it took until
// all had what they wanted, and how many trips that were.
func atTimes(t *testing.T, v *server, p *Pool, trip time.Duration, times ...time.Duration) (took time.Duration, trips int) {
	t.Helper()
	v.on(func(*session, []*Step) error { time.Sleep(trip); return nil })
	start := time.Now()
	var all sync.WaitGroup
	for i, at := range times {
		all.Go(func() {
			time.Sleep(at)
			take(t, p, fmt.Sprint("at", at, i))
		})
	}
	all.Wait()
	return time.Since(start), v.made()
}

// fill takes locks until there are two sessions, of which the first has n.
func fill(t *testing.T, p *Pool, n int) {
	t.Helper()
	type lock struct {
		c *Claim
		s *Session
	}
	var locks []lock
	for i := range crowd {
		c, s := take(t, p, fmt.Sprint("fill", i))
		locks = append(locks, lock{c, s})
		synctest.Wait() // nothing is under way behind it
	}
	synctest.Wait()
	for _, l := range locks[n:] {
		give(t, p, l.c, l.s)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.sessions) != 2 || p.sessions[0].holds != n {
		t.Fatalf("%d sessions, of which the first has %d", len(p.sessions), p.sessions[0].holds)
	}
}

// Who comes while a near server is asked goes along with the next trip, though
// another session is idle.
func TestP20_NearServerIsAskedOverOneSession(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		fill(t, p, 10)
		const trip = 100 * time.Microsecond
		took, trips := atTimes(t, v, p, trip, 0, 10*time.Microsecond, 20*time.Microsecond)
		if took != 2*trip || trips != 2 {
			t.Errorf("%d trips, in %v", trips, took)
		}
	})
}

// What waits for a session that becomes too full meanwhile goes to another.
func TestP20_CrowdedSessionPassesOn(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		fill(t, p, crowd-1)
		const trip = 100 * time.Microsecond
		took, trips := atTimes(t, v, p, trip, 0, 10*time.Microsecond)
		if took != 2*trip || trips != 2 {
			t.Errorf("%d trips, in %v", trips, took)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if a, b := p.sessions[0].holds, p.sessions[1].holds; a != crowd || b != 1 {
			t.Errorf("%d and %d locks", a, b)
		}
	})
}

// A step may free a claim on something else than its key.
func TestStepKeepsItsKey(t *testing.T) {
	c := &Claim{key: "claimed", arg: any("claimed")}
	for want, st := range map[string]Step{
		"a": {Key: "a"}, "b": {Key: "b", Frees: c}, "c": {Key: "c", Takes: c}, "claimed": {Key: "claimed", Takes: c, Frees: c},
	} {
		if got := st.KeyArg(); got != want {
			t.Errorf("%v instead of %q", got, want)
		}
	}
}
