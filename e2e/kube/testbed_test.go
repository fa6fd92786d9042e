package kube

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A testbed is a fanfare on node n1, which is this namespace, with its surroundings:
//
//	client --- n1 --- local (all pods of n1, on their own network)
//	            '---- remote (those of n2)
//
// A pod sends its name and the client's address as it sees it, and then echoes each line.
type testbed struct {
	*fanfare
	client, node, local, remote *nstest.NS
}

const (
	nodeAddr      = "198.51.100.1"
	clientNet     = "198.51.100" // the clients' network
	clients       = 17           // the last client's number; the first is 2
	spareAddr     = "10.99.0.1"  // an additional address of the node
	localGateway  = "10.244.1.1" // the node's address for its pods
	remoteGateway = "10.244.2.1" // the node's address for the pods of n2
	localPods     = "10.244.1.11 10.244.1.12 10.244.1.13"
	remotePods    = "10.244.2.21"
	podPorts      = "8080 9090"
)

// testbedObjects are two nodes in two zones, without a pool.
const testbedObjects = `
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: a}}
spec: {podCIDR: 10.244.1.0/24, podCIDRs: [10.244.1.0/24, "fd00:244:0:1::/64"]}
status: {addresses: [{type: InternalIP, address: 198.51.100.1}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Node
metadata: {name: n2, labels: {topology.kubernetes.io/zone: b}}
spec: {podCIDR: 10.244.2.0/24, podCIDRs: [10.244.2.0/24, "fd00:244:0:2::/64"]}
status: {addresses: [{type: InternalIP, address: 198.51.100.200}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: tor9}
spec: {peerAddress: 127.0.0.9, peerASN: 65000, myASN: 65001}
`

const testbedPool = `
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: lan}
spec: {announce: BGP, addresses: [192.0.2.0/24]}
`

func newTestbed(t *testing.T) *testbed {
	t.Helper()
	s := &testbed{
		client: nstest.New(t, "client"), node: nstest.Node(t), local: nstest.New(t, "local"),
		remote: nstest.New(t, "remote"),
	}
	nstest.Link(t, s.node, "eth0", s.client, "eth0")
	nstest.Link(t, s.node, "local", s.local, "eth0")
	nstest.Link(t, s.node, "remote", s.remote, "eth0")
	s.node.Addr("eth0", nodeAddr+"/24")
	s.node.Addr("local", localGateway+"/24")
	s.node.Addr("remote", remoteGateway+"/24")
	s.node.Addr("lo", spareAddr+"/32")
	s.node.Route("0.0.0.0/0", clientAddr(2), "") // packets that are not forwarded end there
	s.node.Forward()
	for i := 2; i <= clients; i++ {
		s.client.Addr("eth0", clientAddr(i)+"/24")
	}
	s.client.Route("0.0.0.0/0", nodeAddr, "")
	s.pods(t, s.local, localPods, localGateway)
	s.pods(t, s.remote, remotePods, remoteGateway)
	s.fanfare = newFanfare(t)
	must(t, s.Admin().Apply(t.Context(), testbedObjects))
	return s
}

func clientAddr(i int) string { return fmt.Sprintf("%s.%d", clientNet, i) }

// pods makes a namespace answer for pods.
func (s *testbed) pods(t *testing.T, ns *nstest.NS, addrs, gate string) {
	for addr := range strings.FieldsSeq(addrs) {
		ns.Addr("eth0", addr+"/24")
		for port := range strings.FieldsSeq(podPorts) {
			serve(t, ns, net.JoinHostPort(addr, port))
		}
	}
	ns.Route("0.0.0.0/0", gate, "")
}

// serve answers over TCP and UDP.
func serve(t *testing.T, ns *nstest.NS, on string) {
	t.Helper()
	var l net.Listener
	var p net.PacketConn
	var err error
	ns.Do(func() {
		if l, err = net.Listen("tcp4", on); err == nil {
			p, err = net.ListenPacket("udp4", on)
		}
	})
	must(t, err)
	t.Cleanup(func() { l.Close(); p.Close() })
	// Clients report broken connections.
	go nstest.Accept(l, func(c net.Conn) {
		fmt.Fprintf(c, "%s %s\n", on, c.RemoteAddr())
		_, _ = io.Copy(c, c)
	})
	go func() {
		var buf [64]byte
		for {
			_, from, err := p.ReadFrom(buf[:])
			if err != nil {
				return
			}
			_, _ = p.WriteTo(fmt.Appendf(nil, "%s %s\n", on, from), from)
		}
	}()
}

// An answer holds the answering pod and the client's address as the pod saw it.
type answer struct{ pod, saw netip.AddrPort }

// A flow is a connection to a pod.
type flow struct {
	net.Conn
	answer
	lines *bufio.Reader
}

// Time limits for answers. Where a test expects silence, a slow machine must not fail the
// test; the short limit rarely hides a fault.
const (
	patience     = 10 * time.Second
	silence      = 500 * time.Millisecond
	shortTimeout = 2 * time.Second // for probes that are repeated
)

// dial connects from an address of the namespace, or from any if it is empty.
func dial(ctx context.Context, ns *nstest.NS, network, from, to string) (f *flow, err error) {
	return dialFor(ctx, patience, ns, network, from, to)
}

func dialFor(ctx context.Context, limit time.Duration, ns *nstest.NS, network, from, to string) (f *flow, err error) {
	d := net.Dialer{Timeout: limit}
	if from != "" {
		addr := netip.AddrPortFrom(netip.MustParseAddr(from), 0)
		d.LocalAddr = net.TCPAddrFromAddrPort(addr)
		if network == "udp" {
			d.LocalAddr = net.UDPAddrFromAddrPort(addr)
		}
	}
	f = &flow{}
	ns.Do(func() { f.Conn, err = d.DialContext(ctx, network, to) })
	if err != nil {
		return nil, err
	}
	if network == "udp" {
		if _, err = io.WriteString(f, "who?"); err != nil {
			f.Close()
			return nil, err
		}
	}
	f.lines = bufio.NewReader(f)
	line, err := f.line(limit)
	if err == nil {
		pod, saw, _ := strings.Cut(line, " ")
		f.pod, err = netip.ParseAddrPort(pod)
		if err == nil {
			f.saw, err = netip.ParseAddrPort(saw)
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", to, err)
	}
	return f, nil
}

func (f *flow) line(limit time.Duration) (string, error) {
	if err := f.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return "", err
	}
	line, err := f.lines.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

// alive returns an error unless the pod echoes a line.
func (f *flow) alive(limit time.Duration) error {
	if _, err := io.WriteString(f, "alive\n"); err != nil {
		return err
	}
	line, err := f.line(limit)
	if err == nil && line != "alive" {
		err = fmt.Errorf("%q", line)
	}
	return err
}

// ask connects and closes the connection.
func (s *testbed) ask(limit time.Duration, ns *nstest.NS, from, to string) (answer, error) {
	f, err := dialFor(s.Context(), limit, ns, "tcp", from, to)
	if err != nil {
		return answer{}, err
	}
	f.Close()
	return f.answer, nil
}

// awaitAnswer waits until a client gets an answer.
func (s *testbed) awaitAnswer(to string) {
	s.Helper()
	await(s.T, time.Minute, "an answer of "+to,
		func() error { _, err := s.ask(shortTimeout, s.client, clientAddr(2), to); return err })
}

// awaitPods waits until exactly these pods answer a hundred connections of many clients.
// The probability of missing a pod by chance is less than 1 in 10^12.
func (s *testbed) awaitPods(to string, want ...string) {
	s.Helper()
	await(s.T, time.Minute, fmt.Sprintf("answers at %s by %s", to, want), func() error {
		got := map[string]int{}
		for i := range 100 {
			a, err := s.ask(shortTimeout, s.client, clientAddr(2+i%(clients-1)), to)
			if err != nil {
				return err
			}
			got[a.pod.String()]++
		}
		for _, pod := range want {
			if got[pod] == 0 {
				return fmt.Errorf("answers of %v", got)
			}
		}
		if len(got) != len(want) {
			return fmt.Errorf("answers of %v", got)
		}
		return nil
	})
}

// testbedPod returns a pod as its kubelet reports it. Its named port "web" has the given
// number.
func testbedPod(name, addr, node, port, ready, labels string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default, labels: {%s}}
spec: {nodeName: %s, containers: [{name: web, image: web, ports: [{name: web, containerPort: %s}]}]}
status: {phase: Running, podIP: %[5]s, podIPs: [{ip: %[5]s}], conditions: [{type: Ready, status: %[6]q}]}
---
`, name, labels, node, port, addr, ready)
}

// testbedService returns a LoadBalancer Service for the pods with a label.
func testbedService(name, label, spec string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default}
spec: {type: LoadBalancer, selector: {%s: "yes"}, %s}
---
`, name, label, spec)
}

// address waits until a Service has an address.
func (s *testbed) address(service string) (vip string) {
	s.Helper()
	await(s.T, time.Minute, "an address of "+service, func() (err error) { vip, err = s.assigned(service); return err })
	return vip
}

// at returns port 80 of a Service's address, once assigned.
func (s *testbed) at(service string) string { return net.JoinHostPort(s.address(service), "80") }

var errAnswered = errors.New("answered")
