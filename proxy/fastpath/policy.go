package fastpath

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The programs look up routes by addresses, ports, protocol, type of service and interface, with
// all routing rules. They cannot know two things that the stack respects: the mark that
// netfilter would have set, and IPsec. Where either may matter, all new flows of the family are
// left to the rules.

// policies are why new flows of each family are left to the rules; empty if they are not.
type policies struct{ v4, v6 string }

// of returns the policy for an address.
func (p policies) of(a netip.Addr) string {
	if a.Unmap().Is4() {
		return p.v4
	}
	return p.v6
}

// problems are sentences for Status.Problems.
func (p policies) problems() (all []string) {
	if p.v4 != "" {
		all = append(all, "IPv4: "+p.v4)
	}
	if p.v6 != "" {
		all = append(all, "IPv6: "+p.v6)
	}
	return all
}

// findPolicies reads the policies of the kernel.
func findPolicies() policies { return policies{findPolicy(unix.AF_INET), findPolicy(unix.AF_INET6)} }

func findPolicy(family int) string {
	rules, err := netlink.RuleList(family)
	if err != nil {
		return fmt.Sprintf("routing rules cannot be read: %v", err)
	}
	if why := judgeRules(rules); why != "" {
		return why
	}
	encrypted, err := netlink.XfrmPolicyList(family)
	if err != nil && !errors.Is(err, unix.EPROTONOSUPPORT) { // a kernel without IPsec
		return fmt.Sprintf("IPsec policies cannot be read: %v", err)
	}
	return judgeIPsec(encrypted)
}

// judgeRules returns why packets may take another route than the programs find.
func judgeRules(rules []netlink.Rule) string {
	for _, r := range rules {
		// A forwarded packet has no output interface yet, and lo stands for this node's own.
		if !r.Invert && (r.OifName != "" || r.IifName == "lo") {
			continue
		}
		switch {
		case r.Mask != nil && *r.Mask != 0:
			return fmt.Sprintf("the routing rule with priority %d selects by fwmark %#x/%#x, which netfilter sets",
				r.Priority, r.Mark, *r.Mask)
		case r.TunID != 0:
			return fmt.Sprintf("the routing rule with priority %d selects by tunnel", r.Priority)
		}
	}
	return ""
}

// judgeIPsec returns why packets may have to be encrypted or decrypted. Policies of an IPsec
// interface are for packets that routes lead there, which the programs do not take.
func judgeIPsec(all []netlink.XfrmPolicy) string {
	for _, x := range all {
		if x.Ifid == 0 && (x.Dir == netlink.XFRM_DIR_OUT || x.Dir == netlink.XFRM_DIR_FWD) {
			return fmt.Sprintf("an IPsec policy is for packets to %s", x.Dst)
		}
	}
	return ""
}

// checkPolicies applies changed policies.
func (d *Datapath) checkPolicies() {
	found := findPolicies()
	d.mu.Lock()
	defer d.mu.Unlock()
	if found == d.policies {
		return
	}
	d.policies = found
	d.log.Info("fast path: policies of this node changed", "reason", found.problems())
	d.redo(func(kernelFrontend) bool { return true })
	if !d.grown {
		return // Grow applies them
	}
	if err := d.apply(d.changedFrontends(&d.want)); err != nil {
		d.log.Warn("fast path: apply changed policies", "err", err)
	}
}
