package obstacle

import (
	"net/netip"

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

// partial are the families and Destinations of which there are more flows than samples: what
// holds for all samples may not hold for all flows.
type partial [2][destinations]bool

// How many backend ports are sampled at most, for each family. They are enough to tell a rule
// that drops everything from a policy for some backends, and few enough for milliseconds.
const (
	localSamples  = 32
	remoteSamples = 8
	// allSamples is the same for a look that is to prove that no flow passes. More are not
	// worth the time: a sample of a rule that drops takes some 20 µs.
	allSamples = 4096
)

// A samplePort is a backend's port. Each is sampled once, however many VIPs have it.
type samplePort struct {
	proto   state.Protocol
	backend netip.AddrPort
}

// A sampler chooses flows of a State.
type sampler struct {
	most  [2]int // of local and of remote backends
	seen  map[samplePort]bool
	count [2][2]int // by family, and whether remote
	all   []sample
	partial
}

// takeSamples chooses flows in the order of the State's VIPs, so that two looks at one State
// have the same samples, at most so many of local and of remote backends.
func takeSamples(s state.State, local, remote int) ([]sample, partial) {
	t := sampler{most: [2]int{local, remote}, seen: make(map[samplePort]bool)}
	for v := range s.VIPs.All() {
		for i := range v.Frontends {
			f := &v.Frontends[i]
			for _, backends := range [][]state.Backend{f.External.Backends, f.Internal.Backends} {
				for _, b := range backends {
					t.add(sample{
						family: state.Family(v.Addr), proto: f.Protocol, vip: netip.AddrPortFrom(v.Addr, f.Port),
						backend: b.Addr, remote: b.Node != s.Node,
					})
				}
			}
		}
	}
	return t.all, t.partial
}

// add keeps a sample unless its port has one, or its kind has enough. Whether a local backend is
// a process of this node is not known yet.
func (t *sampler) add(s sample) {
	kind, to := 0, []Destination{ToPods, ToThisNode}
	if s.remote {
		kind, to = 1, []Destination{ToOtherNodes}
	}
	port := samplePort{s.proto, s.backend}
	switch n := &t.count[s.family][kind]; {
	case t.seen[port]:
	case *n < t.most[kind]:
		*n++
		t.seen[port] = true
		t.all = append(t.all, s)
	default:
		for _, d := range to {
			t.partial[s.family][d] = true
		}
	}
}

// familiesOf reports which families have VIPs, or prefixes of possible ones.
func familiesOf(s *state.State) (has [2]bool) {
	for v := range s.VIPs.All() {
		has[state.Family(v.Addr)] = true
	}
	for _, p := range s.Owned {
		has[state.Family(p.Addr())] = true
	}
	return has
}
