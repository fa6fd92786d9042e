package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	goiptables "github.com/coreos/go-iptables/iptables"

	"github.com/fanfare-lb/fanfare/proxy/iptables"
)

// A chainRule is a rule of another program, in the words of iptables.
type chainRule struct {
	table, chain, rule string
	first              bool // it is inserted before the chain's other rules
}

// iptablesPrograms are the programs of IPv4 and IPv6, by which other programs write their rules.
var iptablesPrograms = [2]string{"iptables-nft", "ip6tables-nft"}

// neighbourChains are what another program has in iptables of a node.
type neighbourChains struct {
	program string
	own     [][2]string // its chains, as table and name
	rules   []chainRule
}

// write empties or creates the program's own chains and fills them, rule by rule, and writes the
// rules of other chains that are missing: as a network plug-in does with go-iptables when it starts
// or its objects change.
func (c neighbourChains) write(t *testing.T, l *Lab, node string) {
	t.Helper()
	c.do(t, l, node, func(ipt *goiptables.IPTables) (err error) {
		for _, own := range c.own {
			err = errors.Join(err, ipt.ClearChain(own[0], own[1]))
		}
		for _, r := range c.rules {
			if r.first {
				err = errors.Join(err, ipt.InsertUnique(r.table, r.chain, 1, iptables.RuleWords(r.rule)...))
			} else {
				err = errors.Join(err, ipt.AppendUnique(r.table, r.chain, iptables.RuleWords(r.rule)...))
			}
		}
		return err
	})
}

// remove deletes the rules and chains.
func (c neighbourChains) remove(t *testing.T, l *Lab, node string) {
	t.Helper()
	c.do(t, l, node, func(ipt *goiptables.IPTables) (err error) {
		for _, r := range c.rules {
			err = errors.Join(err, ipt.DeleteIfExists(r.table, r.chain, iptables.RuleWords(r.rule)...))
		}
		for _, own := range c.own {
			err = errors.Join(err, ipt.ClearChain(own[0], own[1]))
		}
		for _, own := range c.own {
			err = errors.Join(err, ipt.DeleteChain(own[0], own[1]))
		}
		return err
	})
}

func (c neighbourChains) do(t *testing.T, l *Lab, node string, change func(*goiptables.IPTables) error) {
	t.Helper()
	await(t, l.Namespace(node).Do(func() error {
		ipt, err := goiptables.New(goiptables.Path(c.program), goiptables.Timeout(5))
		if err != nil {
			return err
		}
		return change(ipt)
	}))
}

// restoreRules loads chains at once, as kube-proxy does. A chain that the tables declare is emptied.
func restoreRules(t *testing.T, l *Lab, node, program, tables string) {
	t.Helper()
	file := l.path(node + "-" + program + ".rules")
	await(t, os.WriteFile(file, []byte(tables), 0o600))
	run(t, l, node, program+"-restore", "--noflush", file)
}

// loadNFT loads nftables' rules of another program.
func loadNFT(t *testing.T, l *Lab, node, rules string) {
	t.Helper()
	file := l.path(node + ".nft")
	await(t, os.WriteFile(file, []byte(rules), 0o600))
	run(t, l, node, "nft", "-f", file)
}

// serveDualOn is serveDual for a Service that only some nodes announce.
func serveDualOn(t *testing.T, l *Lab, svc Service, nodes ...string) []netip.Addr {
	t.Helper()
	svc.Families = dualStack
	four := serve(t, l, svc, nodes...)
	six, err := l.AwaitAddress(t.Context(), "shop/"+svc.Name, true)
	await(t, err)
	await(t, l.Router.AwaitNextHops(t.Context(), Settle, six, nodes...))
	return []netip.Addr{four, six}
}

// expectSees checks that a pod sees the client by an address.
func expectSees(t *testing.T, l *Lab, vip netip.Addr, pod string, sees netip.Addr) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	a, err := l.Client.Get(ctx, netip.AddrPort{}, port(vip, 80))
	u, err2 := l.Client.AskUDP(ctx, netip.AddrPort{}, port(vip, 7))
	if err := errors.Join(err, err2); err != nil || a.Pod != pod || u.Pod != pod || a.Saw.Addr() != sees ||
		u.Saw.Addr() != sees {
		t.Errorf("%s: %v, %+v, %+v: want %s, which sees %s", vip, err, a, u, pod, sees)
	}
}

// podNetworks are those of all pods, by family.
var podNetworks = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("2001:db8:244::/46")}

// awaitFirst waits until n1 translates new connections to addresses by Fanfare's rules: to a pod. In
// iptables mode, another program that starts later puts its jumps before Fanfare's; until the speaker
// has repaired that, other rules may take the connections, and n1 does not announce the addresses.
func awaitFirst(t *testing.T, l *Lab, vips ...netip.Addr) {
	t.Helper()
	ctx, began := context.WithoutCancel(t.Context()), time.Now()
	for _, vip := range vips {
		await(t, Await(ctx, Settle, "Fanfare's rules to be first", func() error {
			a, err := l.Client.Get(ctx, netip.AddrPort{}, port(vip, 80))
			if err != nil {
				return err
			}
			return l.translatedToPod(vip, a.From.Port())
		}))
	}
	// The withdrawal may still be under way to the router. What it learns of another address, which
	// needs all rules to be right, comes after it.
	serve(t, l, Service{Name: "later", Policy: localTraffic, Endpoints: At("p12")}, "n1")
	for _, vip := range vips {
		await(t, l.Router.AwaitNextHops(ctx, Settle, vip, "n1"))
	}
	t.Logf("Fanfare's rules are first after %s", ms(time.Since(began)))
}

// translatedToPod returns an error unless n1 has translated the connection from a client's port to a
// pod's address. One on the fast path is in no table of conntrack.
func (l *Lab) translatedToPod(vip netip.Addr, client uint16) error {
	entries, err := l.namespaces["n1"].conntrack(vip)
	for _, e := range entries {
		to, _ := netip.AddrFromSlice(e.Reverse.SrcIP)
		if e.Forward.SrcPort == client && !slices.ContainsFunc(podNetworks,
			func(p netip.Prefix) bool { return p.Contains(to.Unmap()) }) {
			return fmt.Errorf("translated to %s", to)
		}
	}
	return err
}

// expectUndisturbed checks that another program may write its rules of n1 again and again, that the
// speaker of n1 may be killed meanwhile, and that no connection ends and no request is lost by it.
func expectUndisturbed(t *testing.T, l *Lab, vips []netip.Addr, rewrite func()) {
	t.Helper()
	ctx, began := t.Context(), time.Now()
	load := l.Client.StartLimitedLoad(ctx, port(vips[0], 80))
	var all []*Flows
	for _, vip := range vips {
		tcp, err := l.Client.OpenFlows(ctx, 3, port(vip, 7))
		await(t, err)
		defer tcp.Close()
		udp, err := l.Client.OpenUDPFlows(ctx, 3, port(vip, 7))
		await(t, err)
		defer udp.Close()
		all = append(all, tcp, udp)
	}
	exchangeMore := func() {
		t.Helper()
		for _, f := range all {
			await(t, f.AwaitLines(ctx, 2))
		}
	}
	for range 3 {
		rewrite()
		exchangeMore()
	}
	await(t, l.Speaker("n1").Kill())
	rewrite()
	exchangeMore()
	await(t, l.StartSpeakers(ctx, "n1"))
	rewrite()
	exchangeMore()
	for _, f := range all {
		for _, flow := range f.All {
			if err := flow.Err(); err != nil {
				t.Errorf("a connection from %s: %v", flow.From, err)
			}
		}
	}
	expectNoLoss(t, l, load, began)
}

// expectPodOutsideCIDRs checks that clients behind the pods' interfaces are pods, also with an
// address outside of their node's podCIDRs: p21 has one, and reaches p11 on another node by an
// address of a Service whose policy is Local. iface is the interface of n2 that leads to p21.
func expectPodOutsideCIDRs(t *testing.T, l *Lab, vip netip.Addr, iface string) {
	t.Helper()
	const address = "10.99.2.11"
	run(t, l, "p21", "ip", "addr", "replace", address+"/32", "dev", "eth1")
	run(t, l, "n2", "ip", "route", "replace", address+"/32", "dev", iface)
	run(t, l, "n1", "ip", "route", "replace", address+"/32", "via", NodeAddr("n2", ClientAddr).String())
	pod := Client{Namespace: l.Namespace("p21")}
	a, err := pod.Get(context.WithoutCancel(t.Context()), netip.AddrPortFrom(netip.MustParseAddr(address), 0),
		port(vip, 80))
	if err != nil || a.Pod != "p11" || a.Saw != a.From {
		t.Errorf("p21: %v, %+v: want p11, which sees p21", err, a)
	}
}

// awaitStatus waits until a node's status contains a sentence, or does not.
func awaitStatus(t *testing.T, l *Lab, node, sentence string, has bool) {
	t.Helper()
	ctx := t.Context()
	await(t, Await(ctx, Settle, fmt.Sprintf("%q in the status of %s: %t", sentence, node, has), func() error {
		text, err := l.Speaker(node).StatusText(ctx)
		if err == nil && strings.Contains(text, sentence) != has {
			err = errors.New(text)
		}
		return err
	}))
}
