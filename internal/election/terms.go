package election

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// Terms are on what terms an address goes over L2.
type Terms struct {
	// By are the L2Advertisements that select it, by name. Without any, every node may
	// answer, on every interface that has its subnet.
	By []*cluster.L2Advertisement
}

// TermsOf says whether an address that Services hold is announced by ARP and NDP. It is
// if its pool says L2, or says Advertised and an L2Advertisement selects the pool and one
// of the Services. Why says, for an address that is not although an L2Advertisement
// selects its pool, what prevents it.
func TermsOf(snap *cluster.Snapshot, from cluster.Origin, services []cluster.Service) (t Terms, ok bool, why string) {
	if from.Announce != cluster.AnnounceAdvertised {
		return t, from.Announce == cluster.AnnounceL2, ""
	}
	var about []string
	for _, a := range snap.L2Advertisements {
		if !a.SelectsPool(from.Pool) {
			continue
		}
		about = append(about, a.Name)
		for _, s := range services {
			if a.ServiceSelector.Matches(s.Labels) {
				t.By = append(t.By, a)
				break
			}
		}
	}
	switch {
	case len(t.By) != 0:
		return t, true, ""
	case len(about) != 0:
		return t, false, fmt.Sprintf("the serviceSelector of L2Advertisement %s does not match the Service", strings.Join(about, ", "))
	}
	return t, false, ""
}

// key tells terms apart.
func (t Terms) key() string {
	if len(t.By) == 1 {
		return t.By[0].Name
	}
	var b strings.Builder
	for _, a := range t.By {
		b.WriteString(a.Name + " ") // A name has no space in it.
	}
	return b.String()
}

// allow says whether a node may answer on an interface, and, with named, also for
// addresses that are not in its subnets. By are advertisements that select the node.
func allow(by []*cluster.L2Advertisement, iface string) (ok, named bool) {
	if len(by) == 0 {
		return true, false
	}
	for _, a := range by {
		is, name := a.Allows(iface)
		ok, named = ok || is, named || name
	}
	return ok, named
}

// selecting are the advertisements that select a node. It is none without any terms, and
// then ok says that every node is selected.
func (t Terms) selecting(n *Node) (by []*cluster.L2Advertisement, ok bool) {
	for _, a := range t.By {
		if a.NodeSelector.Matches(n.Labels) {
			by = append(by, a)
		}
	}
	return by, len(by) != 0 || len(t.By) == 0
}

// Interfaces are the names of those interfaces of a node on which it answers for addr,
// sorted as they are in the node. There are none on a node that is not selected.
func (t Terms) Interfaces(addr netip.Addr, n *Node) (names []string) {
	by, ok := t.selecting(n)
	if !ok {
		return nil
	}
	for i := range n.Interfaces {
		iface := &n.Interfaces[i]
		if ok, named := allow(by, iface.Name); ok && (named || iface.Has(addr)) {
			names = append(names, iface.Name)
		}
	}
	return names
}

// Relevant says whether an interface can matter to any address: it is in a subnet that
// has addresses of a pool, or one that a Service has kept although no pool has it any more,
// or an L2Advertisement names it. Of a node with hundreds, most of them pods', only these
// need be told to others.
func Relevant(snap *cluster.Snapshot, iface cluster.Interface) bool {
	for _, a := range snap.L2Advertisements {
		if _, named := a.Allows(iface.Name); named {
			return true
		}
	}
	if len(iface.Prefixes) == 0 {
		return false
	}
	for _, a := range snap.Assignments {
		if a.Pool == "" && a.From.Announce != cluster.AnnounceBGP && iface.Has(a.Addr) {
			return true
		}
	}
	for _, pool := range snap.Pools {
		if pool.Announce == cluster.AnnounceBGP {
			continue
		}
		for _, r := range pool.Ranges {
			for _, p := range iface.Prefixes {
				if p.Contains(r.From()) || p.Contains(r.To()) || r.Contains(p.Masked().Addr()) {
					return true
				}
			}
		}
	}
	return false
}
