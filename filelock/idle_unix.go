//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package filelock

import "time"

// restFor is how long a file must have been out of use to be closed; it may take
// twice as long.
const restFor = time.Second

// idle are open files of a resource that nobody uses at the moment. Nothing is
// locked on them.
type idle struct {
	held  *held
	fence *counter
}

func (i idle) close() {
	if i.held != nil {
		i.held.close()
	}
	if i.fence != nil {
		i.fence.fenceFile.(guarded).close()
	}
}

// borrow returns the idle files of the lock, or nil.
func (b *Backend) borrow(n *name) *held {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := n.idle.held
	n.idle.held = nil
	return h
}

// keep keeps unlocked files for the next lock of the same name. It reports false
// if they are of no use to anybody.
func (b *Backend) keep(k nameKey, h *held) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.names[k]
	if n == nil || n.idle.held != nil {
		return false
	}
	n.idle.held = h
	b.rest()
	return true
}

func (b *Backend) borrowFence(n *name) *counter {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := n.idle.fence
	n.idle.fence = nil
	return c
}

// doubt has the idle fence looked at before it is used.
func (b *Backend) doubt(n *name) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n.idle.fence != nil {
		n.idle.fence.looked = time.Time{}
	}
}

func (b *Backend) keepFence(n *name, c *counter) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n.gone || n.idle.fence != nil {
		return false
	}
	n.idle.fence = c
	b.rest()
	return true
}

// rest arranges for idle files to be looked through. b.mu is held.
func (b *Backend) rest() {
	if !b.resting {
		b.resting = true
		time.AfterFunc(restFor, b.tidy)
	}
}

// tidy closes what nobody has used since it was here before: an open file keeps
// its file system from being unmounted, and others from the descriptor.
func (b *Backend) tidy() {
	b.mu.Lock()
	var unused []idle
	for key, n := range b.names {
		if n.seen == n.used {
			unused = append(unused, b.forget(key))
		}
		n.seen = n.used
	}
	b.resting = false
	if len(b.names) > 0 {
		b.rest()
	}
	b.mu.Unlock()
	for _, i := range unused {
		i.close()
	}
}

// dropIdle closes all that is idle, and reports whether that was anything.
func (b *Backend) dropIdle() bool {
	b.mu.Lock()
	var unused []idle
	for key, n := range b.names {
		if n.idle != (idle{}) {
			unused = append(unused, b.forget(key))
		}
	}
	b.mu.Unlock()
	for _, i := range unused {
		i.close()
	}
	return len(unused) > 0
}
