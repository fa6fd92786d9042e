package redirect

import "slices"

// An order is to which nodes this node redirects packets that it does not know: to the
// first one that forwards.
type order struct {
	fromHosts, fromNodes []string
}

// orderOf returns the order for an address with these owners, the last one first.
//
// Packets of hosts begin at the present owner, and go on to earlier and earlier owners: a
// node redirects what another one has redirected to owners before itself first. The kernel of
// a node whose speaker has crashed does so too, as it was programmed when the node was the owner.
// Nodes may know other orders, because messages were lost or crashed speakers missed them, so that
// later owners follow. No node sends a packet straight back, so that each of three nodes gets
// it, whatever they know; and a packet is redirected [proxy.MaxRedirects] times at most.
func orderOf(owners []string, node string) order {
	i := slices.Index(owners, node)
	if i < 0 {
		return order{} // no node redirects to this one, and no host sends here
	}
	later, earlier := owners[:i], owners[i+1:]
	return order{slices.Concat(later, earlier), slices.Concat(earlier, later)}
}
