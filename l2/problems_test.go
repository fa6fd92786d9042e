package l2

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// Problems name the setting and the right value, and with this value the kernel behaves.
func TestProblems(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		hosts := lan(t, "node", "client")
		host, client := hosts[0], hosts[1]
		other := nstest.New(t, "elsewhere")
		nstest.Link(t, host, "eth1", other, "eth0")
		nstest.Link(t, host, "kube-ipvs0", other, "unused")
		host.Addr("eth1", "10.1.0.1/24")
		host.Route("0.0.0.0/0", "10.0.0.2", "")
		host.Sysctl("ipv4.conf.all.rp_filter", "0")
		host.Sysctl("ipv4.conf.eth1.rp_filter", "0")
		n := start(t, host)
		n.set(append(addresses("10.0.0.100"), Address{Addr: ip("192.0.2.1"), Interfaces: []string{"kube-ipvs0"}})...)
		problems := func() string {
			var text []string
			for _, p := range n.Problems(t.Context(),
				[]netip.Addr{ip("10.1.0.100"), ip("fd00::100"), ip("10.0.0.101"), ip("10.0.0.100")}) {
				text = append(text, p.Interface+" "+p.Addr.String()+": "+p.Message)
			}
			return strings.Join(text, "\n")
		}
		expect := func(want ...string) {
			t.Helper()
			if got := problems(); got != strings.Join(want, "\n") {
				t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
			}
		}
		const bare = "kube-ipvs0 invalid IP: kube-ipvs0 has no IPv4 address: Fanfare answers ARP on it, but replies " +
			"of pods to its link leave by another interface or have no route. Add an address of its subnet"
		expect(bare)

		// IPVS assigns addresses to an interface of every node.
		host.Addr("kube-ipvs0", "10.0.0.100/32", "10.0.0.101/32", "fd00::100/128")
		const (
			answers = "eth0 10.0.0.100: 10.0.0.100 is assigned to interface kube-ipvs0, and " +
				"net.ipv4.conf.{all,eth0}.arp_ignore are 0: the kernel answers for it on eth0, whichever node holds " +
				"it; set ipvs.strictARP: true in kube-proxy's configuration, or without IPVS set one of them to 1"
			claims = "eth0 10.0.0.100: 10.0.0.100 is assigned to interface kube-ipvs0, and " +
				"net.ipv4.conf.{all,eth0}.arp_announce are below 2: the kernel claims it in its own ARP requests on " +
				"eth0, whichever node holds it; set ipvs.strictARP: true in kube-proxy's configuration, or without " +
				"IPVS set one of them to 2"
		)
		expect(answers, claims)
		n.set() // now the kernel answers
		resolve(t, client, "10.0.0.101", macOn(t, host, "eth0"))
		host.Sysctl("ipv4.conf.all.arp_ignore", "1")
		expect(claims)
		listener := listen(t, client, "eth0")
		n.set(addresses("10.0.0.99")...)
		listener.ask("10.0.0.101", "10.0.0.2")
		listener.ask("10.0.0.99", "10.0.0.2")
		if p := listener.next(func(p packet) bool {
			return p.op == opReply && p.to == listener.mac
		}); p.sender != ip("10.0.0.99") {
			t.Errorf("%s is answered for although arp_ignore is 1", p.sender)
		}
		host.Sysctl("ipv4.conf.all.arp_announce", "2")
		expect()

		// An address is assigned to the interface itself.
		host.Addr("eth0", "fd00::100/128", "10.0.0.101/32")
		expect("eth0 10.0.0.101: 10.0.0.101 is assigned to interface eth0: the kernel answers for it, whichever node " +
			"holds it. Remove it from the interface or from the pool")

		// Replies to clients behind a router leave by another interface.
		host.Sysctl("ipv4.conf.eth1.rp_filter", "1")
		if got, want := problems(), "eth1 10.1.0.100: net.ipv4.conf.eth1.rp_filter is strict, and replies to clients "+
			"behind a router leave by eth0: the kernel drops packets from them to addresses on eth1. Set "+
			"net.ipv4.conf.{all,eth1}.rp_filter to 2 or 0, or add a route for replies by eth1"; !strings.HasSuffix(got,
			want) {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		host.Sysctl("ipv4.conf.eth1.rp_filter", "2")
		if got := problems(); strings.Contains(got, "rp_filter") {
			t.Error(got)
		}
	})
}
