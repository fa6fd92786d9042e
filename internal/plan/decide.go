package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
)

// Decide says what a node shall do about a snapshot. It is pure: the same
// arguments give the same answer on every node and at every time.
func Decide(c Config, snap *cluster.Snapshot) *Desired {
	return NewDecider(c).Decide(snap)
}

// A Decider decides about one snapshot after the other, and computes only what
// the difference between them touches. Its answers are those of Decide.
type Decider struct {
	Config Config
	last   *Desired
	// holders lives as long as the Assignments do.
	holders holders
}

// NewDecider returns a Decider that has not seen a snapshot yet.
func NewDecider(c Config) *Decider { return &Decider{Config: c} }

// Decide decides about snap.
func (d *Decider) Decide(snap *cluster.Snapshot) *Desired {
	v := d.look(snap)
	if d.last != nil && d.last.View == v {
		if changed, ok := d.changed(snap); ok {
			d.last = d.again(snap, v, changed)
			return d.last
		}
	}
	d.last = d.anew(snap, v)
	return d.last
}

// look reuses the last view when nothing it depends on has changed.
func (d *Decider) look(snap *cluster.Snapshot) *View {
	if d.last != nil && d.last.View.of(d.Config, snap) {
		return d.last.View
	}
	return look(d.Config, snap)
}

// changed returns the indexes of the Services that differ from the last
// snapshot's, sorted, and false when who holds what has changed as well.
func (d *Decider) changed(snap *cluster.Snapshot) ([]int, bool) {
	have := d.last.Snapshot
	if d.last.View.links && !sortedset.Same(have.Claims, snap.Claims) {
		return nil, false
	}
	if !sortedset.Same(have.Assignments, snap.Assignments) || len(have.Services) != len(snap.Services) {
		return nil, false
	}
	var changed []int
	for i := range snap.Services {
		if snap.Services[i] == have.Services[i] {
			continue
		}
		if snap.Services[i].Name != have.Services[i].Name {
			return nil, false
		}
		changed = append(changed, i)
	}
	return changed, true
}

// again decides about the changed Services and takes the rest from last.
func (d *Decider) again(snap *cluster.Snapshot, v *View, changed []int) *Desired {
	next := *d.last
	next.Snapshot = snap
	next.checkAgain(v, changed)
	addresses := d.holders.of(changed)
	if len(addresses) == 0 {
		return &next
	}
	next.Addresses = slices.Clone(next.Addresses)
	next.Proxy.VIPs = slices.Clone(next.Proxy.VIPs)
	routes := false
	for _, i := range addresses {
		was := next.Addresses[i]
		is := v.decide(was.Addr, was.Pool, was.origin, d.services(nil, snap, i), was.claim).after(was)
		routes = routes || !alike(is.answer, was.answer) || !slices.Equal(is.Routes, was.Routes) || !slices.EqualFunc(is.aggregated, was.aggregated, offer.equal)
		next.Addresses[i], next.Proxy.VIPs[i] = is, is.VIP
	}
	if routes {
		next.announce(v, d.last)
	}
	return &next
}

// anew decides about everything.
func (d *Decider) anew(snap *cluster.Snapshot, v *View) *Desired {
	d.holders = d.holders.next(snap)
	next := &Desired{
		Proxy:    proxy.State{Node: v.Node, Clients: v.clients, SNAT: d.Config.SNAT},
		BGP:      bgp.State{ASN: v.asn, RouterID: v.routerID, NextHop4: v.next4, NextHop6: v.next6, Sessions: v.sessions, Shutdown: v.planned},
		L2:       l2.State{Speakers: v.speakers, Nodes: v.neighbours},
		Links:    v.links,
		Snapshot: snap,
		View:     v,
	}
	assigned := slices.CompactFunc(slices.Clone(snap.Assignments), func(a, b cluster.Assignment) bool { return a.Addr == b.Addr })
	next.Addresses = make([]*Address, len(assigned))
	next.Proxy.VIPs = make([]*proxy.VIP, len(assigned))
	former := d.former()
	var services []cluster.Service // most are as they were, and not kept
	for i, a := range assigned {
		was := former(a.Addr)
		services = d.services(services[:0], snap, i)
		var claim *cluster.Claim
		if v.links {
			claim = snap.Claim(a.Addr)
		}
		origin := snap.OriginOf(a)
		if was != nil && d.last.View == v && was.Pool == a.Pool && was.origin == origin && was.claim == claim && slices.Equal(was.from, services) {
			next.Addresses[i] = was
		} else {
			next.Addresses[i] = v.decide(a.Addr, a.Pool, origin, slices.Clone(services), claim).after(was)
		}
		next.Proxy.VIPs[i] = next.Addresses[i].VIP
	}
	next.announce(v, d.last)
	next.check(v)
	return next
}

// former returns a function that finds the last decision for an address, nil if there
// is none. It is asked for one address after the other, in their order.
func (d *Decider) former() func(netip.Addr) *Address {
	var last []*Address
	if d.last != nil {
		last = d.last.Addresses
	}
	return func(addr netip.Addr) *Address {
		for len(last) > 0 && last[0].Addr.Less(addr) {
			last = last[1:]
		}
		if len(last) == 0 || last[0].Addr != addr {
			return nil
		}
		return last[0]
	}
}

// after is a, with what was forwarded before, which may be nil, if the same is to be
// now: then nobody looks into it.
func (a *Address) after(was *Address) *Address {
	if was != nil && was.VIP.Equal(a.VIP) {
		a.VIP = was.VIP
	}
	return a
}

// services appends those that hold an address to none, in the order of precedence.
func (d *Decider) services(none []cluster.Service, snap *cluster.Snapshot, address int) []cluster.Service {
	for _, s := range d.holders.by(address) {
		none = append(none, snap.Services[s])
	}
	byPrecedence(none)
	return none
}

// byPrecedence puts older Services first: where two claim one port, the newcomer
// must not take it from the one that was there.
func byPrecedence(services []cluster.Service) {
	slices.SortFunc(services, func(a, b cluster.Service) int {
		return cmp.Or(a.Created.Compare(b.Created), a.Name.Compare(b.Name))
	})
}

// find returns the index of a Service, -1 if there is none of that name.
func find(snap *cluster.Snapshot, name cluster.Name) int {
	i, ok := slices.BinarySearchFunc(snap.Services, name, func(s cluster.Service, n cluster.Name) int { return s.Name.Compare(n) })
	if !ok {
		return -1
	}
	return i
}

// announce fills in what is announced from the addresses. What is equal to was,
// which may be nil, is was's.
func (d *Desired) announce(v *View, was *Desired) {
	routed, routes := make([]netip.Addr, 0, len(d.Addresses)), make([]bgp.Route, 0, len(d.Addresses))
	var answered []netip.Addr
	var answers []l2.Address
	var offers []offer
	first := map[netip.Prefix]*Address{} // of each aggregate
	var unfit []cluster.Reason
	for _, a := range d.Addresses {
		if len(a.Routes) > 0 {
			routed = append(routed, a.Addr)
		}
		if a.answer != nil {
			answered, answers = append(answered, a.Addr), append(answers, *a.answer)
		}
		for _, r := range a.Routes {
			if r.Prefix.IsSingleIP() {
				routes = append(routes, r)
			}
		}
		for _, o := range a.aggregated {
			var err error
			if offers, err = v.merge(offers, o); err != nil {
				unfit = append(unfit, cluster.Reason{VIP: a.Addr, Service: a.Services[0], Protocol: "bgp", Code: cluster.AttributesRefused,
					Message: fmt.Sprintf("its communities are left out of those of the aggregate: with them, %v", err)})
			}
			first[o.prefix] = cmp.Or(first[o.prefix], a)
		}
	}
	var aggregates []bgp.Route
	d.Clashes = unfit
	for _, o := range offers {
		r, clashes := v.route(o)
		a := first[o.prefix]
		if err := r.Validate(); err != nil {
			d.Clashes = append(d.Clashes, cluster.Reason{VIP: a.Addr, Service: a.Services[0], Protocol: "bgp", Code: cluster.AttributesRefused, Message: "the aggregate is not announced: " + err.Error()})
			continue
		}
		aggregates = append(aggregates, r)
		for _, c := range clashes {
			d.Clashes = append(d.Clashes, cluster.Reason{VIP: a.Addr, Service: a.Services[0], Protocol: "bgp", Code: c.code, Message: c.message})
		}
	}
	if len(aggregates) > 0 {
		routes = append(routes, aggregates...)
		slices.SortFunc(routes, func(a, b bgp.Route) int { return sortedset.ComparePrefixes(a.Prefix, b.Prefix) })
	}
	if was == nil {
		was = &Desired{}
	}
	d.Routed, d.Aggregates = sortedset.Keep(was.Routed, routed), sortedset.Keep(was.Aggregates, PrefixesOf(aggregates))
	if d.L2.Addresses = answers; slices.EqualFunc(was.L2.Addresses, answers, answersAlike) {
		d.L2.Addresses = was.L2.Addresses
	}
	if d.Answered = sortedset.Keep(was.Answered, answered); !sortedset.Same(d.Answered, was.Answered) {
		d.Hosts = sortedset.HostPrefixes(d.Answered)
	} else {
		d.Hosts = was.Hosts
	}
	d.Announce = sortedset.Keep(was.Announce, sortedset.Union(d.Routed, d.Answered, netip.Addr.Compare))
	d.BGP.Routes, d.Prefixes = sortedset.Keep(was.BGP.Routes, routes), sortedset.Keep(was.Prefixes, PrefixesOf(routes))
	d.Proxy.Owned = sortedset.Keep(was.Proxy.Owned, sortedset.AddPrefixes(v.Owned, d.Aggregates))
}

// PrefixesOf are the prefixes of routes, in their order.
func PrefixesOf(routes []bgp.Route) []netip.Prefix {
	prefixes := make([]netip.Prefix, len(routes))
	for i, r := range routes {
		prefixes[i] = r.Prefix
	}
	return prefixes
}

// decide decides about one address, which the given Services hold, in the order
// of precedence.
func (v *View) decide(addr netip.Addr, pool string, origin cluster.Origin, services []cluster.Service, claim *cluster.Claim) *Address {
	a := &Address{Addr: addr, Pool: pool, origin: origin, VIP: &proxy.VIP{Addr: addr}, from: services, claim: claim}
	verdicts, parts := make([]verdict, len(services)), make([]part, len(services))
	var pods []netip.Addr
	for i, s := range services {
		a.Services = append(a.Services, s.Name)
		fronts, verdict := v.serve(addr, s)
		fronts, clashes := disjoint(a.VIP.Frontends, fronts, addr, s.Name)
		if why := v.outgrows(a.VIP, fronts, len(services)); why != "" {
			// Others that share the address go on without this one.
			fronts, clashes, verdict = nil, nil, refusedBy(s.Name, why)
		}
		pods = v.pods(pods, s.Spec, fronts)
		a.VIP.Frontends = append(a.VIP.Frontends, fronts...)
		a.Reasons = append(a.Reasons, clashes...)
		if len(clashes) > 0 && len(fronts) == 0 {
			verdict = displaced(s.Name, clashes)
		}
		verdicts[i] = verdict
		parts[i] = part{s, fronts, &verdicts[i]}
	}
	seat := v.elect(a, services, verdicts)
	if len(parts) > 1 {
		a.VIP.Frontends = v.relieve(addr, parts, seat.answer != nil)
	}
	slices.SortFunc(a.VIP.Frontends, func(a, b proxy.Frontend) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	if a.Refusal = v.refuses(a.VIP); a.Refusal != "" {
		a.VIP = &proxy.VIP{Addr: addr}
		for i, s := range services {
			verdicts[i] = refusedBy(s.Name, a.Refusal)
		}
		seat = v.elect(a, services, verdicts)
	}
	away := awayOf(verdicts)
	p := v.announcement(a, services, verdicts, away)
	v.weigh(p.routes, pods)
	for i, s := range services {
		a.Reasons = append(a.Reasons, v.explain(a, s, verdicts[i], away, p, seat)...)
	}
	a.Routes, a.aggregated, a.OverL2, a.Owner, a.OwnerBy, a.answer = p.routes, p.aggregated, seat.linked, seat.owner, seat.by, seat.answer
	a.Announce = len(a.Routes) > 0 || a.answer != nil
	a.Handover = away != nil && v.refusal == "" || v.planned && away == nil && slices.ContainsFunc(verdicts, verdict.good)
	return a
}

// A verdict is how a Service is served here.
type verdict struct {
	service cluster.Name
	// code is what speaks against announcing it, empty when nothing does.
	code    cluster.Code
	message string
	// elsewhere: only other nodes have endpoints, and are sent its clients all the same.
	elsewhere bool
}

func (v verdict) good() bool { return v.code == "" }

// served is how connections are served that are not refused or dropped.
func (v verdict) served() cluster.Code {
	if v.elsewhere {
		return cluster.Elsewhere
	}
	return cluster.Programmed
}

// refusedBy is the verdict on a Service that is too large.
func refusedBy(service cluster.Name, why string) verdict {
	return verdict{service: service, code: cluster.ProxyRefused, message: why}
}

// displaced is the verdict on a Service whose every port is served for others.
func displaced(service cluster.Name, clashes []cluster.Reason) verdict {
	return verdict{service: service, code: cluster.AddressConflict, message: clashes[0].Message}
}

// awayOf finds the Service that keeps an address away from this node: one that
// only other nodes can serve. An address that several Services share attracts
// the traffic of all of them. One that nobody can serve keeps nothing away.
func awayOf(verdicts []verdict) *verdict {
	i := slices.IndexFunc(verdicts, func(v verdict) bool { return v.code == cluster.NoLocalEndpoint })
	if i < 0 {
		return nil
	}
	return &verdicts[i]
}

// explain gives the reasons for one Service of an address that p announces.
func (v *View) explain(a *Address, s cluster.Service, is verdict, away *verdict, p announcement, seat seat) (reasons []cluster.Reason) {
	reason := func(protocol string, code cluster.Code, format string, args ...any) {
		reasons = append(reasons, cluster.Reason{VIP: a.Addr, Service: s.Name, Protocol: protocol, Code: code, Message: fmt.Sprintf(format, args...)})
	}
	switch is.code {
	case cluster.NoEndpoints:
		reason("proxy", is.code, "connections are refused: %s", is.message)
	case cluster.NoSource:
		reason("proxy", is.code, "connections are dropped: %s", is.message)
	case cluster.ProxyRefused:
		reason("proxy", is.code, "not forwarded: %s", is.message)
	case cluster.AddressConflict: // said already, port by port
	default:
		reason("proxy", is.served(), "%s", is.message)
	}
	v.sayLinks(seat, is, reason)
	if v.onlyL2(a.origin) {
		return reasons
	}
	switch {
	case is.code != "":
		reason("bgp", is.code, "not announced: %s", is.message)
	case v.refusal != "":
		reason("bgp", v.refusal, "not announced: %s", v.RefusalMessage)
	case away != nil:
		reason("bgp", away.code, "not announced: %s shares the address, and for it %s", away.service, away.message)
	case len(p.routes) == 0 && len(p.unfit) > 0:
		reason("bgp", cluster.AttributesRefused, "not announced: %s", strings.Join(p.unfit, "; "))
	case len(p.routes) == 0:
		_, why := v.advertised(a.origin, s.Spec)
		reason("bgp", cluster.NotAdvertised, "not announced: %s", why)
	default:
		reason("bgp", cluster.Announced, "%s", p.says(v))
		for _, refused := range p.refused {
			reason("bgp", cluster.AggregateRefused, "%s", refused)
		}
		for _, clash := range p.clashes {
			reason("bgp", clash.code, "%s", clash.message)
		}
		for _, unfit := range p.unfit {
			reason("bgp", cluster.AttributesRefused, "left out: %s", unfit)
		}
	}
	return reasons
}

// maxClashes is how many ports of a Service are named that another one has.
const maxClashes = 16

// disjoint returns those of more whose port nobody holds yet, and a reason for
// each of the others.
func disjoint(taken, more []proxy.Frontend, addr netip.Addr, service cluster.Name) (free []proxy.Frontend, clashes []cluster.Reason) {
	if len(taken) == 0 {
		return more, nil
	}
	type port struct {
		proxy.Protocol
		number uint16
	}
	at := make(map[port]int, len(taken))
	for i, t := range taken {
		at[port{t.Protocol, t.Port}] = i
	}
	for _, f := range more {
		i, found := at[port{f.Protocol, f.Port}]
		if !found {
			free = append(free, f)
			continue
		}
		if len(clashes) == maxClashes {
			continue
		}
		clashes = append(clashes, cluster.Reason{VIP: addr, Service: service, Protocol: "proxy", Code: cluster.AddressConflict,
			Message: fmt.Sprintf("port %s/%d of %s is served for %s; give one of the two another port or address", f.Protocol, f.Port, addr, taken[i].Name)})
	}
	return free, clashes
}

// serve decides how a Service is served on addr.
func (v *View) serve(addr netip.Addr, s cluster.Service) ([]proxy.Frontend, verdict) {
	e := v.sort(s, addr)
	networks, open := permitted(s.Spec, addr)
	var fronts []proxy.Frontend
	for _, p := range s.Ports {
		f := v.frontend(s.Spec, p, e.of(p))
		f.Sources = networks
		if !open {
			f = closed(f)
		}
		fronts = append(fronts, f)
	}
	code, message := v.judge(s.Spec, addr, e)
	return fronts, verdict{service: s.Name, code: code, message: message}
}

// most is how many names a sentence lists before it says how many more there are.
const most = 4

// nodes lists the nodes of endpoints for a sentence.
func nodes(list []cluster.Endpoint) string {
	var names []string
	for _, e := range list {
		names = append(names, cmp.Or(e.Node, "an unnamed node"))
	}
	slices.Sort(names)
	return cluster.Enumerate(slices.Compact(names))
}

// addresses lists endpoints for a sentence.
func addresses(list []cluster.Endpoint) string {
	var names []string
	for _, e := range list {
		if len(names) > most {
			break
		}
		names = append(names, e.Addr.String())
	}
	if more := len(list) - most; more > 1 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

// frontend serves one port of a Service.
func (v *View) frontend(s *cluster.Spec, p cluster.Port, e portEndpoints) proxy.Frontend {
	all := backends(e.near)
	f := proxy.Frontend{
		Protocol: protocol(p.Protocol),
		Port:     p.Port,
		Name:     s.Name.String(),
		// Clients on this node reach every endpoint, whatever the policies: the
		// external one is named so, and kube-proxy applies the internal one to the
		// cluster IP alone.
		Internal:  proxy.Target{Backends: all, Remote: proxy.Preserve},
		External:  proxy.Target{Backends: all, Remote: proxy.Masquerade},
		Scheduler: scheduler(s.Scheduler),
		Affinity:  s.Affinity,
		Draining:  addrPorts(e.rest),
	}
	if p.Name != "" {
		f.Name += ":" + p.Name
	}
	if s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		f.External.Backends = backends(e.local)
		if len(f.External.Backends) == 0 && len(all) > 0 {
			// Silence makes the client try again, and by then the router sends
			// it to a node that can answer.
			f.External.Miss = proxy.Drop
		}
	}
	return f
}

// closed is f for nobody. Like those whom a list of sources excludes, clients hear
// nothing.
func closed(f proxy.Frontend) proxy.Frontend {
	nobody := proxy.Target{Miss: proxy.Drop}
	f.External, f.Internal, f.Draining, f.Sources = nobody, nobody, nil, []netip.Prefix{}
	return f
}

// permitted are the networks of addr's family that may use a Service, nil for all.
// open is false when there are none: a Service that names sources of the other
// family only is closed in this one. kube-proxy opens it there.
func permitted(s *cluster.Spec, addr netip.Addr) (networks []netip.Prefix, open bool) {
	if !s.Restricted {
		return nil, true
	}
	six := slices.IndexFunc(s.Sources, func(n netip.Prefix) bool { return !n.Addr().Is4() })
	if six < 0 {
		six = len(s.Sources)
	}
	if networks = s.Sources[:six:six]; addr.Is6() {
		networks = s.Sources[six:]
	}
	if slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Bits() == 0 }) {
		return nil, true
	}
	return networks, len(networks) > 0
}

// protocol translates; Parse lets through no others.
func protocol(p corev1.Protocol) proxy.Protocol {
	switch p {
	case corev1.ProtocolUDP:
		return proxy.UDP
	case corev1.ProtocolSCTP:
		return proxy.SCTP
	default:
		return proxy.TCP
	}
}

// scheduler translates; Parse lets through no others.
func scheduler(name string) proxy.Scheduler {
	switch name {
	case cluster.SchedulerRoundRobin:
		return proxy.RoundRobin
	case cluster.SchedulerSourceHash:
		return proxy.SourceHash
	case cluster.SchedulerMaglev:
		return proxy.Maglev
	default:
		return proxy.Random
	}
}

// Lingering is how an address that has left the network, or is about to, is
// forwarded for those who have not heard: as decided for the Services that
// hold or last held it, except that where nothing on this node could answer,
// endpoints elsewhere do, masqueraded. Never a pod that is gone: its address
// may be another tenant's by now.
func (d *Desired) Lingering(addr netip.Addr, owners []cluster.Name) *proxy.VIP {
	a := d.Address(addr)
	if a == nil {
		var services []cluster.Service
		for _, name := range owners {
			if i := find(d.Snapshot, name); i >= 0 {
				services = append(services, d.Snapshot.Services[i])
			}
		}
		byPrecedence(services)
		a = d.View.decide(addr, "", cluster.Origin{}, services, nil)
	}
	vip := &proxy.VIP{Addr: addr, Frontends: slices.Clone(a.VIP.Frontends)}
	for i := range vip.Frontends {
		f := &vip.Frontends[i]
		if len(f.External.Backends) == 0 {
			f.External = proxy.Target{Backends: f.Internal.Backends, Remote: proxy.Masquerade}
		}
	}
	if d.View.refuses(vip) != "" {
		return &proxy.VIP{Addr: addr}
	}
	return vip
}
