package speaker

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/plan"
)

// podInterfaces are prefixes of the names of interfaces by which pods' packets arrive, for network
// plug-ins that allocate addresses themselves. Kubernetes' documentation of kube-proxy names most
// of them (--detect-local-mode=InterfaceNamePrefix). All packets of pods arrive by such an
// interface, regardless of the IPAM, so the prefixes are also right where podCIDRs would be.
var podInterfaces = []podInterface{
	{prefix: "cali"},                        // Calico
	{prefix: "lxc", witness: "cilium_host"}, // Cilium; LXC has a bridge lxcbr0
	{prefix: "eni"},                         // AWS VPC CNI
	{prefix: "azv"},                         // Azure CNI
	{prefix: "weave"},                       // Weave Net: a bridge for all pods
	{prefix: "ovn-k8s-mp"},                  // OVN-Kubernetes: one for all pods of a network
	// OpenShift SDN: one for all pods. VPNs have a tun0, too.
	{prefix: "tun0", witness: "vxlan_sys_4789"},
}

type podInterface struct {
	prefix  string
	witness string // an interface that must exist, because other programs use such names; empty: none
}

// A podNetworkWatch detects how this node's pods can be recognised as clients. Only the goroutine
// of Run calls find.
type podNetworkWatch struct {
	*netWatch[string] // the prefix of podInterfaces; empty: none
	finder            plan.PodCIDRMismatchFinder
}

// newPodNetworkWatch reads nothing yet: a user may have configured the pods' network. A detected plug-in
// stays: its last pod may be deleted before the next one starts.
func newPodNetworkWatch(log *slog.Logger) *podNetworkWatch {
	return &podNetworkWatch{netWatch: newNetWatch(func(was string) (string, bool) {
		if was != "" {
			return was, false
		}
		links, err := netlink.LinkList()
		if err != nil {
			log.Warn("interfaces not read", "err", err)
			return "", false
		}
		var names []string
		for _, l := range links {
			names = append(names, l.Attrs().Name)
		}
		prefix := podInterfacePrefix(names)
		if prefix != "" {
			log.Info("network of pods", "iface", prefix+"*",
				"reason", "a network plug-in that allocates addresses itself uses these interfaces")
		}
		return prefix, prefix != ""
	}, unix.RTNLGRP_LINK)}
}

// find returns what is known about the pods' network.
func (w *podNetworkWatch) find(c *plan.Config, snap *cluster.Snapshot) (n plan.PodNetwork) {
	if c.DetectPods {
		n.InterfacePrefix = w.current()
	}
	if n.InterfacePrefix != "" || !c.DetectPods && !c.NodeCIDR {
		return n
	}
	self := snap.Node(c.Node)
	n.Mismatch = w.finder.Find(self, snap.Services, func(m plan.PodCIDRMismatch) bool {
		if m.Node != c.Node {
			return isRemote(m.Addr, self.InternalIPs)
		}
		return isLocal(m.Addr, self.InternalIPs)
	})
	return n
}

// isLocal reports whether an address may belong to a pod of this node, by the interface of the
// route to it. An uplink leads to other hosts, although an EndpointSlice may name this node for
// them.
func isLocal(a netip.Addr, own []netip.Addr) bool {
	link, route, err := linkTo(a)
	// The interface of a default route is an uplink. To find that out, uplinksOf would read all
	// routes, for each endpoint on another host that names this node.
	if err != nil || isDefault(route) {
		return false
	}
	uplinks, err := uplinksOf(own)
	_, is := uplinks[link.Attrs().Index]
	return !is && err == nil
}

// tunnels are the types of interfaces that lead to other nodes without a gateway.
var tunnels = []string{"vxlan", "geneve", "wireguard", "ipip", "ip6tnl", "sit", "gre", "ip6gre", "tuntap", "xfrm"}

// isRemote reports whether the kernel reaches an address through another node: by a gateway, a
// tunnel or an uplink. An EndpointSlice may name another node for the address of a pod on this one.
func isRemote(a netip.Addr, own []netip.Addr) bool {
	link, route, err := linkTo(a)
	if err != nil {
		return false
	}
	if route.Gw != nil || route.Via != nil || len(route.MultiPath) > 0 || slices.Contains(tunnels, link.Type()) {
		return true
	}
	uplinks, err := uplinksOf(own)
	_, is := uplinks[link.Attrs().Index]
	return is && err == nil
}

// isDefault reports whether a route is a default route.
func isDefault(r netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}

// linkTo returns the route to an address, and its interface. A multipath route has no interface of
// its own; then it is the interface of the first path.
func linkTo(a netip.Addr) (netlink.Link, netlink.Route, error) {
	routes, err := netlink.RouteGetWithOptions(net.IP(a.AsSlice()), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil {
		return nil, netlink.Route{}, err
	}
	if len(routes) == 0 {
		return nil, netlink.Route{}, fmt.Errorf("%s: no route", a)
	}
	index := routes[0].LinkIndex
	if len(routes[0].MultiPath) > 0 {
		index = routes[0].MultiPath[0].LinkIndex
	}
	link, err := netlink.LinkByIndex(index)
	return link, routes[0], err
}

// podInterfacePrefix returns the prefix of pods' interface names, empty if names contains no
// interface of a known plug-in.
func podInterfacePrefix(names []string) string {
	for _, p := range podInterfaces {
		if slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, p.prefix) }) &&
			(p.witness == "" || slices.Contains(names, p.witness)) {
			return p.prefix
		}
	}
	return ""
}
