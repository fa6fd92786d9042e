package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Flows are long-lived TCP connections, or UDP sockets that keep their ports. Each exchanges a
// line every 50 ms.
type Flows struct {
	stop context.CancelFunc
	done sync.WaitGroup
	All  []*Flow
}

// A Flow is one connection.
type Flow struct {
	Pod  string         // the pod that answers
	From netip.AddrPort // the client's end
	Saw  netip.AddrPort // the client's end, as the pod sees it
	conn net.Conn
	read *bufio.Reader
	// patience is how long it waits for an answer. A datagram without one is lost, and the next
	// may be answered; a connection has ended then.
	patience time.Duration
	udp      bool

	mu        sync.Mutex
	err       error
	ended     time.Time
	exchanged int // lines exchanged
}

// OpenFlows opens the given number of connections.
func (c *Client) OpenFlows(ctx context.Context, number int, to netip.AddrPort) (*Flows, error) {
	return c.openFlows(ctx, number, to, false)
}

// OpenUDPFlows opens UDP sockets. A Flow's error is that of its last datagram.
func (c *Client) OpenUDPFlows(ctx context.Context, number int, to netip.AddrPort) (*Flows, error) {
	return c.openFlows(ctx, number, to, true)
}

func (c *Client) openFlows(ctx context.Context, number int, to netip.AddrPort, udp bool) (*Flows, error) {
	f := &Flows{}
	for range number {
		flow, err := c.openFlow(ctx, to, udp)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("flow %d: %w", len(f.All)+1, err), f.Close())
		}
		f.All = append(f.All, flow)
	}
	ctx, f.stop = context.WithCancel(ctx)
	for _, flow := range f.All {
		f.done.Go(func() { flow.exchangeLines(ctx) })
	}
	return f, nil
}

func (c *Client) openFlow(ctx context.Context, to netip.AddrPort, udp bool) (*Flow, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	network, patience := "tcp", Patience
	if udp {
		network, patience = "udp", time.Second
	}
	conn, err := c.Dial(ctx, network, netip.AddrPort{}, to)
	if err != nil {
		return nil, err
	}
	f := &Flow{conn: conn, read: bufio.NewReader(conn), patience: patience, udp: udp}
	line, err := f.exchange()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	a, err := parseAnswer(line, conn)
	f.Pod, f.From, f.Saw = a.Pod, a.From, a.Saw
	return f, err
}

// exchange sends a line and reads the answer.
func (f *Flow) exchange() (string, error) {
	f.conn.SetDeadline(time.Now().Add(f.patience))
	if _, err := f.conn.Write([]byte("?\n")); err != nil {
		return "", err
	}
	line, err := f.read.ReadString('\n')
	if errors.Is(err, io.EOF) {
		err = errors.New("closed by the other end")
	}
	return line, err
}

// exchangeLines exchanges lines until ctx or the connection ends.
func (f *Flow) exchangeLines(ctx context.Context) {
	for pause(ctx, 50*time.Millisecond) == nil {
		_, err := f.exchange()
		f.mu.Lock()
		f.exchanged++
		f.err, f.ended = err, time.Now()
		f.mu.Unlock()
		if err != nil && !f.udp {
			return
		}
	}
}

// Ended returns when the last exchange ended: that of the end, for a connection that has ended.
func (f *Flow) Ended() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ended
}

// Err returns the reason why the connection ended, or nil while it is open.
func (f *Flow) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// Exchanged returns the number of exchanged lines.
func (f *Flow) Exchanged() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.exchanged
}

// AwaitLines waits until every open connection has exchanged that many more lines.
func (f *Flows) AwaitLines(ctx context.Context, more int) error {
	want := make([]int, len(f.All))
	for i, flow := range f.All {
		want[i] = flow.Exchanged() + more
	}
	return Await(ctx, Patience+Settle, fmt.Sprintf("%d more lines", more), func() error {
		for i, flow := range f.All {
			if flow.Err() == nil && flow.Exchanged() < want[i] {
				return fmt.Errorf("%s to %s: %d of %d", flow.From, flow.Pod, flow.Exchanged(), want[i])
			}
		}
		return nil
	})
}

// Close ends all connections.
func (f *Flows) Close() error {
	if f.stop != nil {
		f.stop()
	}
	f.done.Wait()
	var errs []error
	for _, flow := range f.All {
		errs = append(errs, flow.conn.Close())
	}
	return errors.Join(errs...)
}
