package main

import (
	"os"
	"time"
)

// holding is what supervise needs of a *distlock.Lock.
type holding interface {
	Done() <-chan struct{}
	Err() error
}

// event is something that happened to the child.
type event struct {
	signal os.Signal // what stopped or ended it, if that was a signal
	exited bool      // else it was stopped, or continued if there is no signal
	code   int       // how it exited, as a shell puts it
}

func (e event) stopped() bool { return e.signal != nil && !e.exited }

// supervise passes signals on to the child until it exits, and returns how it
// did. If the lock is lost meanwhile, the child and all that it started and
// that is still in its process group is told to end, and killed after the time
// killAfter.
func supervise(c *child, h holding, signals <-chan os.Signal, killAfter time.Duration) (exit event, lost bool) {
	for {
		var s os.Signal
		var e event
		ticked := false
		select {
		case <-h.Done():
		case s = <-signals:
		case e = <-c.events:
			c.stopped = e.stopped()
		case <-c.ticks.C:
			ticked = true
		}
		// Whatever else has happened: if we have slept through the end of a lease,
		// then the child must not be woken.
		switch {
		case h.Err() != nil:
			return c.end(e, killAfter), true
		case e.exited:
			return e, false
		case s != nil:
			c.pass(s)
		case ticked:
			c.tick()
		default:
			c.changed(e)
		}
	}
}

// end ends the child and what is left of its process group. e is what was
// heard of the child last.
func (c *child) end(e event, killAfter time.Duration) event {
	c.terminate()
	kill := time.After(killAfter)
	// That the last of the group is gone can't be waited for.
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		if c.stopped && !e.exited {
			// To hear of it it would have to be woken, and might then do more than die,
			// when somebody else may hold the lock already.
			kill = time.After(0)
		}
		select {
		case <-kill:
			c.kill()
			for !e.exited {
				e = <-c.events
			}
			return e
		case <-look.C:
			if e.exited && !c.anyLeft() {
				return e
			}
		case e = <-c.events:
			c.stopped = e.stopped()
		}
	}
}
