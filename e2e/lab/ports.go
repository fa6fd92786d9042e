package lab

import (
	"net/netip"
	"sync/atomic"
)

const (
	// firstPort is the first port of loads; tests choose their own from the ports below.
	firstPort = 4096
	// lastPort is below the range that the topology gives to the client's kernel, so that the
	// kernel never chooses a port of a load.
	lastPort = 49151
)

// A portCycle hands out local ports in turn, so that a port is reused as late as possible:
// at twice Rate after 112 s. The kernel starts at a random port every ten seconds
// (EPHEMERAL_PORT_SHUFFLE_PERIOD) and may reuse a port soon after. If a router then moves
// the connection to a node that remembers the port's earlier connection, conntrack matches
// the packets to that one, and the client gets no reset.
type portCycle struct{ counter atomic.Uint32 }

// CyclePorts makes the client's loads choose their local ports in turn.
func (c *Client) CyclePorts() { c.ports = &portCycle{} }

// next returns the local address for a connection; without a cycle it leaves the choice to
// the kernel.
func (p *portCycle) next(to netip.Addr) netip.AddrPort {
	if p == nil {
		return netip.AddrPort{}
	}
	local := netip.IPv4Unspecified()
	if to.Is6() {
		local = netip.IPv6Unspecified()
	}
	return netip.AddrPortFrom(local, uint16(firstPort+(p.counter.Add(1)-1)%(lastPort-firstPort+1)))
}
