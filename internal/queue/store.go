package queue

// A Store is embedded by a backend that is a queue and nothing else.
type Store struct{ of *Queue }

// NewStore returns the store that q is.
func NewStore(q *Queue) Store { return Store{q} }

func (s Store) queue() *Queue { return s.of }

// Of returns the queue that the backend is. It reports false for one that is more.
func Of(backend any) (*Queue, bool) {
	s, ok := backend.(interface{ queue() *Queue })
	if !ok {
		return nil, false
	}
	return s.queue(), true
}
