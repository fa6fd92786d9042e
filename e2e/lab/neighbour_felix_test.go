package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// stranger is an address of the client's machine that policies deny.
var stranger = netip.MustParseAddr("203.0.113.200")

// anywhere is for rules that match all addresses.
var anywhere = netip.MustParsePrefix("0.0.0.0/0")

func only(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// vxlanAddr is the address of a node's device vxlan.calico, from a block for pods.
func vxlanAddr(node string) netip.Addr { return netip.MustParseAddr("10.244." + node[1:] + ".0") }

// laboratoryWithCalico returns a lab whose pods have addresses from Calico's blocks, and are behind
// VXLAN for other nodes.
func laboratoryWithCalico(t *testing.T, id string) *Lab {
	t.Helper()
	l := laboratoryOfOwn(t, id, func(o *Options) {
		o.Objects = "../containerlab/calico"
		o.Overlays = []string{"../containerlab/overlays/calico.yml", "../containerlab/overlays/calico-vxlan.yml"}
	})
	run(t, l, "client", "ip", "addr", "add", stranger.String()+"/24", "dev", "eth1")
	return l
}

// A felixes is Felix on all nodes.
type felixes map[string]*Felix

// startFelix writes rules without policies to all nodes, for the duration of a test.
func startFelix(t *testing.T, l *Lab, program string) felixes {
	t.Helper()
	all := felixes{}
	for _, n := range NodeNames {
		f := l.Felix(n, program)
		t.Cleanup(func() { await(t, f.Remove(context.WithoutCancel(t.Context()))) })
		all[n] = f
		await(t, f.Apply(t.Context()))
	}
	return all
}

// change writes other rules to a node.
func (all felixes) change(t *testing.T, node string, do func(*Felix)) {
	t.Helper()
	do(all[node])
	await(t, all[node].Apply(t.Context()))
}

// expectPod checks that a pod answers a request from an address, and sees it as sees.
func expectPod(t *testing.T, c *Client, from netip.Addr, to netip.AddrPort, pod string, sees netip.Addr) {
	t.Helper()
	if a, err := c.Get(context.WithoutCancel(t.Context()), netip.AddrPortFrom(from, 0), to); err != nil ||
		a.Pod != pod || a.Saw.Addr() != sees {
		t.Errorf("%s to %s: %v, %+v: want %s, which sees %s", from, to, err, a, pod, sees)
	}
}

// expectDropped checks that a request from an address gets no answer.
func expectDropped(t *testing.T, c *Client, from netip.Addr, to netip.AddrPort) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond) // before the kernel sends the SYN again
	defer cancel()
	var timeout net.Error
	if a, err := c.Get(ctx, netip.AddrPortFrom(from, 0), to); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("%s to %s: %v, %+v: want no answer", from, to, err, a)
	}
}

// Policies of Calico apply to the traffic of Services in each data plane of both, with the client's
// address where it is kept. The fast path bypasses them.
func TestNeighbourCalicoPolicy(t *testing.T) {
	l := laboratoryWithCalico(t, "f")
	for _, mode := range proxyModes(t) {
		t.Run(mode.name, func(t *testing.T) {
			startInMode(t, l, mode)
			near := serve(t, l, Service{Name: "near", Policy: localTraffic, Endpoints: At("p11")}, "n1")
			far := serve(t, l, Service{Name: "far", Endpoints: At("p21")}, NodeNames...)
			for _, program := range FelixPrograms {
				t.Run(program, func(t *testing.T) {
					felix := startFelix(t, l, program)
					if mode.name == "fast path" {
						bypassPolicies(t, l, felix, port(near, 80))
						return
					}
					outgoing(t, l, far)
					hostPolicies(t, l, felix, near, far)
					workloadPolicies(t, l, felix, near, far)
				})
			}
		})
	}
}

// workloadPolicies checks policies of pods by the client's address, with the policies Local and
// Cluster for external traffic.
func workloadPolicies(t *testing.T, l *Lab, felix felixes, near, far netip.Addr) {
	expectPod(t, l.Client, stranger, port(near, 80), "p11", stranger)
	felix.change(t, "n1", func(f *Felix) { f.Restrict("p11", only(ClientAddr)) })
	expectPod(t, l.Client, ClientAddr, port(near, 80), "p11", ClientAddr)
	expectDropped(t, l.Client, stranger, port(near, 80))

	felix.change(t, "n2", func(f *Felix) { f.Restrict("p21", only(ClientAddr)) })
	for _, ingress := range []string{"n1", "n2"} {
		end := through(t, l, far, ingress)
		if ingress == "n2" {
			expectPod(t, l.Client, ClientAddr, port(far, 80), "p21", ClientAddr)
		} else {
			expectDropped(t, l.Client, ClientAddr, port(far, 80)) // p21's node sees n1
			felix.change(t, "n2", func(f *Felix) { f.Restrict("p21", only(ClientAddr), only(vxlanAddr("n1"))) })
			expectPod(t, l.Client, ClientAddr, port(far, 80), "p21", vxlanAddr("n1"))
		}
		end()
	}
}

// hostPolicies checks policies of the host endpoint: with applyOnForward they see the pod's
// address, with preDNAT the Service's. The mark of flows whose source Fanfare replaces must not be
// one by which Felix accepts packets.
func hostPolicies(t *testing.T, l *Lab, felix felixes, near, far netip.Addr) {
	rules := func(to netip.Prefix) []HostRule {
		return []HostRule{{From: only(ClientAddr), To: to}, {Deny: true, From: only(stranger), To: to},
			{From: anywhere, To: anywhere}}
	}
	defer through(t, l, far, "n1")()
	for _, tt := range []struct {
		policy func(*Felix)
		vip    netip.Addr
		pod    string
		masked netip.Addr // the source that the pod sees; invalid: the client's
	}{
		{func(f *Felix) { f.Forward = rules(calicoPool) }, near, "p11", netip.Addr{}},
		{func(f *Felix) { f.PreDNAT = rules(only(near)) }, near, "p11", netip.Addr{}},
		{func(f *Felix) { f.Forward = rules(calicoPool) }, far, "p21", vxlanAddr("n1")},
		{func(f *Felix) { f.PreDNAT = rules(only(far)) }, far, "p21", vxlanAddr("n1")},
	} {
		sees := func(client netip.Addr) netip.Addr {
			if tt.masked.IsValid() {
				return tt.masked
			}
			return client
		}
		expectPod(t, l.Client, stranger, port(tt.vip, 80), tt.pod, sees(stranger))
		felix.change(t, "n1", tt.policy)
		expectPod(t, l.Client, ClientAddr, port(tt.vip, 80), tt.pod, sees(ClientAddr))
		expectDropped(t, l.Client, stranger, port(tt.vip, 80))
		felix.change(t, "n1", func(f *Felix) { f.Forward, f.PreDNAT = nil, nil })
	}
}

// outgoing checks that Calico replaces the source of what pods send outside, and neither Calico nor
// Fanfare that of what they send to a Service with pods.
func outgoing(t *testing.T, l *Lab, far netip.Addr) {
	pod := &Client{Namespace: l.Namespace("p12")}
	outside, err := StartPod(t.Context(), "outside", l.Namespace("client"))
	await(t, err)
	t.Cleanup(outside.Kill)
	own := PodAddr("p12", dualStack[0])
	expectPod(t, pod, own, netip.AddrPortFrom(ClientAddr, WebPort), "outside", NodeAddr("n1", ClientAddr))
	expectPod(t, pod, own, port(far, 80), "p21", own)
}

// Pods whose addresses are from Calico's blocks, outside of the Node's podCIDRs, are recognised by
// their interfaces: they reach a Service with the policy Local whose pods are on other nodes, with
// their own address. A client from outside does not, by such a node.
func TestNeighbourCalicoIPAM(t *testing.T) {
	l := laboratoryWithCalico(t, "b")
	pod, own := &Client{Namespace: l.Namespace("p12")}, PodAddr("p12", dualStack[0])
	for i, mode := range proxyModes(t) {
		t.Run(mode.name, func(t *testing.T) {
			startInMode(t, l, mode)
			// The address of another Service, since nodes forward a withdrawn one for a while.
			vip := serve(t, l, Service{Name: fmt.Sprint("elsewhere-", i), Policy: localTraffic, Endpoints: At("p21")},
				"n2")
			expectPod(t, pod, own, port(vip, 80), "p21", own)
			defer through(t, l, vip, "n1")()
			expectDropped(t, l.Client, ClientAddr, port(vip, 80))
		})
	}
	t.Run("by podCIDRs", func(t *testing.T) {
		startInMode(t, l, proxyMode{flags: []string{"--detect-local=node-cidr"}})
		vip := serve(t, l, Service{Name: "elsewhere-cidr", Policy: localTraffic, Endpoints: At("p21")}, "n2")
		expectDropped(t, pod, own, port(vip, 80))
	})
}

// A mark by which Felix accepts packets must not be Fanfare's: what the documentation warns of.
func TestNeighbourCalicoMark(t *testing.T) {
	l := laboratoryWithCalico(t, "m")
	for mark, passes := range map[string]bool{"0x10000/0x10000": true, "0x8/0x8": false} {
		t.Run(mark, func(t *testing.T) {
			startInMode(t, l, proxyMode{flags: []string{"--proxy-mode=iptables", "--masquerade-mark=" + mark}})
			far := serve(t, l, Service{Name: "far", Endpoints: At("p21")}, NodeNames...)
			defer through(t, l, far, "n1")()
			startFelix(t, l, FelixIPTables).change(t, "n1", func(f *Felix) {
				f.Forward = []HostRule{{Deny: true, From: only(stranger), To: anywhere}, {From: anywhere, To: anywhere}}
			})
			if passes {
				expectPod(t, l.Client, stranger, port(far, 80), "p21", vxlanAddr("n1"))
			} else {
				expectDropped(t, l.Client, stranger, port(far, 80))
			}
		})
	}
}

// bypassPolicies checks that the fast path bypasses policies, as the documentation warns.
func bypassPolicies(t *testing.T, l *Lab, felix felixes, near netip.AddrPort) {
	felix.change(t, "n1", func(f *Felix) { f.Restrict("p11", only(ClientAddr)) })
	await(t, Await(t.Context(), Settle, "the fast path", func() error {
		_, err := l.Client.Get(t.Context(), netip.AddrPortFrom(stranger, 0), near)
		return err
	}))
}

// A node where Felix drops what is for pods says which chain does, does not announce the address,
// and announces it again when Felix lets the packets pass.
func TestNeighbourCalicoObstacle(t *testing.T) {
	l := laboratoryWithCalico(t, "o")
	for _, mode := range proxyModes(t)[:2] {
		t.Run(mode.name, func(t *testing.T) {
			startInMode(t, l, mode)
			vip := serve(t, l, Service{Name: "shut", Policy: localTraffic, Endpoints: At("p11")}, "n1")
			for _, program := range []string{FelixNFTables, FelixIPTables} { // chains of iptables-legacy are not judged
				t.Run(program, func(t *testing.T) {
					felix := startFelix(t, l, program)
					pods := slices.Clone(felix["n1"].Workloads)
					for _, tt := range []struct {
						what, chain string
						shut        func(*Felix)
					}{
						{"a pod that Felix does not know", "cali-to-wl-dispatch", func(f *Felix) { f.Workloads = nil }},
					} {
						t.Run(tt.what, func(t *testing.T) {
							felix.change(t, "n1", tt.shut)
							expectDropped(t, l.Client, ClientAddr, port(vip, 80))
							await(t, awaitObstacle(t, l, tt.chain))
							await(t, l.Router.AwaitNextHops(t.Context(), Settle, vip))
							felix.change(t, "n1", func(f *Felix) { f.Workloads = slices.Clone(pods) })
							await(t, l.Router.AwaitNextHops(t.Context(), Settle, vip, "n1"))
							expectPod(t, l.Client, ClientAddr, port(vip, 80), "p11", ClientAddr)
						})
					}
				})
			}
		})
	}
}

// awaitObstacle waits until n1 shows an obstacle.
func awaitObstacle(t *testing.T, l *Lab, text string) error {
	return Await(t.Context(), Settle, "the obstacle "+text, func() error {
		status, err := l.Speaker("n1").StatusText(t.Context())
		_, attention, _ := strings.Cut(status, "Needs attention:")
		if err == nil && !strings.Contains(attention, text) {
			err = fmt.Errorf("n1 shows\n%s", status)
		}
		return err
	})
}
