package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// wallTable is the nftables table of what a lab takes away. No other program has one of
// the name, and Fanfare looks at no table but its own.
const wallTable = "lab-wall"

// Divide parts the nodes' segment: a node and the others no longer reach one another, and
// each still reaches all others there, such as the host. Unite ends that.
func (l *Lab) Divide(ctx context.Context, node string) error {
	port, others := "eth"+node[1:], []string{}
	for _, n := range NodeNames {
		if n != node {
			others = append(others, `"eth`+n[1:]+`"`)
		}
	}
	rest := "{" + strings.Join(others, ", ") + "}"
	return l.wall(ctx, "tor1", "bridge", fmt.Sprintf(`chain forward {
		type filter hook forward priority 0
		iifname %[1]q oifname %[2]s drop
		iifname %[2]s oifname %[1]q drop
	}`, port, rest))
}

// Unite ends what Divide began.
func (l *Lab) Unite(ctx context.Context) error { return l.unwall(ctx, "tor1", "bridge") }

// Block has a node neither send to nor receive from these TCP and UDP ports, whose they
// be, nor these addresses. Packets are lost silently. It takes the place of an
// earlier Block of the node; Unblock ends it.
func (l *Lab) Block(ctx context.Context, node string, ports []uint16, addrs ...netip.Addr) error {
	var in, out []string
	for _, p := range ports {
		in = append(in, fmt.Sprintf("meta l4proto { tcp, udp } th dport %d drop", p), fmt.Sprintf("meta l4proto { tcp, udp } th sport %d drop", p))
	}
	out = append(out, in...)
	for _, a := range addrs {
		family := "ip"
		if a.Is6() {
			family = "ip6"
		}
		in, out = append(in, fmt.Sprintf("%s saddr %s drop", family, a)), append(out, fmt.Sprintf("%s daddr %s drop", family, a))
	}
	chain := func(name string, rules []string) string {
		return fmt.Sprintf("chain %s {\n\t\ttype filter hook %[1]s priority 0\n\t\t%s\n\t}\n\t", name, strings.Join(rules, "\n\t\t"))
	}
	return l.wall(ctx, node, "inet", chain("input", in)+chain("output", out))
}

// Unblock ends what Block began.
func (l *Lab) Unblock(ctx context.Context, node string) error { return l.unwall(ctx, node, "inet") }

// wall puts up chains in the place of the existing ones, in one transaction.
func (l *Lab) wall(ctx context.Context, node, family, chains string) error {
	table := family + " " + wallTable
	_, err := l.namespaces[node].Run(ctx, "nft", fmt.Sprintf("table %[1]s {}\ndelete table %[1]s\ntable %[1]s {\n\t%[2]s\n}\n", table, chains))
	return err
}

// unwall takes them down, if there are any.
func (l *Lab) unwall(ctx context.Context, node, family string) error {
	table := family + " " + wallTable
	_, err := l.namespaces[node].Run(ctx, "nft", fmt.Sprintf("table %[1]s {}\ndelete table %[1]s\n", table))
	return err
}

// Mend ends every Divide, Block and Cut.
func (l *Lab) Mend(ctx context.Context) error {
	errs := []error{l.Unite(ctx)}
	for _, n := range NodeNames {
		errs = append(errs, l.Unblock(ctx, n), l.Join(ctx, n))
	}
	return errors.Join(errs...)
}
