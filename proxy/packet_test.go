package proxy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/nstest"
)

// Ports of the VIP in packet tests, by what is behind them.
const (
	portLocal    = 80 // externalTrafficPolicy Local, endpoint here
	portRemote   = 81 // Cluster, endpoint on another node
	portAway     = 82 // Local, endpoint on another node
	portNone     = 83 // no endpoint anywhere
	portCluster  = 84 // Cluster, endpoint here
	portHost     = 86 // endpoint is a process of the node
	portMasq     = 87 // internal clients masqueraded too
	portUnserved = 9
)

// packetState is one VIP in each family with all of these ports.
func packetState(clients LocalClients) State {
	s := State{Node: "n1", Clients: clients, Owned: prefixes("192.0.2.0/24", "2001:db8::/64")}
	for family := range setID(2) {
		v := &VIP{Addr: at("vip", family)}
		for _, p := range []Protocol{TCP, UDP} {
			v.Frontends = append(v.Frontends, packetFrontends(p, family)...)
		}
		s.VIPs = append(s.VIPs, v)
	}
	return s
}

func packetFrontends(p Protocol, family setID) []Frontend {
	to := func(miss Miss, remote Remote, names ...string) Target {
		return Target{Backends: backends(family, names...), Miss: miss, Remote: remote}
	}
	return []Frontend{
		{Protocol: p, Port: portLocal, External: to(Drop, Preserve, "pod1"), Internal: to(Reject, Preserve, "pod1")},
		{Protocol: p, Port: portRemote, External: to(Reject, Masquerade, "remote"), Internal: to(Reject, Preserve, "remote")},
		{Protocol: p, Port: portAway, External: to(Drop, Preserve), Internal: to(Reject, Preserve, "remote")},
		{Protocol: p, Port: portNone, External: to(Reject, Preserve), Internal: to(Reject, Preserve)},
		{Protocol: p, Port: portCluster, External: to(Reject, Masquerade, "pod1"), Internal: to(Reject, Preserve, "pod1")},
		{Protocol: p, Port: portHost, External: to(Reject, Masquerade, "node"), Internal: to(Reject, Preserve, "node")},
		{Protocol: p, Port: portMasq, External: to(Reject, Masquerade, "remote"), Internal: to(Reject, Masquerade, "remote")},
	}
}

func prefixes(all ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range all {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// packetRows say for every client and port who answers, and which source it
// sees.
const packetRows = `
client 80  pod1 saw client
pod2   80  pod1 saw pod2
pod1   80  pod1 saw gateway
node   80  pod1 saw node-to-pod
client 81  remote saw node
pod2   81  remote saw pod2
pod1   81  remote saw pod1
node   81  remote saw node
client 82  silence
pod2   82  remote saw pod2
node   82  remote saw node
client 83  refused
pod2   83  refused
node   83  refused
client 84  pod1 saw client
pod2   84  pod1 saw pod2
pod1   84  pod1 saw gateway
client 86  node saw client
pod2   86  node saw pod2
node   86  node saw node
client 87  remote saw node
pod2   87  remote saw node
node   87  remote saw node
client 9   refused
pod2   9   refused
node   9   refused
`

// Every kind of client, protocol and family, by real packets.
func TestPackets(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		byCIDR := LocalClients{CIDRs: prefixes("10.244.1.0/24", "fd00:244:1::/64")}
		mustSet(t, p, packetState(byCIDR))
		// The address that the node chooses for a VIP is that of its uplink.
		rows := strings.ReplaceAll(packetRows, "node-to-pod", "node")
		for row := range strings.Lines(strings.TrimSpace(rows)) {
			l.row(t, row)
		}
		for family := range setID(2) {
			for _, f := range l.flows(at("vip", family)) {
				if !f.dnat {
					t.Errorf("a flow from %s to port %d of the VIP passed without a rule", f.client, f.port.port)
				}
			}
		}
	})
}

// row checks one line of a table over both protocols and families.
func (l *lab) row(t *testing.T, row string) {
	t.Helper()
	var from string
	var port uint16
	if _, err := fmt.Sscan(row, &from, &port); err != nil {
		t.Fatal(err)
	}
	want := strings.Join(strings.Fields(row)[2:], " ")
	for family := range setID(2) {
		for _, network := range []string{"tcp", "udp"} {
			to := netip.AddrPortFrom(at("vip", family), port)
			if got := l.probe(l.ns(from), network, to); got != want {
				t.Errorf("%s to %s %s: %s; want %s", from, network, to, got, want)
			}
		}
	}
}

func (l *lab) ns(name string) *nstest.NS {
	return map[string]*nstest.NS{
		"client": l.client, "node": l.node, "pod1": l.pod1, "pod2": l.pod2, "pod3": l.pod3, "remote": l.remote,
	}[name]
}
