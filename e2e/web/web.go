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
	// idleLimit is how long a connection without a request delays a stop. A connection that a
	// router has moved never sends one.
	idleLimit = 5 * time.Second
)

// A Server answers HTTP requests.
type Server struct {
	http     http.Server
	listener *net.TCPListener
	open     sync.WaitGroup // open connections
	served   chan struct{}  // closed when the server accepts no more connections
	err      error          // the reason, after served is closed

	mu   sync.Mutex
	idle map[net.Conn]time.Time // accept times of connections without a request
}

// Serve answers requests on a listener and closes it at the end.
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

// Stop refuses new connections and returns when all earlier ones are answered. It closes
// connections without a request after a time, and all connections when ctx ends.
func (s *Server) Stop(ctx context.Context) error {
	s.http.SetKeepAlivesEnabled(false)
	_ = s.listener.SetDeadline(time.Unix(1, 0)) // an error means that it is closed, which ends Serve too
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

// closeIdle closes connections that send no request in time.
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

var errDrained = errors.New("the accept queue is empty")

// A drainingListener empties the accept queue after its deadline, and then fails.
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

// acceptQueued accepts without blocking, although package net refuses that after the
// deadline.
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
