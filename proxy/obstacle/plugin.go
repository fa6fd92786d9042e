package obstacle

import (
	"os"
	"regexp"
	"slices"

	"golang.org/x/sys/unix"
)

// Interfaces that reveal a network plug-in.
const (
	CalicoInterface = "bpfin.cali"  // Calico's agent, Felix, has it in its eBPF mode only
	CiliumInterface = "cilium_host" // in any mode
	OVNInterface    = "ovn-k8s-mp0" // the management port of OVN-Kubernetes, to all pods
)

// pluginFacts are signs of a network plug-in that translates by BPF.
type pluginFacts struct {
	calico, cilium, ovn bool // the plug-in's interface exists
	// nodePort: Cilium's programs that translate external traffic are loaded, that is, Cilium
	// replaces kube-proxy. blind is why that is unknown.
	nodePort bool
	blind    string
}

// plugin records the network plug-in to which an interface belongs, if any. The kernel lists the
// names of BPF programs among its symbols; bpf(2) needs CAP_SYS_ADMIN in the initial user namespace.
func (s *collector) plugin(iface string) {
	p := &s.facts.plugin
	switch iface {
	case CalicoInterface:
		p.calico = true
	case CiliumInterface:
		p.cilium = true
		symbols, err := os.ReadFile("/proc/kallsyms")
		if p.nodePort, p.blind = nodePortAmong(symbols); err != nil {
			p.blind = err.Error()
		}
	case OVNInterface:
		p.ovn = true
	}
}

// nodePortAmong reports whether Cilium's programs for external traffic are among the kernel's
// symbols; blind is why that is unknown. Where Cilium runs there are always some programs. One
// without BTF is listed by the first 15 characters of its name, such as tail_nodeport_nat_ingress_ipv4.
func nodePortAmong(symbols []byte) (loaded bool, blind string) {
	if !bpfProgram.Match(symbols) {
		return false, "/proc/kallsyms names no BPF programs: net.core.bpf_jit_harden is not 0, or bpf_jit_kallsyms is 0"
	}
	return nodePortProgram.Match(symbols), ""
}

var (
	bpfProgram      = regexp.MustCompile(`bpf_prog_.*\[bpf\]`)
	nodePortProgram = regexp.MustCompile(`_tail_nodeport_.*\[bpf\]`)
)

// foreignDataPath is what every message about such a plug-in has in common: what is lost.
const foreignDataPath = "it translates the addresses of Services before netfilter sees a packet, so that Fanfare " +
	"announces them and does not forward them, and cannot promise that what is announced is forwarded"

// judgePlugin finds network plug-ins whose BPF programs translate the addresses of Services.
func judgePlugin(p pluginFacts) (all []Obstacle) {
	const what = foreignDataPath
	if p.calico {
		all = append(all, Obstacle{Code: ForeignDataPath, About: "Calico",
			Message: "Calico is in its eBPF mode (interface " + CalicoInterface + "): " + what +
				"; to have Fanfare forward, set linuxDataplane to Nftables or Iptables (bpfEnabled to false)"})
	}
	const cure = "; to have Fanfare forward, set kubeProxyReplacement to false and run kube-proxy"
	switch {
	case p.cilium && p.nodePort:
		all = append(all, Obstacle{
			Code: ForeignDataPath, About: "Cilium", Message: "Cilium replaces kube-proxy on this node: " + what + cure,
		})
	case p.cilium && p.blind != "":
		all = append(all, Obstacle{
			Code: ForeignDataPath, About: "Cilium",
			Message: "Cilium is on this node, and whether it replaces kube-proxy cannot be seen (" + p.blind +
				"): if it does, " + what + cure,
		})
	}
	return all
}

// ovnViaHost is a base chain of OVN-Kubernetes in its mode routingViaHost (local gateway mode). It
// masquerades what pods send, since that passes the host then.
var ovnViaHost = chainID{tableID{unix.NFPROTO_INET, "ovn-kubernetes"}, "ovn-kube-local-gw-masq"}

// judgeOVN finds OVN-Kubernetes that may take packets to LoadBalancer addresses: unless it routes via
// the host, Open vSwitch takes them from the wire to OVN's load balancers. Its flows cannot be read
// without access to Open vSwitch, and versions from before the chain ovnViaHost have a rule of
// iptables for it that others may have, too. So the message says what is the case if it does not.
func (p pluginFacts) judgeOVN(bases []hookedChain) []Obstacle {
	if !p.ovn || slices.ContainsFunc(bases, func(c hookedChain) bool { return c.chainID == ovnViaHost }) {
		return nil
	}
	return []Obstacle{{Code: ForeignDataPath, About: "OVN-Kubernetes",
		Message: "OVN-Kubernetes is on this node, and whether it routes via the host cannot be seen (it has no chain " +
			ovnViaHost.name + "): if it does not, " + foreignDataPath +
			"; to have Fanfare forward, set routingViaHost to true and ipForwarding to Global in its gatewayConfig"}}
}
