package distlock

import (
	"container/heap"
	"time"
)

// longestNap bounds how late it is noticed that the clocks jumped: timers run on
// the monotonic clock, which stands still while the machine sleeps.
const longestNap = time.Second

// smallestJump is what a clock may run ahead of the monotonic one within a nap
// without it being looked into.
const smallestJump = 10 * time.Millisecond

// A schedule wakes when there is something to do for a keeper. It has one timer
// for all of them, which isn't touched for a lock that is held for a moment.
// Locker.keepersMu guards it.
type schedule struct {
	keepers byWake
	timer   *time.Timer // nil until it is needed
	alarm   time.Time   // when the timer fires; zero: it doesn't
	looked  reading     // when it fired last, or was set
	stopped bool
	ring    func()
}

// add takes the keeper in, or moves it to where it belongs.
func (s *schedule) add(k *keeper, n reading) {
	if s.stopped {
		return
	}
	k.wake = k.next(n)
	if k.at < 0 {
		heap.Push(&s.keepers, k)
	} else {
		heap.Fix(&s.keepers, k.at)
	}
	s.set(n)
}

// remove takes the keeper out, if it is in.
func (s *schedule) remove(k *keeper) {
	if k.at >= 0 {
		heap.Remove(&s.keepers, k.at)
	}
}

// set sees to it that the timer fires in time.
func (s *schedule) set(n reading) {
	if len(s.keepers) == 0 {
		return
	}
	at := n.t.Add(longestNap)
	if first := s.keepers[0].wake; first.Before(at) {
		at = first
	}
	if !s.alarm.IsZero() && !s.alarm.After(at) {
		return
	}
	if s.alarm.IsZero() {
		s.looked = n
	}
	s.alarm = at
	if d := time.Until(at); s.timer == nil { // n may have been a while ago
		s.timer = time.AfterFunc(d, s.ring)
	} else {
		s.timer.Reset(d)
	}
}

// due takes out the keepers that have something to do at n: all of them if the
// clocks have jumped.
func (s *schedule) due(n reading) []*keeper {
	s.alarm = time.Time{}
	jumped := n.since(s.looked) > n.t.Sub(s.looked.t)+smallestJump
	var due []*keeper
	for len(s.keepers) > 0 && (jumped || !s.keepers[0].wake.After(n.t)) {
		due = append(due, heap.Pop(&s.keepers).(*keeper))
	}
	return due
}

func (s *schedule) stop() {
	s.stopped = true
	if s.timer != nil {
		s.timer.Stop()
	}
}

// lookAfterKeepers is called when the schedule rings.
func (l *Locker) lookAfterKeepers() {
	l.keepersMu.Lock()
	n := l.now()
	var expired []*keeper
	for _, k := range l.schedule.due(n) {
		if k.look(n) {
			expired = append(expired, k)
		}
	}
	l.schedule.set(n)
	l.keepersMu.Unlock()
	for _, k := range expired {
		k.lose(k.ranOut())
	}
}

// byWake is a heap of keepers: who wakes first is on top.
type byWake []*keeper

func (b byWake) Len() int           { return len(b) }
func (b byWake) Less(i, j int) bool { return b[i].wake.Before(b[j].wake) }

func (b byWake) Swap(i, j int) {
	b[i], b[j] = b[j], b[i]
	b[i].at, b[j].at = i, j
}

// Push implements [heap.Interface].
func (b *byWake) Push(x any) {
	k := x.(*keeper)
	k.at = len(*b)
	*b = append(*b, k)
}

// Pop implements [heap.Interface].
func (b *byWake) Pop() any {
	last := len(*b) - 1
	k := (*b)[last]
	(*b)[last] = nil
	*b = (*b)[:last]
	k.at = -1
	return k
}
