package drivertest

import (
	"context"
	"errors"
	"net"
	"net/rpc"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock-go/distlock/driver"
)

// The reference is reached by other processes over a socket. A connection is a
// memory backend at the server.

const addressVariable = "DISTLOCK_REFERENCE"

func TestMain(m *testing.M) {
	Main(m, func() (driver.Backend, error) {
		return dial(os.Getenv(addressVariable))
	})
}

// listen serves the store and returns its address.
func (s *store) listen(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go s.serve(conn)
		}
	}()
	return l.Addr().String()
}

func (s *store) serve(conn net.Conn) {
	ctx, cancel := context.WithCancel(context.Background())
	v := &served{store: s, memory: &memory{store: s}, ctx: ctx, cancel: cancel, grants: make(map[driver.ID]driver.Grant)}
	server := rpc.NewServer()
	if err := server.RegisterName("Store", v); err != nil {
		panic(err)
	}
	disconnected := make(chan struct{})
	if s.is("a silent connection is cut") {
		go v.watch(disconnected)
	}
	server.ServeConn(&line{conn, func() {
		if !s.is("waiters outlive their process") {
			v.cancel()
		}
	}})
	close(disconnected)
	if !s.is("the dead keep what they had") && !s.is("waiters outlive their process") {
		v.memory.Close()
	}
}

// line is a connection that notices the end of the other side before all calls
// are answered.
type line struct {
	net.Conn
	hungUp func()
}

func (l *line) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if err != nil {
		l.hungUp()
	}
	return n, err
}

type served struct {
	store  *store
	memory *memory
	ctx    context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	heard  time.Time
	grants map[driver.ID]driver.Grant
}

// Granted is a grant on its way.
type Granted struct {
	Token uint64
	Sent  time.Time
	Lease driver.Lease
}

// watch ends the session when nothing was heard for a while.
func (v *served) watch(disconnected <-chan struct{}) {
	for {
		select {
		case <-disconnected:
			return
		case <-time.After(100 * time.Millisecond):
		}
		v.mu.Lock()
		silent := !v.heard.IsZero() && time.Since(v.heard) > 1500*time.Millisecond
		v.mu.Unlock()
		if silent {
			v.memory.Close()
		}
	}
}

func (v *served) hear() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.heard = time.Now()
}

func (v *served) Info(_ struct{}, i *driver.Info) error {
	*i = v.memory.Info()
	return nil
}

func (v *served) Acquire(r driver.Request, g *Granted) error {
	got, err := v.memory.Acquire(v.ctx, r)
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.heard = time.Now()
	v.grants[r.Owner.ID] = got
	*g = Granted{Token: got.Token, Sent: got.Sent, Lease: got.Session.Lease()}
	return nil
}

func (v *served) grant(id driver.ID) driver.Grant {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.grants[id]
}

func (v *served) Release(id driver.ID, _ *struct{}) error {
	v.hear()
	return v.grant(id).Hold.Release(v.ctx)
}

func (v *served) Renew(id driver.ID, _ *struct{}) error {
	v.hear()
	return v.grant(id).Session.Renew(v.ctx)
}

func (v *served) Undo(r driver.Request, _ *struct{}) error { return v.memory.Undo(v.ctx, r) }

// remote is a backend on a served store.
type remote struct {
	client *rpc.Client
	info   driver.Info
}

func dial(address string) (*remote, error) {
	client, err := rpc.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	b := &remote{client: client}
	return b, client.Call("Store.Info", struct{}{}, &b.info)
}

func (b *remote) Info() driver.Info { return b.info }
func (b *remote) Close() error      { return b.client.Close() }

// call calls, and gives the errors of the contract back their identity.
func (b *remote) call(ctx context.Context, method string, args, result any) error {
	call := b.client.Go("Store."+method, args, result, make(chan *rpc.Call, 1))
	select {
	case <-call.Done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if call.Error == nil {
		return nil
	}
	for _, known := range []error{driver.ErrHeld, driver.ErrLost, errors.ErrUnsupported} {
		if strings.Contains(call.Error.Error(), known.Error()) {
			return known
		}
	}
	return call.Error
}

func (b *remote) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if ctx.Err() != nil {
		return driver.Grant{}, ctx.Err()
	}
	var g Granted
	if err := b.call(ctx, "Acquire", r, &g); err != nil {
		return driver.Grant{}, err
	}
	h := &remoteHold{backend: b, id: r.Owner.ID, lease: g.Lease}
	return driver.Grant{Hold: h, Token: g.Token, Sent: g.Sent, Session: h}, nil
}

func (b *remote) Undo(ctx context.Context, r driver.Request) error {
	return b.call(ctx, "Undo", r, &struct{}{})
}

type remoteHold struct {
	backend *remote
	id      driver.ID
	lease   driver.Lease
}

func (h *remoteHold) Release(ctx context.Context) error {
	return h.backend.call(ctx, "Release", h.id, &struct{}{})
}

func (h *remoteHold) Renew(ctx context.Context) error {
	return h.backend.call(ctx, "Renew", h.id, &struct{}{})
}
func (h *remoteHold) Lease() driver.Lease   { return h.lease }
func (h *remoteHold) Lost() <-chan struct{} { return nil }
func (h *remoteHold) Abandon()              {}
