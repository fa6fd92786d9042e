package metallb

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/l2"
)

// A fixed Source has one snapshot.
type fixed struct{ snapshot *cluster.Snapshot }

func (f fixed) Snapshot() *cluster.Snapshot { return f.snapshot }

func (f fixed) Changed() <-chan struct{} { return nil }

// snapshot returns the cluster with the converted objects, and with the addresses that Services
// get, as a controller that starts now assigns them. All that Notes ask for is done in it: the Secrets exist,
// and all nodes have the label of Options.
func (conversion *Conversion) snapshot(c *Cluster, o Options) *cluster.Snapshot {
	b := cluster.NewBuilder()
	// As MetalLB with its --lb-class, which leaves Services without a class alone.
	if o.Class != "" {
		b.Limit(cluster.Scope{Classes: cluster.Classes{Only: true, Also: []string{o.Class}}})
	}
	for _, e := range conversion.objects() {
		b.Set(e.object, "")
	}
	set(b, c.Services)
	set(b, c.Namespaces)
	set(b, c.EndpointSlices)
	for _, n := range c.Nodes {
		n = n.DeepCopy()
		if o.NodeLabel != "" {
			metav1.SetMetaDataLabel(&n.ObjectMeta, o.NodeLabel, o.NodeValue)
		}
		b.Set(n, "")
	}
	for _, p := range conversion.Peers {
		if ref := p.Spec.PasswordSecretRef; ref != nil {
			b.Set(&corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: cluster.DefaultNamespace, Name: ref.Name},
				// Any password: without one there would be no session, and no route to compare.
				Type: corev1.SecretTypeBasicAuth, StringData: map[string]string{corev1.BasicAuthPasswordKey: "any"},
			}, "")
		}
	}
	return ipam.NewSource(fixed{b.Snapshot()}, nil).Snapshot()
}

func set[T runtime.Object](b *cluster.Builder, list []T) {
	for _, o := range list {
		b.Set(o, "")
	}
}

// planned returns what Fanfare's speakers announce, sorted, if one runs on every node and has an interface for each
// address. Routes have MetalLB's names of routers. problems are routers that have a session by another object, each
// with the first node: with MetalLB, two VRFs may have a router of the same address.
func (conversion *Conversion) planned(c *Cluster,
	snap *cluster.Snapshot) (all []Announcement, problems []cluster.Problem) {
	interfaces := conversion.interfaces()
	// No node is known to be dead: MetalLB's side does not know either.
	for _, n := range c.Nodes {
		d := plan.Decide(plan.Config{Node: n.Name, Interfaces: interfaces}, snap)
		for _, twin := range d.Inputs.Duplicates() {
			if p := twin.Problem(n.Name); !slices.ContainsFunc(problems,
				func(q cluster.Problem) bool { return p.Object == q.Object }) {
				problems = append(problems, p)
			}
		}
		for _, peer := range c.Peers {
			for r := range d.BGP.Routes.All() {
				if session, ok := conversion.receives(d.BGP, r, peer); ok {
					all = append(all, Announcement{
						Node: n.Name, Peer: peer.Name, Prefix: r.Prefix, With: r.Attributes.Of(session).String(),
					})
				}
			}
		}
		for _, a := range d.L2.Addresses {
			all = append(all, Announcement{
				Node: n.Name, Prefix: netip.PrefixFrom(a.Addr, a.Addr.BitLen()), With: interfacesText(a.Interfaces),
			})
		}
	}
	slices.SortFunc(all, compareAnnouncements)
	return all, problems
}

// anyOther stands for the interfaces of a node that no L2Advertisement names. No interface has a
// space in its name.
const anyOther = "any other"

// interfaces returns those of a node that has all that L2Advertisements name, and others, in every
// subnet.
func (conversion *Conversion) interfaces() (all []l2.Interface) {
	names := sets.New(anyOther)
	for _, a := range conversion.L2Advertisements {
		names.Insert(a.Spec.Interfaces...)
	}
	everywhere := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	for i, n := range sets.List(names) {
		all = append(all, l2.Interface{Name: n, Index: i + 1, Prefixes: everywhere, IPv6: true})
	}
	return all
}

// interfacesText returns the names, and nothing for all interfaces.
func interfacesText(names []string) string {
	if slices.Contains(names, anyOther) {
		return ""
	}
	return strings.Join(names, ", ")
}

// receives reports whether the router of one of MetalLB's peers receives a route, and by which session of the state. A
// router that MetalLB sends one address family to has not activated the other one.
func (conversion *Conversion) receives(s bgp.State, r bgp.Route, peer *BGPPeer) (session string, ok bool) {
	for _, name := range conversion.peers[peer.Name] {
		if r.Peers.Has(name) && slices.ContainsFunc(s.Sessions, func(s bgp.Session) bool { return s.Name == name }) {
			return name, peer.Spec.carries(r.Prefix.Addr())
		}
	}
	return "", false
}

// unheld lists the addresses that a Service has from MetalLB and would not have from Fanfare, with
// the reason. Such an address is not only unannounced: Fanfare's controller gives the Service
// another one, which its clients do not know.
func unheld(c *Cluster, snap *cluster.Snapshot, o Options) (all []string) {
	for _, b := range c.balancers(o) {
		name := cluster.Name{Namespace: b.service.Namespace, Name: b.service.Name}
		for _, a := range b.addrs {
			if slices.ContainsFunc(snap.AssignmentsOf(a),
				func(x cluster.Assignment) bool { return x.Service == name }) {
				continue
			}
			why := "it is in no AddressPool"
			for _, r := range snap.Refusals {
				if r.Service == name {
					why = r.Message
				}
			}
			all = append(all, fmt.Sprintf("Service %s does not keep %s: %s", name, a, why))
		}
	}
	return all
}
