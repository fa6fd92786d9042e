package proxy

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/proxy/fastpath"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A selection computes what the fast path must do, State after State, in a time that depends on what
// changed: it takes new flows of the frontends where it does as the rules would, which are
// all that State.leftToRules leaves out.
//
// Frontends that have a backend in common are neighbours. Connected frontends are all
// taken if each could be taken by itself, else none is.
type selection struct {
	node      string
	vips      VIPs            // that it is of
	made      []*fastpath.VIP // of these, one each, by address
	fronts    map[frontendKey]*offloadCandidate
	users     map[frontendKey][]*offloadCandidate // by a backend's address, port and protocol; all are taken, or none
	offloaded int                                 // of fronts
	// turned are the VIPs of which frontends are taken that were not, or the other way round.
	turned map[*VIP]bool
}

// An offloadCandidate is a frontend that the fast path may take.
type offloadCandidate struct {
	*Frontend
	vip  *VIP
	own  bool // must be left to the rules for what it is by itself
	left bool // is left to the rules
	gone bool
}

func newSelection(node string) *selection {
	return &selection{node: node, fronts: make(map[frontendKey]*offloadCandidate), users: make(map[frontendKey][]*offloadCandidate)}
}

// state is the fast path's part of s, a valid State of the selection's node. An unchanged VIP is
// the same *fastpath.VIP.
func (n *selection) state(s *State) fastpath.State {
	changed := n.follow(s.VIPs)
	byAddr := (*fastpath.VIP).CompareAddr
	n.made = sortedset.Patch(n.made, changed, byAddr, sortedset.Equal, func(i int) (*fastpath.VIP, bool) {
		v := s.VIP(changed[i])
		if v == nil {
			return nil, false
		}
		return n.fast(v), true
	})
	n.vips = s.VIPs
	return fastpath.State{Outward: outwardOf(s), Clients: s.Clients.CIDRs, Owned: s.Owned, VIPs: n.made}
}

// fast is an address for the fast path.
func (n *selection) fast(v *VIP) *fastpath.VIP {
	to := &fastpath.VIP{Addr: v.Addr, Frontends: fastVIP(v, n.node)}
	for i := range to.Frontends {
		f := &to.Frontends[i]
		f.Take = !n.fronts[frontendKey{f.Addr, Protocol(f.Protocol)}].left
	}
	return to
}

// follow makes candidates of all frontends of these VIPs. It returns the addresses of VIPs that
// changed or turned, sorted.
func (n *selection) follow(vips VIPs) []netip.Addr {
	n.turned = make(map[*VIP]bool)
	changes := state.DiffVIPs(n.vips, vips)
	var bereft []*offloadCandidate
	for _, c := range changes {
		if c.Have != nil {
			bereft = append(bereft, n.remove(c.Have)...)
		}
	}
	n.release(bereft)
	for _, c := range changes {
		if c.Want != nil {
			n.add(c.Want)
		}
	}
	return changedAddrs(changes, n.turned)
}

func changedAddrs(changes []state.VIPChange, turned map[*VIP]bool) []netip.Addr {
	addrs := make([]netip.Addr, 0, len(changes)+len(turned))
	for _, c := range changes {
		addrs = append(addrs, cmp.Or(c.Want, c.Have).Addr)
	}
	for v := range turned {
		addrs = append(addrs, v.Addr)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// backends are those of an offloadCandidate that count: what is on another node, no flow of the fast path's gets to.
func (n *selection) backends(c *offloadCandidate) iter.Seq[frontendKey] {
	return func(yield func(frontendKey) bool) {
		for _, b := range c.External.Backends {
			if onNode(b, n.node) && !yield(frontendKey{b.Addr, c.Protocol}) {
				return
			}
		}
	}
}

// remove takes the frontends of a VIP away, and returns the neighbours of those left to
// the rules: they may be taken now.
func (n *selection) remove(v *VIP) (bereft []*offloadCandidate) {
	for i := range v.Frontends {
		key := keyOf(&v.Frontends[i], v)
		c := n.fronts[key]
		delete(n.fronts, key)
		c.gone = true
		if !c.left {
			n.offloaded--
		}
		for b := range n.backends(c) {
			rest := slices.DeleteFunc(n.users[b], func(o *offloadCandidate) bool { return o == c })
			if n.users[b] = rest; len(rest) == 0 {
				delete(n.users, b)
			}
			if c.left {
				bereft = append(bereft, rest...)
			}
		}
	}
	return bereft
}

// release takes the frontends that no neighbour keeps with the rules now.
func (n *selection) release(bereft []*offloadCandidate) {
	judged := make(map[*offloadCandidate]bool)
	for _, c := range bereft {
		if c.gone || judged[c] {
			continue
		}
		all, held := n.connected(c, judged)
		for _, c := range all {
			if judged[c] = true; !held {
				n.turn(c, false)
			}
		}
	}
}

// connected are an offloadCandidate that is left and its connected ones; or some of them, if one is found that
// keeps all with the rules: held are the candidates of which that is known already.
func (n *selection) connected(c *offloadCandidate, held map[*offloadCandidate]bool) (all []*offloadCandidate, kept bool) {
	all = []*offloadCandidate{c}
	seen, walked := map[*offloadCandidate]bool{c: true}, make(map[frontendKey]bool)
	for i := 0; i < len(all); i++ {
		if all[i].own || held[all[i]] {
			return all, true
		}
		for b := range n.backends(all[i]) {
			if walked[b] {
				continue
			}
			walked[b] = true
			for _, o := range n.users[b] {
				if !seen[o] {
					seen[o], all = true, append(all, o)
				}
			}
		}
	}
	return all, false
}

// add adds the frontends of a VIP.
func (n *selection) add(v *VIP) {
	for i := range v.Frontends {
		f := &v.Frontends[i]
		c := &offloadCandidate{Frontend: f, vip: v, own: whyRules(f, n.node) != ""}
		c.left = c.own
		for b := range n.backends(c) {
			users := n.users[b]
			c.left = c.left || len(users) > 0 && users[0].left
			n.users[b] = append(users, c)
		}
		n.fronts[keyOf(f, v)] = c
		if c.left {
			n.leave(c)
		} else {
			n.offloaded++
		}
	}
}

// leave leaves to the rules all candidates that are connected with a new one that is left.
func (n *selection) leave(c *offloadCandidate) {
	walked := make(map[frontendKey]bool)
	for all := []*offloadCandidate{c}; len(all) > 0; all = all[1:] {
		for b := range n.backends(all[0]) {
			if walked[b] {
				continue
			}
			walked[b] = true
			for _, o := range n.users[b] {
				if !o.left {
					n.turn(o, true)
					all = append(all, o)
				}
			}
		}
	}
}

// turn has an offloadCandidate left to the rules, or taken.
func (n *selection) turn(c *offloadCandidate, left bool) {
	if c.left == left {
		return
	}
	c.left, n.turned[c.vip] = left, true
	if left {
		n.offloaded--
	} else {
		n.offloaded++
	}
}
