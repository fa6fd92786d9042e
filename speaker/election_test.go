package speaker

import (
	"net/netip"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/l2"
)

// What keeps a node from answering, and the reason that it shows.
func TestElection(t *testing.T) {
	on := func(f *fleet, change func(*cluster.Node), names ...string) {
		next := *f.snap
		next.Nodes = nil
		for _, n := range f.snap.Nodes {
			one := *n
			for _, name := range names {
				if name == n.Name {
					change(&one)
				}
			}
			next.Nodes = append(next.Nodes, &one)
		}
		f.snap = &next
	}
	silent := func(n *cluster.Node) { n.ReadyUnknown = true }
	eth0 := []l2.Interface{{Name: "eth0", Prefixes: fleetSubnet}}
	members := func(alive ...string) *membership.Members {
		m := &membership.Members{}
		for _, name := range []string{"n1", "n2", "n3"} {
			one := membership.Member{Node: name, Interfaces: []cluster.Interface{{Name: "eth0", Prefixes: fleetSubnet}}}
			for _, a := range alive {
				one.Alive = one.Alive || a == name
			}
			m.Nodes = append(m.Nodes, one)
		}
		return m
	}
	for name, tt := range map[string]struct {
		config plan.Config // of n2
		change func(*fleet)
		code   cluster.Code
		why    string
	}{
		"another is preferred": {plan.Config{Interfaces: eth0}, nil, cluster.AnotherNode,
			"not announced: node n1 answers for it (named by its AddressClaim)"},
		"it is preferred": {plan.Config{Interfaces: eth0}, func(f *fleet) { f.prefer("n2") },
			cluster.ToAnnounce, "to be announced on eth0 (named by its AddressClaim)"},
		"it has no interface": {plan.Config{Interfaces: []l2.Interface{}},
			func(f *fleet) {
				f.prefer("n2")
			}, cluster.AnotherNode, "not announced: node n3 answers for it (by hash, of 2 candidates)"},
		"the preferred one is dead": {plan.Config{Interfaces: eth0, Members: members("n2")}, nil,
			cluster.ToAnnounce, "to be announced on eth0 (the only candidate)"},
		"the preferred one lives": {plan.Config{Interfaces: eth0, Members: members("n1", "n2")}, nil,
			cluster.AnotherNode, "not announced: node n1 answers for it (named by its AddressClaim)"},
		"a kubelet is silent": {plan.Config{Interfaces: eth0}, func(f *fleet) { on(f, silent, "n1") },
			cluster.AnotherNode, "not announced: node n3 answers for it (by hash, of 2 candidates)"},
		"most kubelets are silent": {plan.Config{Interfaces: eth0}, func(f *fleet) { on(f, silent, "n1", "n3") },
			cluster.AnotherNode, "not announced: node n1 answers for it (named by its AddressClaim)"},
		"a silent kubelet, and a speaker": {plan.Config{Interfaces: eth0, Members: members("n1", "n2")},
			func(f *fleet) {
				on(f, silent, "n1")
			}, cluster.AnotherNode, "not announced: node n1 answers for it (named by its AddressClaim)"},
		"the nodes have not been read": {plan.Config{Interfaces: eth0}, func(f *fleet) { f.snap.L2Ready = false },
			cluster.WaitingForNodes, "not announced: the other nodes are not known yet"},
		"no node can": {plan.Config{Interfaces: []l2.Interface{}, Members: members()}, nil, cluster.NoCandidate,
			"not announced: of 3 nodes none can answer: 2 have no live speaker, 1 has no interface in the " +
				"subnet of 192.0.2.200"},
		"no endpoint": {plan.Config{Interfaces: eth0}, func(f *fleet) {
			f.snap.Services = cluster.ServiceSet(cluster.Service{Spec: f.snap.Services.At(0).Spec})
		}, cluster.NoEndpoints, "not announced: the Service has no EndpointSlice"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 3)
			if tt.change != nil {
				tt.change(f)
			}
			tt.config.Node = "n2"
			d := plan.Decide(tt.config, f.snap)
			a := d.Address(netip.MustParseAddr("192.0.2.200"))
			var got []cluster.Reason
			for _, r := range d.ReasonsOf(a) {
				if r.Protocol != "proxy" {
					got = append(got, r)
				}
			}
			if len(got) != 1 || got[0].Protocol != "l2" || got[0].Code != tt.code || got[0].Message != tt.why {
				t.Errorf("got %v, want %s: %s", got, tt.code, tt.why)
			}
			if answers := d.Answered.Len() == 1; answers != (tt.code == cluster.ToAnnounce) ||
				len(d.L2.Addresses) != d.Answered.Len() {
				t.Errorf("answers for %v, %v", d.Answered.Slice(), d.L2)
			}
		})
	}
}
