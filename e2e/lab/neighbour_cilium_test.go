package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
)

// Without kube-proxy replacement Cilium's programs let the packets of addresses pass, and Fanfare
// forwards them. With native routing each pod has a route to its interface, lxc*; with a tunnel all
// pods are behind cilium_host.
func TestNeighbourCilium(t *testing.T) {
	for _, tt := range []struct {
		name string
		mode ciliumMode
	}{
		{"native routing, tcx", ciliumMode{tcx: true}},
		{"tunnel, tc", ciliumMode{tunnel: true}},
		{"tunnel, tcx", ciliumMode{tunnel: true, tcx: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := laboratoryOfOwn(t, "c"+fmt.Sprint(len(tt.name)), func(*Options) {})
			startCilium(t, l, tt.mode)
			for _, proxy := range proxyModes(t) {
				t.Run(proxy.name, func(t *testing.T) {
					startInMode(t, l, proxy)
					vip := serve(t, l, Service{Name: "far", Endpoints: At("p21")}, NodeNames...)
					for _, ingress := range NodeNames {
						end := through(t, l, vip, ingress)
						exchange(t, l, vip, ingress, seenThrough(tt.mode, ingress))
						end()
					}
				})
			}
		})
	}
}

// seenThrough returns the client as p21 sees it through a node.
func seenThrough(mode ciliumMode, ingress string) netip.Addr {
	switch {
	case ingress == "n2":
		return ClientAddr
	case mode.tunnel:
		return ciliumHost(ingress)
	}
	return NodeAddr(ingress, ClientAddr)
}

// expectCilium waits until a node reports, or does not report, that Cilium takes the addresses.
func expectCilium(t *testing.T, l *Lab, node, want string) {
	t.Helper()
	await(t, Await(t.Context(), Settle, "the report of "+node+" on Cilium", func() error {
		text, err := l.Speaker(node).StatusText(context.WithoutCancel(t.Context()))
		if err == nil && (want == "" && strings.Contains(text, "Cilium") || !strings.Contains(text, want)) {
			err = errors.New(text)
		}
		return err
	}))
}

// nodePortLoaded is held by the test that has loaded nodePortProgram: the kernel has one list of
// programs, which all nodes of all labs see.
var nodePortLoaded sync.Mutex

// With kube-proxy replacement Cilium translates the packets of an address before netfilter: the
// node says so, and announces the address all the same. When Cilium stops, Fanfare forwards.
func TestNeighbourCiliumReplacesKubeProxy(t *testing.T) {
	for _, mode := range []ciliumMode{{tcx: true}, {tunnel: true}} {
		t.Run(fmt.Sprintf("tunnel %t, tcx %t", mode.tunnel, mode.tcx), func(t *testing.T) {
			l := laboratoryOfOwn(t, fmt.Sprintf("r%t", mode.tunnel), func(*Options) {})
			nodes := startCilium(t, l, mode)
			nodePortLoaded.Lock()
			defer nodePortLoaded.Unlock()
			replaceKubeProxy(t, l, nodes["n1"])
		})
	}
}

func replaceKubeProxy(t *testing.T, l *Lab, c *cilium) {
	startInMode(t, l, proxyModes(t)[0])
	expectCilium(t, l, "n1", "")
	// Fanfare's rules know p11, Cilium's maps p12: the answer shows which of them translated.
	vip := serve(t, l, Service{Name: "taken", Policy: localTraffic, Endpoints: At("p11")}, "n1")
	expectAnswersOf(t, l, vip, "p11")
	end := c.replaceKubeProxy(vip, "p12")
	restart(t, l, "n1") // a running speaker looks every five minutes
	expectCilium(t, l, "n1", "Cilium replaces kube-proxy on this node: it translates the addresses of "+
		"Services before netfilter")
	await(t, l.Router.AwaitNextHops(t.Context(), Settle, vip, "n1"))
	await(t, l.Namespace("n1").flushConntrack())
	expectAnswersOf(t, l, vip, "p12")
	if entries, err := l.Namespace("n1").conntrack(vip); err != nil || len(entries) > 0 {
		t.Errorf("netfilter saw what Cilium took: %v, %v", err, entries)
	}
	end()
	expectAnswersOf(t, l, vip, "p11")
	expectCilium(t, l, "n1", "")
}

// expectAnswersOf checks by which pod an address is answered, over TCP and UDP.
func expectAnswersOf(t *testing.T, l *Lab, vip netip.Addr, pod string) {
	t.Helper()
	tcp, err := l.Client.Get(t.Context(), netip.AddrPort{}, port(vip, 80))
	udp, errUDP := l.Client.AskUDP(t.Context(), netip.AddrPort{}, port(vip, 7))
	if err := errors.Join(err, errUDP); err != nil || tcp.Pod != pod || udp.Pod != pod {
		t.Errorf("%s is answered by %q over TCP and %q over UDP, %v: want %s", vip, tcp.Pod, udp.Pod, err, pod)
	}
}

// A pod of the node is a client by its interface lxc*: with Local it reaches pods of other nodes
// too.
func TestNeighbourCiliumPodsAsClients(t *testing.T) {
	l := laboratoryOfOwn(t, "cp", func(*Options) {})
	startCilium(t, l, ciliumMode{tcx: true})
	for _, proxy := range proxyModes(t) {
		t.Run(proxy.name, func(t *testing.T) {
			startInMode(t, l, proxy)
			vip := serve(t, l, Service{Name: "inside", Policy: localTraffic, Endpoints: At("p21")}, "n2")
			if log := l.Speaker("n1").Log(); !strings.Contains(log, `msg="network of pods" iface=lxc*`) {
				t.Errorf("n1 does not recognise pods by lxc*:\n%s", log)
			}
			for _, client := range []string{"p11", "p22"} {
				a, err := l.clientIn(client).Get(t.Context(), netip.AddrPort{}, port(vip, 80))
				if err != nil || a.Pod != "p21" {
					t.Errorf("%s to %s: %v, %+v: want p21", client, vip, err, a)
				}
			}
		})
	}
}
