package lab

import (
	"net/netip"
	"sync/atomic"
)

const (
	// firstPort of loads; those below are for tests that choose their own.
	firstPort = 4096
	// lastPort is below what the topology leaves to the client's kernel, else a connection
	// of the kernel's choice would have a port when its turn comes.
	lastPort = 49151
)

// A portCycle hands out local ports, each again only when all others have had their turn:
// at twice Rate after 112 s. The kernel begins at a random place every ten seconds
// (EPHEMERAL_PORT_SHUFFLE_PERIOD), so that its ports come again after that. A node that a
// router turns to remembers the connection that had it, takes the new one's packets for
// that one's, and what would be reset hears nothing.
type portCycle struct{ counter atomic.Uint32 }

// next is the local address for a connection to another; the kernel's choice if there is
// no cycle.
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
