package proxy

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/proxy/fastpath"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A selection computes what the fast path must do, State after State, in a time that depends on what
// changed: it takes new flows of the frontends where it does as the rules would.
//
// Frontends that have a backend in common are neighbours. Connected frontends are all
// taken if each could be taken by itself, else none is: to its backend a flow is its client's address
// and port alone, which may use two frontends at once. Conntrack would give one of the flows
// another port, and so does the fast path, but neither sees the other's.
type selection struct {
	node   string
	vips   VIPs            // that it is of
	made   []*fastpath.VIP // of these, one each, by address
	fronts map[frontendKey]*offloadCandidate
	// users are by a backend's address, port and protocol. All are taken, or none; the first one is left for
	// what it is by itself if any is.
	users     map[frontendKey][]*offloadCandidate
	offloaded int // of fronts
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
	return &selection{
		node: node, fronts: make(map[frontendKey]*offloadCandidate), users: make(map[frontendKey][]*offloadCandidate),
	}
}

// state is the fast path's part of a valid State of the selection's node. An unchanged VIP is
// the same *fastpath.VIP.
func (s *selection) state(of *State) fastpath.State {
	changed := s.follow(of.VIPs)
	byAddr := (*fastpath.VIP).CompareAddr
	s.made = sortedset.Patch(s.made, changed, byAddr, sortedset.Equal, func(i int) (*fastpath.VIP, bool) {
		v := of.VIP(changed[i])
		if v == nil {
			return nil, false
		}
		return s.fast(v), true
	})
	s.vips = of.VIPs
	return fastpath.State{Outward: outwardOf(of), Clients: of.Clients.CIDRs, Owned: of.Owned, VIPs: s.made}
}

// fast is an address for the fast path.
func (s *selection) fast(v *VIP) *fastpath.VIP {
	to := &fastpath.VIP{Addr: v.Addr, Frontends: fastVIP(v, s.node)}
	for i := range to.Frontends {
		f := &to.Frontends[i]
		f.Take = !s.fronts[frontendKey{f.Addr, Protocol(f.Protocol)}].left
	}
	return to
}

// follow makes candidates of all frontends of these VIPs. It returns the addresses of VIPs that
// changed or turned, sorted.
func (s *selection) follow(vips VIPs) []netip.Addr {
	s.turned = make(map[*VIP]bool)
	changes := state.DiffVIPs(s.vips, vips)
	touched := make(map[frontendKey]bool)
	for _, c := range changes {
		if c.Have != nil {
			s.remove(c.Have, touched)
		}
	}
	s.release(touched)
	for _, c := range changes {
		if c.Want != nil {
			s.add(c.Want)
		}
	}
	return changedAddrs(changes, s.turned)
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
func (s *selection) backends(c *offloadCandidate) iter.Seq[frontendKey] {
	return func(yield func(frontendKey) bool) {
		for _, b := range c.External.Backends {
			if onNode(b, s.node) && !yield(frontendKey{b.Addr, c.Protocol}) {
				return
			}
		}
	}
}

// why returns why a frontend is left to the rules; empty if it is taken.
func (s *selection) why(key frontendKey) string {
	c := s.fronts[key]
	switch {
	case c == nil:
		return "the fast path waits for a change of the rules"
	case !c.left:
		return ""
	case c.own:
		return whyRules(c.Frontend, s.node)
	}
	var shared frontendKey
	var with *offloadCandidate
	for b := range s.backends(c) {
		users := s.users[b]
		switch {
		case users[0] != c:
			shared, with = b, users[0]
		case len(users) > 1:
			shared, with = b, users[1]
		}
		if users[0].own {
			break // the cause, not another consequence of it
		}
	}
	return fmt.Sprintf("backend %s is that of %s as well, which is left to the rules", shared.addr,
		with.Label(with.vip))
}

// remove takes the frontends of a VIP away. touched has their backends, and whether one that was left to the
// rules was among them. Thousands of frontends may have one backend, so what is left of its users is looked at
// once, by release.
func (s *selection) remove(v *VIP, touched map[frontendKey]bool) {
	for i := range v.Frontends {
		key := keyOf(&v.Frontends[i], v)
		c := s.fronts[key]
		delete(s.fronts, key)
		c.gone = true
		if !c.left {
			s.offloaded--
		}
		for b := range s.backends(c) {
			touched[b] = touched[b] || c.left
		}
	}
}

// release forgets the users of these backends that are gone, and takes the others that no neighbour keeps with the
// rules now.
func (s *selection) release(touched map[frontendKey]bool) {
	for b := range touched {
		rest := slices.DeleteFunc(s.users[b], func(c *offloadCandidate) bool { return c.gone })
		if s.users[b] = rest; len(rest) == 0 {
			delete(s.users, b)
			continue
		}
		i := max(slices.IndexFunc(rest, func(c *offloadCandidate) bool { return c.own }), 0)
		rest[0], rest[i] = rest[i], rest[0]
	}
	judged := make(map[*offloadCandidate]bool)
	for b, left := range touched {
		if !left {
			continue
		}
		for _, c := range s.users[b] {
			if judged[c] {
				continue
			}
			all, held := s.connected(c, judged)
			for _, c := range all {
				if judged[c] = true; !held {
					s.turn(c, false)
				}
			}
		}
	}
}

// connected are an offloadCandidate that is left and its connected ones; or some of them, if one is found that
// keeps all with the rules: held are the candidates of which that is known already.
func (s *selection) connected(c *offloadCandidate,
	held map[*offloadCandidate]bool) (all []*offloadCandidate, kept bool) {
	all = []*offloadCandidate{c}
	seen, walked := map[*offloadCandidate]bool{c: true}, make(map[frontendKey]bool)
	for i := 0; i < len(all); i++ {
		if all[i].own || held[all[i]] {
			return all, true
		}
		for b := range s.backends(all[i]) {
			if walked[b] {
				continue
			}
			walked[b] = true
			for _, o := range s.users[b] {
				if !seen[o] {
					seen[o], all = true, append(all, o)
				}
			}
		}
	}
	return all, false
}

// add adds the frontends of a VIP.
func (s *selection) add(v *VIP) {
	for i := range v.Frontends {
		f := &v.Frontends[i]
		c := &offloadCandidate{Frontend: f, vip: v, own: whyRules(f, s.node) != ""}
		c.left = c.own
		taken := false // a neighbour is: of users of one backend, either all are or none is
		for b := range s.backends(c) {
			if others := s.users[b]; len(others) > 0 {
				c.left, taken = c.left || others[0].left, taken || !others[0].left
			}
			users := append(s.users[b], c)
			if c.own {
				users[0], users[len(users)-1] = c, users[0]
			}
			s.users[b] = users
		}
		s.fronts[keyOf(f, v)] = c
		switch {
		case !c.left:
			s.offloaded++
		case taken:
			s.leave(c)
		}
	}
}

// leave leaves to the rules all candidates that are connected with a new one that is left.
func (s *selection) leave(c *offloadCandidate) {
	walked := make(map[frontendKey]bool)
	for all := []*offloadCandidate{c}; len(all) > 0; all = all[1:] {
		for b := range s.backends(all[0]) {
			if walked[b] {
				continue
			}
			walked[b] = true
			for _, o := range s.users[b] {
				if !o.left {
					s.turn(o, true)
					all = append(all, o)
				}
			}
		}
	}
}

// turn has an offloadCandidate left to the rules, or taken.
func (s *selection) turn(c *offloadCandidate, left bool) {
	if c.left == left {
		return
	}
	c.left, s.turned[c.vip] = left, true
	if left {
		s.offloaded--
	} else {
		s.offloaded++
	}
}
