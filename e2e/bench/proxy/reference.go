package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
)

// Reference measurements, to see where the time goes.

// trackOnly is a table that only turns connection tracking on, as network policies do on
// every node.
const trackOnly = `add table inet reference
add chain inet reference track { type filter hook prerouting priority 0; }
add rule inet reference track ct state invalid counter`

// oneRule is the minimum in nftables that leads a Service's packets to its pods: one rule
// for one Service. No proxy that lets the kernel translate addresses can be faster.
func oneRule(to netip.Addr, pods []netip.Addr) string {
	slots := make([]string, len(pods))
	for i, p := range pods {
		slots[i] = fmt.Sprintf("%d : %s . %d", i, p, podPort)
	}
	return fmt.Sprintf(`add table ip reference
add chain ip reference nat { type nat hook prerouting priority -100; }
add rule ip reference nat ip daddr %s meta l4proto { tcp, udp } th dport %d dnat to numgen random mod %d map { %s }`,
		to, servicePort, len(pods), strings.Join(slots, ", "))
}

// A chainSet names base chains to delete from Fanfare's table.
type chainSet struct {
	name   string
	chains []string
}

// chainSets are chains that Fanfare needs because of the kernel: each lane measures the
// table without one of these sets.
var chainSets = []chainSet{
	{"without nat-postrouting", []string{"nat-postrouting"}},
	{"without filter-prerouting and filter-output", []string{"filter-prerouting", "filter-output"}},
	{"without any of these", []string{"nat-postrouting", "filter-prerouting", "filter-output"}},
}

func (n *node) chainSet(ctx context.Context, c chainSet) error {
	for _, name := range c.chains {
		if err := n.nft(ctx, "delete chain inet fanfare "+name); err != nil {
			return err
		}
	}
	return nil
}
