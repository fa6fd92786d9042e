package lab

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// Names and numbers of OVN-Kubernetes.
const (
	managementPort = "ovn-k8s-mp0"
	// serviceMark is on the host's own packets to Services with internalTrafficPolicy Local, and
	// serviceTable routes them.
	serviceMark  = "0x1745ec"
	serviceTable = "7"
)

// An ovnFamily has the addresses of one family in the emulation of OVN on n1.
type ovnFamily struct {
	like     netip.Addr
	port     string // of the management port
	router   string // of OVN's distributed router, by which the node reaches all pods
	services string // the CIDR of ClusterIPs
	cluster  string // a ClusterIP
	local    string // by which OVN takes packets of externalTrafficPolicy Local: HostETPLocalMasqueradeIP
}

var ovnFamilies = [2]ovnFamily{
	{ClientAddr, "10.244.1.2", "10.244.1.3", "172.30.0.0/16", "172.30.0.10", "169.254.169.3"},
	{ClientAddr6, "2001:db8:244:1::2", "2001:db8:244:1::3", "fd00:30::/112", "fd00:30::10", "fd69::3"},
}

// beOVN makes n1 a node of OVN-Kubernetes with routingViaHost. What is behind the management port,
// OVN's switches, routers and load balancers, is in p11's namespace: it has the router's address, and
// translates ClusterIPs to the pod.
func beOVN(t *testing.T, l *Lab) {
	t.Helper()
	for _, n := range NodeNames {
		run(t, l, n, "ip", "link", "set", "pod1", "name", managementPort)
	}
	for f, a := range ovnFamilies {
		ip := []string{"ip", []string{"-4", "-6"}[f]}
		do := func(node string, args ...string) { t.Helper(); run(t, l, node, append(ip, args...)...) }
		bits := fmt.Sprintf("/%d", a.like.BitLen())
		pod := netip.MustParseAddr([]string{"10.244.1.11", "2001:db8:244:1::11"}[f])
		do("n1", "addr", "add", a.port+bits, "dev", managementPort)
		do("p11", "addr", "add", a.router+bits, "dev", "eth1", "preferred_lft", "0") // the pod does not send from it
		do("p11", "route", "add", a.port+bits, "dev", "eth1")
		for _, to := range []string{pod.String() + bits, a.services, a.local + bits} {
			do("n1", "route", "replace", to, "via", a.router, "dev", managementPort, "onlink")
		}
		do("n1", "rule", "add", "fwmark", serviceMark, "lookup", serviceTable)
		do("n1", "route", "add", a.services, "via", a.router, "dev", managementPort, "onlink", "table", serviceTable)
	}
	loadNFT(t, l, "p11", `table inet loadbalancer {
	chain switch {
		type nat hook prerouting priority dstnat;
		ip daddr { 172.30.0.10, 169.254.169.3 } tcp dport { 80, 30080 } redirect to :8080
		ip daddr { 172.30.0.10, 169.254.169.3 } meta l4proto { tcp, udp } th dport { 7, 30007 } redirect to :7000
		ip6 daddr { fd00:30::10, fd69::3 } tcp dport { 80, 30080 } redirect to :8080
		ip6 daddr { fd00:30::10, fd69::3 } meta l4proto { tcp, udp } th dport { 7, 30007 } redirect to :7000
	}
}
`)
}

// An ovnService is what OVN-Kubernetes has for a LoadBalancer Service of the lab.
type ovnService struct {
	vips []netip.Addr
	// nodePorts: the Service has some. Without (allocateLoadBalancerNodePorts: false), OVN lets packets
	// to its pods keep their source on the way through the management port.
	nodePorts bool
	// before: its chains are those of versions before nftables, with OVN-KUBE-SNAT-MGMTPORT.
	before bool
}

// writeOVN writes the chains of OVN-Kubernetes on n1.
func writeOVN(t *testing.T, l *Lab, s ovnService) {
	t.Helper()
	for f := range ovnFamilies {
		s.chains(f).write(t, l, "n1")
	}
	if !s.before {
		loadNFT(t, l, "n1", s.table())
	}
}

func removeOVN(t *testing.T, l *Lab, s ovnService) {
	t.Helper()
	for f := range ovnFamilies {
		s.chains(f).remove(t, l, "n1")
	}
	if !s.before {
		run(t, l, "n1", "nft", "delete", "table", "inet", "ovn-kubernetes")
	}
}

// chains returns the chains of one family for a Service with externalTrafficPolicy Local, and the
// jumps to them. OVN inserts each rule before the others of its chain: in iptables mode, that is
// before Fanfare's.
func (s ovnService) chains(f int) neighbourChains {
	a := ovnFamilies[f]
	var rules []chainRule
	add := func(table, chain, rule string, values ...any) {
		rules = append(rules, chainRule{table, chain, fmt.Sprintf(rule, values...), true})
	}
	var own [][2]string
	for _, c := range []string{"NODEPORT", "EXTERNALIP", "ETP", "ITP", "SNAT-MGMTPORT", "EGRESS-SVC"} {
		own = append(own, [2]string{"nat", "OVN-KUBE-" + c})
	}
	own = append(own, [2]string{"mangle", "OVN-KUBE-ITP"})
	for _, p := range []struct {
		protocol       string
		port, nodePort int
	}{{"tcp", 80, 30080}, {"tcp", 7, 30007}, {"udp", 7, 30007}} {
		add("nat", "OVN-KUBE-NODEPORT", "-p %s -m addrtype --dst-type LOCAL --dport %d -j DNAT --to-destination %s",
			p.protocol, p.nodePort, joinHostPort(a.cluster, p.port))
		add("nat", "OVN-KUBE-ETP", "-p %s -m addrtype --dst-type LOCAL --dport %d -j DNAT --to-destination %s",
			p.protocol, p.nodePort, joinHostPort(a.local, p.nodePort))
		add("nat", "OVN-KUBE-EXTERNALIP", "-p %s -d %s --dport %d -j DNAT --to-destination %s", p.protocol, s.vips[f],
			p.port, joinHostPort(a.cluster, p.port))
		add("mangle", "OVN-KUBE-ITP", "-p %s -d %s --dport %d -j MARK --set-xmark %s", p.protocol, a.cluster, p.port,
			serviceMark)
		if s.before {
			add("nat", "OVN-KUBE-SNAT-MGMTPORT", "-p %s --dport %d -j RETURN", p.protocol, p.nodePort)
		}
	}
	if s.before {
		rules = append(rules, chainRule{"nat", "OVN-KUBE-SNAT-MGMTPORT",
			fmt.Sprintf(`-o %s -m comment --comment "OVN SNAT to Management Port" -j SNAT --to-source %s`,
				managementPort, a.port), false})
		add("nat", "POSTROUTING", "-o %s -j OVN-KUBE-SNAT-MGMTPORT", managementPort)
	}
	add("nat", "OVN-KUBE-EGRESS-SVC", "-m mark --mark 0x3f0 -j RETURN")
	for _, c := range []string{"NODEPORT", "EXTERNALIP", "ETP"} {
		add("nat", "PREROUTING", "-j OVN-KUBE-%s", c)
	}
	for _, c := range []string{"NODEPORT", "EXTERNALIP", "ITP"} {
		add("nat", "OUTPUT", "-j OVN-KUBE-%s", c)
	}
	add("mangle", "OUTPUT", "-j OVN-KUBE-ITP")
	add("nat", "POSTROUTING", "-j OVN-KUBE-EGRESS-SVC")
	return neighbourChains{iptablesPrograms[f], own, rules}
}

// joinHostPort is an address with a port, as iptables reads it.
func joinHostPort(a string, p int) string {
	return netip.AddrPortFrom(netip.MustParseAddr(a), uint16(p)).String()
}

// table returns the table of nftables, by which newer versions of OVN-Kubernetes replace sources.
func (s ovnService) table() string {
	exempt := [2]string{}
	if !s.nodePorts {
		exempt[0] = "elements = { 10.244.1.11 . tcp . 8080, 10.244.1.11 . tcp . 7000, 10.244.1.11 . udp . 7000 }"
		exempt[1] = strings.ReplaceAll(exempt[0], "10.244.1.11", "2001:db8:244:1::11")
	}
	return fmt.Sprintf(`table inet ovn-kubernetes
delete table inet ovn-kubernetes
table inet ovn-kubernetes {
	set mgmtport-no-snat-nodeports { type inet_proto . inet_service; elements = { tcp . 30080, tcp . 30007, udp . 30007 } }
	set mgmtport-no-snat-services-v4 { type ipv4_addr . inet_proto . inet_service; %s }
	set mgmtport-no-snat-services-v6 { type ipv6_addr . inet_proto . inet_service; %s }
	set mgmtport-no-snat-subnets-v4 { type ipv4_addr; flags interval; }
	set mgmtport-no-snat-subnets-v6 { type ipv6_addr; flags interval; }
	chain mgmtport-snat {
		type nat hook postrouting priority srcnat;
		oifname != "ovn-k8s-mp0" return
		meta l4proto . th dport @mgmtport-no-snat-nodeports return
		meta nfproto ipv4 ip saddr 10.244.1.2 return
		ip daddr . meta l4proto . th dport @mgmtport-no-snat-services-v4 return
		ip saddr @mgmtport-no-snat-subnets-v4 return
		snat ip to 10.244.1.2
		meta nfproto ipv6 ip6 saddr 2001:db8:244:1::2 return
		ip6 daddr . meta l4proto . th dport @mgmtport-no-snat-services-v6 return
		ip6 saddr @mgmtport-no-snat-subnets-v6 return
		snat ip6 to 2001:db8:244:1::2
	}
	chain ovn-kube-local-gw-masq {
		type nat hook postrouting priority 101;
		ip saddr 169.254.169.1 masquerade
		ip6 saddr fd69::1 masquerade
		jump ovn-kube-pod-subnet-masq
	}
	chain ovn-kube-pod-subnet-masq {
		ip saddr 10.244.1.0/24 masquerade
		ip6 saddr 2001:db8:244:1::/64 masquerade
	}
}
`, exempt[0], exempt[1])
}

// OVN-Kubernetes with routingViaHost has chains of its own for Fanfare's addresses, and inserts them
// before all others. Fanfare still translates first. The source that pods see is OVN's choice.
func TestNeighbourOVN(t *testing.T) {
	l := laboratoryOfOwn(t, "o", func(*Options) {})
	beOVN(t, l)
	for _, mode := range proxyModes(t) {
		for _, c := range []struct {
			name string
			ovnService
			keeps bool // the pod sees the client
		}{
			{"without node ports", ovnService{}, true},
			{"with node ports", ovnService{nodePorts: true}, false},
			{"before nftables", ovnService{nodePorts: true, before: true}, false},
		} {
			t.Run(mode.name+" "+c.name, func(t *testing.T) {
				startInMode(t, l, mode)
				c.vips = serveDualOn(t, l, Service{Name: "near", Policy: localTraffic, Endpoints: At("p11")}, "n1")
				writeOVN(t, l, c.ovnService)
				defer removeOVN(t, l, c.ovnService)
				awaitFirst(t, l, c.vips...)
				awaitStatus(t, l, "n1", "selects by fwmark "+serviceMark, mode.name == "fast path")
				awaitStatus(t, l, "n1", "whether it routes via the host cannot be seen", c.before)
				for f, vip := range c.vips {
					sees := clientAddr(vip)
					if !c.keeps {
						sees = netip.MustParseAddr(ovnFamilies[f].port)
					}
					expectSees(t, l, vip, "p11", sees)
				}
				if c.keeps {
					expectUndisturbed(t, l, c.vips, func() { writeOVN(t, l, c.ovnService) })
					expectPodOutsideCIDRs(t, l, c.vips[0], managementPort)
				}
			})
		}
	}
}
