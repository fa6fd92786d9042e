package web

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// headerTimeout is how long a client may take to send its request.
	headerTimeout = time.Minute
	// silence is how long a connection may be without a request when the server stops. A
	// connection cut off by a router never sends one.
	idleLimit = 5 * time.Second
)

// A Server answers HTTP requests.
type Server struct {
	http     http.Server
	listener *net.TCPListener
	open     sync.WaitGroup // connections
	served   chan struct{}  // closed when no more are accepted
	err      error          // why, once served is closed

	mu   sync.Mutex
	idle map[net.Conn]time.Time // connections without a request, by the time when they were accepted
}

// Serve answers on a listener, and closes it at the end.
func Serve(l *net.TCPListener, h http.Handler) *Server {
	s := &Server{listener: l, served: make(chan struct{}), idle: map[net.Conn]time.Time{}}
	s.http = http.Server{Handler: h, ReadHeaderTimeout: headerTimeout, ConnState: s.trackState}
	go func() {
		defer close(s.served)
		s.err = s.http.Serve(drainingListener{l})
	}()
	return s
}

func (s *Server) trackState(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if state == http.StateNew {
		s.open.Add(1)
		s.idle[c] = time.Now()
		return
	}
	delete(s.idle, c)
	if state == http.StateClosed || state == http.StateHijacked {
		s.open.Done()
	}
}

// Ended is closed when the server accepts no more connections.
func (s *Server) Ended() <-chan struct{} { return s.served }

// Stop refuses new connections, and returns when all earlier ones have their answer.
// Connections without a request are closed, and all of them when ctx ends.
func (s *Server) Stop(ctx context.Context) error {
	s.http.SetKeepAlivesEnabled(false)
	_ = s.listener.SetDeadline(time.Unix(1, 0)) // fails if it is closed: Serve ends by that
	<-s.served
	err := s.err
	if errors.Is(err, errDrained) {
		err = nil
	}
	s.closeIdle()
	answered := make(chan struct{})
	go func() {
		s.open.Wait()
		close(answered)
	}()
	select {
	case <-answered:
	case <-ctx.Done():
		err = errors.Join(err, fmt.Errorf("requests without an answer: %w", context.Cause(ctx)))
	}
	return errors.Join(err, s.Kill())
}

// closeSilent closes connections that have sent no request for too long.
func (s *Server) closeIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c, since := range s.idle {
		time.AfterFunc(time.Until(since.Add(idleLimit)), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if _, still := s.idle[c]; still {
				c.Close()
			}
		})
	}
}

// Kill closes everything.
func (s *Server) Kill() error { return s.http.Close() }

var errDrained = errors.New("listener stops, and all that came are accepted")

// An emptied listener drains the accept queue: past its deadline it accepts the connections
// that the kernel has established, and then fails.
type drainingListener struct{ *net.TCPListener }

func (l drainingListener) Accept() (net.Conn, error) {
	c, err := l.AcceptTCP()
	if err == nil {
		return c, nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return l.acceptQueued()
	}
	return nil, err
}

// waiting accepts without blocking, past the deadline that package net enforces.
func (l drainingListener) acceptQueued() (net.Conn, error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var accept error
	if err := raw.Control(func(listener uintptr) {
		fd, _, accept = unix.Accept4(int(listener), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	}); err != nil {
		return nil, err
	}
	switch {
	case errors.Is(accept, unix.EAGAIN):
		return nil, errDrained
	case accept != nil:
		return nil, os.NewSyscallError("accept4", accept)
	}
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	return net.FileConn(f)
}
