package lab

import (
	"context"
	"errors"
	"net/netip"
	"os"
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
	// dnsPorts is the number of ports of all queries over UDP. Each returns after some seconds, when
	// the nodes still know its earlier flow.
	dnsPorts = 10000
	// Each 16th query is for a large answer.
	dnsLarge = 16
)

// A dnsClient asks from several addresses.
type dnsClient struct {
	udp, tcp *Client // each has a cycle of ports of its own
	addrs    []netip.Addr
}

// newDNSClient gives a node more addresses, which affinity distinguishes. There are so many that
// each of three pods has some.
func newDNSClient(t *testing.T, l *Lab, node string, first netip.Addr) *dnsClient {
	t.Helper()
	c := &dnsClient{udp: l.clientIn(node), tcp: l.clientIn(node), addrs: []netip.Addr{first}}
	c.udp.CyclePorts()
	c.tcp.CyclePorts()
	for a := first.Next(); len(c.addrs) < 32; a = a.Next() {
		run(t, l, node, "ip", "addr", "replace", a.String()+"/24", "dev", "eth1")
		c.addrs = append(c.addrs, a)
	}
	return c
}

// A dnsLoad asks one address over UDP and TCP, at dnsUDPRate and dnsTCPRate.
type dnsLoad struct{ udp, tcp *Load }

func (c *dnsClient) startLoad(ctx context.Context, to netip.AddrPort) dnsLoad {
	start := func(by *Client, rate int, ask func(port int) (network string, from int)) *Load {
		return by.startLoad(ctx, &Load{to: to, slots: make(chan struct{}, dnsWaiting), limited: true, rate: rate,
			ask: func(ctx context.Context, from, to netip.AddrPort) (Answer, error) {
				network, port := ask(int(from.Port()))
				name := smallName
				if port%dnsLarge == 0 {
					name = largeName
				}
				return by.askDNS(ctx, network, netip.AddrPortFrom(c.addrs[port/dnsLarge%len(c.addrs)], uint16(port)), to, name)
			}})
	}
	return dnsLoad{
		udp: start(c.udp, dnsUDPRate, func(port int) (string, int) { return "udp", firstPort + (port-firstPort)%dnsPorts }),
		tcp: start(c.tcp, dnsTCPRate, func(port int) (string, int) { return "tcp", port }),
	}
}

// awaitPods waits until each of these pods has answered a query over UDP that began after now.
func (l dnsLoad) awaitPods(t *testing.T, pods ...string) {
	t.Helper()
	now := time.Now()
	for _, pod := range pods {
		await(t, l.udp.AwaitPod(t.Context(), pod, now))
	}
}

// awaitAnswers waits for an answer to a query over each protocol that began after now.
func (l dnsLoad) awaitAnswers(t *testing.T) {
	t.Helper()
	now := time.Now()
	await(t, l.udp.AwaitAnswered(t.Context(), now))
	await(t, l.tcp.AwaitAnswered(t.Context(), now))
}

// stop ends the load and checks that all queries were answered. interrupted says which queries over
// TCP were in flight when they went to another node, which resets connections that it does not know.
func (l dnsLoad) stop(t *testing.T, interrupted func(Report) (rest []Loss)) {
	t.Helper()
	udp, tcp := l.udp.Stop(), l.tcp.Stop()
	rest := interrupted(tcp)
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

// stopKilled ends the load and checks that only queries have no answer that the killed pod has
// received: its kernel refuses them, or CoreDNS had read them. After withdrawn no query may be lost.
func (l dnsLoad) stopKilled(t *testing.T, killed, withdrawn time.Time) {
	t.Helper()
	udp, tcp := l.udp.Stop(), l.tcp.Stop()
	if len(udp.Lost) == 0 {
		t.Error("the killed pod was asked nothing")
	}
	for _, r := range []Report{udp, tcp} {
		t.Logf("killed at %+.3f s, withdrawn at %+.3f s: %s", killed.Sub(r.Began).Seconds(), withdrawn.Sub(r.Began).Seconds(), r)
		var rest []Loss
		for _, loss := range r.Lost {
			refused := errors.Is(loss.Err, syscall.ECONNREFUSED) || errors.Is(loss.Err, syscall.ECONNRESET)
			silent := errors.Is(loss.Err, os.ErrDeadlineExceeded) && loss.Begin.Before(killed)
			if !refused && !silent || loss.Begin.After(withdrawn) {
				rest = append(rest, loss)
			}
		}
		if len(rest) > 0 {
			t.Errorf("%d queries without an answer that the killed pod does not explain\n%s", len(rest), Report{Lost: rest}.Losses(r.Began))
		}
	}
}
