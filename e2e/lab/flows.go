package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Flows are long-lived TCP connections. Each exchanges a line every 50 ms.
type Flows struct {
	stop context.CancelFunc
	done sync.WaitGroup
	All  []*Flow
}

// A Flow is one connection.
type Flow struct {
	Pod   string         // the pod that answers
	From  netip.AddrPort // the client's end
	Saw   netip.AddrPort // the client's end, as the pod sees it
	conn  net.Conn
	lines *bufio.Scanner

	mu        sync.Mutex
	err       error
	exchanged int // lines exchanged
}

// OpenFlows opens the given number of connections.
func (c *Client) OpenFlows(ctx context.Context, number int, to netip.AddrPort) (*Flows, error) {
	f := &Flows{}
	for range number {
		flow, err := c.openFlow(ctx, to)
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

func (c *Client) openFlow(ctx context.Context, to netip.AddrPort) (*Flow, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	conn, err := c.Dial(ctx, "tcp", netip.AddrPort{}, to)
	if err != nil {
		return nil, err
	}
	f := &Flow{conn: conn, lines: bufio.NewScanner(conn)}
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
	f.conn.SetDeadline(time.Now().Add(Patience))
	if _, err := f.conn.Write([]byte("?\n")); err != nil {
		return "", err
	}
	if !f.lines.Scan() {
		return "", errors.Join(errors.New("closed by the other end"), f.lines.Err())
	}
	return f.lines.Text(), nil
}

// exchangeLines exchanges lines until ctx or the connection ends.
func (f *Flow) exchangeLines(ctx context.Context) {
	for pause(ctx, 50*time.Millisecond) == nil {
		_, err := f.exchange()
		f.mu.Lock()
		f.exchanged++
		f.err = err
		f.mu.Unlock()
		if err != nil {
			return
		}
	}
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
