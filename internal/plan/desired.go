package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/healthcheck"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
)

// Desired is what one node must do, and why. It is keyed by address, never by Service: the
// network sees only addresses, and two decisions about one address would contradict each other.
//
// It is immutable. Slices and sets that have not changed since the last Desired are the same.
type Desired struct {
	Proxy proxy.State
	BGP   bgp.State
	L2    l2.State

	// Addresses are sorted by Addr. The VIP of each is the one in Proxy.VIPs under the same address.
	Addresses sortedset.Set[*Address]
	// Announce are the addresses that this node announces: Routed by BGP, Answered over
	// Layer 2.
	Announce, Routed, Answered sortedset.Set[netip.Addr]
	// Prefixes are the prefixes of BGP.Routes; Hosts is Answered as prefixes.
	Prefixes, Hosts sortedset.Set[netip.Prefix]
	Aggregates      []netip.Prefix // those of Prefixes with more than one address, sorted
	UsesL2          bool           // addresses may be announced over Layer 2
	L2Withdrawn     bool           // all addresses over Layer 2 must be withdrawn now
	// Checks are the healthCheckNodePorts to serve, sorted by Service and family; as with
	// kube-proxy, also for Services without an address.
	Checks []healthcheck.Check
	// AggregateReasons are about the attributes of aggregates; each names the first address.
	AggregateReasons []cluster.Reason

	aggregates []aggregate // sorted by prefix
	wanted     use         // of all addresses, if the node had room for all that they want
	forwarded  use         // of all addresses

	// The decision is about Snapshot and Inputs.
	Snapshot *cluster.Snapshot
	Inputs   *Inputs
}

// An Address is the decision for one address. [Desired.ReasonsOf] explains it.
type Address struct {
	Addr         netip.Addr
	Pool         string
	addressInput                // what the decision is about
	Services     []cluster.Name // that hold it, in the order of precedence
	VIP          *proxy.VIP
	Refusal      string // why it is not forwarded for any Service, empty if it is
	// Obstruction is why the kernel certainly drops flows to it, empty if it may not.
	Obstruction string
	Announce    bool        // by any protocol
	Routes      []bgp.Route // that announce it, sorted by prefix
	OverL2      bool        // it is announced over Layer 2
	Owner       string      // the node that answers for it over Layer 2, empty if none does
	// Handover: this node does not announce the address because it leaves or is excluded, or
	// because only other nodes have endpoints. Those nodes announce it, or will soon.
	Handover bool

	l2         *l2.Address // how this node answers for it, nil if it does not
	aggregated []routeSpec // of the Routes that are aggregates
	refusedOne bool        // it is not forwarded for some of several Services
	partly     bool        // it is forwarded with some of its ports and endpoints
	use        use         // of the VIP, if the node had room for all of it
	shed       bool        // only the use of the decision was kept
	// The inputs of an election: the Services that some node can serve, and whether this node can
	// serve any.
	able []cluster.Service
	good bool
}

// Refused reports whether the address is not forwarded for all its Services, or not with all their
// ports and endpoints, since the proxy cannot hold them.
func (a *Address) Refused() bool { return a.Refusal != "" || a.refusedOne || a.partly }

// Address returns the decision for addr, or nil.
func (d *Desired) Address(addr netip.Addr) *Address {
	a, _ := sortedset.Get(d.Addresses, addr, compareAddress)
	return a
}

// RoutesOf returns the routes that announce addr.
func (d *Desired) RoutesOf(addr netip.Addr) []bgp.Route {
	if a := d.Address(addr); a != nil {
		return a.Routes
	}
	return nil
}

// Why explains in a sentence why addr is announced by a protocol, or is not.
func (d *Desired) Why(addr netip.Addr, protocol string) string {
	a := d.Address(addr)
	if a == nil {
		return "no Service holds the address"
	}
	var why []string
	for _, r := range d.ReasonsOf(a) {
		if r.Protocol == protocol {
			why = append(why, r.Service.String()+" "+r.Message)
		}
	}
	return strings.Join(why, "; ")
}

// ReasonsOf explains the decision about one of the Addresses. It has at least one Reason for
// "proxy" for each Service, and one for each of "bgp" and "l2" by which the address is, or might be
// expected to be, announced. It decides again, because few Reasons are ever read, and computing all
// texts takes longer than the decisions.
func (d *Desired) ReasonsOf(a *Address) []cluster.Reason {
	reasons, _ := d.Explain(a)
	return reasons
}

// Explain returns ReasonsOf an address, and the criterion that selected its owner among the
// candidates over Layer 2, from one decision.
func (d *Desired) Explain(a *Address) (reasons []cluster.Reason, ownerBy string) {
	again := d.Inputs.decide(a.Addr, a.Pool, a.addressInput)
	return d.Inputs.explain(again), d.Inputs.layer2.ownerBy(again.owner)
}

// Reasons returns all Reasons: about addresses, in their order, about aggregates, and about
// Services without an address.
func (d *Desired) Reasons() []cluster.Reason {
	var all []cluster.Reason
	for a := range d.Addresses.All() {
		all = append(all, d.ReasonsOf(a)...)
	}
	return slices.Concat(all, d.AggregateReasons, d.Snapshot.Refusals)
}

// String is the output of `fanfare plan`, and the content of golden files.
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
	problems := slices.Concat(d.Snapshot.Problems, d.Inputs.adverts.duplicateProblems(), d.Inputs.interfaceProblems())
	section("problems", lines(len(problems), func(i int) string { return problems[i].String() }))
	return b.String()
}

// AttributesOf describes the attributes of the routes to prefixes, if there are any.
func (d *Desired) AttributesOf(prefixes []netip.Prefix) (texts []string) {
	for _, p := range prefixes {
		r, found := sortedset.Get(d.BGP.Routes, p, comparePrefix)
		if !found {
			continue
		}
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

// RoutesTo returns the routes to prefixes: those of d, and for other prefixes those of sent.
func (d *Desired) RoutesTo(prefixes sortedset.Set[netip.Prefix], sent bgp.Routes) bgp.Routes {
	unwanted, others := sortedset.Changes(d.Prefixes, prefixes, sortedset.ComparePrefixes)
	differ := sortedset.UnionPrefixes(unwanted, others)
	return sortedset.PatchSet(d.BGP.Routes, differ, comparePrefix, sortedset.Equal, func(i int) (r bgp.Route, is bool) {
		if _, is = slices.BinarySearchFunc(others, differ[i], sortedset.ComparePrefixes); !is {
			return r, false
		}
		return sortedset.Get(sent, differ[i], comparePrefix)
	})
}

// Holders returns the Services that hold addr; d may be nil.
func (d *Desired) Holders(addr netip.Addr) []cluster.Name {
	if d == nil {
		return nil
	}
	if a := d.Address(addr); a != nil {
		return a.Services
	}
	return nil
}

// WithoutAnnouncements returns d without any announcement.
func (d *Desired) WithoutAnnouncements() *Desired {
	q := *d.WithoutL2()
	q.Announce, q.Routed, q.BGP.Routes, q.Prefixes, q.Aggregates = sortedset.Set[netip.Addr]{},
		sortedset.Set[netip.Addr]{}, bgp.Routes{}, sortedset.Set[netip.Prefix]{}, nil
	return &q
}

// WithoutL2 returns d without announcements over Layer 2.
func (d *Desired) WithoutL2() *Desired {
	q := *d
	q.L2.Addresses, q.Answered, q.Hosts = nil, sortedset.Set[netip.Addr]{}, sortedset.Set[netip.Prefix]{}
	q.Announce, q.L2Withdrawn = d.Routed, true
	return &q
}

// Restartable returns d with only the sessions of graceful restart.
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

// LingersAsItIs reports whether a VIP is the same while it lingers: the proxy skips equal pointers,
// and thousands of addresses may linger.
func LingersAsItIs(vip *proxy.VIP) bool {
	return !slices.ContainsFunc(vip.Frontends, func(f proxy.Frontend) bool { return len(f.External.Backends) == 0 })
}

// Lingering returns how an address that is withdrawn is forwarded for clients that still send
// to it: as decided for the Services that hold it, or held it last and still exist. Without
// endpoints on this node, it is forwarded to other nodes, masqueraded. Deleted pods get no
// traffic: another tenant's pod may have their addresses by now.
func (d *Desired) Lingering(addr netip.Addr, holders func() []cluster.Name) *proxy.VIP {
	a := d.Address(addr)
	if a == nil {
		var services []cluster.Service
		for _, name := range holders() {
			if s, exists := d.Snapshot.Services.Get(name); exists {
				services = append(services, s)
			}
		}
		// The last decision is gone with the address: decide again for its last Services.
		byPrecedence(services)
		a = d.Inputs.decide(addr, "", addressInput{services: services}).Address
	} else if LingersAsItIs(a.VIP) {
		return a.VIP
	}
	vip := &proxy.VIP{Addr: addr, Frontends: slices.Clone(a.VIP.Frontends)}
	for i := range vip.Frontends {
		f := &vip.Frontends[i]
		if len(f.External.Backends) == 0 {
			f.External = proxy.Target{Backends: f.Internal.Backends, Remote: proxy.Masquerade}
		}
	}
	if d.Inputs.capacity.refusalOf(vip) != "" {
		return &proxy.VIP{Addr: addr}
	}
	return vip
}
