package obstacle

import (
	"net/netip"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A sample is a flow as there could be one now, to try on rules and routes: from an
// unknown client, to a VIP, to a backend.
type sample struct {
	family  state.SetID
	proto   state.Protocol
	vip     netip.AddrPort
	backend netip.AddrPort
	remote  bool   // on another node
	in      string // the interface that the client's packets come in by; empty: unknown
	out     string // the interface to the backend; empty: no route
	own     bool   // the backend's address is the node's own
	onLink  bool   // the interface leads to a whole network of the backend's
}

// Samples are taken of so many backends' ports at most, of each family: a rule that
// swallows the traffic of so many is not about one of them.
const (
	localSamples  = 32
	remoteSamples = 8
)

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

// families says which families have VIPs.
func familiesOf(s *state.State) (has [2]bool) {
	for _, v := range s.VIPs {
		has[state.Family(v.Addr)] = true
	}
	for _, p := range s.Owned {
		has[state.Family(p.Addr())] = true
	}
	return has
}
