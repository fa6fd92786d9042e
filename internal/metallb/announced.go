package metallb

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/fanfare-lb/fanfare/bgp"
)

// An Announcement means that one node announces one prefix to one router, or answers for one
// address over Layer 2.
type Announcement struct {
	Node   string
	Peer   string // MetalLB's name of the router; empty: Layer 2
	Prefix netip.Prefix
	// With is the communities and the local preference, or the interfaces; empty: none, or all.
	With string
}

// String is a line of a diff, without the node.
func (a Announcement) String() string {
	text := a.Prefix.String() + " to " + a.Peer
	if a.Peer == "" {
		text = a.Prefix.Addr().String() + " over Layer 2"
	}
	if a.With != "" {
		text += " with " + a.With
	}
	return text
}

// key is equal for announcements that concern the same prefix and router, or the same address.
func (a Announcement) key() Announcement {
	a.With = ""
	if a.Peer == "" {
		a.Node = "" // one node answers, whichever it is
	}
	return a
}

func compareAnnouncements(a, b Announcement) int {
	return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Peer, b.Peer),
		a.Prefix.Addr().Compare(b.Prefix.Addr()),
		cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()), strings.Compare(a.With, b.With))
}

// A balancer is a Service that MetalLB's speakers announce: the addresses of its status are in one pool.
type balancer struct {
	service *corev1.Service
	addrs   []netip.Addr
	pool    *IPAddressPool
	// ready are the nodes with an endpoint that is ready, or still serves.
	ready map[string]bool
	any   bool // some endpoint is, on a known node or not
}

// Announced returns what MetalLB's speakers announce, sorted, if one runs on every node and without
// --ignore-exclude-lb. The rules are those of its FRR modes: ShouldAnnounce of its BGP and of its
// Layer 2 controller, with what frr.go and frrk8s.go make of each session.
func Announced(c *Cluster, o Options) []Announcement {
	var all []Announcement
	merged := map[Announcement]bgp.Attributes{}
	for _, b := range c.balancers(o) {
		// Without an endpoint, MetalLB withdraws the address everywhere, also with the policy Cluster.
		if !b.any {
			continue
		}
		for _, n := range c.Nodes {
			if usable(n) && (b.ready[n.Name] || !isLocal(b.service)) {
				c.addRoutes(merged, b, n)
			}
		}
		if nodes := c.candidates(b); len(nodes) > 0 {
			all = append(all, c.answers(b, nodes[0])...)
		}
	}
	for a, attributes := range merged {
		a.With = attributes.String()
		all = append(all, a)
	}
	slices.SortFunc(all, compareAnnouncements)
	return slices.Compact(all) // Services that share an address
}

// balancers returns the Services with addresses of a pool. The addresses are those of the status:
// MetalLB's speakers announce what its controller wrote there, not what a Service requests.
func (c *Cluster) balancers(o Options) (all []balancer) {
	for _, s := range c.Services {
		if s.Spec.Type != corev1.ServiceTypeLoadBalancer || classOf(s) != o.Class {
			continue
		}
		b := balancer{service: s, addrs: statusAddrs(s), ready: map[string]bool{}}
		if b.pool = c.poolOf(b.addrs); b.pool == nil {
			continue
		}
		for _, slice := range c.EndpointSlices {
			if slice.Namespace == s.Namespace && slice.Labels[discoveryv1.LabelServiceName] == s.Name {
				b.addReady(slice)
			}
		}
		all = append(all, b)
	}
	return all
}

// addReady adds the nodes of endpoints. MetalLB counts an endpoint that ends but still serves
// (EndpointCanServe), and one without the condition ready, as the API of EndpointSlices demands. The
// policy Cluster needs no nodeName: any ready endpoint will do.
func (b *balancer) addReady(slice *discoveryv1.EndpointSlice) {
	for _, e := range slice.Endpoints {
		ready := e.Conditions.Ready == nil || *e.Conditions.Ready ||
			e.Conditions.Serving != nil && *e.Conditions.Serving
		if !ready || len(e.Addresses) == 0 {
			continue
		}
		b.any = true
		if e.NodeName != nil {
			b.ready[*e.NodeName] = true
		}
	}
}

func classOf(s *corev1.Service) string {
	if s.Spec.LoadBalancerClass == nil {
		return ""
	}
	return *s.Spec.LoadBalancerClass
}

func isLocal(s *corev1.Service) bool {
	return s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// statusAddrs returns the addresses in a Service's status.
func statusAddrs(s *corev1.Service) (addrs []netip.Addr) {
	for _, i := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(i.IP); err == nil {
			addrs = append(addrs, a.Unmap())
		}
	}
	return addrs
}

// poolOf returns the pool that has all of the addresses, nil if there is none. With addresses of two
// pools, as after a change of a pool, MetalLB announces none of them (poolFor).
func (c *Cluster) poolOf(addrs []netip.Addr) *IPAddressPool {
	for _, p := range c.Pools {
		var b netipx.IPSetBuilder
		for _, entry := range p.Spec.Addresses {
			addEntry(&b, entry)
		}
		set, err := b.IPSet()
		if err == nil && len(addrs) > 0 && !slices.ContainsFunc(addrs,
			func(a netip.Addr) bool { return !set.Contains(a) }) {
			return p
		}
	}
	return nil
}

// addEntry adds a CIDR or a range. MetalLB refuses anything else.
func addEntry(b *netipx.IPSetBuilder, entry string) {
	entry = strings.Join(strings.Fields(entry), "")
	if r, err := netipx.ParseIPRange(entry); err == nil {
		b.AddRange(r)
	} else if p, err := netip.ParsePrefix(entry); err == nil {
		b.AddPrefix(p)
	}
}

// usable reports whether MetalLB's speaker on the node announces anything. It does not look at Ready,
// at taints or at cordons: over Layer 2, memberlist detects dead nodes, which no object shows.
func usable(n *corev1.Node) bool {
	_, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]
	return !excluded && !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue
	})
}

// selects reports whether an advertisement is about a Service on a node. Names and selectors of pools add up. Without
// either it is about all pools, so that an empty list of selectors must not match here, as it does elsewhere.
func (s *Selection) selects(b balancer, n *corev1.Node) bool {
	names, selectors := s.IPAddressPools, s.IPAddressPoolSelectors
	pool := len(names) == 0 && len(selectors) == 0 || slices.Contains(names, b.pool.Name) ||
		len(selectors) > 0 && matchesAny(selectors, b.pool.Labels)
	return pool && matchesAny(s.NodeSelectors, n.Labels) && matchesAny(s.ServiceSelectors, b.service.Labels)
}

// addRoutes adds the routes of a node. Advertisements with the same prefix add up: FRR gets one
// route with the communities of all.
func (c *Cluster) addRoutes(merged map[Announcement]bgp.Attributes, b balancer, n *corev1.Node) {
	for _, ad := range c.Advertisements {
		if !ad.Spec.selects(b, n) {
			continue
		}
		for _, p := range c.Peers {
			if len(ad.Spec.Peers) > 0 && !slices.Contains(ad.Spec.Peers, p.Name) ||
				!matchesAny(p.Spec.NodeSelectors, n.Labels) {
				continue
			}
			for _, addr := range b.addrs {
				if p.Spec.carries(addr) {
					key := Announcement{Node: n.Name, Peer: p.Name, Prefix: ad.Spec.prefix(addr)}
					merged[key] = c.with(merged[key], &ad.Spec)
				}
			}
		}
	}
}

// carries reports whether MetalLB sends routes of the address's family in this session: that of the
// session itself, unless both are asked for. An unnumbered session has both. disableMP does not
// matter for this (frr.go, frrk8s.go).
func (s *BGPPeerSpec) carries(addr netip.Addr) bool {
	router, err := netip.ParseAddr(s.PeerAddress)
	return s.Interface != "" || s.DualStackAddressFamily || err == nil && router.Unmap().Is4() == addr.Is4()
}

// prefix returns the prefix by which addr is announced.
func (s *BGPAdvertisementSpec) prefix(addr netip.Addr) netip.Prefix {
	length, given := 128, s.AggregationLengthV6
	if addr.Is4() {
		length, given = 32, s.AggregationLength
	}
	if given != nil {
		length = min(int(*given), length)
	}
	return netip.PrefixFrom(addr, length).Masked()
}

// answers returns how a node answers for the addresses of a Service over Layer 2.
func (c *Cluster) answers(b balancer, n *corev1.Node) (all []Announcement) {
	interfaces, everywhere := []string{}, false
	for _, ad := range c.L2Advertisements {
		if ad.Spec.selects(b, n) {
			interfaces, everywhere = append(interfaces, ad.Spec.Interfaces...),
				everywhere || len(ad.Spec.Interfaces) == 0
		}
	}
	with := ""
	if !everywhere {
		slices.Sort(interfaces)
		with = strings.Join(slices.Compact(interfaces), ", ")
	}
	for _, a := range b.addrs {
		all = append(all, Announcement{Node: n.Name, Prefix: netip.PrefixFrom(a, a.BitLen()), With: with})
	}
	return all
}

// candidates returns the nodes that may answer for a Service's addresses. The first one does: MetalLB elects
// one node for all addresses, by the hash of its name and the first address. With that, Services that
// share an address have one node, and the two families of a Service, too.
func (c *Cluster) candidates(b balancer) (nodes []*corev1.Node) {
	for _, n := range c.Nodes {
		ofService := slices.ContainsFunc(c.L2Advertisements,
			func(ad *L2Advertisement) bool { return ad.Spec.selects(b, n) })
		if usable(n) && ofService && (b.ready[n.Name] || !isLocal(b.service)) {
			nodes = append(nodes, n)
		}
	}
	slices.SortFunc(nodes, func(x, y *corev1.Node) int {
		hx, hy := sha256.Sum256([]byte(x.Name+"#"+b.addrs[0].String())),
			sha256.Sum256([]byte(y.Name+"#"+b.addrs[0].String()))
		return bytes.Compare(hx[:], hy[:])
	})
	return nodes
}

// with returns the attributes of a route to which an advertisement adds its own. MetalLB refuses
// advertisements of one route whose localPref differs.
func (c *Cluster) with(a bgp.Attributes, s *BGPAdvertisementSpec) bgp.Attributes {
	for _, name := range s.Communities {
		if n, ok := numbers(communityValue(c.Communities, name)); ok && len(n) == 2 {
			a.Communities = a.Communities.With(bgp.CommunitiesOf(bgp.Community(n[0]<<16 | n[1])))
		} else if ok {
			a.LargeCommunities = a.LargeCommunities.With(
				bgp.LargeCommunitiesOf(bgp.LargeCommunity{ASN: n[0], Local1: n[1], Local2: n[2]}))
		}
	}
	if s.LocalPref != 0 {
		a.LocalPref = bgp.MetricOf(s.LocalPref)
	}
	return a
}

// numbers returns the numbers of 64500:1 or large:64500:1:2. MetalLB refuses anything else.
func numbers(community string) (n []uint32, ok bool) {
	text, large := strings.CutPrefix(community, "large:")
	bits, parts := 16, strings.Split(text, ":")
	if large {
		bits = 32
	}
	for _, p := range parts {
		i, err := strconv.ParseUint(p, 10, bits)
		if err != nil {
			return nil, false
		}
		n = append(n, uint32(i))
	}
	return n, !large && len(n) == 2 || large && len(n) == 3
}
