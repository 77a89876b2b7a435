// Package faultproxy is a TCP proxy for tests of the relational backends, which
// holds back, cuts and half-opens connections.
package faultproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
)

// Proxy forwards TCP connections to a server, unless it is told not to.
type Proxy struct {
	listener net.Listener
	server   string

	mu    sync.Mutex
	cond  *sync.Cond
	mute  bool // answers are held back
	deaf  bool // what is asked is held back
	conns map[net.Conn]net.Conn
}

// New returns a proxy to the server's address, on a port of its own.
func New(server string) (*Proxy, error) {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: l, server: server, conns: make(map[net.Conn]net.Conn)}
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
	return p, nil
}

// Close cuts all connections and takes no new ones.
func (p *Proxy) Close() {
	p.listener.Close()
	p.Set(false, false)
	p.Cut()
}

// Redirect sends connections to come to another server.
func (p *Proxy) Redirect(server string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = server
}

// Addr returns where the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Set tells whether answers, and what is asked, are held back.
func (p *Proxy) Set(mute, deaf bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mute, p.deaf = mute, deaf
	p.cond.Broadcast()
}

// Cut resets all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, b := range p.conns {
		for _, c := range []net.Conn{a, b} {
			_ = c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
	}
}

// HalfOpen ends the connections at the server, of which the client isn't told.
func (p *Proxy) HalfOpen() {
	p.Set(true, true)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.conns {
		b.Close()
	}
}

func (p *Proxy) serve(client net.Conn) {
	p.mu.Lock()
	addr := p.server
	p.mu.Unlock()
	server, err := new(net.Dialer).DialContext(context.Background(), "tcp", addr)
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

func (p *Proxy) pump(to, from net.Conn, held *bool) {
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
				_ = to.(*net.TCPConn).CloseWrite()
			} else {
				to.Close()
			}
			return
		}
	}
}
