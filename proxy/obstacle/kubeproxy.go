package obstacle

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// kubeProxyMark is how kube-proxy accepts its own flows. Its chains of nat set the mark, and the
// kernel does not ask them about a flow that Fanfare's rules have translated before. But Fanfare
// may set the same mark.
const (
	kubeProxyMark    = "-m mark --mark 0x4000/0x4000"
	kubeProxyMarkBit = 0x4000
)

// kubeProxy reports whether a table is kube-proxy's in its nftables mode.
func (t tableID) kubeProxy() bool {
	return t.name == "kube-proxy" && (t.family == unix.NFPROTO_IPV4 || t.family == unix.NFPROTO_IPV6)
}

// judgeKubeProxy finds kube-proxy's chains of nftables that may translate before Fanfare's rules.
// In iptables mode both have the same priority, and the kernel runs the newer one first.
func judgeKubeProxy(r *ruleset, families [2]bool) (all []Obstacle) {
	for _, c := range r.kubeProxy {
		if c.priority > r.nat || !(families[0] && c.sees(0) || families[1] && c.sees(1)) {
			continue
		}
		about := fmt.Sprintf("chain %s %s", c.table, c.name)
		all = append(all, Obstacle{Code: TranslatedBefore, About: about, Message: fmt.Sprintf(
			"%s has the priority that iptables has (%d), and whichever of kube-proxy's rules and Fanfare's came last translates first: start Fanfare with --proxy-mode=nftables, or kube-proxy in its iptables mode",
			about, c.priority)})
	}
	return all
}
