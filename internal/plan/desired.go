package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/healthcheck"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
)

// Desired is what one node shall do, and why. It is keyed by address, never by
// Service: the network knows only addresses, and what is decided twice for one
// address contradicts itself sooner or later.
//
// It is immutable. Slices that did not change since the Desired before are the
// same slices.
type Desired struct {
	Proxy proxy.State
	BGP   bgp.State
	L2    l2.State

	// Addresses are sorted by Addr; Addresses[i].VIP is Proxy.VIPs[i].
	Addresses []*Address
	// Announce are the addresses that this node announces: Routed, which BGP's routes
	// are for, and Answered, which L2 answers for. All are sorted.
	Announce, Routed, Answered []netip.Addr
	// Prefixes are BGP's routes', sorted, and Aggregates those of them that are no
	// single addresses.
	Prefixes, Aggregates []netip.Prefix
	// Hosts are Answered as prefixes.
	Hosts []netip.Prefix
	// Links says that addresses may go over L2 here.
	Links bool
	// Checks are the healthCheckNodePorts to answer on, sorted by Service and family:
	// like kube-proxy's, those of Services that have no address yet as well.
	Checks []healthcheck.Check
	// Clashes are where advertisements contradict each other about an aggregate, said
	// of its first address.
	Clashes []cluster.Reason

	// L2Withdrawn: whatever goes over L2 is to be given up now.
	L2Withdrawn bool

	// Snapshot and View are what was decided by.
	Snapshot *cluster.Snapshot
	View     *View
}

// An Address is the decision for one address.
type Address struct {
	Addr     netip.Addr
	Pool     string
	origin   cluster.Origin // how it is announced
	Services []cluster.Name // who holds it, in the order of precedence
	VIP      *proxy.VIP
	Announce bool        // by any protocol
	Routes   []bgp.Route // that announce it, sorted by prefix
	// aggregated are what makes those of routes that are aggregates.
	aggregated []offer
	// Handover says that this node does not announce the address because it is
	// about to go, or is not to attract traffic any more, or because only
	// other nodes have endpoints for it, which are about to if they do not yet.
	Handover bool
	// Reasons has, for each Service, at least one for "proxy", and one for each of "bgp"
	// and "l2" by which the address is announced or might be expected to.
	Reasons []cluster.Reason

	Refusal string // why it is not forwarded, whatever its Services say; empty: it is

	OverL2  bool        // it goes over L2
	Owner   string      // the node that answers for it there; empty when none does
	OwnerBy string      // why it is that one
	answer  *l2.Address // how this node answers for it there; nil if it does not

	from  []cluster.Service // what was decided about
	claim *cluster.Claim
}

// Address finds the decision for addr, nil if there is none.
func (d *Desired) Address(addr netip.Addr) *Address {
	i, ok := slices.BinarySearchFunc(d.Addresses, addr, func(a *Address, b netip.Addr) int { return a.Addr.Compare(b) })
	if !ok {
		return nil
	}
	return d.Addresses[i]
}

// RoutesOf are those that announce addr.
func (d *Desired) RoutesOf(addr netip.Addr) []bgp.Route {
	if a := d.Address(addr); a != nil {
		return a.Routes
	}
	return nil
}

// Why is the reason for announcing addr by a protocol or not, in a sentence.
func (d *Desired) Why(addr netip.Addr, protocol string) string {
	a := d.Address(addr)
	if a == nil {
		return "no Service holds the address any more"
	}
	var why []string
	for _, r := range a.Reasons {
		if r.Protocol == protocol {
			why = append(why, r.Service.String()+" "+r.Message)
		}
	}
	return strings.Join(why, "; ")
}

// Reasons returns every reason: those of the addresses, in their order, then those of
// aggregates, then those of Services without an address.
func (d *Desired) Reasons() []cluster.Reason {
	var all []cluster.Reason
	for _, a := range d.Addresses {
		all = append(all, a.Reasons...)
	}
	return slices.Concat(all, d.Clashes, d.Snapshot.Refusals)
}

// String is what `fanfare plan` prints and what golden files hold.
func (d *Desired) String() string {
	var b strings.Builder
	section := func(title, text string) {
		if text = strings.TrimRight(text, "\n"); text != "" {
			fmt.Fprintf(&b, "%s\n  %s\n", title, strings.ReplaceAll(text, "\n", "\n  "))
		}
	}
	lines := func(n int, line func(int) string) string {
		var s strings.Builder
		for i := range n {
			s.WriteString(line(i) + "\n")
		}
		return s.String()
	}
	reasons := d.Reasons()
	section("bgp", d.BGP.String())
	section("l2", d.L2.String())
	section("proxy", d.Proxy.String())
	section("health", lines(len(d.Checks), func(i int) string { return checkText(d.Checks[i]) }))
	section("why", lines(len(reasons), func(i int) string { return reasons[i].String() }))
	problems := slices.Concat(d.Snapshot.Problems, d.View.duplicateProblems(), d.View.interfaceProblems())
	section("problems", lines(len(problems), func(i int) string { return problems[i].String() }))
	return b.String()
}

// AttributesOf are what routers are told of prefixes, as far as there is anything.
func (d *Desired) AttributesOf(prefixes []netip.Prefix) (texts []string) {
	for _, r := range RoutesTo(prefixes, d.BGP.Routes) {
		text := r.Attributes.String()
		switch {
		case text == "":
			continue
		case len(prefixes) > 1:
			text = r.Prefix.String() + " " + text
		}
		texts = append(texts, text)
	}
	return texts
}

// RoutesTo returns the routes to prefixes, from the first of the lists that has
// one. All are sorted.
func RoutesTo(prefixes []netip.Prefix, lists ...[]bgp.Route) []bgp.Route {
	var out []bgp.Route
	for _, p := range prefixes {
		for _, list := range lists {
			i, ok := slices.BinarySearchFunc(list, p, func(r bgp.Route, p netip.Prefix) int { return sortedset.ComparePrefixes(r.Prefix, p) })
			if ok {
				out = append(out, list[i])
				break
			}
		}
	}
	return out
}

// Holders are the Services that d gives addr to; d may be nil.
func (d *Desired) Holders(addr netip.Addr) []cluster.Name {
	if d == nil {
		return nil
	}
	if a := d.Address(addr); a != nil {
		return a.Services
	}
	return nil
}

// WithoutAnnouncements is d without any announcement.
func (d *Desired) WithoutAnnouncements() *Desired {
	q := *d.WithoutL2()
	q.Announce, q.Routed, q.BGP.Routes, q.Prefixes, q.Aggregates = nil, nil, nil, nil, nil
	return &q
}

// WithoutL2 is d without what goes over L2.
func (d *Desired) WithoutL2() *Desired {
	q := *d
	q.L2.Addresses, q.Answered, q.Hosts, q.Announce, q.L2Withdrawn = nil, nil, nil, d.Routed, true
	return &q
}

// Restartable is d with only those sessions whose routers wait for us.
func (d *Desired) Restartable() *Desired {
	q := *d
	q.BGP.Sessions = nil
	for _, session := range d.BGP.Sessions {
		if session.GracefulRestart {
			q.BGP.Sessions = append(q.BGP.Sessions, session)
		}
	}
	return &q
}
