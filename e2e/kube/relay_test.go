package kube

import (
	"bytes"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
)

// A relay forwards connections until they are cut: to the first API server that accepts them, as a TCP load
// balancer with priorities does.
type relay struct {
	t  *testing.T
	to []string // host:port of each
	l  net.Listener

	mu    sync.Mutex
	conns []*net.TCPConn
}

func newRelay(t *testing.T, urls ...string) *relay {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	r := &relay{t: t, l: l}
	for _, url := range urls {
		r.to = append(r.to, strings.TrimPrefix(url, "https://"))
	}
	t.Cleanup(func() { l.Close(); r.cut() })
	go r.serve()
	return r
}

// rewrite has the clients of a kubeconfig use the relay.
func (r *relay) rewrite(kubeconfig string) {
	text, err := os.ReadFile(kubeconfig)
	must(r.t, err)
	for _, to := range r.to {
		text = bytes.ReplaceAll(text, []byte(to), []byte(r.l.Addr().String()))
	}
	must(r.t, os.WriteFile(kubeconfig, text, 0o600))
}

func (r *relay) serve() {
	for {
		in, err := r.l.Accept()
		if err != nil {
			return // The test has ended.
		}
		out := r.dial()
		if out == nil {
			in.Close() // No API server is up.
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, in.(*net.TCPConn), out.(*net.TCPConn))
		r.mu.Unlock()
		go forward(in, out)
		go forward(out, in)
	}
}

// dial connects to the first API server that accepts, and returns nil if none does.
func (r *relay) dial() net.Conn {
	for _, to := range r.to {
		if c, err := net.Dial("tcp4", to); err == nil {
			return c
		}
	}
	return nil
}

// forward copies until one side ends, and ends the other.
func forward(from, to net.Conn) {
	_, _ = io.Copy(to, from)
	to.Close()
}

// cut resets all connections, as a firewall or a load balancer does that has lost its state.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		_ = c.SetLinger(0)
		c.Close()
	}
	r.conns = nil
}
