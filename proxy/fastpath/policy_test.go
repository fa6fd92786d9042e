package fastpath

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestJudgeRules(t *testing.T) {
	mask := func(n uint32) *uint32 { return &n }
	for name, tt := range map[string]struct {
		rule netlink.Rule
		want string
	}{
		"main": {netlink.Rule{Priority: 32766, Table: 254}, ""},
		"by addresses and interface": {netlink.Rule{Src: mustNet("10.0.0.0/8"), Dst: mustNet("10.244.0.0/16"),
			IifName: "eth0", Table: 77}, ""},
		"by ports": {netlink.Rule{IPProto: int(TCP), Dport: netlink.NewRulePortRange(80, 80)},
			""},
		"by mark": {netlink.Rule{Priority: 100, Mark: 1, Mask: mask(0xff)},
			"the routing rule with priority 100 selects by fwmark 0x1/0xff, which netfilter sets"},
		"by no mark": {netlink.Rule{Priority: 5, Mask: mask(0xff)},
			"the routing rule with priority 5 selects by fwmark 0x0/0xff, which netfilter sets"},
		"by a mask that selects nothing": {netlink.Rule{Mask: mask(0)}, ""},
		"by mark, of the node's own":     {netlink.Rule{IifName: "lo", Mark: 1, Mask: mask(1)}, ""},
		"by mark, of bound sockets":      {netlink.Rule{OifName: "eth1", Mark: 1, Mask: mask(1)}, ""},
		"all but those": {netlink.Rule{Invert: true, OifName: "eth1", Mark: 1, Mask: mask(1)},
			"the routing rule with priority 0 selects by fwmark 0x1/0x1, which netfilter sets"},
		"by tunnel": {netlink.Rule{Priority: 7, TunID: 3},
			"the routing rule with priority 7 selects by tunnel"},
	} {
		rules := []netlink.Rule{{Table: 255}, tt.rule}
		if got := judgeRules(rules); got != tt.want {
			t.Errorf("%s: %q; want %q", name, got, tt.want)
		}
	}
}

func TestJudgeIPsec(t *testing.T) {
	for name, tt := range map[string]struct {
		policy netlink.XfrmPolicy
		want   string
	}{
		"received":      {netlink.XfrmPolicy{Dir: netlink.XFRM_DIR_IN, Dst: mustNet("10.0.1.1/32")}, ""},
		"of one socket": {netlink.XfrmPolicy{Dir: netlink.XFRM_SOCKET_OUT, Dst: mustNet("0.0.0.0/0")}, ""},
		"sent": {netlink.XfrmPolicy{Dir: netlink.XFRM_DIR_OUT, Dst: mustNet("10.9.0.0/16")},
			"an IPsec policy is for packets to 10.9.0.0/16"},
		"forwarded": {netlink.XfrmPolicy{Dir: netlink.XFRM_DIR_FWD, Dst: mustNet("fd00::/8")},
			"an IPsec policy is for packets to fd00::/8"},
		"of an IPsec interface": {netlink.XfrmPolicy{Dir: netlink.XFRM_DIR_OUT, Ifid: 3, Dst: mustNet("10.9.0.0/16")},
			""},
	} {
		if got := judgeIPsec([]netlink.XfrmPolicy{tt.policy}); got != tt.want {
			t.Errorf("%s: %q; want %q", name, got, tt.want)
		}
	}
}

// Each of these makes the stack forward packets in a way that the programs cannot know. As long
// as it is there, new flows of its family are left to the rules, and open ones continue.
func TestPolicies(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		for _, family := range families {
			vip := port("vip", family, 80)
			l.rules(vip, port("pod2", family, 8081))
			for name, change := range l.policies(family) {
				what := []string{"IPv4, ", "IPv6, "}[family] + name
				c := l.mustDial("tcp", 0, vip)
				if got := ask(c, "?"); got != "pod1 saw client" {
					t.Fatalf("%s: before: %s", what, got)
				}
				if err := change.add(); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				l.await(what+": the policy to be found", func() bool { return len(p.Status().NotOffloaded) == 4 })
				s := p.Status()
				if !strings.Contains(s.NotOffloaded[0].Why, change.why) || len(s.Problems) != 1 ||
					!strings.HasPrefix(s.Problems[0], what[:4]) {
					t.Errorf("%s: status %+v", what, s)
				}
				for _, network := range []string{"tcp", "udp"} {
					if got := l.probe(network, vip); got != "pod2 saw client" {
						t.Errorf("%s: %s: %s", what, network, got)
					}
				}
				if got := ask(c, "?"); got != "pod1 saw client" {
					t.Errorf("%s: a connection of before: %s", what, got)
				}
				l.nft("reset counters table inet watch")
				if got := l.probe("tcp", port("vip2", 1-family, 80)); got != "pod1 saw client" ||
					l.counted("vip") != 0 {
					t.Errorf("%s: the other family: %s", what, got)
				}
				if err := change.remove(); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				l.await(what+": the policy to go",
					func() bool { s := p.Status(); return len(s.NotOffloaded) == 0 && len(s.Problems) == 0 })
				if got := l.probe("tcp", vip); got != "pod1 saw client" {
					t.Errorf("%s: after: %s", what, got)
				}
			}
			l.nft("delete table inet rules")
		}
	})
}

// A policy is a change of the node's policies, and a part of the reason.
type policy struct {
	add, remove func() error
	why         string
}

func (l *lab) policies(family int) map[string]policy {
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table, rule.Mark = []int{unix.AF_INET, unix.AF_INET6}[family], 100, 77, 5
	bits := at("client", family).BitLen()
	x := &netlink.XfrmPolicy{
		Dir: netlink.XFRM_DIR_OUT, Src: mustNet(netip.PrefixFrom(at("vip", family), bits).String()),
		Dst: mustNet(netip.PrefixFrom(at("pod4", family), bits).String()),
		Tmpls: []netlink.XfrmPolicyTmpl{{Proto: netlink.XFRM_PROTO_ESP, Mode: netlink.XFRM_MODE_TUNNEL,
			Src: at("node", family).AsSlice(), Dst: at("client", family).AsSlice()}},
	}
	all := map[string]policy{"fwmark": {
		func() error { return netlink.RuleAdd(rule) }, func() error { return netlink.RuleDel(rule) }, "fwmark 0x5",
	}}
	if _, err := netlink.XfrmPolicyList(rule.Family); err == nil {
		all["IPsec"] = policy{
			func() error {
				return netlink.XfrmPolicyAdd(x)
			}, func() error { return netlink.XfrmPolicyDel(x) }, "IPsec policy",
		}
	}
	return all
}

// The programs respect the other routing rules, by addresses, ports and the interface.
func TestRoutingRules(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		l.set(p, state("pod1"))
		for _, family := range families {
			pods := mustNet([]string{"10.244.0.0/16", "fd00:244::/32"}[family])
			if err := netlink.RouteAdd(&netlink.Route{Table: 77, Dst: pods, Type: unix.RTN_PROHIBIT}); err != nil {
				t.Fatal(err)
			}
			bits := at("client", family).BitLen()
			for _, change := range []func(*netlink.Rule){
				func(r *netlink.Rule) { r.Src = mustNet(netip.PrefixFrom(at("client2", family), bits).String()) },
				func(r *netlink.Rule) {
					r.IifName = "eth0"
					r.Src = mustNet(netip.PrefixFrom(at("client2", family), bits).String())
				},
				func(r *netlink.Rule) { r.IPProto, r.Sport = int(UDP), netlink.NewRulePortRange(2000, 2999) },
			} {
				r := netlink.NewRule()
				r.Family, r.Priority, r.Table = []int{unix.AF_INET, unix.AF_INET6}[family], 100, 77
				change(r)
				if err := netlink.RuleAdd(r); err != nil {
					t.Fatal(err)
				}
				for _, tt := range []struct {
					from string
					port uint16
					want int32
				}{{"client2", 2000, next}, {"client", 1000, redirect}} {
					verdict, _ := l.arrive(p, packet{from: port(tt.from, family, tt.port), to: port("vip", family, 80),
						protocol: UDP}.ip())
					if verdict != tt.want {
						t.Errorf("%+v: from %s: verdict %d; want %d", r, tt.from, verdict, tt.want)
					}
				}
				if err := netlink.RuleDel(r); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
