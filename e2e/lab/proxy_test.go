package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

// Pods and nodes are internal clients: they reach all endpoints, whatever
// externalTrafficPolicy says. Endpoints see a pod's own address, except where the pod
// reaches itself.
func TestProxyPodsReachAllEndpoints(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	vip := serve(t, l, Service{Name: "inner", Policy: localTraffic, Endpoints: At("p11")}, "n1")
	for _, c := range []struct {
		from string
		sees netip.Addr // invalid: the client
	}{
		{from: "p12"}, // the same node
		{from: "p31"}, // a node without endpoint
		{from: "p11", sees: netip.MustParseAddr("10.244.1.1")}, // the endpoint itself
		{from: "n1", sees: NodeAddr("n1", vip)},                // processes of hosts
		{from: "n2", sees: NodeAddr("n2", vip)},
	} {
		client := Client{Namespace: l.Namespace(c.from)}
		a, err := client.Get(ctx, netip.AddrPort{}, port(vip, 80))
		if err != nil {
			t.Errorf("from %s: %v", c.from, err)
			continue
		}
		want := c.sees
		if !want.IsValid() {
			want = a.From.Addr()
		}
		t.Logf("from %s: answered by %s, which saw %s", c.from, a.Pod, a.Saw.Addr())
		if a.Saw.Addr() != want {
			t.Errorf("from %s: %s saw %s: want %s", c.from, a.Pod, a.Saw.Addr(), want)
		}
	}
}

// The node refuses packets to addresses and ports without a Service at once, so that they
// neither time out nor loop between router and node.
func TestProxyRefusesUnservedAddresses(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	vip := serve(t, l, Service{Name: "partly", Policy: localTraffic, Endpoints: At("p11")}, "n1")
	unassigned := netip.MustParseAddr("192.0.2.77")
	staticRoute(t, l, unassigned.String(), NodeAddr("n1", unassigned).String())
	for name, to := range map[string]netip.AddrPort{
		"a port that the Service does not have":        port(vip, 81),
		"an address of the pool that no Service holds": port(unassigned, 80),
	} {
		began := time.Now()
		_, err := l.Client.Get(ctx, netip.AddrPort{}, to)
		t.Logf("%s: %v after %s", name, err, ms(time.Since(began)))
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v: want it refused", name, err)
		}
	}
}

func TestProxyAnswersPing(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	vip := serve(t, l, Service{Name: "pinged", Policy: localTraffic, Endpoints: At("p11")}, "n1")
	took, err := ping(ctx, l.Client.Namespace, vip)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s answered an echo request after %s", vip, ms(took))
}

// ping sends one ICMP echo request and waits for the reply.
func ping(ctx context.Context, n *Namespace, to netip.Addr) (took time.Duration, err error) {
	conn, err := n.dialICMP(ctx, to)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(Patience))
	request := []byte{8, 0, 0, 0, 0x12, 0x34, 0, 1}
	binary.BigEndian.PutUint16(request[2:], ^uint16(0x0800+0x1234+1))
	began := time.Now()
	if _, err := conn.Write(request); err != nil {
		return 0, err
	}
	reply := make([]byte, 1500)
	for {
		size, _, err := conn.ReadFromIP(reply) // Read would include the IP header
		if err != nil {
			return 0, fmt.Errorf("no echo reply from %s: %w", to, err)
		}
		if size >= 8 && reply[0] == 0 && binary.BigEndian.Uint16(reply[4:]) == 0x1234 {
			return time.Since(began), nil
		}
	}
}

// dialICMP opens a raw ICMP socket to one host.
func (n *Namespace) dialICMP(ctx context.Context, to netip.Addr) (c *net.IPConn, err error) {
	err = n.Do(func() error {
		conn, err := new(net.Dialer).DialContext(ctx, "ip4:icmp", to.String())
		if err == nil {
			c = conn.(*net.IPConn)
		}
		return err
	})
	return c, err
}

// A UDP client that never pauses keeps its conntrack entry alive. Its packets must follow
// the endpoints anyway.
func TestProxyUDPFollowsEndpoint(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	svc := Service{Name: "resolver", Policy: localTraffic, Endpoints: At("p11")}
	vip := serve(t, l, svc, "n1")
	from := netip.AddrPortFrom(ClientAddr, 45999)
	a, err := l.Client.AskUDP(ctx, from, port(vip, 7))
	await(t, err)
	if a.Pod != "p11" {
		t.Fatalf("answered by %s: want p11", a.Pod)
	}
	svc.Endpoints = At("p12")
	moved := time.Now()
	await(t, l.Cluster.Put(svc))
	await(t, Await(ctx, Settle, "an answer of p12 to the same port", func() error {
		a, err := l.Client.AskUDP(ctx, from, port(vip, 7))
		if err == nil && a.Pod != "p12" {
			err = fmt.Errorf("answered by %s", a.Pod)
		}
		return err
	}))
	t.Logf("the same client port was answered by the new pod %s after the change", ms(time.Since(moved)))
}

// The speaker repairs the table after any damage by another program.
func TestProxyRepairsTable(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	vip := serve(t, l, Service{Name: "repaired", Policy: localTraffic, Endpoints: At("p11")}, "n1")
	for _, damage := range []string{
		"flush ruleset",
		"delete table inet fanfare",
		"flush map inet fanfare xeps4",
		"flush map inet fanfare xsvc4",
		"flush set inet fanfare vips4",
		"flush chain inet fanfare nat-prerouting",
	} {
		var at time.Time
		var err error
		began := time.Now()
		l.Observer.Tolerate("n1", func() {
			run(t, l, "n1", "nft", damage)
			at, err = l.Client.FirstAnswer(ctx, port(vip, 80))
		})
		if err != nil {
			t.Errorf("nft %s: %v", damage, err)
			continue
		}
		// The scenario's step Flush checks the bound, because it does less meanwhile: a packet
		// that matches no rule loops between node and router.
		t.Logf("nft %s: answered again after %s", damage, ms(at.Sub(began)))
	}
}
