package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// awsSettings are the variables of the AWS VPC CNI (aws-node) that change its rules.
type awsSettings struct {
	externalSNAT bool     // AWS_VPC_K8S_CNI_EXTERNALSNAT
	randomize    string   // AWS_VPC_K8S_CNI_RANDOMIZESNAT: none, hashrandom or prng
	excluded     []string // AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS
	nftables     bool     // it marks by a table of nftables, as newer versions do beside iptables-nft
}

// awsCIDRs are the VPC's own CIDRs, by family: the nodes' network and the pods'.
var awsCIDRs = [2][]string{{"198.51.100.0/24", "10.244.0.0/16"}, {"2001:db8:51::/64", "2001:db8:244::/46"}}

// beAWS gives the nodes what the AWS VPC CNI gives them: pods behind interfaces eni*, the rule of
// routing for marked packets, and its chains. The interface of the node's address is eth1 here.
func beAWS(t *testing.T, l *Lab, s awsSettings) {
	t.Helper()
	for _, n := range NodeNames {
		for i := 1; i <= 2; i++ {
			run(t, l, n, "ip", "link", "set", fmt.Sprintf("pod%d", i), "name", fmt.Sprintf("eni%d", i))
		}
		run(t, l, n, "ip", "rule", "add", "fwmark", "0x80/0x80", "lookup", "main", "priority", "1024")
		run(t, l, n, "ip", "-6", "rule", "add", "fwmark", "0x80/0x80", "lookup", "main", "priority", "1024")
		writeAWS(t, l, n, s)
	}
}

// writeAWS writes the chains of the AWS VPC CNI on a node.
func writeAWS(t *testing.T, l *Lab, node string, s awsSettings) {
	t.Helper()
	for family := range iptablesPrograms {
		s.chains(node, family).write(t, l, node)
	}
	if s.nftables {
		loadNFT(t, l, node, awsTable)
	}
}

// chains returns the chains of one family: AWS-SNAT-CHAIN-0 for packets that pods send out of the
// VPC, and the marks by which replies leave by the interface of the node's address.
func (s awsSettings) chains(node string, family int) neighbourChains {
	rules := awsMarks()
	if !s.externalSNAT {
		rules = append(rules, awsSNAT(family, NodeAddr(node, []netip.Addr{ClientAddr, ClientAddr6}[family]), s)...)
	}
	if s.nftables {
		rules = slices.DeleteFunc(rules, func(r chainRule) bool {
			return strings.Contains(r.chain+r.rule, "AWS-CONNMARK") || r.table == "nat" && r.chain == "PREROUTING"
		})
	}
	return neighbourChains{iptablesPrograms[family],
		[][2]string{{"nat", "AWS-SNAT-CHAIN-0"}, {"nat", "AWS-CONNMARK-CHAIN-0"}}, rules}
}

// awsTable is what newer versions of the AWS VPC CNI write instead of AWS-CONNMARK-CHAIN-0.
const awsTable = `table ip aws-cni
delete table ip aws-cni
table ip aws-cni {
	chain nat-prerouting {
		type nat hook prerouting priority -90; policy accept;
		fib daddr type local return
		iifname "eni*" counter jump snat-mark
		ct mark & 0x80 == 0x0 counter meta mark set meta mark & 0xffffff7f
		ct mark & 0x80 == 0x80 counter meta mark set meta mark | 0x80
	}
	chain snat-mark {
		counter ip daddr 198.51.100.0/24 return
		counter ip daddr 10.244.0.0/16 return
		counter ct mark set ct mark | 0x80
	}
}
`

// awsMarks are the rules that EXTERNALSNAT does not change.
func awsMarks() []chainRule {
	return []chainRule{
		{table: "mangle", chain: "PREROUTING",
			rule: `-i eth1 -m comment --comment "AWS, primary ENI" -m addrtype --dst-type LOCAL --limit-iface-in -j CONNMARK --set-mark 0x80/0x80`},
		{table: "mangle", chain: "PREROUTING",
			rule: `-i eni+ -m comment --comment "AWS, primary ENI" -j CONNMARK --restore-mark --mask 0x80`},
	}
}

func awsSNAT(family int, address netip.Addr, s awsSettings) (rules []chainRule) {
	nat := func(chain, rule string, values ...any) {
		rules = append(rules, chainRule{table: "nat", chain: chain, rule: fmt.Sprintf(rule, values...)})
	}
	nat("POSTROUTING", `-m comment --comment "AWS SNAT CHAIN" -j AWS-SNAT-CHAIN-0`)
	nat("PREROUTING", `-i eni+ -m comment --comment "AWS, outbound connections" -j AWS-CONNMARK-CHAIN-0`)
	nat("PREROUTING", `-m comment --comment "AWS, CONNMARK" -j CONNMARK --restore-mark --mask 0x80`)
	for _, cidr := range append(awsCIDRs[family][:2:2], s.excluded...) {
		if strings.Contains(cidr, ":") != (family == 1) {
			continue
		}
		nat("AWS-SNAT-CHAIN-0", `-d %s -m comment --comment "AWS SNAT CHAIN" -j RETURN`, cidr)
		nat("AWS-CONNMARK-CHAIN-0", `-d %s -m comment --comment "AWS CONNMARK CHAIN" -j RETURN`, cidr)
	}
	random := map[string]string{"none": "", "hashrandom": " --random", "prng": " --random-fully"}[s.randomize]
	nat("AWS-SNAT-CHAIN-0", `! -o vlan+ -m comment --comment "AWS, SNAT" -m addrtype ! --dst-type LOCAL -j SNAT --to-source %s%s`, address, random)
	nat("AWS-CONNMARK-CHAIN-0", `-m comment --comment "AWS, CONNMARK" -j CONNMARK --set-xmark 0x80/0x80`)
	return rules
}

// The AWS VPC CNI masquerades what pods send out of the VPC, and marks connections. Its chains do
// not touch what arrives for Fanfare's addresses, and Fanfare's do not touch what pods send.
func TestNeighbourAWSSNAT(t *testing.T) {
	l := laboratoryOfOwn(t, "w", func(*Options) {})
	settings := awsSettings{randomize: "prng"}
	beAWS(t, l, settings)
	listenAtClient(t, l)
	for _, mode := range proxyModes(t) {
		t.Run(mode.name, func(t *testing.T) {
			startInMode(t, l, mode)
			local := serveDualOn(t, l, Service{Name: "near", Policy: localTraffic, Endpoints: At("p11")}, "n1")
			for _, vip := range local {
				expectSees(t, l, vip, "p11", clientAddr(vip))
			}
			awaitStatus(t, l, "n1", "selects by fwmark 0x80/0x80", mode.name == "fast path")
			expectUndisturbed(t, l, local, func() { writeAWS(t, l, "n1", settings) })
			for _, vip := range serveDual(t, l, Service{Name: "far", Endpoints: At("p21")}) {
				end := through(t, l, vip, "n1")
				exchange(t, l, vip, "n1", NodeAddr("n1", vip))
				end()
			}
			if seen, own, err := seenOutside(t, l); err != nil || seen.Addr() != NodeAddr("n1", ClientAddr) {
				t.Errorf("the client's host sees %s as %s, %v: want n1", own, seen, err)
			}
			expectPodOutsideCIDRs(t, l, local[0], "eni1")
		})
	}
}

// outsidePort is where the client's host listens for what pods send out of the cluster.
const outsidePort = 9000

// listenAtClient has the client's host answer each connection with the address that it comes from.
func listenAtClient(t *testing.T, l *Lab) {
	t.Helper()
	server, err := l.Client.Listen(t.Context(), fmt.Sprintf(":%d", outsidePort))
	await(t, err)
	t.Cleanup(func() { server.Close() })
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return // closed
			}
			fmt.Fprint(c, c.RemoteAddr())
			c.Close()
		}
	}()
}

// seenOutside returns how the client's host sees a connection of p11.
func seenOutside(t *testing.T, l *Lab) (netip.AddrPort, netip.AddrPort, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Patience)
	defer cancel()
	c, err := l.Namespace("p11").Dial(ctx, "tcp", netip.AddrPort{}, port(ClientAddr, outsidePort))
	if err != nil {
		return netip.AddrPort{}, netip.AddrPort{}, err
	}
	defer c.Close()
	setDeadline(ctx, c)
	text, err := io.ReadAll(c)
	seen, err2 := netip.ParseAddrPort(string(text))
	own, err3 := netip.ParseAddrPort(c.LocalAddr().String())
	return seen, own, errors.Join(err, err2, err3)
}

// An awsRow is a setting of the AWS VPC CNI and the flags of the speaker that correspond to it.
type awsRow struct {
	name  string
	aws   awsSettings
	flags []string
	// sees is the address by which pods of other nodes see a client, and the client's host the pods
	// of n1. Invalid: both see the other end's own address.
	sees netip.Addr
	// keeps: the source port stays; otherwise it is a random one.
	keeps bool
}

// Each setting of the AWS VPC CNI for what pods send has flags that do the same with what arrives
// for Fanfare's addresses.
func TestNeighbourAWSSettings(t *testing.T) {
	l := laboratoryOfOwn(t, "x", func(*Options) {})
	beAWS(t, l, awsSettings{randomize: "prng"})
	for _, n := range NodeNames {
		removeAWS(t, l, n, awsSettings{randomize: "prng"})
	}
	listenAtClient(t, l)
	answerThrough(t, l, "n2", "n1")
	run(t, l, "tor1", "ip", "route", "add", "10.244.1.0/24", "via", NodeAddr("n1", ClientAddr).String())
	n1 := NodeAddr("n1", ClientAddr)
	for _, row := range []awsRow{
		{"RANDOMIZESNAT=prng", awsSettings{randomize: "prng"}, []string{"--snat-ports=fully-random"}, n1, false},
		{"RANDOMIZESNAT=hashrandom", awsSettings{randomize: "hashrandom", nftables: true},
			[]string{"--snat-ports=random"}, n1, false},
		{"RANDOMIZESNAT=none", awsSettings{randomize: "none"}, []string{"--snat-ports=keep"}, n1, true},
		{"EXCLUDE_SNAT_CIDRS", awsSettings{
			randomize: "prng", excluded: []string{"203.0.113.0/24", "2001:db8:203::/64"},
		},
			[]string{"--snat-never-cidrs=10.244.0.0/16,2001:db8:244::/46"}, netip.Addr{}, true},
		{"EXTERNALSNAT=true", awsSettings{externalSNAT: true}, []string{"--snat-never-cidrs=0.0.0.0/0,::/0"},
			netip.Addr{}, true},
	} {
		for _, mode := range proxyModes(t)[:2] {
			t.Run(row.name+" "+mode.name, func(t *testing.T) {
				for _, n := range NodeNames {
					writeAWS(t, l, n, row.aws)
					defer removeAWS(t, l, n, row.aws)
				}
				mode.flags = append(mode.flags[:len(mode.flags):len(mode.flags)], row.flags...)
				startInMode(t, l, mode)
				vip := serve(t, l, Service{Name: "set", Endpoints: At("p21")}, NodeNames...)
				end := through(t, l, vip, "n1")
				defer end()
				// A port of an earlier connection that the node remembers could not be kept.
				await(t, l.Namespace("n1").DeleteConntrack(ClientAddr))
				row.check(t, "from outside", func() (seen, own netip.AddrPort, err error) {
					a, err := l.Client.Get(context.WithoutCancel(t.Context()), netip.AddrPort{}, port(vip, 80))
					return a.Saw, a.From, err
				})
				row.check(t, "from a pod", func() (seen, own netip.AddrPort, err error) { return seenOutside(t, l) })
			})
		}
	}
}

// check opens connections and compares how the other end sees them.
func (r awsRow) check(t *testing.T, what string, connect func() (seen, own netip.AddrPort, err error)) {
	t.Helper()
	kept := 0
	const attempts = 5 // a random port is the same by chance once in some 30,000 times
	for range attempts {
		seen, own, err := connect()
		want := r.sees
		if !want.IsValid() {
			want = own.Addr()
		}
		if err != nil || seen.Addr() != want {
			t.Errorf("%s: %s is seen as %s, %v: want %s", what, own, seen, err, want)
			return
		}
		if seen.Port() == own.Port() {
			kept++
		}
	}
	if want := map[bool]int{true: attempts}[r.keeps]; kept != want {
		t.Errorf("%s: %d of %d connections keep their port: want %d", what, kept, attempts, want)
	}
}

func removeAWS(t *testing.T, l *Lab, node string, s awsSettings) {
	t.Helper()
	for family := range iptablesPrograms {
		s.chains(node, family).remove(t, l, node)
	}
	if s.nftables {
		run(t, l, node, "nft", "delete", "table", "ip", "aws-cni")
	}
}

// answerThrough makes a node send its pods' answers to clients outside of the cluster through
// another node, as the network must if sources are kept.
func answerThrough(t *testing.T, l *Lab, node, other string) {
	t.Helper()
	run(t, l, node, "ip", "rule", "add", "from", "10.244."+node[1:]+".0/24", "to", "203.0.113.0/24", "lookup", "9",
		"priority", "900")
	run(t, l, node, "ip", "route", "add", "default", "via", NodeAddr(other, ClientAddr).String(), "table", "9")
}

// A pod on a second network interface of its instance answers through that one, where the VPC drops
// sources that are not the interface's. AWS marks connections to the node's own addresses so that
// they are answered by the first interface; one rule more does that for Fanfare's addresses.
func TestNeighbourAWSSecondInterface(t *testing.T) {
	l := laboratoryOfOwn(t, "y", func(o *Options) { o.Overlays = []string{"../containerlab/overlays/unnumbered.yml"} })
	beAWS(t, l, awsSettings{randomize: "prng"})
	run(t, l, "tor1", "ip", "addr", "add", "198.18.1.1/24", "dev", "link1")
	run(t, l, "n1", "ip", "addr", "add", "198.18.1.2/24", "dev", "link0")
	run(t, l, "n1", "ip", "route", "add", "default", "via", "198.18.1.1", "table", "2")
	run(t, l, "n1", "ip", "rule", "add", "to", "10.244.1.11", "lookup", "main", "priority", "512")
	run(t, l, "n1", "ip", "rule", "add", "from", "10.244.1.11", "lookup", "2", "priority", "1536")
	loadNFT(t, l, "tor1", `table ip vpc {
	chain source { type filter hook prerouting priority raw; iifname link1 ip saddr != 198.18.1.0/24 drop; }
}
`)
	for _, mode := range proxyModes(t) {
		t.Run(mode.name, func(t *testing.T) {
			startInMode(t, l, mode)
			vip := serve(t, l, Service{Name: "second", Policy: localTraffic, Endpoints: At("p11")}, "n1")
			if a, err := l.Client.Get(context.WithoutCancel(t.Context()), netip.AddrPort{}, port(vip, 80)); err == nil {
				t.Errorf("without the rule: %+v: want no answer", a)
			}
			change := func(verb string) {
				run(t, l, "n1", "iptables-nft", "-t", "mangle", verb, "PREROUTING", "-i", "eth1", "-d", "192.0.2.0/24",
					"-j", "CONNMARK", "--set-mark", "0x80/0x80")
			}
			change("-I")
			defer change("-D")
			expectSees(t, l, vip, "p11", ClientAddr)
		})
	}
}
