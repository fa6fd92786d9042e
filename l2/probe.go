package l2

import "net/netip"

// probe asks for addr and announces nothing (RFC 5227 §2.1.1, RFC 4862 §5.4.2).
func probe(addr netip.Addr, mac MAC) packet {
	p := packet{op: opRequest, from: mac, to: broadcast, sender: unspecified[addr.Is4()], target: addr}
	if addr.Is6() {
		p.to = groupMAC(solicitedNode(addr))
	}
	return p
}

// sendProbes sends a probe on each socket of an address.
func (a *Announcer) sendProbes(x *address) (frames int) {
	for _, c := range x.claims {
		a.send(c.socket, probe(x.want.Addr, c.socket.claims.mac))
		a.metrics.probes.WithLabelValues(c.socket.key.protocol.name).Inc()
	}
	return len(x.claims)
}
