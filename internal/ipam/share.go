package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// Apart says whether s cannot share an address that o has, and why: that is empty
// when there is no more to say than that it is o's. Both ways the answer is the same but for the words.
func Apart(s, o *cluster.Spec) (why string, is bool) {
	switch a, b := s.Sharing, o.Sharing; {
	case a == nil && b == nil:
		return "", true
	case a == nil:
		return fmt.Sprintf("to share it, give this Service the annotation %s: %s, too", cluster.SharingAnnotation, b.Key), true
	case b == nil:
		return fmt.Sprintf("to share it, give that Service the annotation %s: %s, too", cluster.SharingAnnotation, a.Key), true
	case a.Key != b.Key:
		return fmt.Sprintf("its annotation %s is %s, and not %s", cluster.SharingAnnotation, b.Key, a.Key), true
	case !admits(s, o):
		return fmt.Sprintf("to share it across namespaces, add %s to this Service's annotation %s", o.Name.Namespace, cluster.SharingNamespacesAnnotation), true
	case !admits(o, s):
		return fmt.Sprintf("to share it across namespaces, add %s to that Service's annotation %s", s.Name.Namespace, cluster.SharingNamespacesAnnotation), true
	}
	return portConflict(s, o)
}

// admits says whether s shares with Services of o's namespace.
func admits(s, o *cluster.Spec) bool {
	return s.Name.Namespace == o.Name.Namespace || slices.Contains(s.Sharing.Namespaces, o.Name.Namespace)
}

// clash says which port two Services both serve. A packet to it could be for
// either.
func portConflict(s, o *cluster.Spec) (why string, is bool) {
	for _, p := range s.Ports {
		if slices.ContainsFunc(o.Ports, func(q cluster.Port) bool { return p.Protocol == q.Protocol && p.Port == q.Port }) {
			return fmt.Sprintf("both serve %s/%d", p.Protocol, p.Port), true
		}
	}
	return "", false
}

// standing says whether two Services share an address already, so that to part
// them would take it away from one that is served: their Claim says so, or they
// come from MetalLB, whose keys are everybody's. By chance two do not have one
// status and one key.
func (p *plan) standing(a netip.Addr, s, o *cluster.Spec) bool {
	if !slices.Contains(s.Status, a) || !slices.Contains(o.Status, a) {
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

// An obstacle is a Service that keeps another from an address.
type obstacle struct {
	cluster.Name
	why string // they do not share it, empty when there is no more to say
}

func (o *obstacle) String() string {
	if o.why == "" {
		return o.Name.String() + " holds"
	}
	return o.Name.String() + " holds: " + o.why
}

// owner is a Service that has address a, or goes before h in having it, and does
// not share it with h; nil when there is none.
func (p *plan) owner(a netip.Addr, h *holder) *obstacle {
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

// between is o if it keeps s from address a.
func (p *plan) between(a netip.Addr, s, o *cluster.Spec) *obstacle {
	why, is := Apart(s, o)
	if !is || p.standing(a, s, o) {
		return nil
	}
	return &obstacle{o.Name, why}
}

// seat is what a Service's position in a pool is the hash of. Those that share
// have one, so that nodes that decide alone put them on one address.
func (h *holder) positionName() cluster.Name {
	if h.Sharing == nil {
		return h.Name
	}
	// A space is in the name of no Service.
	return cluster.Name{Namespace: h.Name.Namespace, Name: "allow-shared-ip " + h.Sharing.Key}
}

// joined is the first address that other Services have and that h may share by
// chance, invalid when there is none.
func (p *plan) joined(h *holder, family corev1.IPFamily, pools []*pool) (first netip.Addr) {
	if h.Sharing == nil {
		return first
	}
	for _, o := range p.sharers()[h.Sharing.Key] {
		addrs := o.Status
		if open := p.byName[o.Name]; open != nil {
			addrs = open.addrs
		}
		for _, a := range addrs {
			if o.Name == h.Name || cluster.FamilyOf(a) != family || first.IsValid() && !a.Less(first) ||
				!slices.ContainsFunc(pools, func(pool *pool) bool { return pool.Contains(a) }) || !p.free(a, h) {
				continue
			}
			first = a
		}
	}
	return first
}

// sharers are the Services that share, by their keys.
func (p *plan) sharers() map[string][]*cluster.Spec {
	if p.byKey != nil {
		return p.byKey
	}
	p.byKey = map[string][]*cluster.Spec{}
	for _, s := range p.Snap.Services {
		if s.Sharing != nil {
			p.byKey[s.Sharing.Key] = append(p.byKey[s.Sharing.Key], s.Spec)
		}
	}
	return p.byKey
}

// warnShared tells Services that share an address what they would be told if they
// did not have it yet.
func (p *plan) warnShared() {
	for _, h := range p.holders {
		for _, a := range h.addrs {
			if c := p.Snap.Claim(a); len(p.taken[a]) == 1 && (c == nil || len(c.Holders) == 1 && c.Holders[0].Name == h.Name) || Settled(p.Snap, h.Spec) {
				continue
			}
			for _, o := range p.with(a, h) {
				if why, is := Apart(h.Spec, o); is {
					p.say(h, a, cluster.SharingKept, "%s is shared with %s as it was, although it would not be now: %s", a, o.Name, cmp.Or(why, "neither asks for it"))
				}
			}
		}
	}
}

// with are the other Services that have address a, sorted by name.
func (p *plan) with(a netip.Addr, h *holder) (others []*cluster.Spec) {
	for _, o := range p.taken[a] {
		others = append(others, o.Spec)
	}
	if c := p.Snap.Claim(a); c != nil {
		for _, by := range c.Holders {
			if o := p.Snap.Service(by.Name); o != nil && p.byName[by.Name] == nil && slices.Contains(o.Status, a) { // it is settled
				others = append(others, o)
			}
		}
	}
	others = slices.DeleteFunc(others, func(o *cluster.Spec) bool { return o.Name == h.Name })
	slices.SortFunc(others, func(a, b *cluster.Spec) int { return a.Name.Compare(b.Name) })
	return others
}
