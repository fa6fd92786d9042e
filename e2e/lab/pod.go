package lab

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"

	"github.com/fanfare-lb/fanfare/e2e/web"
)

// The ports of a pod. A Service maps 80 to WebPort, and 7 to EchoPort over TCP and UDP.
const (
	WebPort  = 8080
	EchoPort = 7000

	// maxDatagram is the most that a datagram holds, in bytes.
	maxDatagram = 1<<16 - 1
)

// A Pod is a server. It answers every HTTP request, every line over TCP and every datagram
// with one line: its name, and the client's address as the pod sees it. It reads the whole body
// of a request, and pads its answer with blanks: to the size of a datagram, or to the value of
// ?size= in bytes.
type Pod struct {
	Name string

	web  *web.Server
	echo net.Listener
	udp  *net.UDPConn

	mu    sync.Mutex
	conns map[net.Conn]bool
}

// StartPod starts a pod's servers in a namespace.
func StartPod(ctx context.Context, name string, n *Namespace) (*Pod, error) {
	p := &Pod{Name: name, conns: map[net.Conn]bool{}}
	l, err := n.Listen(ctx, fmt.Sprintf(":%d", WebPort))
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", name, err)
	}
	p.web = web.Serve(l.(*net.TCPListener), http.HandlerFunc(p.answer))
	if p.echo, err = n.Listen(ctx, fmt.Sprintf(":%d", EchoPort)); err != nil {
		return nil, fmt.Errorf("pod %s: %w", name, err)
	}
	go p.acceptEcho()
	if p.udp, err = n.ListenUDP(ctx, fmt.Sprintf(":%d", EchoPort)); err != nil {
		return nil, fmt.Errorf("pod %s: %w", name, err)
	}
	go p.echoUDP()
	return p, nil
}

func (p *Pod) line(client netip.AddrPort) string {
	return fmt.Sprintf("%s %s\n", p.Name, netip.AddrPortFrom(client.Addr().Unmap(), client.Port()))
}

func (p *Pod) answer(w http.ResponseWriter, req *http.Request) {
	client, err := netip.ParseAddrPort(req.RemoteAddr)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if _, err := io.Copy(io.Discard, req.Body); err != nil {
		return // the client is gone
	}
	size, _ := strconv.Atoi(req.URL.Query().Get("size")) // 0 if there is none
	w.Write(pad(p.line(client), size))
}

// pad adds blanks to a line up to a size.
func pad(line string, size int) []byte {
	return append([]byte(line), bytes.Repeat([]byte(" "), max(0, size-len(line)))...)
}

func (p *Pod) acceptEcho() {
	for {
		c, err := p.echo.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.conns[c] = true
		p.mu.Unlock()
		go p.echoLines(c)
	}
}

func (p *Pod) echoLines(c net.Conn) {
	defer func() {
		p.mu.Lock()
		delete(p.conns, c)
		p.mu.Unlock()
		c.Close()
	}()
	line := []byte(p.line(c.RemoteAddr().(*net.TCPAddr).AddrPort()))
	for lines := bufio.NewScanner(c); lines.Scan(); {
		if _, err := c.Write(line); err != nil {
			return
		}
	}
}

func (p *Pod) echoUDP() {
	buf := make([]byte, maxDatagram)
	for {
		n, client, err := p.udp.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			p.udp.WriteToUDPAddrPort(pad(p.line(client), n), client)
		}
	}
}

// Stop ends the pod as a program that handles SIGTERM: it accepts no more connections and
// answers the open ones.
func (p *Pod) Stop(ctx context.Context) error {
	p.echo.Close()
	err := p.web.Stop(ctx)
	p.Kill()
	return err
}

// Kill ends the pod as SIGKILL does: the kernel closes all sockets.
func (p *Pod) Kill() {
	p.web.Kill()
	p.echo.Close()
	p.udp.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

// ServePod runs a pod in this process's own namespace until ctx ends, for containers and
// for a lab that is left up.
func ServePod(ctx context.Context, name string) error {
	h, err := home()
	if err != nil {
		return err
	}
	p, err := StartPod(ctx, name, &Namespace{Name: "its own", handle: h})
	if err != nil {
		return err
	}
	<-ctx.Done()
	p.Kill()
	return nil
}

func (l *Lab) startPods(ctx context.Context) error {
	for _, name := range PodNames {
		if err := l.StartPod(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// StartPod starts one of PodNames. It kills a running one first.
func (l *Lab) StartPod(ctx context.Context, name string) error {
	if p := l.pods[name]; p != nil {
		p.Kill()
	}
	p, err := StartPod(ctx, name, l.namespaces[name])
	if err == nil {
		l.pods[name] = p
	}
	return err
}

// Pod returns one of PodNames.
func (l *Lab) Pod(name string) *Pod { return l.pods[name] }
