package proxy

import (
	"net/netip"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A soakWorld is a cluster whose Services and pods change at random. Its addresses
// are the lab's, and all of its pods answer, ready or not.
type soakWorld struct {
	proxytest.World
	ports   []*soakPort
	clients LocalClients
	snat    SNAT
	// alike: what the fast path does not take all ports have, or none, and mostly none. They
	// share pods, so that it would take nothing else.
	alike bool
}

// A soakPort is a port of a VIP, in both families and over TCP and UDP.
type soakPort struct {
	vip    string
	port   uint16
	steady bool // there is always an endpoint, for all clients
	gone   bool
	local  bool // externalTrafficPolicy

	pods     map[string]soakPod
	affinity time.Duration
	sources  []string
	schedule Scheduler
}

type soakPod uint8

const (
	podGone soakPod = iota
	podReady
	podDraining
)

// soakPods are where pods run, by the words of scenes.
var soakPods = []string{"pod1", "pod1:8081", "pod2", "pod2:8081", "pod3", "pod3:8081", "remote", "remote:8082"}

func newSoakWorld(seed uint64) *soakWorld {
	w := &soakWorld{World: proxytest.NewWorld(seed)}
	// Local clients stay local while a node runs; a client with affinity
	// would lose a packet by becoming one.
	w.clients = proxytest.Pick(w.World,
		LocalClients{},
		LocalClients{CIDRs: proxytest.Prefixes("10.244.1.0/24", "fd00:244:1::/64")},
		LocalClients{InterfacePrefix: "cali", Bridge: "cni0"})
	for _, p := range []soakPort{
		{vip: "vip", port: 80, steady: true},
		{vip: "vip", port: 443, steady: true, local: true},
		{vip: "vip", port: 81},
		{vip: "vip2", port: 80},
		{vip: "vip2", port: 443, local: true},
	} {
		p.pods = map[string]soakPod{"pod1": podReady, "remote": podReady}
		w.ports = append(w.ports, &p)
	}
	return w
}

// soakTargets are the addresses that requests go to: half of them to ports that are
// always served.
func soakTargets() []netip.AddrPort {
	var all []netip.AddrPort
	for family := range state.SetID(2) {
		for _, p := range []struct {
			vip  string
			port uint16
		}{{"vip", 80}, {"vip", 443}, {"vip", 80}, {"vip", 81}, {"vip2", 80}, {"vip2", 443}} {
			all = append(all, netip.AddrPortFrom(proxytest.At(p.vip, family), p.port))
		}
	}
	return all
}

// change changes something, or some things at once.
func (w *soakWorld) change() {
	for range 1 + w.IntN(3) {
		p := proxytest.Pick(w.World, w.ports...)
		switch what := w.IntN(11); what {
		case 0:
			p.gone = !p.gone && !p.steady
		case 1, 2, 3, 4:
			p.set(w, what)
			if w.alike && w.IntN(2) == 0 {
				p.local, p.schedule, p.affinity, p.sources = true, Random, 0, nil
			}
			for _, q := range w.ports {
				if w.alike {
					q.local, q.schedule, q.affinity, q.sources = p.local, p.schedule, p.affinity, p.sources
				}
			}
		case 5:
			w.snat = proxytest.Pick(w.World, SNAT{}, SNAT{Ports: PortRandom},
				SNAT{Mark: Mark{Value: 0x4000, Mask: 0x4000}})
		default:
			p.step(w, proxytest.Pick(w.World, soakPods...))
		}
		if p.steady {
			p.keepServed(w)
		}
	}
}

// set changes one of the settings.
func (p *soakPort) set(w *soakWorld, what int) {
	switch what {
	case 1:
		p.local = !p.local
	case 2:
		p.schedule = proxytest.Pick(w.World, Random, RoundRobin, SourceHash, Maglev)
	case 3:
		p.affinity = proxytest.Pick(w.World, 0, time.Second, time.Hour)
	default:
		p.sources = proxytest.Pick(w.World, nil, []string{"10.0.0.0/8", "fd00::/16"},
			[]string{"10.244.1.0/24", "fd00:244:1::/64"})
		if (p.steady || w.alike) && len(p.sources) > 0 {
			p.sources = []string{"10.0.0.0/8", "fd00::/16"} // all clients
		}
	}
}

// step lets a pod begin, drain or go.
func (p *soakPort) step(w *soakWorld, pod string) {
	switch p.pods[pod] {
	case podGone:
		p.pods[pod] = podReady
	case podReady:
		p.pods[pod] = podDraining
		if w.IntN(4) == 0 { // killed
			p.pods[pod] = podGone
		}
	default:
		p.pods[pod] = podGone
	}
}

// keepServed lets there be an endpoint on this node, which serves both policies.
func (p *soakPort) keepServed(w *soakWorld) {
	for _, pod := range soakPods {
		if p.pods[pod] == podReady && pod[:3] == "pod" {
			return
		}
	}
	p.pods[proxytest.Pick(w.World, soakPods[:6]...)] = podReady
}

func (w *soakWorld) state() State {
	s := State{Node: "n1", Owned: proxytest.Prefixes("192.0.2.0/24", "2001:db8::/64"), Clients: w.clients, SNAT: w.snat}
	for family := range state.SetID(2) {
		for _, name := range []string{"vip", "vip2"} {
			v := &VIP{Addr: proxytest.At(name, family)}
			for _, proto := range []Protocol{TCP, UDP} {
				for _, p := range w.ports {
					if p.vip == name && !p.gone {
						v.Frontends = append(v.Frontends, p.frontend(proto, family))
					}
				}
			}
			slices.SortFunc(v.Frontends, func(a, b Frontend) int { return state.CompareFrontends(&a, &b) })
			if len(v.Frontends) > 0 {
				s.VIPs = proxytest.WithVIPs(s.VIPs, v)
			}
		}
	}
	return s
}

func (p *soakPort) frontend(proto Protocol, family state.SetID) Frontend {
	f := Frontend{
		Protocol: proto, Port: p.port, Scheduler: p.schedule, Affinity: p.affinity,
		External: Target{Remote: Masquerade}, Internal: Target{Remote: Preserve},
	}
	if p.local {
		f.External = Target{Remote: Preserve, Miss: Drop}
	}
	for _, pod := range soakPods {
		b, err := proxytest.SceneBackend(family, pod)
		if err != nil {
			panic("BUG: " + err.Error()) // constants only
		}
		switch p.pods[pod] {
		case podReady:
			f.Internal.Backends = append(f.Internal.Backends, b)
			if !p.local || b.Node == "n1" {
				f.External.Backends = append(f.External.Backends, b)
			}
		case podDraining:
			f.Draining = append(f.Draining, b.Addr)
		case podGone:
		}
	}
	if p.sources != nil {
		f.Sources = proxytest.Prefixes(p.sources...)
	}
	return f
}
