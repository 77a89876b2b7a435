//go:build unix

package mysqllock

import (
	"bufio"
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock-go/distlock"
)

// Other benchmarks, and other machines, differ by more than what is to be seen
// here. So all that is compared is done in turns, and it is the ratio that
// counts: to the floor, which is the two bare statements on a connection that is
// kept.

// bare are the two statements, prepared.
type bare struct{ get, release *sql.Stmt }

func newBare(b testing.TB, db *sql.DB) *bare {
	c, err := db.Conn(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	get, err := c.PrepareContext(b.Context(), "SELECT GET_LOCK(?, ?)")
	if err != nil {
		b.Fatal(err)
	}
	release, err := c.PrepareContext(b.Context(), "SELECT RELEASE_LOCK(?)")
	if err != nil {
		b.Fatal(err)
	}
	return &bare{get, release}
}

func (p *bare) pair(name string) error {
	if err := p.acquire(name, 0); err != nil {
		return err
	}
	return p.free(name)
}

func (p *bare) acquire(name string, seconds int) error {
	return one(p.get.QueryRowContext(context.Background(), name, seconds))
}

func (p *bare) free(name string) error {
	return one(p.release.QueryRowContext(context.Background(), name))
}

func one(row *sql.Row) error {
	var n sql.NullInt64
	if err := row.Scan(&n); err != nil {
		return err
	}
	if n.Int64 != 1 {
		return fmt.Errorf("the server says %v", n)
	}
	return nil
}

// text is the same in the text protocol.
func text(b *testing.B, db *sql.DB) func(name string) error {
	c, err := db.Conn(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return func(name string) error {
		if err := one(c.QueryRowContext(context.Background(), "SELECT GET_LOCK('"+name+"', 0)")); err != nil {
			return err
		}
		return one(c.QueryRowContext(context.Background(), "SELECT RELEASE_LOCK('"+name+"')"))
	}
}

// peer works as other libraries do, and stands in for sanketplus/go-mysql-lock: a
// connection of the pool for each lock, and statements with arguments that aren't
// prepared before. As all others here it has a context that never ends.
func peer(db *sql.DB) func(name string) error {
	return func(name string) error {
		ctx := context.Background()
		c, err := db.Conn(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := one(c.QueryRowContext(ctx, "SELECT GET_LOCK(?, ?)", name, 0)); err != nil {
			return err
		}
		_, err = c.ExecContext(ctx, "DO RELEASE_LOCK(?)", name)
		return err
	}
}

func lockPair(l *distlock.Locker, name string) error {
	k, err := l.Acquire(context.Background(), name)
	if err != nil {
		return err
	}
	return k.Release()
}

func onServersB(b *testing.B, run func(b *testing.B, s *testServer)) {
	for _, s := range servers {
		b.Run(s.name, func(b *testing.B) {
			s.need(b)
			run(b, s)
		})
	}
}

// A contender is what is compared: a pair of acquire and release, by the
// goroutine i.
type contender struct {
	name       string
	goroutines int
	pair       func(i int) error
	rates      []float64 // pairs a second, of each turn
}

// inTurns lets the contenders work for a while, one after the other, again and
// again, in changing order: one leaves the next with processors that are awake, or
// not.
func inTurns(b *testing.B, turns int, d time.Duration, contenders []*contender) {
	b.Helper()
	order := slices.Clone(contenders)
	for turn := range turns + 1 {
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, c := range order {
			var done atomic.Int64
			var all sync.WaitGroup
			start := time.Now()
			for i := range c.goroutines {
				all.Go(func() {
					n := int64(0)
					for ; time.Since(start) < d; n++ {
						if err := c.pair(i); err != nil {
							b.Errorf("%s: %v", c.name, err)
							break
						}
					}
					done.Add(n)
				})
			}
			all.Wait()
			if turn > 0 { // in the first, statements are prepared, and connections opened
				c.rates = append(c.rates, float64(done.Load())/time.Since(start).Seconds())
			}
		}
	}
}

// rate returns the median of the contender's rates.
func (c *contender) rate() float64 {
	slices.Sort(c.rates)
	return c.rates[len(c.rates)/2]
}

// BenchmarkUncontended is one goroutine and one free lock. It tells the times of
// contenders as multiples of the floor's, and for the floor itself in µs.
func BenchmarkUncontended(b *testing.B) {
	onServersB(b, func(b *testing.B, s *testServer) {
		floor := newBare(b, s.pool(b, s.addr))
		inText := text(b, s.pool(b, s.addr))
		asPeer := peer(s.pool(b, s.addr))
		pool := distlock.New(New(s.pool(b, s.addr), nil), nil)
		defer pool.Close()
		plain := distlock.New(New(s.pool(b, s.addr), &Options{Readers: -1}), nil)
		defer plain.Close()
		byURL, err := distlock.Open(b.Context(), s.url(s.addr, ""), nil)
		if err != nil {
			b.Fatal(err)
		}
		defer byURL.Close()
		cs := []*contender{
			{name: "floor", pair: func(int) error { return floor.pair("bench") }},
			{name: "text", pair: func(int) error { return inText("bench1") }},
			{name: "pool", pair: func(int) error { return lockPair(pool, "bench2") }},
			{name: "url", pair: func(int) error { return lockPair(byURL, "bench3") }},
			{name: "no-readers", pair: func(int) error { return lockPair(plain, "bench4") }},
			{name: "peer", pair: func(int) error { return asPeer("bench5") }},
		}
		for _, c := range cs {
			c.goroutines = 1
		}
		inTurns(b, 40, 10*time.Millisecond, cs)
		for b.Loop() {
			if err := lockPair(pool, "bench2"); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(1e6/cs[0].rate(), "µs-floor")
		for _, c := range cs[1:] {
			b.ReportMetric(cs[0].rate()/c.rate(), "×"+c.name)
		}
	})
}

// BenchmarkMany is 64 goroutines with a name each: how many times as many pairs
// are done as bare statements do in one goroutine, and in 64 with a connection
// each.
func BenchmarkMany(b *testing.B) {
	onServersB(b, func(b *testing.B, s *testServer) {
		const goroutines = 64
		db, peers, locks := s.pool(b, s.addr), s.pool(b, s.addr), s.pool(b, s.addr)
		db.SetMaxIdleConns(goroutines + 1)
		peers.SetMaxIdleConns(goroutines)
		single := newBare(b, db)
		many := make([]*bare, goroutines)
		names := make([]string, goroutines)
		for i := range many {
			many[i], names[i] = newBare(b, db), fmt.Sprint("bench", i)
		}
		asPeer := peer(peers)
		l := distlock.New(New(locks, nil), nil)
		defer l.Close()
		cs := []*contender{
			{name: "one", goroutines: 1, pair: func(int) error { return single.pair("bench") }},
			{name: "64", goroutines: goroutines, pair: func(i int) error { return many[i].pair(names[i]) }},
			{name: "peer", goroutines: goroutines, pair: func(i int) error { return asPeer(names[i]) }},
			{name: "lock", goroutines: goroutines, pair: func(i int) error { return lockPair(l, names[i]) }},
		}
		inTurns(b, 9, 200*time.Millisecond, cs)
		for b.Loop() {
			if err := lockPair(l, "bench"); err != nil {
				b.Fatal(err)
			}
		}
		lock := cs[3].rate()
		b.ReportMetric(lock, "pairs/s")
		b.ReportMetric(lock/cs[0].rate(), "×one-connection")
		b.ReportMetric(lock/cs[1].rate(), "×64-connections")
		b.ReportMetric(lock/cs[2].rate(), "×peer")
		b.ReportMetric(float64(locks.Stats().OpenConnections), "connections")
	})
}

// BenchmarkHold takes 5,000 locks in 64 goroutines, and releases them.
func BenchmarkHold(b *testing.B) {
	onServersB(b, func(b *testing.B, s *testServer) {
		const locks, goroutines = 5000, 64
		names := make([]string, locks)
		for i := range names {
			names[i] = fmt.Sprint("bench", i)
		}
		held := make([]*distlock.Lock, locks)
		each := func(do func(i int) error) time.Duration {
			var all sync.WaitGroup
			start := time.Now()
			for first := range goroutines {
				all.Go(func() {
					for i := first; i < locks; i += goroutines {
						if err := do(i); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			return time.Since(start)
		}
		var took, released, memory, both, floors []float64
		open := 0
		floor := newBare(b, s.pool(b, s.addr))
		for b.Loop() {
			start := time.Now()
			for _, name := range names {
				if err := floor.acquire(name, 0); err != nil {
					b.Fatal(err)
				}
			}
			for _, name := range names {
				if err := floor.free(name); err != nil {
					b.Fatal(err)
				}
			}
			floors = append(floors, time.Since(start).Seconds()*1000)
			db := s.pool(b, s.addr)
			l := distlock.New(New(db, nil), nil)
			before := s.memory(b)
			took = append(took, each(func(i int) (err error) {
				held[i], err = l.Acquire(context.Background(), names[i])
				return err
			}).Seconds()*1000)
			memory = append(memory, float64(s.memory(b)-before)/1e6)
			open = max(open, db.Stats().OpenConnections)
			released = append(released, each(func(i int) error { return held[i].Release() }).Seconds()*1000)
			both = append(both, took[len(took)-1]+released[len(released)-1])
			l.Close()
			db.Close()
		}
		for what, of := range map[string][]float64{"ms-take": took, "ms-release": released, "ms-both": both, "ms-floor": floors, "MB-server": memory} {
			slices.Sort(of)
			b.ReportMetric(of[len(of)/2], what)
		}
		b.ReportMetric(float64(open), "connections")
	})
}

// memory returns what the server says it has allocated, where it does.
func (s *testServer) memory(b *testing.B) int {
	var n sql.NullInt64
	_ = s.admin.QueryRow("SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'Memory_used'").Scan(&n)
	return int(n.Int64)
}

const (
	passURL  = "DISTLOCK_TEST_PASS_URL"
	passBare = "DISTLOCK_TEST_PASS_BARE"
)

// BenchmarkHandOver is two processes that pass a lock to and fro: the time from
// before a release to after the acquire that waited for it, and the same with
// bare statements.
func BenchmarkHandOver(b *testing.B) {
	onServersB(b, func(b *testing.B, s *testServer) {
		var floors, locks []float64
		for range 3 {
			floors = append(floors, s.handOvers(b, passBare+"=yes")...)
			locks = append(locks, s.handOvers(b)...)
		}
		slices.Sort(floors)
		slices.Sort(locks)
		for b.Loop() { // it was measured already
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(floors[len(floors)/2], "µs-floor")
		b.ReportMetric(locks[len(locks)/2], "µs-p50")
		b.ReportMetric(locks[len(locks)*99/100], "µs-p99")
		b.ReportMetric(locks[len(locks)/2]/floors[len(floors)/2], "×floor")
	})
}

// handOvers runs two processes that pass the lock on, and returns the times in µs.
func (s *testServer) handOvers(b *testing.B, env ...string) []float64 {
	type holding struct {
		from, to int64
		process  int
	}
	var mu sync.Mutex
	var holdings []holding
	var all sync.WaitGroup
	for process := range 2 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(append(os.Environ(), passURL+"="+s.url(s.addr, "")), env...)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			b.Fatal(err)
		}
		all.Go(func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				h := holding{process: process}
				if _, err := fmt.Sscan(lines.Text(), &h.from, &h.to); err == nil {
					mu.Lock()
					holdings = append(holdings, h)
					mu.Unlock()
				}
			}
			if err := cmd.Wait(); err != nil {
				b.Error(err)
			}
		})
	}
	all.Wait()
	slices.SortFunc(holdings, func(x, y holding) int { return cmp.Compare(x.from, y.from) })
	var times []float64
	for i := 1; i < len(holdings); i++ {
		if holdings[i].process != holdings[i-1].process {
			times = append(times, float64(holdings[i].from-holdings[i-1].to)/1000)
		}
	}
	if len(times) < 100 {
		b.Fatalf("%d times from one process to the other", len(times))
	}
	return times
}

// passOn is one of the two processes.
func passOn(rawURL string) error {
	var acquire, release func() error
	if os.Getenv(passBare) != "" {
		dsn, err := dsnOf(rawURL)
		if err != nil {
			return err
		}
		db, err := sql.Open("mysql", dsn)
		if err != nil {
			return err
		}
		c, err := db.Conn(context.Background())
		if err != nil {
			return err
		}
		get, err := c.PrepareContext(context.Background(), "SELECT GET_LOCK(?, ?)")
		if err != nil {
			return err
		}
		free, err := c.PrepareContext(context.Background(), "SELECT RELEASE_LOCK(?)")
		if err != nil {
			return err
		}
		p := &bare{get, free}
		acquire = func() error { return p.acquire("passed", 10) }
		release = func() error { return p.free("passed") }
	} else {
		l, err := distlock.Open(context.Background(), rawURL, nil)
		if err != nil {
			return err
		}
		defer l.Close()
		var k *distlock.Lock
		acquire = func() (err error) {
			k, err = l.Acquire(context.Background(), "passed", distlock.Timeout(10*time.Second))
			return err
		}
		release = func() error { return k.Release() }
	}
	var out strings.Builder
	for start := time.Now(); time.Since(start) < 3*time.Second; {
		if err := acquire(); err != nil {
			return err
		}
		from := time.Now()
		time.Sleep(2 * time.Millisecond) // the other process comes to wait
		to := time.Now()
		if err := release(); err != nil {
			return err
		}
		fmt.Fprintln(&out, from.UnixNano(), to.UnixNano())
	}
	_, err := os.Stdout.WriteString(out.String())
	return err
}
