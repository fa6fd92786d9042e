package lab

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

const (
	// Patience is how long a client waits for a complete answer, without a retry. On a busy
	// machine the server may have to wait for a CPU.
	Patience = 10 * time.Second
	// connecting is how long a client waits for a connection. Kernels repeat a lost SYN after
	// 1 s, which is in time, and again 2 s later, which is not.
	connecting = 3 * time.Second
)

// A Client is the host behind the router, or any other namespace with a client.
type Client struct {
	*Namespace
	// nodes are the namespaces whose conntrack entries are added to the errors of lost
	// requests.
	nodes []*Namespace
	// ports chooses the local ports of loads; nil: the kernel does.
	ports *portCycle
}

// An Answer is the response of a pod.
type Answer struct {
	Pod  string
	Saw  netip.AddrPort // the client, as the pod saw it
	From netip.AddrPort // the client's own address
}

// Get opens a connection, sends one HTTP request and reads the complete answer. The kernel
// chooses the local address unless from is valid, and the port if that is 0.
func (c *Client) Get(ctx context.Context, from, to netip.AddrPort) (Answer, error) {
	return c.Exchange(ctx, from, to, 0, 0)
}

// Exchange is Get with a request of up bytes and an answer of down bytes. It is an error if the
// answer is shorter.
func (c *Client) Exchange(ctx context.Context, from, to netip.AddrPort, up, down int) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	dialing, stop := context.WithTimeout(ctx, connecting)
	defer stop()
	conn, err := c.Dial(dialing, "tcp", from, to)
	if err != nil {
		return Answer{}, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	setDeadline(ctx, conn)
	request := fmt.Sprintf("GET /?size=%d HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n",
		down, to, up)
	if _, err := conn.Write(pad(request, len(request)+up)); err != nil {
		return Answer{}, fmt.Errorf("send: %w", err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return Answer{}, fmt.Errorf("receive: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return Answer{}, fmt.Errorf("receive: %w", err)
	}
	if len(body) < down {
		return Answer{}, fmt.Errorf("receive: %d bytes: want %d", len(body), down)
	}
	return parseAnswer(string(body), conn)
}

// AskUDP sends one datagram and waits for the answer.
func (c *Client) AskUDP(ctx context.Context, from, to netip.AddrPort) (Answer, error) {
	return c.ExchangeUDP(ctx, from, to, 0)
}

// ExchangeUDP is AskUDP with a datagram of a size in bytes each way. Larger ones than the path's
// MTU are fragmented.
func (c *Client) ExchangeUDP(ctx context.Context, from, to netip.AddrPort, size int) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	conn, err := c.Dial(ctx, "udp", from, to)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	setDeadline(ctx, conn)
	if _, err := conn.Write(pad("?\n", size)); err != nil {
		return Answer{}, err
	}
	buf := make([]byte, maxDatagram)
	n, err := conn.Read(buf)
	if err != nil {
		return Answer{}, err
	}
	if n < size {
		return Answer{}, fmt.Errorf("answer of %d bytes: want %d", n, size)
	}
	return parseAnswer(string(buf[:n]), conn)
}

func setDeadline(ctx context.Context, c net.Conn) {
	if d, ok := ctx.Deadline(); ok {
		c.SetDeadline(d)
	}
}

func parseAnswer(line string, c net.Conn) (Answer, error) {
	pod, saw, _ := strings.Cut(strings.TrimSpace(line), " ")
	addr, err := netip.ParseAddrPort(saw)
	if err != nil {
		return Answer{}, fmt.Errorf("answer %q: %w", line, err)
	}
	from, err := netip.ParseAddrPort(c.LocalAddr().String())
	return Answer{Pod: pod, Saw: addr, From: from}, err
}

// FirstAnswer opens a new connection every two milliseconds until one is answered, and
// returns when that was.
func (c *Client) FirstAnswer(ctx context.Context, to netip.AddrPort) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, Settle)
	defer cancel()
	answered := make(chan time.Time)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		go func() {
			if _, err := c.Get(ctx, netip.AddrPort{}, to); err != nil {
				return
			}
			select {
			case answered <- time.Now():
			case <-ctx.Done():
			}
		}()
		select {
		case <-tick.C:
		case at := <-answered:
			return at, nil
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("%s: no answer: %w", to, ctx.Err())
		}
	}
}
