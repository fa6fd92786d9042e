package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"
)

const (
	dnsUDPRate = 1900 // queries per second
	dnsTCPRate = 100
	// dnsWaiting bounds the queries without an answer yet. A receive buffer of CoreDNS holds more:
	// on a machine that stops for a moment, the kernel would drop what exceeds it.
	dnsWaiting = 150
	// dnsPorts is the number of ports of all queries over UDP, of which each address that is asked has
	// a share. Each returns after some seconds, when the nodes still know its earlier flow: a whole
	// part of all ports, since a port that returned at once would get the answer to another query.
	dnsPorts = (lastPort - firstPort + 1) / 8
	// Each 16th query is for a large answer.
	dnsLarge = 16
)

// A dnsClient asks from several addresses.
type dnsClient struct {
	udp   [2]*Client // for each address that is asked at a time, with a cycle of ports of its own
	tcp   *Client
	addrs []netip.Addr
}

// newDNSClient gives a node more addresses, which affinity distinguishes. There are so many that
// each of three pods has some.
func newDNSClient(t *testing.T, l *Lab, node string, first netip.Addr) *dnsClient {
	t.Helper()
	c := &dnsClient{tcp: l.clientIn(node), addrs: []netip.Addr{first}}
	c.tcp.CyclePorts()
	for i := range c.udp {
		c.udp[i] = l.clientIn(node)
		c.udp[i].CyclePorts()
	}
	for a := first.Next(); len(c.addrs) < 32; a = a.Next() {
		run(t, l, node, "ip", "addr", "replace", a.String()+"/24", "dev", "eth1")
		c.addrs = append(c.addrs, a)
	}
	return c
}

// A dnsLoad asks some addresses over UDP and TCP, at dnsUDPRate and dnsTCPRate in total.
type dnsLoad struct{ udp, tcp []*Load } // for each address

func (c *dnsClient) startLoad(ctx context.Context, to ...netip.AddrPort) (all dnsLoad) {
	n := len(to)
	ports := dnsPorts / n
	start := func(by *Client, to netip.AddrPort, rate int, ask func(port int) (network string, from int)) *Load {
		return by.startLoad(ctx, &Load{to: to, slots: make(chan struct{}, dnsWaiting/n), limited: true, rate: rate / n,
			ask: func(ctx context.Context, from, to netip.AddrPort) (Answer, error) {
				network, port := ask(int(from.Port()))
				name := smallName
				if port%dnsLarge == 0 {
					name = largeName
				}
				return by.askDNS(ctx, network, netip.AddrPortFrom(c.addrs[port/dnsLarge%len(c.addrs)], uint16(port)),
					to, name)
			}})
	}
	for i, to := range to {
		first := firstPort + i*ports
		all.udp = append(all.udp, start(c.udp[i], to, dnsUDPRate,
			func(port int) (string, int) { return "udp", first + (port-firstPort)%ports }))
		all.tcp = append(all.tcp, start(c.tcp, to, dnsTCPRate, func(port int) (string, int) { return "tcp", port }))
	}
	return all
}

// awaitPods waits until each of these pods has answered a query over UDP to each address that began
// after now.
func (l dnsLoad) awaitPods(t *testing.T, pods ...string) {
	t.Helper()
	now := time.Now()
	for _, udp := range l.udp {
		for _, pod := range pods {
			await(t, udp.AwaitPod(t.Context(), pod, now))
		}
	}
}

// awaitPorts waits until queries over UDP have come from all ports.
func (l dnsLoad) awaitPorts(t *testing.T) {
	t.Helper()
	for _, udp := range l.udp {
		await(t, Await(t.Context(), Settle, "queries from all ports", func() error {
			udp.mu.Lock()
			defer udp.mu.Unlock()
			if n := udp.report.Sent; n < dnsPorts/len(l.udp) {
				return fmt.Errorf("%d queries so far", n)
			}
			return nil
		}))
	}
}

// awaitAnswers waits for an answer to a query over each protocol that began after now.
func (l dnsLoad) awaitAnswers(t *testing.T) {
	t.Helper()
	now := time.Now()
	for _, load := range slices.Concat(l.udp, l.tcp) {
		await(t, load.AwaitAnswered(t.Context(), now))
	}
}

// reports ends the load.
func (l dnsLoad) reports() (udp, tcp []Report) {
	for _, load := range slices.Concat(l.udp, l.tcp) {
		load.stop() // all begin to end at once
	}
	for i := range l.udp {
		udp, tcp = append(udp, l.udp[i].Stop()), append(tcp, l.tcp[i].Stop())
	}
	return udp, tcp
}

// stop ends the load and checks that all queries were answered. interrupted says which queries over
// TCP to an address were in flight when they went to another node, which resets connections that it
// does not know.
func (l dnsLoad) stop(t *testing.T, interrupted func(netip.Addr, Report) (rest []Loss)) {
	t.Helper()
	all, tcps := l.reports()
	for i, udp := range all {
		tcp := tcps[i]
		rest := interrupted(l.tcp[i].to.Addr(), tcp)
		t.Logf("UDP, %.0f a second: %s", float64(udp.Sent)/time.Since(udp.Began).Seconds(), udp)
		t.Logf("TCP, of those lost %d were in flight when they went to another node: %s", len(tcp.Lost)-len(rest), tcp)
		for _, r := range []Report{udp, {Began: tcp.Began, Lost: rest}} {
			if len(r.Lost) > 0 {
				t.Errorf("%d queries without an answer\n%s", len(r.Lost), r.Losses(r.Began))
			}
		}
		if udp.Sent == 0 || tcp.Sent == 0 {
			t.Error("nothing was asked")
		}
	}
}

// stopKilled ends the load and checks that only queries have no answer that the killed pod has
// received: its kernel refuses them, or CoreDNS had read them, and the kernel then closes what came
// over TCP. After withdrawn no query may be lost.
func (l dnsLoad) stopKilled(t *testing.T, killed, withdrawn time.Time) {
	t.Helper()
	udp, tcp := l.reports()
	for _, r := range udp {
		if len(r.Lost) == 0 {
			t.Error("the killed pod was asked nothing")
		}
	}
	for _, r := range slices.Concat(udp, tcp) {
		t.Logf("killed at %+.3f s, withdrawn at %+.3f s: %s", killed.Sub(r.Began).Seconds(),
			withdrawn.Sub(r.Began).Seconds(), r)
		var rest []Loss
		for _, loss := range r.Lost {
			refused := errors.Is(loss.Err, syscall.ECONNREFUSED) || errors.Is(loss.Err, syscall.ECONNRESET)
			read := (errors.Is(loss.Err, os.ErrDeadlineExceeded) || errors.Is(loss.Err, io.EOF)) &&
				loss.Begin.Before(killed)
			if !refused && !read || loss.Begin.After(withdrawn) {
				rest = append(rest, loss)
			}
		}
		if len(rest) > 0 {
			t.Errorf("%d queries without an answer that the killed pod does not explain\n%s", len(rest),
				Report{Lost: rest}.Losses(r.Began))
		}
	}
}
