package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// Decide says what a node shall do about a snapshot. It is pure: the same
// arguments give the same answer on every node and at every time.
func Decide(c Config, snap *cluster.Snapshot) *Desired {
	return NewDecider(c).Decide(snap)
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
