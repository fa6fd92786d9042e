package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
)

// What is measured beside the programs, to see where the time goes.

// trackOnly is a table that changes nothing and lets nothing be: with it the kernel
// follows connections, as it does on every node with network policies.
const trackOnly = `add table inet reference
add chain inet reference track { type filter hook prerouting priority 0; }
add rule inet reference track ct state invalid counter`

// oneRule is the least that leads a Service's packets to its pods in nftables: a
// single rule for one Service. No proxy that has the kernel translate addresses can
// be faster.
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

// A cut takes base chains out of Fanfare's table.
type chainSet struct {
	name   string
	chains []string
}

// cuts are what Fanfare could do without if the kernel let it: each names the chains
// that are left out of an otherwise complete table.
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
