package lab

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"text/template"

	"github.com/vishvananda/netlink"
)

// A Felix writes to a node what Calico's agent of that name writes: chains that apply policies to
// the packets of pods (workload endpoints) and of the node's uplink (the host endpoint). The rules
// are in the order and with the marks of Felix, from mask 0xffff0000: 0x10000 accept, 0x20000 pass,
// 0x40000 and 0x80000 scratch. For IPv4 only.
type Felix struct {
	Program   string     // NFTables, or the iptables that it writes with
	Workloads []Workload // others that are on an interface cali… get no packets
	// PreDNAT and Forward are the policies of the host endpoint with preDNAT, which see the
	// address of a Service, and with applyOnForward only, which see that of a pod; nil: none.
	PreDNAT, Forward []HostRule

	node    *Namespace
	path    string // of the last input
	written string // the last input; empty: none
}

// The programs that Felix uses, by its data plane and by what it detects.
const (
	FelixNFTables       = "nft"
	FelixIPTables       = "iptables-nft"
	FelixIPTablesLegacy = "iptables-legacy"
)

// FelixPrograms are all of them.
var FelixPrograms = []string{FelixNFTables, FelixIPTables, FelixIPTablesLegacy}

// A Workload is a pod by its interface.
type Workload struct {
	Iface  string
	Policy *Policy // for ingress; nil: the profile of the namespace allows everything
}

// A Policy allows packets from some networks. It denies others.
type Policy struct {
	Name string
	From []netip.Prefix
}

// A HostRule allows or denies what comes in by the uplink from a network to an address.
type HostRule struct {
	Deny     bool
	From, To netip.Prefix
}

// IPTables and NFTables return the rule's match.
func (r HostRule) IPTables() string { return fmt.Sprintf("-s %s -d %s", r.From, r.To) }
func (r HostRule) NFTables() string { return fmt.Sprintf("ip saddr %s ip daddr %s", r.From, r.To) }

// calicoPool is Calico's IPPool in all labs.
var calicoPool = netip.MustParsePrefix("10.244.0.0/16")

// Uplink returns the interface of the host endpoint. It and the following methods are for the
// templates.
func (f *Felix) Uplink() string { return "eth1" }

// Pool returns the IPPool.
func (f *Felix) Pool() netip.Prefix { return calicoPool }

// Failsafe returns ports of the node that no policy closes, some of Felix' defaults.
func (f *Felix) Failsafe() []uint16 { return []uint16{22, 179, 6443} }

// NodeList returns the nodes' addresses, in nft's syntax.
func (f *Felix) NodeList() string { return strings.Join(nodeAddrs(), ", ") }

func nodeAddrs() (all []string) {
	for _, n := range NodeNames {
		all = append(all, NodeAddr(n, ClientAddr).String())
	}
	return all
}

//go:embed felix/*.tmpl
var felixText embed.FS

var felixTemplates = template.Must(template.ParseFS(felixText, "felix/*.tmpl"))

// Felix returns a writer for a node, whose pods have no policy.
func (l *Lab) Felix(node, program string) *Felix {
	f := &Felix{Program: program, node: l.Namespace(node), path: l.path("felix-" + node)}
	for _, p := range PodNames {
		if NodeOf(p) == node {
			f.Workloads = append(f.Workloads, Workload{Iface: CalicoInterface(p)})
		}
	}
	return f
}

// CalicoInterface returns the interface of a pod on its node, with the overlay calico.yml.
func CalicoInterface(pod string) string { return "cali" + pod[1:] }

// Restrict gives a pod a policy.
func (f *Felix) Restrict(pod string, from ...netip.Prefix) {
	for i := range f.Workloads {
		if f.Workloads[i].Iface == CalicoInterface(pod) {
			f.Workloads[i].Policy = &Policy{Name: "shop.web", From: from}
		}
	}
}

// Apply replaces what Felix has written before.
func (f *Felix) Apply(ctx context.Context) error {
	file := "iptables.tmpl"
	if f.Program == FelixNFTables {
		file = "nftables.tmpl"
	}
	var b strings.Builder
	if err := felixTemplates.ExecuteTemplate(&b, file, f); err != nil {
		return err
	}
	if err := errors.Join(f.Remove(ctx), f.node.Do(createIPSets)); err != nil {
		return err
	}
	f.written = b.String()
	return f.load(ctx, f.written)
}

// Remove deletes what Felix has written.
func (f *Felix) Remove(ctx context.Context) error {
	if f.written == "" {
		return nil
	}
	undo := "delete table ip calico\n"
	if f.Program != FelixNFTables {
		undo = undoIPTables(f.written)
	}
	f.written = ""
	return f.load(ctx, undo)
}

func (f *Felix) load(ctx context.Context, input string) error {
	if err := os.WriteFile(f.path, []byte(input), 0o600); err != nil {
		return err
	}
	command := []string{f.Program + "-restore", "--noflush", "--wait", "5", f.path}
	if f.Program == FelixNFTables {
		command = []string{f.Program, "-f", f.path}
	}
	_, err := f.node.Run(ctx, command...)
	return err
}

// undoIPTables returns the input that undoes another one: it deletes the rules in chains of
// iptables itself, then the other chains.
func undoIPTables(input string) string {
	var b strings.Builder
	var chains []string
	for line := range strings.Lines(input) {
		verb, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case strings.HasPrefix(verb, "*"):
			chains = nil
			fmt.Fprintln(&b, verb)
		case strings.HasPrefix(verb, ":"):
			chains = append(chains, verb[1:])
			fmt.Fprintf(&b, ":%s - [0:0]\n", verb[1:]) // empties it
		case (verb == "-I" || verb == "-A") && !strings.HasPrefix(rest, "cali-"):
			fmt.Fprintln(&b, "-D", rest)
		case verb == "COMMIT":
			for _, c := range chains {
				fmt.Fprintln(&b, "-X", c)
			}
			fmt.Fprintln(&b, verb)
		}
	}
	return b.String()
}

// createIPSets creates the sets that the rules of iptables refer to, in the thread's namespace.
func createIPSets() error {
	members := map[string][]string{
		"cali40all-ipam-pools": {calicoPool.String()}, "cali40masq-ipam-pools": {calicoPool.String()},
		"cali40all-vxlan-net": {},
	}
	for _, a := range nodeAddrs() {
		members["cali40all-vxlan-net"] = append(members["cali40all-vxlan-net"], a+"/32")
	}
	have, err := netlink.IpsetListAll()
	if err != nil {
		return err
	}
	for name, prefixes := range members {
		if slices.ContainsFunc(have, func(s netlink.IPSetResult) bool { return s.SetName == name }) {
			continue
		}
		if err := netlink.IpsetCreate(name, "hash:net", netlink.IpsetCreateOptions{}); err != nil {
			return fmt.Errorf("ipset %s: %w", name, err)
		}
		for _, p := range prefixes {
			_, n, err := net.ParseCIDR(p)
			if err != nil {
				return err
			}
			ones, _ := n.Mask.Size()
			if err := netlink.IpsetAdd(name, &netlink.IPSetEntry{IP: n.IP, CIDR: uint8(ones)}); err != nil {
				return fmt.Errorf("ipset %s: add %s: %w", name, p, err)
			}
		}
	}
	return nil
}
