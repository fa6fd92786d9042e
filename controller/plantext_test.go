package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// The plan as text: a line for each write.

// String has the releases of addresses that other Services wait for first, as they are carried out.
func (t writePlan) String() string {
	var b strings.Builder
	for _, r := range t.gone {
		b.WriteString(r.String())
	}
	for _, n := range t.updates {
		b.WriteString(n.String())
	}
	for _, r := range t.leftover {
		b.WriteString(r.String())
	}
	return b.String()
}

// String has a line for each Service that loses the address, and one for the claim.
func (r release) String() string {
	var b strings.Builder
	kept := r.kept
	for _, h := range r.from {
		fmt.Fprintf(&b, "release %s: %s %s\n", r.old.Addr, h.Name, r.why)
		if r.keeps(h) {
			kept = keep(kept, h.Name)
		}
	}
	for _, refused := range r.refused {
		fmt.Fprintf(&b, "%s\n", refused.why)
	}
	switch keeps := len(r.old.Holders) > len(r.from); {
	case len(kept) != 0:
		fmt.Fprintf(&b, "keep claim %s for %s\n", r.old.Addr, strings.Trim(fmt.Sprint(kept), "[]"))
	case len(r.from) == 0 && len(r.old.Holders) != 0:
		fmt.Fprintf(&b, "keep claim %s for no Service: %s\n", r.old.Addr, r.why)
	case len(r.from) == 0:
		fmt.Fprintf(&b, "delete claim %s: %s\n", r.old.Addr, r.why)
	case !keeps && r.old.Reserved:
		fmt.Fprintf(&b, "keep claim %s: it is reserved\n", r.old.Addr)
	case !keeps:
		fmt.Fprintf(&b, "delete claim %s\n", r.old.Addr)
	}
	return b.String()
}

// String has the writes in their order: claims come before the status that they secure.
func (u serviceUpdate) String() string {
	var b strings.Builder
	for _, a := range slices.Concat(u.disputed, u.foreign) {
		fmt.Fprintf(&b, "unless claim %s names %s:\n", a, u.spec.Name)
	}
	for _, c := range u.secure {
		switch {
		case c.old == nil:
			fmt.Fprintf(&b, "create claim %s of pool %s for %s\n", c.addr, cmp.Or(c.from.Pool, "-"), u.spec.Name)
		default:
			fmt.Fprintf(&b, "bind claim %s to %s\n", c.addr, u.spec.Name)
		}
	}
	if u.writesAddrs() {
		fmt.Fprintf(&b, "status of %s: %s\n", u.spec.Name, cmp.Or(strings.Trim(fmt.Sprint(u.addrs), "[]"), "-"))
	}
	if u.condition != u.spec.Reported {
		fmt.Fprintf(&b, "condition of %s: %s\n", u.spec.Name, conditionText(u.condition))
	}
	return b.String()
}

// conditionText is a condition without its time.
func conditionText(t cluster.AddressCondition) string {
	return fmt.Sprintf("%t %s: %s", t.Assigned, t.Code, t.Message)
}
