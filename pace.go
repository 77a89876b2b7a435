package distlock

import (
	"sync"
	"time"
)

// quickest is the part of the backend's first pause that a pause may shrink to.
const quickest = 8

// mostPaces is for how many resources it is remembered how long they were held.
const mostPaces = 1024

// A pace remembers how long the resources were held that were polled for. Who waits
// for one that is held for a moment wants to ask again soon, and who waits for one
// that is held for minutes has time.
type pace struct {
	mu    sync.Mutex
	first map[string]time.Duration // the pause to begin with
}

// begin returns the pause to begin with: least, if nothing is known.
func (p *pace) begin(resource string, least time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if first, ok := p.first[resource]; ok {
		return first
	}
	return least
}

// note notes how long it took until the resource was had. Half of that is what to
// begin with: if the first pause was longer than it had to be, the next one is
// shorter. A wait that was given up tells only that it takes longer than that.
func (p *pace) note(resource string, waited time.Duration, had bool, least, most time.Duration) {
	first := min(max(waited/2, least/quickest), most)
	if !had {
		first = max(first, p.begin(resource, least))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.first == nil {
		p.first = make(map[string]time.Duration)
	}
	if _, ok := p.first[resource]; !ok && len(p.first) >= mostPaces {
		for other := range p.first { // any
			delete(p.first, other)
			break
		}
	}
	p.first[resource] = first
}
