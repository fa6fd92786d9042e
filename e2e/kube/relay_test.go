package kube

import (
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
)

// A relay forwards connections to the API server until they are cut.
type relay struct {
	t  *testing.T
	to string // host:port
	l  net.Listener

	mu    sync.Mutex
	conns []*net.TCPConn
}

func newRelay(t *testing.T, url string) *relay {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	r := &relay{t: t, to: strings.TrimPrefix(url, "https://"), l: l}
	t.Cleanup(func() { l.Close(); r.cut() })
	go r.serve()
	return r
}

// rewrite has the clients of a kubeconfig use the relay.
func (r *relay) rewrite(kubeconfig string) {
	text, err := os.ReadFile(kubeconfig)
	must(r.t, err)
	must(r.t, os.WriteFile(kubeconfig, []byte(strings.ReplaceAll(string(text), r.to, r.l.Addr().String())), 0o600))
}

func (r *relay) serve() {
	for {
		in, err := r.l.Accept()
		if err != nil {
			return // The test has ended.
		}
		out, err := net.Dial("tcp4", r.to)
		if err != nil {
			in.Close() // The API server is away.
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, in.(*net.TCPConn), out.(*net.TCPConn))
		r.mu.Unlock()
		go forward(in, out)
		go forward(out, in)
	}
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
