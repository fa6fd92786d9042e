package l2

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/nstest"
)

// What is found in the way is said with what would be right; and that is right: the kernel
// under test agrees.
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
			for _, p := range n.Problems(t.Context(), []netip.Addr{ip("10.1.0.100"), ip("fd00::100"), ip("10.0.0.101"), ip("10.0.0.100")}) {
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
		const bare = "kube-ipvs0 invalid IP: kube-ipvs0 has no IPv4 address: it is answered on, but answers of pods go to its link by another interface, or nowhere; want an address of its subnet on it"
		expect(bare)

		// IPVS puts addresses on an interface of every node.
		host.Addr("kube-ipvs0", "10.0.0.100/32", "10.0.0.101/32", "fd00::100/128")
		const (
			answers = "eth0 10.0.0.100: 10.0.0.100 is an address of kube-ipvs0, and net.ipv4.conf.{all,eth0}.arp_ignore are 0: the kernel answers for it on eth0, whichever node should; want ipvs.strictARP: true in kube-proxy's configuration if that is IPVS's, else 1 for one of them"
			claims  = "eth0 10.0.0.100: 10.0.0.100 is an address of kube-ipvs0, and net.ipv4.conf.{all,eth0}.arp_announce are below 2: the kernel claims it in ARP requests of its own on eth0, whichever node has it; want ipvs.strictARP: true in kube-proxy's configuration if that is IPVS's, else 2 for one of them"
		)
		expect(answers, claims)
		n.set() // and the kernel does
		resolve(t, client, "10.0.0.101", macOn(t, host, "eth0"))
		host.Sysctl("ipv4.conf.all.arp_ignore", "1")
		expect(claims)
		ear := listen(t, client, "eth0")
		n.set(addresses("10.0.0.99")...)
		ear.ask("10.0.0.101", "10.0.0.2")
		ear.ask("10.0.0.99", "10.0.0.2")
		if p := ear.next(func(p packet) bool { return p.op == opReply && p.to == ear.mac }); p.sender != ip("10.0.0.99") {
			t.Errorf("%s is answered for although arp_ignore is 1", p.sender)
		}
		host.Sysctl("ipv4.conf.all.arp_announce", "2")
		expect()

		// An address is on the interface itself.
		host.Addr("eth0", "fd00::100/128", "10.0.0.101/32")
		expect("eth0 10.0.0.101: 10.0.0.101 is an address of eth0: the kernel answers for it, whichever node should; take it from the interface, or out of the pool")

		// Clients behind a router come by another interface than answers go.
		host.Sysctl("ipv4.conf.eth1.rp_filter", "1")
		if got, want := problems(), "eth1 10.1.0.100: rp_filter of eth1 is strict, and clients behind a router are reached by eth0: the kernel drops what they send to addresses on eth1; want net.ipv4.conf.{all,eth1}.rp_filter to be 2 or 0, or a route for answers back by eth1"; !strings.HasSuffix(got, want) {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		host.Sysctl("ipv4.conf.eth1.rp_filter", "2")
		if got := problems(); strings.Contains(got, "rp_filter") {
			t.Error(got)
		}
	})
}
