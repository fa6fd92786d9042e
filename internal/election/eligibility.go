package election

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// Eligibility says which nodes and interfaces may answer for an address over L2.
type Eligibility struct {
	// By are the L2Advertisements that select the address, by name. If it is empty, every
	// node may answer, on every interface with the address's subnet.
	By []*cluster.L2Advertisement
	// AllowNode: the address's pool lets a Service name the node by annotation.
	AllowNode bool
}

// EligibilityOf reports whether an address of services is announced by ARP and NDP: its
// pool's announce is L2, or it is Advertised and an L2Advertisement selects the pool and
// one of the Services. If an L2Advertisement selects the pool only, why says what is
// missing. It reads the L2Advertisements and Pools of snap.
func EligibilityOf(snap *cluster.Snapshot, from cluster.Origin,
	services []cluster.Service) (t Eligibility, ok bool, why string) {
	t.AllowNode = cluster.PoolNamed(snap.Pools, from.Pool).PermitsL2Node()
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
		return t, false, fmt.Sprintf("the serviceSelector of L2Advertisement %s does not match the Service",
			strings.Join(about, ", "))
	}
	return t, false, ""
}

// key differs for different values.
func (e Eligibility) key() string {
	if len(e.By) == 1 {
		return e.By[0].Name
	}
	var b strings.Builder
	for _, a := range e.By {
		b.WriteString(a.Name + " ") // names have no spaces
	}
	return b.String()
}

// allow reports whether a node may answer on an interface and, with named, also for
// addresses outside of its subnets. by are the advertisements that select the node.
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

// selecting returns the advertisements that select a node. If By is empty, ok is true:
// every node is selected.
func (e Eligibility) selecting(n *Node) (by []*cluster.L2Advertisement, ok bool) {
	for _, a := range e.By {
		if a.NodeSelector.Matches(n.Labels) {
			by = append(by, a)
		}
	}
	return by, len(by) != 0 || len(e.By) == 0
}

// Interfaces returns the names of a node's interfaces that answer for addr, in the node's
// order; none on a node that is not selected.
func (e Eligibility) Interfaces(addr netip.Addr, n *Node) (names []string) {
	by, ok := e.selecting(n)
	if !ok {
		return nil
	}
	for i := range n.Interfaces {
		iface := &n.Interfaces[i]
		if ok, named := allow(by, iface.Name); ok && (named && !iface.Broadcasts(addr) || iface.Has(addr)) {
			names = append(names, iface.Name)
		}
	}
	return names
}

// Relevant reports whether an interface can matter to any address: it is in the subnet of a
// pool's addresses, or of an address that a Service keeps after its pool is gone, or an
// L2Advertisement names it. Only these are sent to other nodes; a node has hundreds of
// others, mostly of pods.
func Relevant(snap *cluster.Snapshot, iface cluster.Interface) bool {
	for _, a := range snap.L2Advertisements {
		if _, named := a.Allows(iface.Name); named {
			return true
		}
	}
	if len(iface.Prefixes) == 0 {
		return false
	}
	for a := range snap.Assignments.All() {
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
