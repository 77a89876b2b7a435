//go:build unix

package mysqllock

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
)

// A faultyProxy forwards TCP connections to a server, unless it is told not to.
type faultyProxy struct {
	listener net.Listener
	server   string

	mu    sync.Mutex
	cond  *sync.Cond
	mute  bool // answers are held back
	deaf  bool // what is asked is held back
	conns map[net.Conn]net.Conn
}

func newProxy(t testing.TB, server string) *faultyProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &faultyProxy{listener: l, server: server, conns: make(map[net.Conn]net.Conn)}
	p.cond = sync.NewCond(&p.mu)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(c)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		p.set(false, false)
		p.cut()
	})
	return p
}

func (p *faultyProxy) addr() string { return p.listener.Addr().String() }

// set tells which direction is held back.
func (p *faultyProxy) set(mute, deaf bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mute, p.deaf = mute, deaf
	p.cond.Broadcast()
}

// cut resets all connections.
func (p *faultyProxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, b := range p.conns {
		for _, c := range []net.Conn{a, b} {
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
	}
}

// halfOpen ends the connections at the server, of which the client isn't told.
func (p *faultyProxy) halfOpen() {
	p.set(true, true)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.conns {
		b.Close()
	}
}

func (p *faultyProxy) serve(client net.Conn) {
	p.mu.Lock()
	addr := p.server
	p.mu.Unlock()
	server, err := net.Dial("tcp", addr)
	if err != nil {
		client.Close()
		return
	}
	p.mu.Lock()
	p.conns[client] = server
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.pump(server, client, &p.deaf) })
	both.Go(func() { p.pump(client, server, &p.mute) })
	both.Wait()
	p.mu.Lock()
	delete(p.conns, client)
	p.mu.Unlock()
	client.Close()
	server.Close()
}

func (p *faultyProxy) pump(to, from net.Conn, held *bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		for *held {
			p.cond.Wait()
		}
		p.mu.Unlock()
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				from.Close()
				return
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				to.(*net.TCPConn).CloseWrite()
			} else {
				to.Close()
			}
			return
		}
	}
}
