package azurelock

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// withFakeClock runs f with a clock of its own that stands still while the emulator is
// asked: however slow that is, all our timeouts and pauses are exact. The emulator's
// clock is the real one; leases last for all of f.
//
// Nothing in f may wait for a channel that was made outside.
func withFakeClock(t *testing.T, f func(t *testing.T, e *emulator)) {
	t.Helper()
	e := azurite(t) // whose goroutines aren't of the bubble
	synctest.Test(t, func(t *testing.T) { f(t, e) })
}

// A proxy stands before the emulator and does to requests and replies what
// networks do.
type proxy struct {
	direct http.RoundTripper

	mu    sync.Mutex
	rule  func(operation string) fault // nil: none
	seen  []string                     // operations, as they came
	stops chan struct{}                // the test is over
}

// A fault is what happens to one exchange.
type fault struct {
	before <-chan struct{} // the request is kept until then
	after  <-chan struct{} // the reply is kept until then
	drop   bool            // the connection is cut instead of the reply
	status int             // said instead of asking the service
}

func newProxy(t testing.TB) *proxy {
	p := &proxy{stops: make(chan struct{})}
	t.Cleanup(func() { close(p.stops) })
	return p
}

// through makes the proxy the way of a client.
func (p *proxy) through(next http.RoundTripper) http.RoundTripper {
	p.direct = next
	return p
}

// set makes f decide what happens from here on.
func (p *proxy) set(f func(operation string) fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rule = f
}

// on does the same to all requests for one operation.
func (p *proxy) on(operation string, f fault) {
	p.set(func(o string) fault {
		if o == operation {
			return f
		}
		return fault{}
	})
}

// count returns how many requests there were for the operation.
func (p *proxy) count(operation string) int {
	n := 0
	for _, o := range p.operations() {
		if o == operation {
			n++
		}
	}
	return n
}

func (p *proxy) operations() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.seen)
}

// RoundTrip implements [http.RoundTripper].
func (p *proxy) RoundTrip(r *http.Request) (*http.Response, error) {
	o := operation(r)
	p.mu.Lock()
	p.seen = append(p.seen, o)
	var f fault
	if p.rule != nil {
		f = p.rule(o)
	}
	p.mu.Unlock()

	// The request goes on although its client may have gone away meanwhile.
	onItsWay := r.Clone(context.WithoutCancel(r.Context()))
	onItsWay.Body = http.NoBody // as are all that pass here
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil || len(body) > 0 {
			return nil, fmt.Errorf("a request with a body of %d bytes: %w", len(body), err)
		}
		r.Body.Close()
	}
	type answer struct {
		reply *http.Response
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		reply, err := p.exchange(onItsWay, f) //nolint:bodyclose // whoever reads it closes it; it is in memory
		answers <- answer{reply, err}
	}()
	select {
	case a := <-answers:
		return a.reply, a.err
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

func (p *proxy) exchange(r *http.Request, f fault) (*http.Response, error) {
	p.wait(f.before)
	if f.status != 0 {
		return &http.Response{StatusCode: f.status, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
	}
	reply, err := p.direct.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err != nil {
		return nil, err
	}
	reply.Body = io.NopCloser(bytes.NewReader(body))
	p.wait(f.after)
	if f.drop {
		return nil, io.EOF // as http.Transport says it
	}
	return reply, nil
}

func (p *proxy) wait(c <-chan struct{}) {
	if c == nil {
		return
	}
	select {
	case <-c:
	case <-p.stops:
	}
}
