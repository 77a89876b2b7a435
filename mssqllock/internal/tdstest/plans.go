package tdstest

import "sync"

// plans keeps what was made of texts, which nothing changes later.
// learn.microsoft.com: "Query processing architecture guide", Execution plan
// caching and reuse.
type plans[T any] struct {
	mu  sync.Mutex
	all map[string]T
}

// maxPlans bounds how many are kept.
const maxPlans = 1000

func (p *plans[T]) get(text string, parse func(string) (T, error)) (T, error) {
	p.mu.Lock()
	made, ok := p.all[text]
	p.mu.Unlock()
	if ok {
		return made, nil
	}
	made, err := parse(text)
	if err != nil {
		return made, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil || len(p.all) >= maxPlans {
		p.all = make(map[string]T)
	}
	p.all[text] = made
	return made, nil
}
