package azurelock

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"testing"
)

// A proxy stands before the emulator and does to requests and replies what
// networks do.
type proxy struct {
	server *httptest.Server
	to     string

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
	gone   bool            // the request never arrives
	status int             // said instead of asking the service
}

func newProxy(t testing.TB, e *emulator) *proxy {
	p := &proxy{to: e.address, stops: make(chan struct{})}
	p.server = httptest.NewServer(p)
	t.Cleanup(func() {
		close(p.stops)
		p.server.CloseClientConnections()
		p.server.Close()
	})
	return p
}

func (p *proxy) endpoint() string { return p.server.URL + "/" + account }

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
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, o := range p.seen {
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

var upstream = &http.Transport{MaxIdleConnsPerHost: 64}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	o := operation(r)
	p.mu.Lock()
	p.seen = append(p.seen, o)
	var f fault
	if p.rule != nil {
		f = p.rule(o)
	}
	p.mu.Unlock()

	p.wait(f.before)
	if f.gone {
		panic(http.ErrAbortHandler)
	}
	if f.status != 0 {
		w.WriteHeader(f.status)
		return
	}
	// The request goes on although its client may have gone away meanwhile.
	out, _ := http.NewRequestWithContext(context.Background(), r.Method, "", bytes.NewReader(body))
	out.URL = &url.URL{Scheme: "http", Host: p.to, Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery}
	out.Header = r.Header
	if len(body) == 0 {
		out.Body = http.NoBody
	}
	reply, err := upstream.RoundTrip(out)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer reply.Body.Close()
	answer, _ := io.ReadAll(reply.Body)
	p.wait(f.after)
	if f.drop {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), reply.Header)
	w.WriteHeader(reply.StatusCode)
	w.Write(answer)
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
