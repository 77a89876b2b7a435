package queue

// A Store is embedded by a backend that is a queue and nothing else.
type Store struct {
	of    *Queue
	owner any
}

// NewStore returns the store that q is, for owner to embed.
func NewStore(q *Queue, owner any) Store { return Store{q, owner} }

func (s Store) queue() (*Queue, any) { return s.of, s.owner }

// Of returns the queue that the backend is. It reports false for one that is more,
// as what embeds such a backend is.
func Of(backend any) (*Queue, bool) {
	s, ok := backend.(interface{ queue() (*Queue, any) })
	if !ok {
		return nil, false
	}
	q, owner := s.queue()
	return q, owner == backend
}
