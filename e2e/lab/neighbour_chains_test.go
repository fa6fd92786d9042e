package lab

import (
	"context"
	"errors"
	"net/netip"
	"os"
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

// writeRules deletes rules and writes them again, one by one, as network plug-ins do that use
// go-iptables. own are the chains that are emptied or created first, as table and name.
func writeRules(t *testing.T, l *Lab, node, program string, own [][2]string, rules []chainRule) {
	t.Helper()
	await(t, l.Namespace(node).Do(func() error {
		ipt, err := goiptables.New(goiptables.Path(program), goiptables.Timeout(5))
		if err != nil {
			return err
		}
		for _, c := range own {
			err = errors.Join(err, ipt.ClearChain(c[0], c[1]))
		}
		for _, r := range rules {
			words := iptables.RuleWords(r.rule)
			err = errors.Join(err, ipt.DeleteIfExists(r.table, r.chain, words...))
			if r.first {
				err = errors.Join(err, ipt.Insert(r.table, r.chain, 1, words...))
			} else {
				err = errors.Join(err, ipt.Append(r.table, r.chain, words...))
			}
		}
		return err
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
	if err := errors.Join(err, err2); err != nil || a.Pod != pod || u.Pod != pod || a.Saw.Addr() != sees || u.Saw.Addr() != sees {
		t.Errorf("%s: %v, %+v, %+v: want %s, which sees %s", vip, err, a, u, pod, sees)
	}
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
	a, err := pod.Get(context.WithoutCancel(t.Context()), netip.AddrPortFrom(netip.MustParseAddr(address), 0), port(vip, 80))
	if err != nil || a.Pod != "p11" || a.Saw != a.From {
		t.Errorf("p21: %v, %+v: want p11, which sees p21", err, a)
	}
}
