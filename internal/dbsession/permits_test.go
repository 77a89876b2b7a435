package dbsession

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distlock-go/distlock/driver"
)

// waitAny waits for the key a as one of several.
func waitAny() *Step {
	return &Step{Verb: get, Key: "a", Taken: func(int64) string { return "a" }}
}

// What a wait for any of several keys has taken is claimed before another step can run
// on its session, which the server would grant it once more: who has the claim is
// waited for.
func TestP01_TakenKeyIsClaimedFirst(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		c, err := p.Claim(t.Context(), "a", 0)
		if err != nil {
			t.Fatal(err)
		}
		const later = time.Second
		time.AfterFunc(later, c.Free)
		start := time.Now()
		st := waitAny()
		s, err := p.WaitAny(t.Context(), st, time.Hour)
		if err != nil || st.Result != 1 || st.Takes == nil || st.Takes.Key() != "a" {
			t.Fatalf("%d, %v, %v", st.Result, st.Takes, err)
		}
		if took := time.Since(start); took != later {
			t.Errorf("claimed after %v", took)
		}
		if c, _ := p.Claim(t.Context(), "a", 0); c != nil {
			t.Error("the key can be claimed by another")
		}
		give(t, p, st.Takes, s)
		if v.held("a") > 0 || s.holds > 0 {
			t.Errorf("%d hold it, and the session holds %d", v.held("a"), s.holds)
		}
	})
}

// What can't be claimed is given back, as is what was taken too late.
func TestP07_TakenKeyIsGivenBack(t *testing.T) {
	for what, c := range map[string]struct {
		wait    time.Duration
		context time.Duration
		freed   time.Duration // after that
		took    time.Duration
		err     error
	}{
		"claimed by another":       {time.Hour, time.Hour, time.Second, 2 * heartbeat, nil},
		"out of time":              {time.Second, time.Hour, time.Second, time.Second, nil},
		"claimed when out of time": {time.Second, time.Hour, interruptGrace / 2, time.Second, nil},
		"canceled":                 {time.Hour, time.Second, time.Second, time.Second, context.DeadlineExceeded},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
				take(t, p, "mine")
				claim, _ := p.Claim(t.Context(), "a", 0)
				ctx, cancel := context.WithTimeout(t.Context(), c.context)
				defer cancel()
				start := time.Now()
				st := waitAny()
				if _, err := p.WaitAny(ctx, st, c.wait); !errors.Is(err, c.err) || st.Result != 0 || st.Takes != nil {
					t.Errorf("%d, %v, %v", st.Result, st.Takes, err)
				}
				if took := time.Since(start); took != c.took {
					t.Errorf("it took %v", took)
				}
				time.Sleep(c.freed)
				claim.Free()
				time.Sleep(interruptGrace)
				synctest.Wait()
				if v.held("a") > 0 || v.held("mine") != 1 {
					t.Errorf("a: %d, mine: %d", v.held("a"), v.held("mine"))
				}
				if claim, _ = p.Claim(t.Context(), "a", 0); claim == nil {
					t.Fatal("a claim is left")
				}
				claim.Free()
			})
		})
	}
}

// A claim ends with the session that a wait has taken its key on.
func TestP15_TakenKeyEndsWithItsSession(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		st := waitAny()
		s, err := p.WaitAny(t.Context(), st, time.Hour)
		if err != nil || st.Result != 1 {
			t.Fatal(st.Result, err)
		}
		v.end(s.self.ID)
		if err := s.Renew(t.Context()); !errors.Is(err, driver.ErrLost) {
			t.Error(err)
		}
		if c, _ := p.Claim(t.Context(), "a", 0); c == nil {
			t.Error("the claim is left")
		} else {
			c.Free()
		}
	})
}

// Where there is no session to wait on, nothing is asked.
func TestP20_WaitAnyNeedsASession(t *testing.T) {
	inBubble(t, Options{MaxSessions: 1, MaxWaiting: 1}, func(t *testing.T, v *server, p *Pool) {
		take(t, p, "mine")
		trips := v.made()
		st := waitAny()
		if s, err := p.WaitAny(t.Context(), st, time.Hour); s != nil || err != nil || st.Result != 0 {
			t.Errorf("%v, %d, %v", s, st.Result, err)
		}
		if n := v.made() - trips; n > 0 || v.sessions() > 1 {
			t.Errorf("%d trips, %d sessions", n, v.sessions())
		}
	})
}

// Who holds a gate proves its session while something else is waited for, and waits no
// more when that has ended.
func TestP11_GateIsProvenDuringTheWait(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, v *server, p *Pool) {
		_, s := take(t, p, "gate")
		trips := v.made()
		time.AfterFunc(3*heartbeat+heartbeat/2, func() { v.end(s.self.ID) })
		start := time.Now()
		forever := func() time.Duration { return time.Hour }
		err := p.PollAtGate(t.Context(), s, forever, func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if !errors.Is(err, driver.ErrHeld) {
			t.Error(err)
		}
		if n, took := v.made()-trips, time.Since(start); n != 4 || took != 4*heartbeat {
			t.Errorf("%d trips in %v", n, took)
		}

		_, s = take(t, p, "gate")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := p.PollAtGate(ctx, s, forever, func(context.Context) error { return driver.ErrHeld }); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if err := p.PollAtGate(t.Context(), s, forever, func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
	})
}

// A claim that comes when the session is given up is nobody's.
func TestP07_ClaimForADeadSessionIsFreed(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, _ *server, p *Pool) {
		for range 20 { // whoever comes first
			claim, _ := p.Claim(t.Context(), "a", 0)
			answered := make(chan error, 1)
			go func() {
				_, err := p.WaitAny(t.Context(), waitAny(), time.Hour)
				answered <- err
			}()
			time.Sleep(time.Second)
			p.mu.Lock()
			for _, s := range p.sessions {
				p.drop(s, io.EOF)
			}
			claim.free()
			p.mu.Unlock()
			if err := <-answered; err != nil { // it is asked again
				t.Error(err)
			}
			synctest.Wait()
			if c, _ := p.Claim(t.Context(), "a", 0); c == nil {
				t.Fatal("the claim is left")
			} else {
				c.Free()
			}
		}
	})
}
