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

// How many backend ports are sampled at most, for each family. They are enough to tell a rule
// that drops everything from a policy for some backends, and few enough for milliseconds.
const (
	localSamples  = 32
	remoteSamples = 8
)

// A samplePort is a backend's port. Each is sampled once, however many VIPs have it.
type samplePort struct {
	proto   state.Protocol
	backend netip.AddrPort
}

// A sampler chooses flows of a State.
type sampler struct {
	seen  map[samplePort]bool
	count [2][2]int // by family, and whether remote
	all   []sample
}

// takeSamples chooses flows in the order of the State's VIPs, so that two looks at one State
// have the same samples.
func takeSamples(s state.State) []sample {
	t := sampler{seen: make(map[samplePort]bool)}
	for _, v := range s.VIPs {
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
	return t.all
}

// add keeps a sample unless its port has one, or its kind has enough.
func (t *sampler) add(s sample) {
	kind, most := 0, localSamples
	if s.remote {
		kind, most = 1, remoteSamples
	}
	if n := &t.count[s.family][kind]; *n < most && !t.seen[samplePort{s.proto, s.backend}] {
		*n++
		t.seen[samplePort{s.proto, s.backend}] = true
		t.all = append(t.all, s)
	}
}

// familiesOf reports which families have VIPs, or prefixes of possible ones.
func familiesOf(s *state.State) (has [2]bool) {
	for _, v := range s.VIPs {
		has[state.Family(v.Addr)] = true
	}
	for _, p := range s.Owned {
		has[state.Family(p.Addr())] = true
	}
	return has
}
