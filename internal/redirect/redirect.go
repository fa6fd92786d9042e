package redirect

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/kernel/neighbour"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
)

// Redirects send connections that this node does not know to the other owners of their
// addresses, where they were established. The zero value has none.
type Redirects struct {
	Rules []proxy.Redirect
	// To is the node that gets the packets of hosts, for each address of this node.
	To map[netip.Addr]string
	// Unresponsive are nodes in these redirects that gossip does not reach. Their kernels must be
	// tested.
	Unresponsive []neighbour.Host

	inputs     *plan.Inputs
	addresses  []l2.Address
	revision   uint64
	interfaces func(node string) []cluster.Interface
	hops       map[hopKey]hop // found so far
	answers    func(neighbour.Host) bool
	mute       int // how many of Unresponsive do not answer
}

// Next returns the redirects for d; r itself if its inputs are the same. answers reports whether
// the kernel of an unresponsive node responds.
func (r *Redirects) Next(d *plan.Desired, h *History, answers func(neighbour.Host) bool) *Redirects {
	revision := h.Revision()
	if r.inputs == d.Inputs && sortedset.Same(r.addresses, d.L2.Addresses) && r.revision == revision &&
		r.mute == r.countMute() {
		return r
	}
	n := &Redirects{
		inputs: d.Inputs, addresses: d.L2.Addresses, revision: revision, interfaces: h.interfacesOf, answers: answers,
		hops: map[hopKey]hop{}, To: map[netip.Addr]string{},
	}
	owners := h.Owners(d.Answered)
	for _, addr := range slices.SortedFunc(maps.Keys(owners), netip.Addr.Compare) {
		at, ours := slices.BinarySearchFunc(d.L2.Addresses, addr,
			func(a l2.Address, b netip.Addr) int { return a.Addr.Compare(b) })
		a := l2.Address{Addr: addr}
		if ours {
			a = d.L2.Addresses[at]
		}
		fromHosts, fromNodes := orderOf(owners[addr], h.node)
		n.add(a, fromHosts, fromNodes)
		if !ours {
			delete(n.To, addr)
		}
	}
	slices.SortFunc(n.Rules, func(a, b proxy.Redirect) int {
		return cmp.Or(a.VIP.Compare(b.VIP), strings.Compare(a.Interface, b.Interface))
	})
	n.Rules, n.mute = sortedset.Keep(r.Rules, n.Rules), n.countMute()
	return n
}

// Restored reports whether r has not been computed by Next.
func (r *Redirects) Restored() bool { return r.inputs == nil }

func (r *Redirects) countMute() (n int) {
	for _, h := range r.Unresponsive {
		if !r.answers(h) {
			n++
		}
	}
	return n
}

// add redirects an address by each interface on which this node answers.
func (r *Redirects) add(a l2.Address, fromHosts, fromNodes []string) {
	for _, i := range r.inputs.Interfaces {
		if !i.Carries(a) || !proxy.PlainIfname(i.Name) {
			continue
		}
		via := r.first(fromHosts, "", i, a.Addr)
		onward := r.first(fromNodes, "", i, a.Addr)
		if !via.addr.IsValid() && !onward.addr.IsValid() {
			continue
		}
		beyond := r.first(fromNodes, onward.node, i, a.Addr)
		r.Rules = append(r.Rules, proxy.Redirect{
			VIP: a.Addr, Interface: i.Name, Via: via.addr, Onward: onward.addr, Beyond: beyond.addr,
			OnwardMAC: onward.mac,
		})
		if via.addr.IsValid() {
			r.To[a.Addr] = via.node
		}
	}
}

// orderOf returns to which nodes this node redirects packets of an address that it does not know: to the
// first one that forwards. owners are those of the address, the last one first.
//
// Packets of hosts begin at the present owner, and go on to earlier and earlier owners: a
// node redirects what another one has redirected to owners before itself first. The kernel of
// a node whose speaker has crashed does so too, as it was programmed when the node was the owner.
// Nodes may know other orders, because messages were lost or crashed speakers missed them, so that
// later owners follow. No node sends a packet straight back, so that each of three nodes gets
// it, whatever they know; and a packet is redirected [proxy.MaxRedirects] times at most.
func orderOf(owners []string, node string) (fromHosts, fromNodes []string) {
	i := slices.Index(owners, node)
	if i < 0 {
		return nil, nil // no node redirects to this one, and no host sends here
	}
	later, earlier := owners[:i], owners[i+1:]
	return slices.Concat(later, earlier), slices.Concat(earlier, later)
}

// A hop is a node on a link, by its address and hardware address there. The zero hop is no node.
type hop struct {
	node string
	addr netip.Addr
	mac  l2.MAC // zero if it is not known
}

// A hopKey is a node, an interface of this node by which to reach it, and a family.
type hopKey struct {
	node, iface string
	ipv4        bool
}

// first returns the first of the nodes but one that forwards.
func (r *Redirects) first(nodes []string, but string, i l2.Interface, vip netip.Addr) hop {
	for _, node := range nodes {
		if node == but {
			continue
		}
		key := hopKey{node, i.Name, vip.Is4()}
		to, known := r.hops[key]
		if !known {
			to = r.forwarding(node, i, vip)
			r.hops[key] = to
		}
		if to.addr.IsValid() {
			return to
		}
	}
	return hop{}
}

// forwarding returns a node on the link of an interface; the zero hop if its address is not
// known, or it does not forward. The kernel of a node whose speaker was killed or has
// stopped forwards as before. Without power it forwards nothing: rejected clients retry at once,
// redirected ones would wait.
func (r *Redirects) forwarding(node string, i l2.Interface, vip netip.Addr) hop {
	object := cluster.NodeOf(r.inputs.Nodes, node)
	if object == nil {
		return hop{}
	}
	m, _ := r.inputs.Members.Find(node)
	m.Interfaces = r.interfaces(node)
	own := append(m.Addresses(), object.InternalIPs...)
	at := slices.IndexFunc(own, func(o netip.Addr) bool { return o.Is4() == vip.Is4() && i.Has(o) })
	if at < 0 {
		return hop{}
	}
	to := hop{node, own[at], macOn(m.Interfaces, own[at])}
	if !m.Reachable() && !r.responds(neighbour.Host{Interface: i.Name, Addr: to.addr, MAC: to.mac}) {
		return hop{}
	}
	return to
}

// responds reports whether the kernel of an unresponsive node responds.
func (r *Redirects) responds(h neighbour.Host) bool {
	if !h.MAC.Unicast() {
		return false // an answer would prove nothing
	}
	r.Unresponsive = append(r.Unresponsive, h)
	return r.answers(h)
}

// macOn returns the hardware address of the interface with an address, or else in the address's
// subnet; zero if there is none.
func macOn(interfaces []cluster.Interface, addr netip.Addr) (mac l2.MAC) {
	bits := -1
	for _, i := range interfaces {
		for _, p := range i.Prefixes {
			if p.Contains(addr) && p.Bits() > bits {
				mac, bits = i.MAC, p.Bits()
			}
		}
	}
	return mac
}
