package lab

import (
	"net/netip"
	"testing"
)

// beOpenShiftSDN gives the nodes OpenShift SDN's interface to all pods, tun0, and its chains.
func beOpenShiftSDN(t *testing.T, l *Lab) {
	t.Helper()
	for _, n := range NodeNames {
		run(t, l, n, "ip", "link", "add", "vxlan_sys_4789", "type", "vxlan", "external", "dstport", "4789")
		run(t, l, n, "ip", "link", "set", "pod1", "name", "tun0")
		writeOpenShiftSDN(t, l, n)
	}
}

// writeOpenShiftSDN writes the chains of OpenShift SDN, and those by which its kube-proxy masquerades:
// iptablesMasqueradeBit is 0 there. OpenShift SDN has no IPv6.
func writeOpenShiftSDN(t *testing.T, l *Lab, node string) {
	t.Helper()
	const pods, allow, forward, masquerade = "10.244.0.0/16", "OPENSHIFT-FIREWALL-ALLOW", "OPENSHIFT-FIREWALL-FORWARD",
		"OPENSHIFT-MASQUERADE"
	own := [][2]string{
		{"filter", allow}, {"filter", "OPENSHIFT-ADMIN-OUTPUT-RULES"}, {"filter", forward},
		{"filter", "OPENSHIFT-BLOCK-OUTPUT"},
		{"nat", masquerade}, {"nat", masquerade + "-2"}, {"nat", "KUBE-POSTROUTING"}, {"raw", "OPENSHIFT-NOTRACK"},
	}
	neighbourChains{iptablesPrograms[0], own, []chainRule{
		{"filter", allow, `-p udp --dport 4789 -m comment --comment "VXLAN incoming" -j ACCEPT`, false},
		{"filter", allow, `-i tun0 -m comment --comment "from SDN to localhost" -j ACCEPT`, false},
		{"filter", forward, "-s " + pods + ` -m comment --comment "attempted resend after connection close" -m conntrack --ctstate INVALID -j DROP`, false},
		{"filter", forward, "-d " + pods + ` -m comment --comment "forward traffic from SDN" -j ACCEPT`, false},
		{"filter", forward, "-s " + pods + ` -m comment --comment "forward traffic to SDN" -j ACCEPT`, false},
		{"filter", "OPENSHIFT-BLOCK-OUTPUT", "-p tcp -m tcp --dport 22623 --syn -j REJECT", false},
		{"raw", "OPENSHIFT-NOTRACK", "-p udp --dport 4789 -j NOTRACK", false},
		{"nat", masquerade, "-m mark --mark 0x1/0x1 -j RETURN", false},
		{"nat", masquerade, "-s " + pods + ` -m comment --comment "masquerade pod-to-external traffic" -j ` +
			masquerade + "-2", false},
		{"nat", masquerade + "-2", "-d " + pods +
			` -m comment --comment "masquerade pod-to-external traffic" -j RETURN`, false},
		{"nat", masquerade + "-2", "-j MASQUERADE", false},
		{"nat", "KUBE-POSTROUTING", "-m mark ! --mark 0x1/0x1 -j RETURN", false},
		{"nat", "KUBE-POSTROUTING", "-j MARK --xor-mark 0x1", false},
		{"nat", "KUBE-POSTROUTING", `-m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE`,
			false},

		{"filter", "FORWARD", `-m comment --comment "firewall overrides" -j OPENSHIFT-BLOCK-OUTPUT`, true},
		{"filter", "FORWARD", `-m comment --comment "firewall overrides" -j ` + forward, true},
		{"filter", "FORWARD", `-i tun0 ! -o tun0 -m comment --comment "administrator overrides" -j OPENSHIFT-ADMIN-OUTPUT-RULES`, true},
		{"filter", "INPUT", `-m comment --comment "firewall overrides" -j ` + allow, true},
		{"raw", "PREROUTING", `-m comment --comment "disable conntrack for vxlan" -j OPENSHIFT-NOTRACK`, true},
		{"nat", "POSTROUTING", `-m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING`, true},
		{"nat", "POSTROUTING", `-m comment --comment "rules for masquerading OpenShift traffic" -j ` + masquerade,
			true},
	}}.write(t, l, node)
}

// OpenShift SDN masquerades what pods send, and what its kube-proxy has marked with 0x1. Fanfare does
// its part with any mark, also with that one.
func TestNeighbourOpenShiftSDN(t *testing.T) {
	l := laboratoryOfOwn(t, "s", func(*Options) {})
	beOpenShiftSDN(t, l)
	listenAtClient(t, l)
	modes := proxyModes(t)
	for _, m := range modes[:2] {
		modes = append(modes, proxyMode{m.name + " with the mark 0x1",
			append(m.flags[:len(m.flags):len(m.flags)], "--masquerade-mark=0x1/0x1")})
	}
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			startInMode(t, l, mode)
			near := serve(t, l, Service{Name: "near", Policy: localTraffic, Endpoints: At("p11")}, "n1")
			expectSees(t, l, near, "p11", ClientAddr)
			expectUndisturbed(t, l, []netip.Addr{near}, func() { writeOpenShiftSDN(t, l, "n1") })
			expectPodOutsideCIDRs(t, l, near, "tun0")
			far := serve(t, l, Service{Name: "far", Endpoints: At("p21")}, NodeNames...)
			end := through(t, l, far, "n1")
			defer end()
			exchange(t, l, far, "n1", NodeAddr("n1", far))
			if seen, own, err := seenOutside(t, l); err != nil || seen.Addr() != NodeAddr("n1", ClientAddr) {
				t.Errorf("the client's host sees %s as %s, %v: want n1", own, seen, err)
			}
		})
	}
}
