package azurelock

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"sync"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"github.com/distlock-go/distlock/driver"
	"github.com/distlock-go/distlock/drivertest"
)

// longEnv is set to run what takes minutes.
const longEnv = "DISTLOCK_TEST_LONG"

func TestSuite(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{}, {Fencing: true}} {
		t.Run(fmt.Sprintf("fencing=%t", o.Fencing), func(t *testing.T) {
			t.Parallel()
			dir := ""
			if o.Fencing {
				dir = t.TempDir()
			}
			e := ownAzurite(t, dir) // thousands of requests that no other test need wait for
			name := containerOf(e.container(t))
			h := harness(o, func(t testing.TB, wrap func(http.RoundTripper) http.RoundTripper) *container.Client {
				return client(t, e.endpoint(), name, wrap)
			})
			h.Secrets = []string{accountKey}
			h.Process = func(testing.TB) []string {
				env := []string{endpointEnv + "=" + e.endpoint(), nameEnv + "=" + name}
				if o.Fencing {
					env = append(env, fencingEnv+"=1")
				}
				return env
			}
			if e.dir == "" {
				h.Omit["Restart"] = "this emulator keeps its data in memory; the other suite has one that doesn't"
			} else {
				h.Restart = func(t testing.TB) { e.restart(t) }
			}
			drivertest.Run(t, h)
		})
	}
}

// urlEnv names an existing service: an azblob: URL, with the credential in the
// environment as usual.
const urlEnv = "DISTLOCK_TEST_AZURELOCK_URL"

// TestSuiteOnService makes many thousands of requests, and leaves blobs behind.
func TestSuiteOnService(t *testing.T) {
	raw := os.Getenv(urlEnv)
	if raw == "" {
		t.Skip(urlEnv + " names no service to test on")
	}
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal("the URL can't be parsed")
	}
	p, err := parseURL(u)
	if err != nil {
		t.Fatal(err)
	}
	h := harness(p.o, func(t testing.TB, wrap func(http.RoundTripper) http.RoundTripper) *container.Client {
		c, err := p.client(os.Getenv, clientOptions(t, wrap))
		if err != nil {
			t.Fatal(err)
		}
		return c
	})
	for _, name := range []string{"AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_CONNECTION_STRING"} {
		if s := os.Getenv(name); s != "" {
			h.Secrets = append(h.Secrets, s)
		}
	}
	h.Omit["Restart"] = "the service isn't ours to restart"
	h.Omit["Process"] = "other processes are tested on the emulator"
	drivertest.Run(t, h)
}

// harness returns what is the same for all services.
func harness(o Options, open func(testing.TB, func(http.RoundTripper) http.RoundTripper) *container.Client) drivertest.Harness {
	var mu sync.Mutex
	lines := make(map[driver.Backend]*line)
	h := drivertest.Harness{
		Open: func(t testing.TB) driver.Backend {
			l := &line{}
			b := New(open(t, l.through), &o)
			mu.Lock()
			defer mu.Unlock()
			lines[b] = l
			return b
		},
		Tokens: o.Fencing,
		Sever: func(t testing.TB, _ driver.Backend, _ driver.Request, g driver.Grant) {
			breakLease(t, g.Hold.(*hold).blob(), 0)
		},
		Mute: func(_ testing.TB, b driver.Backend) func() {
			mu.Lock()
			defer mu.Unlock()
			return lines[b].silence()
		},
		Omit: map[string]string{
			"Resources": "the backend has no connections of its own",
		},
	}
	if os.Getenv(longEnv) == "" {
		// They are hard work for the emulator, or take two leases and a half, and have
		// nothing to do with tokens: one of the two suites is enough.
		omit := []string{"P12_locker_keeps_its_lease"}
		if o.Fencing {
			omit = []string{
				"P12_renewed_lease_stays", "P17_random_names_are_distinct", "P07_S10_cancel_at_any_point_leaves_nothing",
			}
		}
		for _, name := range omit {
			h.Omit[name] = "the other suite has it; " + longEnv + "=1 runs it here, too"
		}
		h.Omit["P20_S34_names_are_forgotten"] = "it makes five thousand requests, one by one; " + longEnv + "=1 runs it"
		for _, name := range []string{"P20_thousand_held_at_once", "P17_S36_a_thousand_names_are_distinct"} {
			h.Omit[name] = "a slow machine's emulator can't renew a thousand leases every five seconds, see TestThousandNames; " + longEnv + "=1 runs it"
		}
	}
	return h
}

// A line is a backend's way to the store, and can be made one-way.
type line struct {
	mu   sync.Mutex
	mute chan struct{} // answers wait until it is closed; nil: they don't
}

func (l *line) silence() (speak func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	mute := make(chan struct{})
	l.mute = mute
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		close(mute)
		l.mute = nil
	})
}

func (l *line) through(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		l.mu.Lock()
		mute := l.mute
		l.mu.Unlock()
		if mute == nil {
			return next.RoundTrip(r)
		}
		reply, err := next.RoundTrip(r.WithContext(context.WithoutCancel(r.Context())))
		if err != nil {
			return nil, err
		}
		select {
		case <-mute:
			return reply, nil
		case <-r.Context().Done():
			reply.Body.Close()
			return nil, r.Context().Err()
		}
	})
}
