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
	alarm   time.Duration // when the timer fires, by the monotonic clock, if it is set
	isSet   bool
	looked  reading // when it fired last, or was set
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
		heap.Fix(&s.keepers, int(k.at))
	}
	s.set(n)
}

// remove takes the keeper out, if it is in.
func (s *schedule) remove(k *keeper) {
	if k.at >= 0 {
		heap.Remove(&s.keepers, int(k.at))
	}
}

// set sees to it that the timer fires in time.
func (s *schedule) set(n reading) {
	if len(s.keepers) == 0 {
		return
	}
	at := min(n.mono+longestNap, s.keepers[0].wake)
	if !s.isSet {
		s.looked = n
	} else if s.alarm > n.mono && s.alarm <= at {
		return
	}
	s.alarm, s.isSet = at, true
	// A timer of its own each time: one that a test in a bubble of testing/synctest has
	// made can't be set again outside of it. What was set for later does nothing.
	time.AfterFunc(at-monotonic(), s.ring)
}

// due takes out the keepers that have something to do at n: all of them if the
// clocks have jumped.
func (s *schedule) due(n reading) []*keeper {
	if !s.isSet || n.mono < s.alarm {
		return nil
	}
	s.isSet = false
	jumped := n.since(s.looked) > n.mono-s.looked.mono+smallestJump
	var due []*keeper
	for len(s.keepers) > 0 && (jumped || s.keepers[0].wake <= n.mono) {
		due = append(due, heap.Pop(&s.keepers).(*keeper))
	}
	return due
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

// Len implements [heap.Interface].
func (b *byWake) Len() int { return len(*b) }

// Less implements [heap.Interface].
func (b *byWake) Less(i, j int) bool { return (*b)[i].wake < (*b)[j].wake }

// Swap implements [heap.Interface].
func (b *byWake) Swap(i, j int) {
	k := *b
	k[i], k[j] = k[j], k[i]
	k[i].at, k[j].at = int32(i), int32(j)
}

// Push implements [heap.Interface].
func (b *byWake) Push(x any) {
	k := x.(*keeper)
	k.at = int32(len(*b))
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
