package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// kubeIPVS is kube-proxy's interface for the addresses of all Services, in IPVS mode. kube-proxy
// makes a dummy interface, and the tests a bridge, since the kernel may lack the former; neither
// sends or receives a packet.
const kubeIPVS = "kube-ipvs0"

// An ipvsSet is a set of kube-proxy's in IPVS mode, without the prefix KUBE-.
type ipvsSet struct {
	name, kind string
	entries    func(vip netip.Addr) []*netlink.IPSetEntry
}

// servicePorts are the ports of the lab's Services, by protocol.
var servicePorts = []struct {
	protocol uint8
	port     uint16
}{{unix.IPPROTO_TCP, 80}, {unix.IPPROTO_TCP, 7}, {unix.IPPROTO_UDP, 7}}

// ipvsSets returns kube-proxy's sets for a Service that has the address vip.
func ipvsSets(local bool) []ipvsSet {
	vipPorts := func(vip netip.Addr) (all []*netlink.IPSetEntry) {
		for _, p := range servicePorts {
			all = append(all, &netlink.IPSetEntry{
				IP: vip.AsSlice(), Protocol: &p.protocol, Port: &p.port, Replace: true,
			})
		}
		return all
	}
	vips := func(vip netip.Addr) []*netlink.IPSetEntry {
		return []*netlink.IPSetEntry{{IP: vip.AsSlice(), Replace: true}}
	}
	none := func(netip.Addr) []*netlink.IPSetEntry { return nil }
	onlyLocal := none
	if local {
		onlyLocal = vipPorts
	}
	return []ipvsSet{
		{"LOOP-BACK", "hash:ip,port,ip", none}, {"CLUSTER-IP", "hash:ip,port", none},
		{"EXTERNAL-IP", "hash:ip,port", none}, {"EXTERNAL-IP-LOCAL", "hash:ip,port", none},
		{"LOAD-BALANCER", "hash:ip,port", vipPorts}, {"LOAD-BALANCER-LOCAL", "hash:ip,port", onlyLocal},
		{"HEALTH-CHECK-NODE-PORT", "bitmap:port", none}, {"IPVS-IPS", "hash:ip", vips},
	}
}

// ipvsRules are the chains of kube-proxy in IPVS mode, for iptables-restore. %[1]s is the prefix of
// sets, which differs between families.
const ipvsRules = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A KUBE-POSTROUTING -m comment --comment "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose" -m set --match-set %[1]sLOOP-BACK dst,dst,src -j MASQUERADE
-A KUBE-SERVICES -m comment --comment "Kubernetes service lb portal" -m set --match-set %[1]sLOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER
-A KUBE-LOAD-BALANCER -m comment --comment "Kubernetes service load balancer ip + port with externalTrafficPolicy=local" -m set --match-set %[1]sLOAD-BALANCER-LOCAL dst,dst -j RETURN
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m set --match-set %[1]sCLUSTER-IP dst,dst -j ACCEPT
-A KUBE-SERVICES -m set --match-set %[1]sLOAD-BALANCER dst,dst -j ACCEPT
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
COMMIT
*filter
:KUBE-FORWARD - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-NODE-PORT -m set --match-set %[1]sHEALTH-CHECK-NODE-PORT dst -j ACCEPT
-A KUBE-IPVS-FILTER -m set --match-set %[1]sLOAD-BALANCER dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set %[1]sCLUSTER-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set %[1]sEXTERNAL-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set %[1]sEXTERNAL-IP-LOCAL dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set %[1]sHEALTH-CHECK-NODE-PORT dst -j RETURN
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set %[1]sIPVS-IPS dst -j REJECT
COMMIT
`

// ipvsJumps lead to these chains. kube-proxy inserts each before the other rules of its chain.
var ipvsJumps = []chainRule{
	{"nat", "OUTPUT", `-m comment --comment "kubernetes service portals" -j KUBE-SERVICES`, true},
	{"nat", "PREROUTING", `-m comment --comment "kubernetes service portals" -j KUBE-SERVICES`, true},
	{"nat", "POSTROUTING", `-m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING`, true},
	{"filter", "FORWARD", `-m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD`, true},
	{"filter", "INPUT", `-m comment --comment "kubernetes health check rules" -j KUBE-NODE-PORT`, true},
	{"filter", "INPUT", `-m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL`, true},
	{"filter", "FORWARD", `-m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL`, true},
	{"filter", "INPUT", `-m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER`, true},
	{"filter", "OUTPUT", `-m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-OUT-FILTER`, true},
}

// writeIPVS writes what kube-proxy in IPVS mode has of a Service's addresses on a node, but for the
// virtual servers of IPVS: the addresses on kube-ipvs0, sets, chains, and the jumps to them.
func writeIPVS(t *testing.T, l *Lab, node string, local bool, vips ...netip.Addr) {
	t.Helper()
	for _, vip := range vips {
		f, prefix := 0, "KUBE-"
		if vip.Is6() {
			f, prefix = 1, "KUBE-6-"
		}
		run(t, l, node, "ip", "addr", "replace", netip.PrefixFrom(vip, vip.BitLen()).String(), "dev", kubeIPVS)
		await(t, l.Namespace(node).Do(func() (err error) {
			for _, s := range ipvsSets(local) {
				err = errors.Join(err, s.write(prefix, vip))
			}
			return err
		}))
		restoreRules(t, l, node, iptablesPrograms[f], fmt.Sprintf(ipvsRules, prefix))
		neighbourChains{iptablesPrograms[f], nil, ipvsJumps}.write(t, l, node)
	}
}

// write makes the set have exactly the entries for an address, without a moment in which it does
// not exist.
func (s ipvsSet) write(prefix string, vip netip.Addr) error {
	o := netlink.IpsetCreateOptions{Replace: true, Family: uint8(inetFamily(vip)), PortTo: 65535}
	err := netlink.IpsetCreate(prefix+s.name, s.kind, o)
	if err == nil {
		err = netlink.IpsetFlush(prefix + s.name)
	}
	for _, e := range s.entries(vip) {
		err = errors.Join(err, netlink.IpsetAdd(prefix+s.name, e))
	}
	if err != nil {
		return fmt.Errorf("%s%s: %w", prefix, s.name, err)
	}
	return nil
}

// clearIPVS removes the rules, sets and addresses.
func clearIPVS(t *testing.T, l *Lab, node string) {
	t.Helper()
	var own [][2]string
	table := ""
	for line := range strings.Lines(ipvsRules) {
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table = strings.TrimSpace(name)
		} else if name, ok := strings.CutPrefix(line, ":"); ok {
			own = append(own, [2]string{table, strings.Fields(name)[0]})
		}
	}
	for _, program := range iptablesPrograms {
		neighbourChains{program, own, ipvsJumps}.remove(t, l, node)
	}
	await(t, l.Namespace(node).Do(func() (err error) {
		for _, s := range ipvsSets(false) {
			err = errors.Join(err, netlink.IpsetDestroy("KUBE-"+s.name), netlink.IpsetDestroy("KUBE-6-"+s.name))
		}
		return err
	}))
	run(t, l, node, "ip", "addr", "flush", "dev", kubeIPVS)
}

// beIPVS makes kube-ipvs0 on every node.
func beIPVS(t *testing.T, l *Lab) {
	t.Helper()
	for _, n := range NodeNames {
		run(t, l, n, "ip", "link", "add", kubeIPVS, "type", "bridge")
		run(t, l, n, "ip", "link", "set", kubeIPVS, "up")
	}
}

// kube-proxy in IPVS mode puts Fanfare's addresses on an interface of every node, and its chains mark
// and accept what arrives for them. Fanfare translates before.
func TestNeighbourIPVS(t *testing.T) {
	l := laboratoryOfOwn(t, "k", func(*Options) {})
	beIPVS(t, l)
	for _, mode := range proxyModes(t) {
		t.Run(mode.name, func(t *testing.T) {
			startInMode(t, l, mode)
			t.Run("Local", func(t *testing.T) {
				vips := serveDualOn(t, l, Service{Name: "near", Policy: localTraffic, Endpoints: At("p11")}, "n1")
				rewrite := func() {
					for _, n := range NodeNames {
						writeIPVS(t, l, n, true, vips...)
					}
				}
				rewrite()
				t.Cleanup(func() {
					for _, n := range NodeNames {
						clearIPVS(t, l, n)
					}
				})
				awaitFirst(t, l, vips...)
				for _, vip := range vips {
					expectSees(t, l, vip, "p11", clientAddr(vip))
					expectNodeReaches(t, l, "n2", vip)
				}
				expectUndisturbed(t, l, vips, rewrite)
			})
			t.Run("Cluster", func(t *testing.T) {
				vips := serveDual(t, l, Service{Name: "far", Endpoints: At("p21")})
				for _, n := range NodeNames {
					writeIPVS(t, l, n, false, vips...)
					t.Cleanup(func() { clearIPVS(t, l, n) })
				}
				for _, vip := range vips {
					end := through(t, l, vip, "n1")
					await(t, Await(t.Context(), Settle, "Fanfare's rules to be first", func() error {
						_, err := l.Client.Get(t.Context(), netip.AddrPort{}, port(vip, 80))
						return err
					}))
					exchange(t, l, vip, "n1", NodeAddr("n1", vip))
					end()
				}
			})
		})
	}
}

// expectNodeReaches checks that a process of a node reaches p11 by an address that is on the node's
// own interface kube-ipvs0, and that the pod sees the node: it could not answer the address itself.
func expectNodeReaches(t *testing.T, l *Lab, node string, vip netip.Addr) {
	t.Helper()
	client := Client{Namespace: l.Namespace(node)}
	a, err := client.Get(context.WithoutCancel(t.Context()), netip.AddrPort{}, port(vip, 80))
	if err != nil || a.Pod != "p11" || a.Saw.Addr() != NodeAddr(node, vip) {
		t.Errorf("%s to %s: %v, %+v: want p11, which sees the node", node, vip, err, a)
	}
}

// With kube-ipvs0, the kernel of every node answers ARP for every address unless kube-proxy has
// strictARP; with it, only the node that announces the address does. TestProblems of package l2 shows that
// the speaker reports it, which it does within a minute.
func TestNeighbourIPVSStrictARP(t *testing.T) {
	l := laboratoryL2(t)
	beIPVS(t, l)
	vip := serveL2(t, l, Service{Name: "strict", Endpoints: At("p11", "p21", "p31")})[0]
	owner, err := l.AwaitOwner(t.Context(), vip)
	await(t, err)
	for _, n := range NodeNames {
		writeIPVS(t, l, n, false, vip)
	}
	claims, err := l.WatchClaims(vip)
	await(t, err)
	defer claims.Close()
	for _, strict := range []bool{false, true} {
		for _, n := range NodeNames {
			value := map[bool][2]string{false: {"0", "0"}, true: {"1", "2"}}[strict]
			run(t, l, n, "sysctl", "-w", "net.ipv4.conf.all.arp_ignore="+value[0],
				"net.ipv4.conf.all.arp_announce="+value[1])
		}
		want, since := NodeNames, time.Now()
		if strict {
			want = []string{owner}
		}
		await(t, Await(t.Context(), Settle, fmt.Sprintf("answers for %s by %v, strictARP is %t", vip, want, strict),
			func() error {
				answering, err := claims.Now(vip, since)
				if err == nil && !slices.Equal(answering, want) {
					err = fmt.Errorf("by %v", answering)
				}
				return err
			}))
	}
	a, err := l.Host().Get(t.Context(), netip.AddrPort{}, port(vip, 80))
	if err != nil || a.Pod == "" {
		t.Errorf("%v, %+v: want an answer", err, a)
	}
}
