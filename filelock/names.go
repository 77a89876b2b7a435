package filelock

import "path/filepath"

// mostNames is how many resources a backend has in mind.
const mostNames = 64

// nameKey tells what a resource's locks have from what its permits have.
type nameKey struct {
	resource string
	permits  bool
}

// A name is what a backend has in mind of a resource: where its files are, and
// which of them are open though nobody uses them.
type name struct {
	key   nameKey
	base  string // the path of all of its files, but for the suffix
	queue string // the path of the file that waiters line up on
	fence string

	// Guarded by Backend.mu.
	idle idle
	used uint64 // Backend.uses when somebody asked for it last
	seen uint64 // used, when the idle ones were looked through last
	gone bool   // out of mind
}

// name returns what is known of a resource.
func (b *Backend) name(resource string, permits bool) *name {
	key := nameKey{resource, permits}
	b.mu.Lock()
	b.uses++
	n := b.names[key]
	if n != nil {
		n.used = b.uses
		b.mu.Unlock()
		return n
	}
	b.mu.Unlock()

	n = b.newName(key)
	var unused idle
	b.mu.Lock()
	switch known := b.names[key]; {
	case known != nil:
		n = known
	case b.holds == nil:
		n.gone = true // closed meanwhile
	default:
		if len(b.names) >= mostNames {
			unused = b.forgetOldest()
		}
		b.names[key] = n
	}
	n.used = b.uses
	b.mu.Unlock()
	unused.close()
	return n
}

// newName returns a name with the paths of its files.
func (b *Backend) newName(key nameKey) *name {
	n := &name{key: key, base: filepath.Join(b.dir, baseName(key.resource))}
	n.queue, n.fence = n.base+lockSuffix, n.base+fenceSuffix
	if key.permits {
		n.queue, n.fence = n.base+bellSuffix, n.base+permitFenceSuffix
	}
	return n
}

// forgetOldest makes room for another name; see forget.
func (b *Backend) forgetOldest() idle {
	var oldest nameKey
	least := b.uses + 1
	for key, n := range b.names {
		if n.used < least {
			oldest, least = key, n.used
		}
	}
	return b.forget(oldest)
}

// forget takes a name out of mind. What was idle is the caller's then, who closes
// it without b.mu, which is held.
func (b *Backend) forget(key nameKey) idle {
	n := b.names[key]
	delete(b.names, key)
	n.gone = true
	unused := n.idle
	n.idle = idle{}
	return unused
}
