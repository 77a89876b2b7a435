package filelock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"

	"github.com/distlock-go/distlock/driver"
)

// line acquires with regard to others who wait.
func (a *attempt) line(ctx context.Context) (*held, error) {
	if !a.backend.lined {
		return a.try(ctx)
	}
	if a.request.Wait > 0 {
		return a.wait(ctx)
	}
	// Who finds the lock free, and nobody was waiting when this process let it go,
	// can get ahead of somebody who is about to wake up. That costs him one turn:
	// then the file is closed.
	empty := a.spare != nil && a.request.Mode == driver.Exclusive
	if !empty {
		var err error
		if empty, err = a.queue.isFirst(lineEnd); err != nil {
			return nil, err
		}
		if !empty && a.request.Queue {
			return nil, driver.ErrHeld
		}
	}
	return a.tryFrom(ctx, empty)
}

// tryFrom is try for somebody who may not be first in the line. Beside holders
// that it is compatible with, it must not overtake those who aren't.
func (a *attempt) tryFrom(ctx context.Context, first bool) (*held, error) {
	if m := a.request.Mode; first || m == driver.Exclusive || m == driver.Permit {
		return a.try(ctx)
	}
	// So it takes the lock only if nobody has it at all.
	alone, err := a.queue.flock(unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	if !alone {
		return nil, driver.ErrHeld
	}
	h, err := a.try(ctx)
	if err != nil {
		a.queue.unlock()
	}
	return h, err
}

// wait waits in the line.
func (a *attempt) wait(ctx context.Context) (*held, error) {
	var h *held
	w := waiter{
		place:  now(),
		queue:  func() *file { return a.queue },
		reopen: a.open,
		try: func(first bool) (err error) {
			h, err = a.tryFrom(ctx, first)
			return err
		},
		closed: a.backend.closed,
	}
	err := w.wait(ctx, a.request.Wait)
	if err != nil {
		return nil, err
	}
	if a.request.Mode != driver.Exclusive {
		a.queue.ring() // the next in line may have it at the same time
	}
	return h, nil
}

// A waiter is somebody who waits for something that others free by closing a
// file.
type waiter struct {
	place  int64                  // in the line
	queue  func() *file           // the file as it is open now
	reopen func() error           // opens it again after it was replaced
	try    func(first bool) error // nil, driver.ErrHeld, errReplaced or a failure
	closed <-chan struct{}
}

// wait returns nil when try did, driver.ErrHeld when the time is over, or what
// went wrong. The place in the line is given up then.
func (w *waiter) wait(ctx context.Context, most time.Duration) error {
	var over <-chan time.Time
	if most != driver.Forever {
		t := time.NewTimer(most)
		defer t.Stop()
		over = t.C
	}
	for {
		err := w.waitHere(ctx, over)
		if !errors.Is(err, errReplaced) {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.reopen(); err != nil {
			return err
		}
	}
}

const (
	// The kernel reports the close of a killed process before it frees the locks,
	// so that a try that follows may come too early: there are more, with pauses
	// that start with this.
	firstPause = time.Millisecond
	// The longest pause where closes aren't reported.
	longestPause = 20 * time.Millisecond
	// From time to time, and up to twice this, everybody tries whatever the line
	// says: who is first in it may have been stopped.
	outOfLine = 125 * time.Millisecond
)

// waitHere waits with the queue as it is open now.
func (w *waiter) waitHere(ctx context.Context, over <-chan time.Time) error {
	q := w.queue()
	if err := q.stand(w.place); err != nil {
		return err
	}
	defer q.leave(w.place)
	closes, stop, watched := watch(q.fd)
	defer stop()

	timer := time.NewTimer(0)
	defer timer.Stop()
	pause, most := firstPause, longestPause
	if watched {
		most = 2 * outOfLine
	}
	turn := time.Now().Add(outOfLine + rand.N(outOfLine))
	last := false
	for {
		// Only after the watch began, so that no close is missed.
		if current, err := q.current(); err != nil {
			return err
		} else if !current {
			return errReplaced
		}
		mine := last
		if time.Until(turn) <= 0 {
			turn = time.Now().Add(outOfLine + rand.N(outOfLine))
			mine = true
		}
		first, err := q.isFirst(w.place)
		if err != nil {
			return err
		}
		if mine || first {
			if err := w.try(first); !errors.Is(err, driver.ErrHeld) {
				return err
			}
		}
		if last {
			return driver.ErrHeld
		}
		timer.Reset(min(pause, time.Until(turn)))
		pause = min(2*pause, most)
		select {
		case <-closes:
			pause = firstPause
		case <-timer.C:
		case <-over:
			last = true
		case <-ctx.Done():
			return ctx.Err()
		case <-w.closed:
			return errClosed
		}
	}
}

// Upgrade makes an upgradeable hold exclusive, and waits for the readers to go;
// see [driver.Upgrader].
func (h *hold) Upgrade(ctx context.Context, wait time.Duration) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	h.mu.Lock()
	if h.held == nil {
		h.mu.Unlock()
		return 0, driver.ErrLost
	}
	path, id := h.held.file.path(), h.held.file.id
	h.mu.Unlock()

	// In the line stands a description of its own: the held one may be closed at
	// any time, if the session is given up.
	queue, err := h.backend.openFile(path, unix.O_RDONLY, 0, false)
	if err != nil {
		return 0, h.whyNot(err)
	}
	defer queue.close()
	if queue.id != id {
		return 0, h.whyNot(errReplaced)
	}
	w := waiter{
		place:  firstPlace, // else new readers could keep it waiting for ever
		queue:  func() *file { return queue },
		reopen: func() error { return errReplaced },
		try:    func(bool) error { return h.tryUpgrade() },
		closed: h.backend.closed,
	}
	if wait == 0 {
		err = h.tryUpgrade()
	} else {
		err = w.wait(ctx, wait)
	}
	if err != nil {
		return 0, h.whyNot(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	most := guardTimeout
	if wait == 0 {
		most = answersWithin
	}
	token, err := h.count(ctx, h.backend.name(h.resource, false), driver.Exclusive, most)
	if err != nil {
		if h.held != nil {
			_, _ = h.held.file.fcntl(unix.F_UNLCK, readers)
		}
		if errors.Is(err, errBusy) && wait == 0 {
			err = driver.ErrHeld
		}
		return 0, err
	}
	h.mode = driver.Exclusive
	return token, nil
}

func (h *hold) tryUpgrade() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held == nil {
		return driver.ErrLost
	}
	free, err := h.held.file.fcntl(unix.F_WRLCK, readers)
	if err == nil && !free {
		return driver.ErrHeld
	}
	return err
}

// whyNot puts the loss of the lock before its symptoms.
func (h *hold) whyNot(err error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held == nil {
		return driver.ErrLost
	}
	if lost := h.held.check(); lost != nil {
		return fmt.Errorf("%w (%w)", lost, err)
	}
	return err
}
