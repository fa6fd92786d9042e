package matrix

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/e2e/kube"
	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A feature is a row of the matrix: how Fanfare is set up. All cells of a row share a lab.
type feature struct {
	name, title string
	// service gets the load. There is a pod on each node.
	service lab.Service
	layer2  bool
	ipv6    bool // the load goes to the Service's IPv6 address
	udp     bool // the load is datagrams

	iptables, fastPath, bfd bool
	proxy                   kube.ProxyMode // kube-proxy runs beside the speakers; there is a control plane

	overlays   []string // files with additions to the topology
	unnumbered bool     // the router's links to the nodes have no addresses, by an overlay
	calico     bool     // Calico's BIRD and Felix run on the nodes

	router  string // configuration of the router beside the topology's
	peer    string // the BGPPeer instead of the cluster's, or fields to add to it
	weights string // the weights of the router's next hops; empty: not checked

	// announce changes what is announced, when the Service has its address.
	announce func(ctx context.Context, b *testbed) error
	// watch checks something during a cell; it returns what was wrong.
	watch func(ctx context.Context, c *cell) (stop func() []string, err error)
}

const local = corev1.ServiceExternalTrafficPolicyLocal

// onEachNode has a pod on each node.
var onEachNode = lab.At("p11", "p21", "p31")

// features are the rows.
var features = []feature{
	{name: "local", title: "externalTrafficPolicy Local over BGP",
		service: lab.Service{Policy: local, Endpoints: onEachNode}},
	{name: "cluster", title: "externalTrafficPolicy Cluster over BGP",
		service: lab.Service{Endpoints: onEachNode}},
	{name: "weights", title: "Local, nodes weighted by their pods",
		service: lab.Service{Policy: local, Endpoints: lab.At("p11", "p21", "p22", "p31")},
		peer:    "  weightByEndpoints: true\n", weights: "n1 25, n2 50, n3 25"},
	{name: "bfd", title: "Local, BFD (3 times 300 ms) and graceful restart", bfd: true,
		service: lab.Service{Policy: local, Endpoints: onEachNode},
		peer:    "  bfd: {transmitInterval: 300ms, receiveInterval: 300ms, detectMultiplier: 3}\n",
		router:  "router bgp 64496\n neighbor nodes bfd 3 300 300\n"},
	{name: "graceful-restart", title: "Cluster, graceful restart with a restart time of 10 s",
		service: lab.Service{Endpoints: onEachNode},
		peer: peer("peerAddress: 198.51.100.1", "peerASN: 64496", "holdTime: 3s",
			"gracefulRestart: {enabled: true, restartTime: 10s}")},
	{name: "no-graceful-restart", title: "Local, without graceful restart",
		service: lab.Service{Policy: local, Endpoints: onEachNode},
		peer: peer("peerAddress: 198.51.100.1", "peerASN: 64496", "holdTime: 3s",
			"gracefulRestart: {enabled: false}")},
	{name: "unnumbered", title: "Local, BGP over links without addresses",
		service:  lab.Service{Policy: local, Endpoints: onEachNode},
		overlays: []string{"unnumbered.yml"}, unnumbered: true, router: unnumberedRouter(),
		peer: peer("interface: link0", "peerASN: external", "holdTime: 3s")},
	{name: "aggregate", title: "Cluster, the address is part of an announced aggregate",
		service: lab.Service{Endpoints: onEachNode}, announce: announceAggregate},
	{name: "l2-ipv4", title: "Layer 2, IPv4 (ARP)", layer2: true,
		service: lab.Service{Endpoints: onEachNode}},
	{name: "l2-ipv6", title: "Layer 2, IPv6 (Neighbor Discovery)", layer2: true, ipv6: true,
		service: lab.Service{Families: []corev1.IPFamily{corev1.IPv6Protocol}, Endpoints: onEachNode}},
	{name: "affinity", title: "Cluster, sessionAffinity ClientIP",
		service: lab.Service{Endpoints: onEachNode, Affinity: corev1.ServiceAffinityClientIP}, watch: watchAffinity},
	{name: "source-ranges", title: "Cluster, loadBalancerSourceRanges",
		service: lab.Service{Endpoints: onEachNode, SourceRanges: []string{"203.0.113.0/26"}}, watch: watchStranger},
	{name: "udp", title: "Local, UDP", udp: true,
		service: lab.Service{Policy: local, Endpoints: onEachNode}},
	{name: "iptables", title: "Cluster, iptables mode",
		service: lab.Service{Endpoints: onEachNode}, iptables: true},
	{name: "fast-path", title: "Local, the fast path",
		service: lab.Service{Policy: local, Endpoints: onEachNode}, fastPath: true},
	{name: "overlay", title: "Cluster, pods of other nodes behind VXLAN, MTU 1450",
		service: lab.Service{Endpoints: onEachNode}, overlays: []string{"vxlan.yml"}},
	{name: "calico", title: "Cluster, beside Calico's BIRD and policies, pods outside of podCIDRs",
		service: lab.Service{Endpoints: onEachNode}, overlays: []string{"calico.yml"}, calico: true},
	{name: "beside-nftables", title: "Cluster, an API server, kube-proxy in nftables mode",
		service: lab.Service{Endpoints: onEachNode}, proxy: kube.NFTables},
	{name: "beside-iptables", title: "Local, an API server, kube-proxy in iptables mode",
		service: lab.Service{Policy: local, Endpoints: onEachNode}, proxy: kube.IPTables},
}

// lacks reports whether a disturbance needs a control plane that the lab of the feature does not have.
func (f feature) lacks(d disturbance) bool { return d.name == apiServerAway && f.proxy == "" }

// calicoPolicy are the networks from which pods accept packets in the row calico: clients, and
// the nodes, by whose addresses packets come from other nodes.
var calicoPolicy = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("198.51.100.0/24")}

// peer returns the lab's BGPPeer with these fields.
func peer(fields ...string) string {
	return "apiVersion: fanfare.io/v1alpha1\nkind: BGPPeer\nmetadata: {name: tor1}\nspec:\n  myASN: 64497\n" +
		"  keepaliveTime: 1s\n  connectTime: 1s\n  " + strings.Join(fields, "\n  ") + "\n"
}

func unnumberedRouter() string {
	var b strings.Builder
	// FRR 8.4 does not install the kernel's group of next hops again when a link was down.
	b.WriteString("no zebra nexthop kernel enable\n")
	for _, n := range lab.NodeNames {
		fmt.Fprintf(&b, "interface link%s\n no ipv6 nd suppress-ra\n ipv6 nd ra-interval 1\n ipv6 nd "+
			"ra-lifetime 0\nexit\n", n[1:])
	}
	b.WriteString("router bgp 64496\n no neighbor 198.51.100.11\n no neighbor 198.51.100.12\n no " +
		"neighbor 198.51.100.13\n")
	for _, n := range lab.NodeNames {
		link := "link" + n[1:]
		fmt.Fprintf(&b, " neighbor %[1]s interface remote-as external\n neighbor %[1]s timers 1 3\n neighbor "+
			"%[1]s timers connect 1\n", link)
	}
	b.WriteString(" address-family ipv6 unicast\n")
	for _, n := range lab.NodeNames {
		fmt.Fprintf(&b, "  neighbor link%s activate\n", n[1:])
	}
	return b.String()
}

// aggregate is the prefix that the nodes announce instead of addresses.
var aggregate = netip.MustParsePrefix("192.0.2.0/24")

// advertisement announces it.
const advertisement = "apiVersion: fanfare.io/v1alpha1\nkind: BGPAdvertisement\nmetadata: {name: lan}\nspec: {pools: " +
	"[lan], aggregationLength: 24}\n"

func announceAggregate(ctx context.Context, b *testbed) error {
	if err := b.Cluster.PutText("advertisement", advertisement); err != nil {
		return err
	}
	if err := b.Cluster.Announce(b.Objects, "Advertised"); err != nil {
		return err
	}
	if err := b.Router.AwaitVia(ctx, lab.Settle, aggregate, lab.NodeNames...); err != nil {
		return err
	}
	if err := b.Router.AwaitNextHops(ctx, lab.Settle, b.vip); err != nil {
		return err
	}
	b.prefix = aggregate
	b.Observer.Cover(b.vip)
	return nil
}

// shortLinger is --linger-l2 in the matrix: with the default, a minute, the observer would
// not see its end in a cell.
const shortLinger = 10 * time.Second

// speakerFlags returns the flags of a node's speaker.
func (b *testbed) speakerFlags(node string) []string {
	switch {
	case b.layer2:
		return []string{"--linger-l2", shortLinger.String()}
	case b.iptables:
		return []string{"--proxy-mode=iptables"}
	case b.fastPath: // in a folder for each node: all share this machine's BPF file system
		return []string{"--fast-path", "--fast-path-dir", filepath.Join(b.bpffs, node)}
	default:
		return nil
	}
}

// watchAffinity checks that the client's connections through a node lead to one pod, before
// and after. Meanwhile the disturbed node may count as dead, and its pods as not usable; then
// the client has another pod afterwards.
func watchAffinity(ctx context.Context, c *cell) (func() []string, error) {
	return func() (wrong []string) {
		flows, err := c.client.OpenFlows(ctx, 20, c.to(7))
		if err != nil {
			return []string{err.Error()}
		}
		defer flows.Close()
		now, errNow := c.podsByIngress(ctx, flows)
		then, errThen := c.podsByIngress(ctx, c.flows)
		if err := errors.Join(errNow, errThen); err != nil {
			return []string{err.Error()}
		}
		for node, pods := range now {
			before := then[node]
			if len(before) == 1 && lab.NodeOf(before[0]) != c.node &&
				!(node == c.node && slices.Contains(forgetful, c.disturbance.name)) {
				pods = append(pods, before...)
			}
			if slices.Sort(pods); len(slices.Compact(pods)) > 1 || len(before) > 1 {
				wrong = append(wrong, fmt.Sprintf("through %s the client got to %v before, and to %v now", node, before,
					now[node]))
			}
		}
		return wrong
	}, nil
}

// forgetful are the disturbances after which the node may remember no client: it has a new table,
// or misses the other nodes one after the other, so that some of their pods are left out for a
// moment.
var forgetful = []string{"table-flushed", "speaker-upgraded", "node-added", "node-drained", "gossip-away", "link-flap"}

// podsByIngress returns the pods that connections lead to, by the node that they were opened
// through.
func (c *cell) podsByIngress(ctx context.Context, flows *lab.Flows) (map[string][]string, error) {
	pods := map[string][]string{}
	for _, f := range flows.All {
		var path []string
		err := lab.Await(ctx, lab.Settle, "the path of a connection", func() error {
			if path = c.paths.Of(c.network(), f.From.Port(), 7); path == nil {
				return errors.New("no packet of it was seen")
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if !slices.Contains(pods[path[0]], f.Pod) {
			pods[path[0]] = append(pods[path[0]], f.Pod)
		}
	}
	return pods, nil
}

// stranger is an address of the client's machine outside of the source ranges.
var stranger = netip.MustParseAddr("203.0.113.200")

// watchStranger tries all the time from outside the source ranges.
func watchStranger(ctx context.Context, c *cell) (func() []string, error) {
	if _, err := c.client.Run(ctx, "ip", "addr", "replace", stranger.String()+"/24", "dev", "eth1"); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan []string)
	go func() {
		var answered []string
		tried := 0
		for tick := time.NewTicker(50 * time.Millisecond); ctx.Err() == nil; tried++ {
			func() {
				ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
				defer cancel()
				if a, err := c.client.Get(ctx, netip.AddrPortFrom(stranger, 0), c.to(80)); err == nil {
					answered = append(answered, fmt.Sprintf("%s answered %s, which is outside of the source ranges",
						a.Pod, a.From))
				}
			}()
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
		if tried < 3 {
			answered = append(answered, fmt.Sprintf("only %d attempts from outside of the source ranges", tried))
		}
		ended <- answered
	}()
	return func() []string { cancel(); return <-ended }, nil
}

// peerText returns the content of the file tor1 for a feature; empty: the cluster's.
func (f feature) peerText(objects string) (string, error) {
	if f.peer == "" || strings.HasPrefix(f.peer, "apiVersion") {
		return f.peer, nil
	}
	text, err := os.ReadFile(filepath.Join(objects, "tor1.yaml"))
	return string(text) + f.peer, err
}
