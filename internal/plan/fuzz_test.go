package plan

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
	"github.com/fanfare-lb/fanfare/proxy"
)

// choices are made by the fuzzer. When they are used up, every choice is the first one.
type choices []byte

func (c *choices) next(n int) int {
	if len(*c) == 0 {
		return 0
	}
	b := (*c)[0]
	*c = (*c)[1:]
	return int(b) % n
}

// size is mostly small, and sometimes near a limit.
func (c *choices) size(most int) int {
	switch c.next(16) {
	case 15:
		return most - 1 + c.next(3)
	case 14:
		return c.next(256) * 256 % (most + 2)
	default:
		return c.next(5)
	}
}

func (c *choices) addr(f int, i int) netip.Addr {
	var b [16]byte
	if f == 0 {
		binary.BigEndian.PutUint32(b[:], 10<<24|uint32(i+1))
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	b[0] = 0xfd
	binary.BigEndian.PutUint32(b[12:], uint32(i+1))
	return netip.AddrFrom16(b)
}

// service is a Service of any size, as the parser may return it.
func (c *choices) service(i int) cluster.Service {
	spec := &cluster.Spec{
		Name: cluster.Name{Namespace: "fuzz", Name: fmt.Sprintf("s%d", i)}, Created: time.Unix(int64(c.next(3)), 0),
	}
	spec.Scheduler = []string{cluster.SchedulerRandom, cluster.SchedulerRoundRobin, cluster.SchedulerSourceHash,
		cluster.SchedulerMaglev}[c.next(4)]
	spec.Affinity = []time.Duration{0, time.Second, 3 * time.Hour}[c.next(3)]
	spec.ExternalTrafficPolicy = []corev1.ServiceExternalTrafficPolicy{corev1.ServiceExternalTrafficPolicyCluster,
		corev1.ServiceExternalTrafficPolicyLocal}[c.next(2)]
	if spec.Restricted = c.next(3) == 0; spec.Restricted {
		for n := range c.size(16384) {
			a := c.addr(0, 4*n)
			spec.Sources = append(spec.Sources, netip.PrefixFrom(a, 32))
		}
	}
	if c.next(4) == 0 {
		spec.Communities = &cluster.Communities{}
		for n := range c.size(900) {
			spec.Communities.Standard = append(spec.Communities.Standard, 64500<<16|bgp.Community(n))
		}
	}
	protocols := []corev1.Protocol{corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP}
	for n := range c.size(16384) {
		spec.Ports = append(spec.Ports, cluster.Port{
			Name: fmt.Sprintf("p%05d", n), Protocol: protocols[n%3], Port: uint16(1 + n/3),
		})
	}
	s := cluster.Service{Spec: spec, Endpoints: &cluster.Endpoints{}}
	// All ports of one protocol share endpoints, which are sorted by protocol and address.
	most := 65535
	if len(spec.Ports) > 10 {
		most = 8 // else the fuzzer is too slow
	}
	for i, p := range protocols {
		subset := cluster.Subset{}
		for n, port := range spec.Ports {
			if n%3 == i {
				subset.Ports = append(subset.Ports, cluster.Port{Name: port.Name, Protocol: p, Port: 8080})
			}
		}
		for f := range 2 {
			for n := range c.size(most) {
				how := c.next(8)
				e := cluster.Endpoint{
					Addr: c.addr(f, n), Node: plantest.Nodes[how%3], Ready: how != 7, Serving: true,
					Terminating: how == 7,
				}
				subset.List = append(subset.List, e)
			}
		}
		s.Endpoints.Subsets = append(s.Endpoints.Subsets, subset)
	}
	return s
}

// snapshot has some Services on a few addresses, which they may share.
func (c *choices) snapshot() *cluster.Snapshot {
	pool := &cluster.Pool{
		Name: "lan", Ranges: []netipx.IPRange{netipx.MustParseIPRange("192.0.2.0-192.0.2.7"),
			netipx.MustParseIPRange("2001:db8::-2001:db8::7")},
	}
	snap := &cluster.Snapshot{
		Nodes: []*cluster.Node{{Name: "n1", InternalIPs: []netip.Addr{netip.MustParseAddr("10.255.0.1")}}},
		Pools: []*cluster.Pool{pool},
		Peers: []*cluster.Peer{{Session: bgp.Session{Name: "tor1", PeerASN: 65000,
			PeerAddress: netip.MustParseAddr("10.255.0.9")}, MyASN: 65001}},
	}
	if c.next(3) == 0 {
		snap.Advertisements = []*cluster.Advertisement{{Name: "a", Length4: 24 + c.next(9), Length6: 120 + c.next(9)}}
	}
	for i := range 1 + c.next(3) {
		s := c.service(i)
		snap.Services = snap.Services.With(s)
		for _, r := range pool.Ranges {
			a := r.From()
			for range c.next(3) {
				a = a.Next()
			}
			snap.Assignments = snap.Assignments.With(cluster.Assignment{Addr: a, Service: s.Name, Pool: "lan"})
		}
	}
	return snap
}

// For any Services the proxy accepts the whole State, in both modes: an address that is too
// large is refused with a Reason, and all others are forwarded. All routes fit into BGP
// messages.
func FuzzState(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16})
	f.Add([]byte{0, 0, 3, 0, 1, 0, 1, 1, 2, 14, 40, 2, 3, 1, 2, 0})
	f.Add([]byte{1, 0, 1, 0, 0, 0, 1, 1, 1, 0, 15, 2, 1, 1, 3, 0})
	f.Add([]byte("maglev, and ports and endpoints of all families"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := choices(data)
		snap := c.snapshot()
		for _, mode := range []proxy.Mode{proxy.ModeNFTables, proxy.ModeIPTables} {
			d := Decide(Config{Node: "n1", Limits: proxy.DefaultLimits(mode)}, snap)
			if err := d.Proxy.Validate(); err != nil {
				t.Fatalf("%s: the State is not accepted: %.2000s", mode, err)
			}
			if problems := d.BGP.Validate(); problems != nil {
				t.Fatalf("%s: BGP: %.2000s", mode, problems)
			}
			for a := range d.Addresses.All() {
				refused := slices.ContainsFunc(d.ReasonsOf(a),
					func(r cluster.Reason) bool { return r.Code == cluster.ProxyRefused })
				if a.Refusal != "" && (!refused || a.Announce || len(a.VIP.Frontends) > 0) {
					t.Fatalf("%s: %s: refusal %q, announced %t, %d ports", mode, a.Addr, a.Refusal, a.Announce,
						len(a.VIP.Frontends))
				}
				if err := proxy.DefaultLimits(mode).Check(a.VIP); err != nil {
					t.Fatalf("%s: %s: %v", mode, a.Addr, err)
				}
			}
		}
	})
}
