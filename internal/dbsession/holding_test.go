package dbsession

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock-go/distlock/driver"
)

// However many trips it takes, and whoever makes them, a silent server is given up a
// heartbeat after the first was begun.
func TestP08_SeveralTripsAreOneQuestion(t *testing.T) {
	for name, o := range map[string]Options{"asked by a session": {}, "asked by the caller": cutting} {
		for _, cancelable := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				inBubble(t, o, func(t *testing.T, v *server, p *Pool) {
					ctx := context.Background()
					if cancelable {
						var cancel context.CancelFunc
						ctx, cancel = context.WithCancel(ctx)
						defer cancel()
					}
					take(t, p, "other")
					v.on(func(s *session, steps []*Step) error {
						if steps[0].Verb == get {
							time.Sleep(heartbeat / 2)
							return nil
						}
						time.AfterFunc(heartbeat, func() { v.end(s.id) }) // what cut does for real
						<-s.killed
						return io.EOF
					})
					start := time.Now()
					h := &Holding{Key: "a", GiveBack: release}
					if result, err := p.Take(ctx, start, h, get, nil); err != nil || result != 1 {
						t.Fatal(result, err)
					}
					err := p.DoOn(ctx, h.Session, &Step{Verb: Ping, Asked: start})
					if !errors.Is(err, ErrSilent) {
						t.Errorf("the next trip: %v", err)
					}
					err = h.Session.TakeBack(ctx, start, err, h)
					if took := time.Since(start); took > heartbeat {
						t.Errorf("it took %v", took)
					}
					var unsettled *driver.UnsettledError
					if !errors.As(err, &unsettled) || !errors.Is(err, ErrSilent) {
						t.Fatalf("taken back: %v", err)
					}
					<-unsettled.Settled
					v.on(nil)
				})
			})
		}
	}
}

// What is taken back while the pool is closed comes when Close may have found that
// nothing is under way any more.
func TestP25_CloseWhileSomethingIsTakenBack(t *testing.T) {
	for range 500 {
		v := newServer()
		db := sql.OpenDB(v)
		p := New(db, v, Options{MaxSessions: 8, MaxWaiting: 4, Heartbeat: heartbeat, IdleTimeout: heartbeat})
		var all sync.WaitGroup
		for _, key := range []string{"a", "b", "c", "d"} {
			all.Go(func() {
				for {
					h := &Holding{Key: key, GiveBack: release}
					if result, err := p.Take(context.Background(), time.Now(), h, get, nil); err != nil || result != 1 {
						return
					}
					if err := p.DoOn(context.Background(), h.Session, &Step{Verb: Ping}); err != nil {
						_ = h.Session.TakeBack(context.Background(), time.Time{}, err, h)
						return
					}
					h.Session.GiveUp(h)
				}
			})
		}
		time.Sleep(rand.N(2 * time.Millisecond)) // any moment
		p.Close()
		all.Wait()
		db.Close()
	}
}

// A release whose answer comes when its context ends has been answered: to ask for it
// again is not to give back what another has taken meanwhile.
func TestP09_ReleaseAnsweredAtTheLastMoment(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		take(t, p, "other")
		for range 2000 {
			v.on(nil)
			h := &Holding{Key: "a", GiveBack: release}
			if result, err := p.Take(t.Context(), time.Now(), h, get, nil); err != nil || result != 1 {
				t.Fatal(result, err)
			}
			v.on(func(*session, []*Step) error { time.Sleep(time.Millisecond); return nil })
			var all sync.WaitGroup
			for range 8 { // the first makes a trip, and the others the next, with the release
				all.Go(func() { _, _ = p.Do(context.Background(), &Step{Verb: Ping}) })
				synctest.Wait()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
			err := h.Release(ctx)
			cancel()
			all.Wait()
			time.Sleep(time.Second)
			c, s := take(t, p, "a")
			if err != nil {
				err = h.Release(t.Context())
			}
			if err != nil || v.held("a") != 1 {
				t.Fatalf("held by %d: %v", v.held("a"), err)
			}
			give(t, p, c, s)
		}
	})
}
