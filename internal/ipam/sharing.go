package ipam

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// Apart reports whether s cannot share an address that o has, and why; why is empty if it only
// matters that o holds it. The result is symmetric, except for the text.
func Apart(s, o *cluster.Spec) (why string, is bool) {
	switch a, b := s.Sharing, o.Sharing; {
	case a == nil && b == nil:
		return "", true
	case a == nil:
		return fmt.Sprintf("to share it, give this Service the annotation %s: %s, too", cluster.SharingAnnotation,
			b.Key), true
	case b == nil:
		return fmt.Sprintf("to share it, give that Service the annotation %s: %s, too", cluster.SharingAnnotation,
			a.Key), true
	case a.Key != b.Key:
		return fmt.Sprintf("its annotation %s is %s, and not %s", cluster.SharingAnnotation, b.Key, a.Key), true
	case !admits(s, o):
		return fmt.Sprintf("to share it across namespaces, add %s to this Service's annotation %s", o.Name.Namespace,
			cluster.SharingNamespacesAnnotation), true
	case !admits(o, s):
		return fmt.Sprintf("to share it across namespaces, add %s to that Service's annotation %s", s.Name.Namespace,
			cluster.SharingNamespacesAnnotation), true
	}
	return portConflict(s, o)
}

// admits reports whether s shares with Services of o's namespace.
func admits(s, o *cluster.Spec) bool {
	return s.Name.Namespace == o.Name.Namespace || slices.Contains(s.Sharing.Namespaces, o.Name.Namespace)
}

// portConflict names a port that both Services serve. Packets to it would be ambiguous. Both may have
// 16,384 ports.
func portConflict(s, o *cluster.Spec) (why string, is bool) {
	serves := portSearch(o.Ports, len(s.Ports))
	for _, p := range s.Ports {
		if serves(portNumber{p.Protocol, p.Port}) {
			return fmt.Sprintf("both serve %s/%d", p.Protocol, p.Port), true
		}
	}
	return "", false
}

// A portNumber is what packets show of a port.
type portNumber struct {
	corev1.Protocol
	number uint16
}

// fewPorts are searched one by one, without a map.
const fewPorts = 8

// portSearch returns a function that searches ports, and is called n times.
func portSearch(ports []cluster.Port, n int) func(portNumber) bool {
	if min(n, len(ports)) <= fewPorts {
		return func(p portNumber) bool {
			return slices.ContainsFunc(ports, func(q cluster.Port) bool { return p == portNumber{q.Protocol, q.Port} })
		}
	}
	all := make(map[portNumber]bool, len(ports))
	for _, q := range ports {
		all[portNumber{q.Protocol, q.Port}] = true
	}
	return func(p portNumber) bool { return all[p] }
}

// alreadyShared reports whether two Services share an address already, so that separating them
// would interrupt one: their Claim says so, or they come from MetalLB, whose sharing keys apply to
// all namespaces. Equal addresses with equal keys are no accident.
func (p *holdings) alreadyShared(a netip.Addr, s, o *cluster.Spec) bool {
	if !p.had(a, s) || !p.had(a, o) {
		return false
	}
	if p.claimed(a, s.Name) && p.claimed(a, o.Name) {
		return true
	}
	if s.Sharing == nil || o.Sharing == nil || s.Sharing.Key != o.Sharing.Key {
		return false
	}
	_, is := portConflict(s, o)
	return !is
}

// had reports whether the controller wrote address a into the status of s: the status has it, or only
// the condition still says so, because another controller has removed it.
func (p *holdings) had(a netip.Addr, s *cluster.Spec) bool {
	return slices.Contains(s.Status, a) || p.claimed(a, s.Name) && slices.Contains(s.Reported.Addrs(), a)
}

// An obstacle is a Service that prevents another one from having an address.
type obstacle struct {
	cluster.Name
	why string // why they do not share it, empty without further details
}

// String continues a sentence that begins with the address.
func (o *obstacle) String() string {
	if o.why == "" {
		return o.Name.String() + " holds"
	}
	return o.Name.String() + " holds: " + o.why
}

// MaxSharing is how many Services may share an address: as many as an AddressClaim holds.
const MaxSharing = 256

// owner returns a Service that has address a, or precedes h for it, and does not share it with h;
// nil if there is none.
func (p *holdings) owner(a netip.Addr, h *service) *obstacle {
	if all := p.taken[a]; len(all) >= MaxSharing && !slices.Contains(all, h) {
		return &obstacle{all[0].Name, fmt.Sprintf("%d Services share it, and no more can", len(all))}
	}
	for _, o := range p.taken[a] {
		if o != h {
			if in := p.between(a, h.Spec, o.Spec); in != nil {
				return in
			}
		}
	}
	c := p.Snap.Claim(a)
	if c == nil || p.claimed(a, h.Name) {
		return nil
	}
	for i := range c.Holders {
		if o := p.Snap.Service(c.Holders[i].Name); o != nil {
			if in := p.between(a, h.Spec, o); in != nil {
				return in
			}
		}
	}
	return nil
}

// between returns o if it prevents s from having address a.
func (p *holdings) between(a netip.Addr, s, o *cluster.Spec) *obstacle {
	why, is := Apart(s, o)
	if !is || p.alreadyShared(a, s, o) {
		return nil
	}
	return &obstacle{o.Name, why}
}

// positionName is the input of the hash for the position in a pool. Services that share have the
// same, so that nodes that decide independently give them the same address.
func (s *service) positionName() cluster.Name {
	if s.Sharing == nil {
		return s.Name
	}
	// Names of Services contain no space.
	return cluster.Name{Namespace: s.Name.Namespace, Name: "allow-shared-ip " + s.Sharing.Key}
}

// joined returns the first address of other Services that h may share without requesting it;
// invalid if there is none.
func (p *holdings) joined(h *service, family corev1.IPFamily, pools []*pool) (first netip.Addr) {
	if h.Sharing == nil {
		return first
	}
	seen := map[netip.Addr]bool{} // all that share an address have it, and each check looks at all of them
	for _, o := range p.sharers()[h.Sharing.Key] {
		addrs := o.Status
		if open := p.byName[o.Name]; open != nil {
			addrs = open.addrs
		}
		for _, a := range addrs {
			if o.Name == h.Name || seen[a] || cluster.FamilyOf(a) != family || first.IsValid() && !a.Less(first) {
				continue
			}
			if seen[a] = true; !slices.ContainsFunc(pools, func(pool *pool) bool { return pool.Contains(a) }) ||
				!p.free(a, h) {
				continue
			}
			first = a
		}
	}
	return first
}

// sharers returns the Services that share, by sharing key.
func (p *holdings) sharers() map[string][]*cluster.Spec {
	if p.byKey != nil {
		return p.byKey
	}
	p.byKey = map[string][]*cluster.Spec{}
	for s := range p.Snap.Services.All() {
		if s.Sharing != nil {
			p.byKey[s.Sharing.Key] = append(p.byKey[s.Sharing.Key], s.Spec)
		}
	}
	return p.byKey
}

// with returns the other Services that have address a, sorted by name.
func (p *holdings) with(a netip.Addr, h *service) (others []*cluster.Spec) {
	for _, o := range p.taken[a] {
		others = append(others, o.Spec)
	}
	if c := p.Snap.Claim(a); c != nil {
		for _, by := range c.Holders {
			// it is settled
			if o := p.Snap.Service(by.Name); o != nil && p.byName[by.Name] == nil && slices.Contains(o.Status, a) {
				others = append(others, o)
			}
		}
	}
	others = slices.DeleteFunc(others, func(o *cluster.Spec) bool { return o.Name == h.Name })
	slices.SortFunc(others, func(a, b *cluster.Spec) int { return a.Name.Compare(b.Name) })
	return others
}
