package kube

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// The speaker does not announce an address that another host has, and reports the conflict
// in its status and by an Event on the Service. It announces a free address, also when the
// host claims that, too; with onConflict Yield it gives the address up.
func TestAddressInUseIsNotAnnounced(t *testing.T) {
	const mac = "02:00:00:00:00:99"
	isolated(t, func(t *testing.T) {
		node, printer := nstest.Node(t), nstest.New(t, "printer")
		nstest.Link(t, node, "eth0", printer, "eth0")
		printer.MAC("eth0", mac)
		node.Addr("eth0", "192.0.2.1/24")
		printer.Addr("eth0", "192.0.2.65/24")
		f := newFanfare(t)
		f.run("controller")
		f.speaker()
		pool, _, _ := strings.Cut(oneNode, "---\napiVersion: fanfare.io/v1alpha1\nkind: BGPPeer")
		objects := strings.NewReplacer("192.0.2.0/24", "192.0.2.64/26", "announce: BGP",
			"announce: Advertised").Replace(pool) + "---" + l2Advertisement("Defend")
		for name, vip := range map[string]string{"taken": "192.0.2.65", "free": "192.0.2.66"} {
			objects += "---" + strings.Replace(oneService(name, "10.244.1.5"), "name: "+name+"}",
				fmt.Sprintf("name: %s, annotations: {fanfare.io/load-balancer-ips: %s}}", name, vip), 1)
		}
		must(t, f.Admin().Apply(t.Context(), objects))
		hasReason := func(vip, want string) error {
			s, err := f.status()
			if err != nil {
				return err
			}
			for _, a := range s.Addresses {
				for _, r := range a.Reasons {
					if a.Address == vip && strings.HasPrefix(r.Code+": "+r.Message, want) {
						return nil
					}
				}
			}
			return fmt.Errorf("status %+v", s)
		}
		for vip, want := range map[string]string{
			"192.0.2.65": "AddressInUse: not announced: " + mac + " answers for it on eth0",
			"192.0.2.66": "Announced: announced on eth0 (the only candidate)",
		} {
			await(t, time.Minute, vip+" "+want, func() error { return hasReason(vip, want) })
		}
		f.awaitEvent("service/taken", "AddressInUse", "node n1 finds 192.0.2.65 in use: "+mac+" answers for it on eth0")
		f.awaitEvent("service/free", "Announced", "node n1 answers for 192.0.2.66 on eth0")

		// With this setting the kernel announces its addresses whenever the hardware address
		// changes.
		printer.Sysctl("ipv4.conf.eth0.arp_notify", "1")
		printer.Addr("eth0", "192.0.2.66/24")
		claims := 0
		claim := func() {
			claims++
			printer.MAC("eth0", fmt.Sprintf("02:00:00:00:01:%02x", claims%100))
		}
		for range 3 {
			claim()
		}
		f.awaitEvent("service/free", "AddressInUse", "node n1 finds 192.0.2.66 in use: 02:00:00:00:01:")
		if err := hasReason("192.0.2.66", "Announced: "); err != nil {
			t.Errorf("defended, and not announced: %v", err)
		}
		must(t, f.Admin().Apply(t.Context(), l2Advertisement("Yield")))
		await(t, time.Minute, "withdrawal of 192.0.2.66", func() error {
			claim()
			return hasReason("192.0.2.66", "AddressInUse: not announced: 02:00:00:00:01:")
		})
		f.awaitEvent("service/free", "Withdrawn", "node n1 stopped answering for 192.0.2.66: 02:00:00:00:01:")
	})
}

func l2Advertisement(onConflict string) string {
	return fmt.Sprintf("\n{apiVersion: fanfare.io/v1alpha1, kind: L2Advertisement, metadata: {name: lan}, "+
		"spec: {onConflict: %s}}\n", onConflict)
}
