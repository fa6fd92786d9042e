package web

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"
)

const (
	connections = 50
	patience    = 30 * time.Second
)

// A stopping server answers connections in the accept queue, also those whose request
// arrives later. It refuses new connections.
func TestStopAnswersQueuedConnections(t *testing.T) {
	for _, c := range []struct {
		name string
		// early connections send their request before the server stops.
		early bool
	}{{"request before the stop", true}, {"request after the stop", false}} {
		t.Run(c.name, func(t *testing.T) {
			l := listen(t)
			conns := dial(t, l, connections) // in the accept queue
			if c.early {
				ask(t, conns)
			}
			s := Serve(l, http.HandlerFunc(hello))
			stopped := make(chan error, 1)
			go func() { stopped <- s.Stop(t.Context()) }()
			<-s.Ended()
			if !c.early {
				ask(t, conns)
			}
			for i, conn := range conns {
				if got, err := answer(conn); err != nil || got != "hello\n" {
					t.Errorf("connection %d: %q, %v", i, got, err)
				}
			}
			if err := <-stopped; err != nil {
				t.Error(err)
			}
			if _, err := net.Dial("tcp", l.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("a connection after the end: %v", err)
			}
		})
	}
}

// A connection without a request delays Stop only for a limited time.
func TestStopClosesIdleConnections(t *testing.T) {
	l := listen(t)
	s := Serve(l, http.HandlerFunc(hello))
	silent := dial(t, l, 1)[0]
	must(t, s.Stop(t.Context()))
	if _, err := answer(silent); err == nil {
		t.Error("an answer without a request")
	}
}

// Stop returns when ctx ends.
func TestStopWithinContext(t *testing.T) {
	l := listen(t)
	s := Serve(l, http.HandlerFunc(hello))
	silent := dial(t, l, 1)[0]
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v: want the deadline's error", err)
	}
	if _, err := answer(silent); err == nil {
		t.Error("an answer without a request")
	}
}

// The response to a kept-alive connection closes it, so it does not delay Stop.
func TestStopClosesKeptAliveConnections(t *testing.T) {
	l := listen(t)
	s := Serve(l, http.HandlerFunc(hello))
	kept := dial(t, l, 1)
	ask(t, kept)
	resp, err := http.ReadResponse(bufio.NewReader(kept[0]), nil)
	must(t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	must(t, err)
	must(t, s.Stop(t.Context()))
}

// A killed server answers no request and frees its port.
func TestKillFreesPort(t *testing.T) {
	l := listen(t)
	s := Serve(l, http.HandlerFunc(hello))
	silent := dial(t, l, 1)[0]
	must(t, s.Kill())
	<-s.Ended()
	if _, err := answer(silent); err == nil {
		t.Error("an answer of a server that was killed")
	}
	l, err := net.ListenTCP("tcp", l.Addr().(*net.TCPAddr))
	must(t, err)
	must(t, l.Close())
}

func hello(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }

func listen(t *testing.T) *net.TCPListener {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	return l
}

func dial(t *testing.T, l net.Listener, n int) (conns []net.Conn) {
	t.Helper()
	for range n {
		c, err := net.Dial("tcp", l.Addr().String())
		must(t, err)
		t.Cleanup(func() { c.Close() })
		must(t, c.SetDeadline(time.Now().Add(patience)))
		conns = append(conns, c)
	}
	return conns
}

func ask(t *testing.T, conns []net.Conn) {
	t.Helper()
	for _, c := range conns {
		_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: pod\r\n\r\n")
		must(t, err)
	}
}

func answer(c net.Conn) (string, error) {
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
