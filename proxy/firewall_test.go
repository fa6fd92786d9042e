package proxy

import (
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Firewalls, as users and programs write them. What is reported for each is what
// packets meet: where a sentence is wanted, nothing gets through; where none is,
// everything does, but for what is only for some.
var firewalls = []struct {
	name  string
	rules string
	want  string // what the only obstacle is about; empty: there is none
	code  obstacle.Code
	// some: packets of the lab's client do not get through, and that is not reported: it is for
	// some clients, or not certain.
	some bool
}{
	{name: "a forward chain that drops",
		rules: `table inet filter { chain forward { type filter hook forward priority 0; policy drop; }; }`,
		want:  "chain inet filter forward", code: obstacle.Firewall},
	{name: "one that accepts what was translated",
		rules: `table inet filter { chain forward { type filter hook forward priority 0; policy drop; ct state established,related accept; ct status dnat accept; }; }`},
	{name: "one that accepts the pods' network",
		rules: `table inet filter { chain forward { type filter hook forward priority 0; policy drop;
			ct state vmap { established : accept, related : accept, invalid : drop }
			ip daddr { 10.0.0.0/16, 10.244.0.0/16 } accept
			ip6 daddr fd00:244::/32 accept; }; }`},
	{name: "one that accepts other networks",
		rules: `table inet filter { set lan { type ipv4_addr; flags interval; elements = { 10.0.0.0/16, 10.3.0.0-10.9.255.255 }; }
			chain forward { type filter hook forward priority 0; policy drop;
			ct state { established, related } accept
			ip daddr @lan accept
			oifname { "docker0", "virbr0" } accept
			ip6 daddr fe80::/10 accept
			tcp dport { 22, 443, 10000-20000 } accept
			counter reject with icmpx admin-prohibited; }; }`,
		want: "chain inet filter forward", code: obstacle.Firewall},
	{name: "one that knows new flows and forgets replies",
		rules: `table inet filter { chain forward { type filter hook forward priority 0; policy drop; iifname "eth0" accept; ct state new accept; }; }`,
		some:  true},
	{name: "one that accepts new flows by the interface they leave by",
		rules: `table inet filter { chain forward { type filter hook forward priority 0; policy drop; oifname "cali*" ct state new accept; }; }`,
		some:  true},
	{name: "one that accepts no new flows to pods",
		rules: `table inet filter { chain forward { type filter hook forward priority 0; policy drop; ct state vmap { established : accept, related : accept }; oifname . ct state { "eth0" . new } accept; }; }`,
		want:  "chain inet filter forward", code: obstacle.Firewall},
	{name: "one whose map accepts what it does not name",
		rules: `table inet filter { chain forward { type filter hook forward priority 0; policy drop; ct state vmap { invalid : drop, * : accept }; }; }`},
	{name: "a chain that another leads to",
		rules: `table inet filter {
			chain checks { tcp flags syn meta mark set 0x1; jump guard; }
			chain guard { meta l4proto { tcp, udp } ct direction original drop; }
			chain forward { type filter hook forward priority 5; policy accept; iifname "lo" accept; meta protocol { ip, ip6 } jump checks; }; }`,
		want: "chain inet filter guard", code: obstacle.Firewall},
	{name: "a policy for some clients",
		rules: `table inet filter { chain forward { type filter hook forward priority 0; policy drop; ct state established accept; ip saddr 203.0.113.0/24 accept; ip6 saddr 2001:db8:9::/48 accept; }; }`,
		some:  true},
	{name: "firewalld",
		rules: `table inet firewalld {
			chain filter_FORWARD { type filter hook forward priority 10; policy accept;
				ct state { established, related } accept
				ct status dnat accept
				iifname "lo" accept
				ct state invalid drop
				jump filter_FORWARD_POLICIES
				reject with icmpx admin-prohibited; }
			chain filter_FORWARD_POLICIES { }; }`},
	{name: "an input chain, which is not met",
		rules: `table inet filter { chain input { type filter hook input priority 0; policy drop; ct state established accept; icmpv6 type 135-136 accept; }; }`},
	{name: "a raw chain that turns tracking off",
		rules: `table inet raw { chain pre { type filter hook prerouting priority raw; tcp dport 80 notrack; udp dport 80 notrack; }; }`,
		want:  "chain inet raw pre", code: obstacle.Untracked},
	{name: "a raw chain that turns tracking off for others",
		rules: `table ip raw { chain pre { type filter hook prerouting priority raw; ip daddr != 192.0.2.0/24 udp dport 53 notrack; tcp dport 4789 notrack; }; }`},
	{name: "a chain that drops before translation",
		rules: `table inet early { chain pre { type filter hook prerouting priority -150; ct state new ip daddr 192.0.2.0/24 drop; ct state new ip6 daddr 2001:db8::/64 drop; }; }`,
		want:  "chain inet early pre", code: obstacle.Firewall},
	{name: "a chain that drops after translation",
		rules: `table inet late { chain post { type filter hook postrouting priority 0; meta nfproto { ipv4, ipv6 } ct state new drop; }; }`,
		want:  "chain inet late post", code: obstacle.Firewall},
	{name: "a policy that allows nothing, by the mark",
		rules: `table inet cni { chain pi { }; chain pri { meta mark set meta mark | 0x10000 return; };
			chain tw { ct state established accept; meta mark set meta mark & 0xfffcffff; jump pi; meta mark & 0x10000 == 0x10000 return
				meta mark & 0x20000 == 0 drop
				jump pri; meta mark & 0x10000 == 0x10000 return; drop; };
			chain forward { type filter hook forward priority 0; oifname "cali*" jump tw; }; }`,
		some: true},
	{name: "a pod that no policy knows",
		rules: `table inet cni { chain to-wl { oifname vmap { "cali9" : goto tw }; counter drop; }; chain tw { meta mark 0x10000 accept; };
			chain forward { type filter hook forward priority 0; meta mark set meta mark & 0xfffcffff; ct state established accept; oifname "cali*" jump to-wl; meta mark 0x10000 accept; }; }`,
		want: "chain inet cni to-wl", code: obstacle.Firewall},
	{name: "a profile that allows everything, by the mark",
		rules: `table inet cni { chain pri { meta mark set meta mark | 0x10000; meta mark & 0x10000 == 0x10000 return; };
			chain tw { meta mark set meta mark & 0xfffcffff; jump pri; meta mark & 0x10000 == 0x10000 return; drop; };
			chain forward { type filter hook forward priority 0; oifname "cali*" jump tw; }; }`},
	{name: "a policy for some clients, by the mark",
		rules: `table inet cni { chain pi { ip saddr 203.0.113.0/24 meta mark set meta mark | 0x10000; ip6 saddr 2001:db8:99::/64 meta mark set meta mark | 0x10000; meta mark & 0x10000 == 0x10000 return; };
			chain tw { meta mark set meta mark & 0xfffcffff; jump pi; meta mark & 0x10000 == 0x10000 return; drop; };
			chain forward { type filter hook forward priority 0; oifname "cali*" ct state new jump tw; }; }`,
		some: true},
	{name: "a chain that returns early with another mark",
		rules: `table inet cni { chain pi { meta mark set 0x1; th dport != 1 return; meta mark set 0x0; };
			chain forward { type filter hook forward priority 0; jump pi; meta mark 0x0 drop; }; }`},
	{name: "a chain that marks some clients",
		rules: `table inet cni { chain forward { type filter hook forward priority 0; meta mark set 0x0
			ip saddr 203.0.113.0/24 meta mark set 0x1; ip6 saddr 2001:db8:99::/64 meta mark set 0x1; meta mark 0x1 drop; }; }`},
	{name: "a program that translates first",
		rules: `table inet other { chain pre { type nat hook prerouting priority -150; tcp dport 80 dnat ip to 10.9.9.9; tcp dport 80 dnat ip6 to fd99::9; udp dport 80 dnat ip to 10.9.9.9; udp dport 80 dnat ip6 to fd99::9; }; }`,
		some:  true},
	{name: "a program that translates later",
		rules: `table inet other { chain pre { type nat hook prerouting priority -99; tcp dport 80 dnat ip to 10.9.9.9; udp dport 80 dnat ip to 10.9.9.9; }; }`},
}

func TestFirewalls(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l, p := newLab(t), newProxy(t)
		s := onlyPort(proxytest.PacketState(LocalClients{}), proxytest.PortLocal)
		mustSet(t, p, s)
		l.through(t, proxytest.PortLocal, "pod1 saw client")
		for _, tt := range firewalls {
			t.Run(tt.name, func(t *testing.T) {
				proxytest.NFT(t, tt.rules)
				checkObstacle(t, s, tt.code, tt.want)
				if tt.want != "" || tt.some {
					l.shut(t, proxytest.PortLocal)
				} else {
					l.through(t, proxytest.PortLocal, "pod1 saw client")
				}
				name, _, _ := strings.Cut(tt.rules, " {")
				proxytest.NFT(t, "delete "+name)
				checkObstacle(t, s, "", "")
			})
		}
		l.through(t, proxytest.PortLocal, "pod1 saw client")
	})
}

// shut checks that nothing gets an answer from a port of the VIP.
func (l *lab) shut(t *testing.T, port uint16, families ...state.SetID) {
	t.Helper()
	if len(families) == 0 {
		families = []state.SetID{0, 1}
	}
	var all sync.WaitGroup // most of it is waiting
	for _, family := range families {
		for _, network := range []string{"tcp", "udp"} {
			from := proxytest.FreshPort() // by one that served before, conntrack would let it pass
			all.Go(func() {
				to := netip.AddrPortFrom(proxytest.At("vip", family), port)
				if got := l.ProbeFrom(l.Client, network, from, to, "silence"); strings.Contains(got, "saw") {
					t.Errorf("client to %s %s: %s; nothing is to get there", network, to, got)
				}
			})
		}
	}
	all.Wait()
}

// onlyPort leaves one port of each VIP.
func onlyPort(s State, port uint16) State {
	var vips []*VIP
	for v := range s.VIPs.All() {
		only := &VIP{Addr: v.Addr}
		for _, f := range v.Frontends {
			if f.Port == port && f.Protocol != SCTP {
				only.Frontends = append(only.Frontends, f)
			}
		}
		vips = append(vips, only)
	}
	s.VIPs = proxytest.VIPsOf(vips...)
	return s
}

// ourPriority is the one at which our rules translate.
func ourPriority() int32 {
	if testMode == ModeIPTables {
		return obstacle.PriorityIPTables
	}
	return obstacle.PriorityNFTables
}

// obstaclesNow is what a look finds.
func obstaclesNow(t *testing.T, s State) []obstacle.Obstacle {
	t.Helper()
	look := obstacle.Collect(s, &obstacle.Counter{})
	all := look.Judge(ourPriority())
	if len(look.Unseen) > 0 {
		t.Errorf("not seen: %q", look.Unseen)
	}
	return all
}

// checkObstacle looks, and wants one obstacle or none.
func checkObstacle(t *testing.T, s State, code obstacle.Code, about string) {
	t.Helper()
	all := obstaclesNow(t, s)
	switch {
	case about == "" && len(all) > 0:
		t.Errorf("in the way: %v; want nothing", all)
	case about != "" && (len(all) != 1 || all[0].Code != code || all[0].About != about):
		t.Errorf("in the way: %v; want %s of %s", all, code, about)
	}
	for _, o := range all {
		if !strings.HasPrefix(o.Message, o.About) && !strings.Contains(o.Message, ": ") {
			t.Errorf("%q does not say what to do", o.Message)
		}
	}
}

// Where our rules are in iptables, kube-proxy's in nftables may come first, and that is
// said, of the families that have VIPs; where ours are in nftables, they may not.
func TestKubeProxyOfTheSamePriority(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l, p := newLab(t), newProxy(t)
		s := onlyPort(proxytest.PacketState(LocalClients{}), proxytest.PortLocal)
		s.VIPs, s.Owned = proxytest.VIPsOf(s.VIPs.At(0)), proxytest.Prefixes("192.0.2.0/24")
		mustSet(t, p, s)
		proxytest.NFT(t, `table ip kube-proxy { chain nat-prerouting { type nat hook prerouting priority dstnat; tcp dport 80 dnat to 10.9.9.9; }; }`)
		proxytest.NFT(t, `table ip6 kube-proxy { chain nat-prerouting { type nat hook prerouting priority dstnat; }; }`)
		proxytest.NFT(t, `table ip kube-proxy { chain filter-input { type filter hook input priority -110; }; }`)
		if testMode == ModeNFTables {
			l.probe4(t, "pod1 saw client")
			awaitObstacles(t, p, "")
			return
		}
		if got := l.Probe(l.Client, "tcp", netip.AddrPortFrom(proxytest.At("vip", 0), proxytest.PortLocal),
			"silence"); strings.Contains(got, "saw") {
			t.Errorf("%s: want what came last to be first", got)
		}
		awaitObstacles(t, p, "chain ip kube-proxy nat-prerouting")
		proxytest.NFT(t, "delete table ip kube-proxy")
		awaitObstacles(t, p, "")
		l.probe4(t, "pod1 saw client")
	})
}

// probe4 is a client's connection over IPv4.
func (l *lab) probe4(t *testing.T, want string) {
	t.Helper()
	if got := l.Probe(l.Client, "tcp", netip.AddrPortFrom(proxytest.At("vip", 0), proxytest.PortLocal),
		want); got != want {
		t.Errorf("client to the VIP: %s; want %s", got, want)
	}
}

// A process of the node that serves a VIP is reached past its input chains.
func TestFirewallOfProcesses(t *testing.T) {
	onEach(t, func(t *testing.T) {
		l, p := newLab(t), newProxy(t)
		s := onlyPort(proxytest.PacketState(LocalClients{}), proxytest.PortHost)
		mustSet(t, p, s)
		l.through(t, proxytest.PortHost, "node saw client")
		const rules = `table inet filter { chain input { type filter hook input priority 0; policy drop; icmpv6 type { 133, 134, 135, 136 } accept; ct state established accept; tcp dport 22 accept; %s }; }`
		proxytest.NFT(t, strings.Replace(rules, "%s", "", 1))
		l.shut(t, proxytest.PortHost)
		checkObstacle(t, s, obstacle.Firewall, "chain inet filter input")
		// replies come in nowhere
		proxytest.NFT(t, "table inet raw { chain pre { type filter hook prerouting priority raw; iif lo notrack; }; }")
		proxytest.NFT(t, "delete table inet filter\n"+strings.Replace(rules, "%s", "ct status dnat accept;", 1))
		l.through(t, proxytest.PortHost, "node saw client")
		checkObstacle(t, s, "", "")
	})
}

// iptables-nft is in the kernel what nft shows: a chain that FORWARD leads to can
// drop before ours is asked.
func TestFirewallOfIPTables(t *testing.T) {
	withIPTables(t, func(t *testing.T, _ string) {
		l, p := newLab(t), newProxy(t)
		s := onlyPort(proxytest.PacketState(LocalClients{}), proxytest.PortLocal)
		mustSet(t, p, s)
		v4 := State{Node: s.Node, VIPs: proxytest.VIPsOf(s.VIPs.At(0)), Owned: s.Owned[:1]}
		reach := func(want string) {
			t.Helper()
			to := netip.AddrPortFrom(proxytest.At("vip", 0), proxytest.PortLocal)
			if got := l.Probe(l.Client, "tcp", to, want); got != want {
				t.Errorf("client to tcp %s: %s; want %s", to, got, want)
			}
		}
		for _, tt := range []struct {
			do, undo, want string
			code           obstacle.Code
		}{
			{"iptables-nft -N DOCKER-USER", "", "", ""},
			{"iptables-nft -I FORWARD -j DOCKER-USER", "", "", ""},
			{"iptables-nft -A DOCKER-USER -m comment --comment everything -j DROP", "iptables-nft -F DOCKER-USER",
				"chain ip filter DOCKER-USER", obstacle.Firewall},
			{"iptables-nft -A DOCKER-USER -s 203.0.113.0/24 -j DROP", "iptables-nft -F DOCKER-USER", "", ""},
			// of two protocols one
			{"iptables-nft -A DOCKER-USER -d 10.244.0.0/16 -p tcp -j REJECT", "iptables-nft -F DOCKER-USER", "", ""},
			{"iptables-nft -A DOCKER-USER -d 10.244.0.0/16 -o cali+ -j DROP", "iptables-nft -F DOCKER-USER",
				"chain ip filter DOCKER-USER", obstacle.Firewall},
			{"iptables-nft -A DOCKER-USER -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "", "", ""},
			{"iptables-nft -A DOCKER-USER -m conntrack --ctstate INVALID -j DROP", "", "", ""},
			{"iptables-nft -A DOCKER-USER -m conntrack ! --ctstate DNAT,SNAT -j DROP", "", "", ""},
			{"iptables-nft -A DOCKER-USER -j MARK --set-xmark 0x0/0x30000", "", "", ""},
			{"iptables-nft -A DOCKER-USER -i eth0 -m conntrack ! --ctstate RELATED,ESTABLISHED -j DROP",
				"iptables-nft -F DOCKER-USER", "chain ip filter DOCKER-USER", obstacle.Firewall},
			{"iptables-nft -t raw -A PREROUTING -d 192.0.2.0/24 -j CT --notrack", "iptables-nft -t raw -F",
				"chain ip raw PREROUTING", obstacle.Untracked},
			{"iptables-nft -P FORWARD DROP", "", "", ""}, // ours to open
		} {
			iptablesRun(t, tt.do)
			p.Recheck()
			mustSet(t, p, v4)
			checkObstacle(t, v4, tt.code, tt.want)
			if tt.want != "" {
				l.shut(t, proxytest.PortLocal, 0)
			}
			if tt.undo != "" {
				iptablesRun(t, tt.undo)
			}
			p.Recheck()
			mustSet(t, p, v4)
			reach("pod1 saw client")
		}
	})
}

// Chains of the legacy tables are not judged, only whether FORWARD could be opened.
func TestFirewallsOfLegacy(t *testing.T) {
	withIPTables(t, func(t *testing.T, _ string) {
		legacyOrSkip(t)
		l, p := newLab(t), newProxy(t)
		s := onlyPort(proxytest.PacketState(LocalClients{}), proxytest.PortLocal)
		v4 := State{Node: s.Node, VIPs: proxytest.VIPsOf(s.VIPs.At(0)), Owned: s.Owned[:1]}
		iptablesRun(t, "iptables-legacy -P FORWARD DROP")
		mustSet(t, p, v4)
		l.probe4(t, "pod1 saw client")
		checkObstacle(t, v4, "", "")
		for _, rule := range []string{"-N DOCKER-USER", "-I FORWARD -j DOCKER-USER", "-A DOCKER-USER -j DROP"} {
			iptablesRun(t, "iptables-legacy "+rule)
		}
		p.Recheck()
		mustSet(t, p, v4)
		l.shut(t, proxytest.PortLocal, 0)
		checkObstacle(t, v4, "", "")
		iptablesRun(t, "iptables-legacy -F")
		l.shut(t, proxytest.PortLocal, 0)
		all := obstacle.Collect(v4, &obstacle.Counter{}).Judge(ourPriority(), "iptables-legacy")
		if len(all) != 1 || all[0].About != "chain FORWARD of iptables-legacy" ||
			!all[0].Blocks.Has(0, obstacle.ToPods) {
			t.Errorf("in the way: %v; want FORWARD", all)
		}
		iptablesRun(t, "iptables-legacy -I FORWARD -d 10.244.0.0/16 -j ACCEPT")
		if all := obstacle.Collect(v4, &obstacle.Counter{}).Judge(ourPriority(), "iptables-legacy"); len(all) > 0 {
			t.Errorf("another program's rule may accept, and in the way is %v", all)
		}
	})
}
