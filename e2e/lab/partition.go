package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// dropTable is the nftables table with the lab's drop rules. No other program uses the
// name, and Fanfare reads no table but its own.
const dropTable = "lab-drop"

// Partition separates a node from the other nodes on their segment. All nodes still reach
// the other hosts there. Heal ends it.
func (l *Lab) Partition(ctx context.Context, node string) error {
	port, others := "eth"+node[1:], []string{}
	for _, n := range NodeNames {
		if n != node {
			others = append(others, `"eth`+n[1:]+`"`)
		}
	}
	rest := "{" + strings.Join(others, ", ") + "}"
	return l.addDropRules(ctx, "tor1", "bridge", fmt.Sprintf(`chain forward {
		type filter hook forward priority 0
		iifname %[1]q oifname %[2]s drop
		iifname %[2]s oifname %[1]q drop
	}`, port, rest))
}

// Heal ends a Partition.
func (l *Lab) Heal(ctx context.Context) error { return l.removeDropRules(ctx, "tor1", "bridge") }

// Block drops a node's packets from and to these TCP and UDP ports, and from and to these
// addresses, without an ICMP error. It replaces an earlier Block of the node. Unblock ends
// it.
func (l *Lab) Block(ctx context.Context, node string, ports []uint16, addrs ...netip.Addr) error {
	var in, out []string
	for _, p := range ports {
		in = append(in, fmt.Sprintf("meta l4proto { tcp, udp } th dport %d drop", p),
			fmt.Sprintf("meta l4proto { tcp, udp } th sport %d drop", p))
	}
	out = append(out, in...)
	for _, a := range addrs {
		family := "ip"
		if a.Is6() {
			family = "ip6"
		}
		in, out = append(in, fmt.Sprintf("%s saddr %s drop", family, a)),
			append(out, fmt.Sprintf("%s daddr %s drop", family, a))
	}
	chain := func(name string, rules []string) string {
		return fmt.Sprintf("chain %s {\n\t\ttype filter hook %[1]s priority 0\n\t\t%s\n\t}\n\t", name,
			strings.Join(rules, "\n\t\t"))
	}
	return l.addDropRules(ctx, node, "inet", chain("input", in)+chain("output", out))
}

// Unblock ends a Block.
func (l *Lab) Unblock(ctx context.Context, node string) error {
	return l.removeDropRules(ctx, node, "inet")
}

// addDropRules replaces the node's chains with drop rules in one transaction.
func (l *Lab) addDropRules(ctx context.Context, node, family, chains string) error {
	table := family + " " + dropTable
	_, err := l.namespaces[node].Run(ctx, "nft",
		fmt.Sprintf("table %[1]s {}\ndelete table %[1]s\ntable %[1]s {\n\t%[2]s\n}\n", table, chains))
	return err
}

// removeDropRules removes the chains with drop rules, if there are any.
func (l *Lab) removeDropRules(ctx context.Context, node, family string) error {
	table := family + " " + dropTable
	_, err := l.namespaces[node].Run(ctx, "nft", fmt.Sprintf("table %[1]s {}\ndelete table %[1]s\n", table))
	return err
}

// RepairNetwork ends every Partition, Block and Disconnect.
func (l *Lab) RepairNetwork(ctx context.Context) error {
	errs := []error{l.Heal(ctx)}
	for _, n := range NodeNames {
		errs = append(errs, l.Unblock(ctx, n), l.Reconnect(ctx, n))
	}
	return errors.Join(errs...)
}
