package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock-go/distlock/driver"
)

func always() bool { return true }

func request(mode driver.Mode, g *Gate) Request {
	r := Request{Name: "a", Mode: mode, Wait: driver.Forever, Gate: g}
	if mode == driver.Permit {
		r.Limit = 1
	}
	return r
}

// enter returns a place that is admitted at once.
func enter(t *testing.T, q *Queue, r Request) *Place {
	t.Helper()
	p := &Place{}
	r.Try = true
	if _, err := q.Enter(t.Context(), p, r); err != nil {
		t.Fatal(err)
	}
	return p
}

// entering is a call of Enter in a goroutine of its own, inside of a bubble.
type entering struct {
	place  Place
	cancel context.CancelFunc
	done   atomic.Bool // before it is set, the rest isn't to be read
	a      Admission
	err    error
}

func startEnter(t *testing.T, q *Queue, r Request) *entering {
	ctx, cancel := context.WithCancel(t.Context())
	e := &entering{cancel: cancel}
	go func() {
		e.a, e.err = q.Enter(ctx, &e.place, r)
		e.done.Store(true)
	}()
	synctest.Wait()
	return e
}

func (e *entering) in(t *testing.T) bool {
	t.Helper()
	synctest.Wait()
	if e.done.Load() && e.err != nil {
		t.Fatal(e.err)
	}
	return e.done.Load()
}

func TestFirstComeFirstServedOverAllKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(false)
		g := q.NewGate()
		holder := enter(t, q, request(driver.Exclusive, g))
		kinds := []driver.Mode{driver.Shared, driver.Exclusive, driver.Shared, driver.Upgradeable, driver.Exclusive}
		var all []*entering
		for _, mode := range kinds {
			all = append(all, startEnter(t, q, request(mode, g)))
		}
		want := [][]bool{
			{true, false, false, false, false}, // the reader; the writer behind it keeps out the next reader
			{true, true, false, false, false},
			{true, true, true, true, false}, // a reader and the upgradeable go together
		}
		for i, leave := range []*Place{holder, &all[0].place, &all[1].place} {
			q.Leave(leave)
			var got []bool
			for _, e := range all {
				got = append(got, e.in(t))
			}
			if !slices.Equal(got, want[i]) {
				t.Fatalf("after %d have left: in are %v, want %v", i+1, got, want[i])
			}
		}
		q.Leave(&all[2].place)
		q.Leave(&all[3].place)
		if !all[4].in(t) {
			t.Fatal("the last one is not in")
		}
	})
}

func TestPermitsAreANameSpaceOfTheirOwn(t *testing.T) {
	q := New(false)
	g := q.NewGate()
	enter(t, q, request(driver.Exclusive, g))
	enter(t, q, request(driver.Permit, g))
	if _, err := q.Enter(t.Context(), &Place{}, Request{Name: "a", Mode: driver.Permit, Limit: 1, Try: true, Gate: g}); !errors.Is(err, ErrTimeout) {
		t.Fatalf("a second of one permit: %v", err)
	}
}

func TestCancelledWaiterSwallowsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(false)
		g := q.NewGate()
		reader := enter(t, q, request(driver.Shared, g))
		writer := startEnter(t, q, request(driver.Exclusive, g))
		next := startEnter(t, q, request(driver.Shared, g))
		writer.cancel()
		synctest.Wait()
		if !errors.Is(writer.err, context.Canceled) {
			t.Fatalf("the cancelled one: %v", writer.err)
		}
		if !next.in(t) {
			t.Fatal("the reader behind a writer that gave up still waits")
		}
		q.Leave(reader)
		q.Leave(&next.place)
		enter(t, q, request(driver.Exclusive, g))
	})
}

// Whoever is admitted in the moment in which he gives up is in, and says so.
func TestAdmittedWhileGivingUp(t *testing.T) {
	q := New(false)
	g := q.NewGate()
	for range 2000 {
		holder := enter(t, q, request(driver.Exclusive, g))
		ctx, cancel := context.WithCancel(t.Context())
		waiting := make(chan struct{})
		r := request(driver.Exclusive, g)
		r.Waiting = func() { close(waiting) }
		var p Place
		result := make(chan error)
		go func() {
			_, err := q.Enter(ctx, &p, r)
			result <- err
		}()
		<-waiting
		go cancel()
		q.Leave(holder)
		if <-result == nil {
			q.Leave(&p)
		}
		q.Leave(enter(t, q, request(driver.Exclusive, g)))
	}
}

func TestNamesAreForgotten(t *testing.T) {
	q := New(true)
	g := q.NewGate()
	for i := range 10_000 {
		r := request(driver.Mode(i%4), g)
		r.Name = fmt.Sprint(i)
		p := enter(t, q, r)
		q.Settle(p, nil)
		if _, err := q.Enter(t.Context(), &Place{}, Request{Name: r.Name, Mode: r.Mode, Limit: 1, Try: true, Gate: g}); err == nil != (r.Mode == driver.Shared) {
			t.Fatalf("a second %v: %v", r.Mode, err)
		}
		for _, p := range q.All() {
			q.Leave(p)
		}
	}
	for i := range q.shards {
		s := &q.shards[i]
		if n := len(s.locks) + len(s.permits); n > 1 {
			t.Fatalf("shard %d remembers %d names that nobody uses", i, n)
		}
	}
}

func TestUpgradeGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(false)
		g := q.NewGate()
		up := enter(t, q, request(driver.Upgradeable, g))
		reader := enter(t, q, request(driver.Shared, g))
		upgraded := false
		go func() {
			if _, err := q.Upgrade(t.Context(), up, driver.Forever, g); err != nil {
				t.Error(err)
			}
			upgraded = true
		}()
		synctest.Wait()
		late := startEnter(t, q, request(driver.Shared, g))
		if late.in(t) || upgraded {
			t.Fatal("a new reader gets in before the upgrade, or the upgrade beside a reader")
		}
		before := up.Token()
		q.Leave(reader)
		synctest.Wait()
		if !upgraded || late.in(t) || up.Token() <= before {
			t.Fatal("the upgrade doesn't come when the readers are gone, alone, and with a larger token")
		}
		q.Downgrade(up)
		if !late.in(t) {
			t.Fatal("no reader beside a place that is upgradeable again")
		}
	})
}

func TestUpgradeGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(false)
		g := q.NewGate()
		up := enter(t, q, request(driver.Upgradeable, g))
		reader := enter(t, q, request(driver.Shared, g))
		if waited, err := q.Upgrade(t.Context(), up, time.Second, g); !waited || !errors.Is(err, ErrTimeout) {
			t.Fatal(waited, err)
		}
		late := startEnter(t, q, request(driver.Shared, g))
		if !late.in(t) {
			t.Fatal("a reader still waits for an upgrade that was given up")
		}
		// The place goes while it waits.
		var err error
		go func() { _, err = q.Upgrade(t.Context(), up, driver.Forever, g) }()
		synctest.Wait()
		q.Leave(up)
		synctest.Wait()
		if !errors.Is(err, ErrClosed) {
			t.Fatalf("a place that was given up: %v", err)
		}
		q.Leave(reader)
		q.Leave(&late.place)
		enter(t, q, request(driver.Exclusive, g))
	})
}

func TestPassLeavesAnUpgradeAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(false)
		g := q.NewGate()
		up := enter(t, q, request(driver.Upgradeable, g))
		reader := enter(t, q, request(driver.Shared, g))
		next := startEnter(t, q, request(driver.Upgradeable, g))
		upgraded := make(chan error, 1)
		go func() {
			_, err := q.Upgrade(t.Context(), up, driver.Forever, g)
			upgraded <- err
		}()
		synctest.Wait()
		if q.Pass(up, "baton", always) {
			t.Fatal("passed on while it waits to be upgraded")
		}
		q.Leave(reader)
		if err := <-upgraded; err != nil {
			t.Fatal(err)
		}
		q.Leave(up)
		if !next.in(t) {
			t.Fatal("the next one isn't in")
		}
	})
}

func TestLeaveTwiceIsOnce(t *testing.T) {
	q := New(false)
	g := q.NewGate()
	r := Request{Name: "a", Mode: driver.Permit, Limit: 2, Try: true, Gate: g}
	first := enter(t, q, r)
	q.Leave(first)
	q.Leave(first)
	enter(t, q, r)
	enter(t, q, r)
	if _, err := q.Enter(t.Context(), &Place{}, r); !errors.Is(err, ErrTimeout) {
		t.Fatalf("a third of two permits: %v", err)
	}
}

func TestPassIsAskedLastWhetherItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(true)
		g := q.NewGate()
		never := func() bool { return false }
		holder := enter(t, q, request(driver.Exclusive, g))
		unasked := func() bool { t.Error("asked although there is nobody"); return true }
		if q.Pass(holder, "baton", unasked) {
			t.Fatal("passed to nobody")
		}
		first := startEnter(t, q, request(driver.Exclusive, g))
		second := startEnter(t, q, request(driver.Exclusive, g))
		// The holder isn't settled, and stays so.
		if q.Pass(holder, "baton", never) || first.in(t) {
			t.Fatal("passed although it must not be")
		}
		q.Settle(holder, nil)
		if !q.Pass(holder, "baton", always) || !first.in(t) {
			t.Fatal("not passed to the next")
		}
		// Who doesn't want it passes it on before it has settled.
		if !q.Pass(&first.place, "baton", always) || !second.in(t) || second.a.Baton != "baton" {
			t.Fatal("not passed on")
		}
		q.Leave(&second.place)
	})
}

func TestPassGoesToTheNextOfTheSameKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(true)
		g := q.NewGate()
		holder := enter(t, q, request(driver.Exclusive, g))
		if q.Pass(holder, "baton", always) {
			t.Fatal("passed before it was settled")
		}
		q.Settle(holder, nil)
		if q.Pass(holder, "baton", always) {
			t.Fatal("passed to nobody")
		}
		next := startEnter(t, q, request(driver.Exclusive, g))
		reader := startEnter(t, q, request(driver.Shared, g))
		if !q.Pass(holder, "baton", always) || !next.in(t) || next.a.Baton != "baton" {
			t.Fatal("not passed to the next")
		}
		if q.Settle(&next.place, nil); q.Pass(&next.place, "baton", always) {
			t.Fatal("an exclusive holding was passed to a reader")
		}
		q.Leave(&next.place)
		if !reader.in(t) || reader.a.Baton != nil {
			t.Fatal("the reader got a baton, or nothing")
		}
	})
}

func TestOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(true)
		g := q.NewGate()
		first := enter(t, q, request(driver.Shared, g))
		second := startEnter(t, q, request(driver.Shared, g))
		if second.in(t) {
			t.Fatal("a second reader is in before the first was settled")
		}
		q.Settle(first, nil)
		if !second.in(t) {
			t.Fatal("not in after that")
		}
	})
}

func TestGateStopsItsOwnWaitersOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(false)
		mine, others := q.NewGate(), q.NewGate()
		holder := enter(t, q, request(driver.Exclusive, others))
		here := startEnter(t, q, request(driver.Exclusive, mine))
		there := startEnter(t, q, request(driver.Exclusive, others))
		if !mine.Close() || mine.Close() {
			t.Fatal("Close doesn't tell whether it was the first")
		}
		synctest.Wait()
		if !errors.Is(here.err, ErrClosed) {
			t.Fatalf("behind the closed gate: %v", here.err)
		}
		q.Leave(holder)
		if !there.in(t) {
			t.Fatal("the other's waiter was stopped too")
		}
		if _, err := q.Enter(t.Context(), &Place{}, request(driver.Shared, mine)); !errors.Is(err, ErrClosed) {
			t.Fatalf("later: %v", err)
		}
	})
}

// Many goroutines do everything at once: nobody is in who must not be, and all
// come to an end.
func TestModel(t *testing.T) {
	for _, oneByOne := range []bool{false, true} {
		t.Run(fmt.Sprint("oneByOne=", oneByOne), func(t *testing.T) {
			q := New(oneByOne)
			g := q.NewGate()
			const limit = 3
			names := []string{"a", "b"}
			type state struct{ writers, readers, upgradeable, permits atomic.Int32 }
			states := map[string]*state{"a": {}, "b": {}}
			last := map[string]*atomic.Uint64{"a": {}, "b": {}}
			// check is called by one who is in: what it reads one after the other
			// can't be true of different times only.
			check := func(s *state, mode driver.Mode) {
				if p := s.permits.Load(); mode == driver.Permit && p > limit {
					t.Errorf("%d permits at once", p)
				}
				w, r, u := s.writers.Load(), s.readers.Load(), s.upgradeable.Load()
				if mode != driver.Permit && (w > 1 || w == 1 && r > 0 || w == 1 && u > 0 || u > 1) {
					t.Errorf("in at once: %d writers, %d readers, %d upgradeable", w, r, u)
				}
			}
			var all sync.WaitGroup
			for range 32 {
				all.Go(func() {
					for range 500 {
						name := names[rand.IntN(len(names))]
						s := states[name]
						r := Request{Name: name, Mode: driver.Mode(rand.IntN(4)), Limit: limit, Wait: driver.Forever, Gate: g}
						ctx, cancel := context.WithCancel(t.Context())
						if rand.IntN(3) == 0 {
							r.Wait = time.Duration(rand.IntN(200)) * time.Microsecond
						}
						if rand.IntN(3) == 0 {
							go cancel()
						}
						var p Place
						if _, err := q.Enter(ctx, &p, r); err != nil {
							cancel()
							continue
						}
						q.Settle(&p, nil)
						n := map[driver.Mode]*atomic.Int32{
							driver.Exclusive: &s.writers, driver.Shared: &s.readers,
							driver.Upgradeable: &s.upgradeable, driver.Permit: &s.permits,
						}[r.Mode]
						n.Add(1)
						check(s, r.Mode)
						if r.Mode == driver.Exclusive {
							if token := p.Token(); token <= last[name].Swap(token) {
								t.Errorf("token %d isn't larger than the one before", token)
							}
						}
						if r.Mode == driver.Upgradeable && rand.IntN(2) == 0 {
							if _, err := q.Upgrade(ctx, &p, time.Millisecond, g); err == nil {
								n.Add(-1)
								s.writers.Add(1)
								check(s, driver.Exclusive)
								s.writers.Add(-1)
								n.Add(1)
								q.Downgrade(&p)
							}
						}
						n.Add(-1)
						if !q.Pass(&p, nil, always) {
							q.Leave(&p)
						}
						cancel()
					}
				})
			}
			all.Wait()
			if in := q.All(); len(in) > 0 {
				t.Errorf("%d places are left", len(in))
			}
		})
	}
}

func TestRoomOfManyNamesIsGivenBack(t *testing.T) {
	q := New(false)
	g := q.NewGate()
	for i := range 100 * shardCount * roomy / 64 {
		r := request(driver.Exclusive, g)
		r.Name = fmt.Sprint(i)
		enter(t, q, r)
	}
	for _, p := range q.All() {
		q.Leave(p)
	}
	for i := range q.shards {
		if s := &q.shards[i]; s.peak > roomy {
			t.Fatalf("shard %d has room for %d names, and %d in it", i, s.peak, len(s.locks)+len(s.permits))
		}
	}
}

// Who doesn't want to wait isn't refused because somebody else, beside whom it
// may be in, is just on the way.
func TestTriesBesideAnUnsettledPlace(t *testing.T) {
	try := func(mode driver.Mode, g *Gate) Request {
		return Request{Name: "a", Mode: mode, Limit: 3, Wait: driver.Forever, Try: true, Gate: g}
	}
	synctest.Test(t, func(t *testing.T) {
		q := New(true)
		g := q.NewGate()
		first := enter(t, q, try(driver.Permit, g))
		second := startEnter(t, q, try(driver.Permit, g))
		third := startEnter(t, q, try(driver.Permit, g))
		fourth := startEnter(t, q, try(driver.Permit, g))
		q.Settle(first, nil)
		if !second.in(t) || second.a.Contended || third.in(t) {
			t.Fatal("one after the other")
		}
		q.Settle(&second.place, nil)
		if !third.in(t) {
			t.Fatal("the third is not in")
		}
		if fourth.done.Load() {
			t.Fatalf("a fourth doesn't wait until it is known of the third: %v", fourth.err)
		}
		q.Settle(&third.place, nil)
		synctest.Wait()
		if !errors.Is(fourth.err, ErrTimeout) {
			t.Fatalf("a fourth of three: %v", fourth.err)
		}
		if _, err := q.Enter(t.Context(), &Place{}, try(driver.Permit, g)); !errors.Is(err, ErrTimeout) {
			t.Fatalf("a fifth: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) { // the first has to wait
		q := New(true)
		g := q.NewGate()
		first := enter(t, q, try(driver.Shared, g))
		second := startEnter(t, q, try(driver.Shared, g))
		writer := startEnter(t, q, try(driver.Exclusive, g))
		if second.done.Load() || writer.done.Load() {
			t.Fatal("refused before it is known that it is held")
		}
		q.Contend(first)
		synctest.Wait()
		if !errors.Is(second.err, ErrTimeout) || !errors.Is(writer.err, ErrTimeout) {
			t.Fatalf("behind one that waits: %v, %v", second.err, writer.err)
		}
		if _, err := q.Enter(t.Context(), &Place{}, try(driver.Shared, g)); !errors.Is(err, ErrTimeout) {
			t.Fatalf("later: %v", err)
		}
		q.Leave(first)
		q.Leave(enter(t, q, try(driver.Exclusive, g)))
	})
}

func TestPanicInWaitingLeavesNoPlace(t *testing.T) {
	for _, admitted := range []string{"no", "yes", "with a baton"} {
		synctest.Test(t, func(t *testing.T) {
			q := New(false)
			g := q.NewGate()
			holder := enter(t, q, request(driver.Exclusive, g))
			var p Place
			var orphan any
			r := request(driver.Exclusive, g)
			r.Waiting = func() {
				switch admitted {
				case "yes":
					q.Leave(holder)
				case "with a baton":
					q.Pass(holder, "baton", always)
				}
				panic("ouch")
			}
			r.Orphaned = func(baton any) {
				orphan = baton
				q.Leave(&p)
			}
			func() {
				defer func() { _ = recover() }()
				_, _ = q.Enter(t.Context(), &p, r)
			}()
			if (orphan == "baton") != (admitted == "with a baton") {
				t.Errorf("admitted: %s, and %v orphaned", admitted, orphan)
			}
			q.Leave(holder)
			enter(t, q, request(driver.Exclusive, g))
		})
	}
}

func TestUpgradeWaitsForSettledReadersOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(true)
		g := q.NewGate()
		up := enter(t, q, request(driver.Upgradeable, g))
		q.Settle(up, nil)
		reader := enter(t, q, request(driver.Shared, g))
		q.Settle(reader, nil)
		asking := enter(t, q, request(driver.Shared, g))
		if _, err := q.Upgrade(t.Context(), up, 0, g); !errors.Is(err, ErrTimeout) {
			t.Fatalf("beside a reader: %v", err)
		}
		upgraded := make(chan error, 1)
		go func() {
			_, err := q.Upgrade(t.Context(), up, driver.Forever, g)
			upgraded <- err
		}()
		synctest.Wait()
		q.Leave(reader)
		if err := <-upgraded; err != nil {
			t.Fatal(err)
		}
		q.Downgrade(up)
		if waited, err := q.Upgrade(t.Context(), up, 0, g); waited || err != nil {
			t.Fatal(waited, err)
		}
		q.Leave(up)
		q.Leave(asking)
		enter(t, q, request(driver.Exclusive, g))
	})
}

// Who waits is told that the name is held as soon as that is known, and not before.
func TestContended(t *testing.T) {
	for _, c := range []struct {
		name      string
		answer    func(q *Queue, first *Place)
		contended bool // the waiters behind it
		in        bool // the first of them
	}{
		{"it holds", func(q *Queue, p *Place) { q.Settle(p, nil) }, true, false},
		{"another holds", func(q *Queue, p *Place) { q.Contend(p) }, true, false},
		{"it fails", func(q *Queue, p *Place) { q.Leave(p) }, false, true},
		{"there is no answer", func(*Queue, *Place) {}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := New(true)
				g := q.NewGate()
				first := enter(t, q, request(driver.Exclusive, g))
				var told atomic.Int32
				r := request(driver.Exclusive, g)
				r.Wait = time.Minute
				r.Waiting = func() { told.Add(1) }
				second := startEnter(t, q, r)
				r.Try = true
				try := startEnter(t, q, r)
				if told.Load() > 0 || try.done.Load() {
					t.Fatal("told before there is an answer")
				}
				c.answer(q, first)
				synctest.Wait()
				if (told.Load() == 1) != c.contended || second.done.Load() != c.in {
					t.Fatalf("told %d times, in: %t", told.Load(), second.done.Load())
				}
				if try.done.Load() != c.contended {
					t.Fatalf("the try has an answer: %t", try.done.Load())
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				if !second.done.Load() || !try.done.Load() {
					t.Fatal("they still wait")
				}
				if !c.in && (!errors.Is(second.err, ErrTimeout) || second.a.Contended != c.contended) {
					t.Fatalf("the second: %v, %+v", second.err, second.a)
				}
				if !try.a.Contended && !errors.Is(try.err, ErrTimeout) || try.a.Contended != c.contended {
					t.Fatalf("the try: %v, %+v", try.err, try.a)
				}
			})
		})
	}
}

// A try is refused for what it has to wait for itself, and not for what another
// try is.
func TestTryBehindATryThatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(true)
		g := q.NewGate()
		reader := enter(t, q, request(driver.Shared, g))
		r := request(driver.Exclusive, g)
		r.Try = true
		writer := startEnter(t, q, r)
		r.Mode = driver.Shared
		next := startEnter(t, q, r)
		q.Settle(reader, nil)
		synctest.Wait()
		if !errors.Is(writer.err, ErrTimeout) || !next.in(t) || next.a.Contended {
			t.Fatalf("a writer beside a reader: %v; a reader: %v, %+v", writer.err, next.err, next.a)
		}
	})
}

func TestContendedBeforeTheEndOfTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(true)
		g := q.NewGate()
		first := enter(t, q, request(driver.Exclusive, g))
		told := false
		r := request(driver.Exclusive, g)
		r.Waiting = func() { told = true }
		second := startEnter(t, q, r)
		q.Settle(first, nil)
		second.cancel()
		synctest.Wait()
		if !errors.Is(second.err, context.Canceled) || !second.a.Contended || !told {
			t.Fatalf("%v, %+v, told: %t", second.err, second.a, told)
		}
	})
}
