// Command pod is the program of the tests' containers: a web server with an orderly
// shutdown, and the process that holds a pod's namespaces.
//
//	pod         wait for SIGTERM
//	pod web     serve HTTP on port 8080, and lines over TCP on port 7000
package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/web"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if len(os.Args) < 2 {
		<-ctx.Done()
		return
	}
	if err := serve(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve answers every request with one line: the node, the pod, and the client's address as
// the pod sees it. When ctx ends it answers the open requests.
func serve(ctx context.Context) error {
	name := os.Getenv("NODE") + "/" + os.Getenv("POD")
	l, err := net.ListenTCP("tcp", &net.TCPAddr{Port: 8080})
	if err != nil {
		return err
	}
	lines, err := net.Listen("tcp", ":7000")
	if err != nil {
		return err
	}
	go acceptLines(lines, name)
	s := web.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s\n", name, r.RemoteAddr)
	}))
	select {
	case <-s.Ended():
	case <-ctx.Done():
	}
	finish, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return s.Stop(finish)
}

// acceptLines answers each line of a connection like a request, until the program ends.
func acceptLines(l net.Listener, name string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			for s := bufio.NewScanner(c); s.Scan(); {
				if _, err := fmt.Fprintf(c, "%s %s\n", name, c.RemoteAddr()); err != nil {
					return
				}
			}
		}()
	}
}
