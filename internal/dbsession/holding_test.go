package dbsession

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

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
					if result, _, err := p.Take(context.Background(), h, get, nil); err != nil || result != 1 {
						return
					}
					release := func() { _ = h.Release(context.Background()) }
					if err := p.DoOn(context.Background(), h.Session, &Step{Verb: Ping}); err != nil {
						_ = p.TakeBack(context.Background(), err, release)
						return
					}
					release()
				}
			})
		}
		time.Sleep(rand.N(2 * time.Millisecond)) // any moment
		p.Close()
		all.Wait()
		db.Close()
	}
}
