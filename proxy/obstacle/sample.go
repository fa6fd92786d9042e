package obstacle

import (
	"net/netip"
	"slices"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A sample is a possible flow from an unknown client to a VIP and on to a backend, to test rules
// and routes with.
type sample struct {
	family  state.SetID
	proto   state.Protocol
	vip     netip.AddrPort
	backend netip.AddrPort
	remote  bool   // the backend is on another node
	in      string // the interface that the client's packets come in by; empty: unknown
	out     string // the interface to the backend; empty: no route
	own     bool   // the backend's address is the node's own
	onLink  bool   // the backend's network is on the link, not only the backend
}

// to returns where the sample's flow goes.
func (s sample) to() Destination {
	switch {
	case s.own:
		return ToThisNode
	case s.remote:
		return ToOtherNodes
	}
	return ToPods
}

// How many backend ports are sampled at most, for each family. They are enough to tell a rule
// that drops everything from a policy for some backends, and few enough for milliseconds.
const (
	localSamples  = 32
	remoteSamples = 8
	// allSamples is the same for a look that is to prove that no flow passes. More are not
	// worth the time: a sample of a rule that drops takes some 20 µs.
	allSamples = 4096
)

// takeSamples chooses flows in the order of the State's VIPs, so that two looks at one State
// have the same samples, at most so many of local and of remote backends. Each backend's port is
// sampled once, however many VIPs have it. partial are the flows of which there are more than
// samples: what holds for all samples may not hold for all of them. Whether a local backend is a
// process of this node is not known yet.
func takeSamples(s state.State, local, remote int) (all []sample, partial Flows) {
	seen, count := make(map[sample]bool), make(map[Flows]int)
	for v := range s.VIPs.All() {
		family := state.Family(v.Addr)
		for _, f := range v.Frontends {
			for _, b := range slices.Concat(f.External.Backends, f.Internal.Backends) {
				kind, most := FlowsTo(family, ToPods)|FlowsTo(family, ToThisNode), local
				if b.Node != s.Node {
					kind, most = FlowsTo(family, ToOtherNodes), remote
				}
				port := sample{proto: f.Protocol, backend: b.Addr}
				switch {
				case seen[port]:
				case count[kind] == most:
					partial |= kind
				default:
					seen[port] = true
					count[kind]++
					all = append(all, sample{
						family: family, proto: f.Protocol, vip: netip.AddrPortFrom(v.Addr, f.Port), backend: b.Addr,
						remote: b.Node != s.Node,
					})
				}
			}
		}
	}
	return all, partial
}

// arrivals returns each sample once for every interface by which clients may arrive. Without any
// such interface, a sample keeps an unknown one.
func (f *facts) arrivals() (all []sample) {
	for _, s := range f.samples {
		clients := f.clients(s.family)
		if len(clients) == 0 {
			clients = []string{""}
		}
		for _, s.in = range clients {
			all = append(all, s)
		}
	}
	return all
}

// familiesOf reports which families have VIPs, or prefixes of possible ones.
func familiesOf(s *state.State) (has [2]bool) {
	has = vipFamilies(s)
	for _, p := range s.Owned {
		has[state.Family(p.Addr())] = true
	}
	return has
}
