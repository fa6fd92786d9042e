package lab

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

var dualStack = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}

// ownLabs counts the labs of laboratoryOfOwn, so that no two have the same namespaces.
var ownLabs atomic.Int32

// laboratoryOfOwn returns a lab that no other test uses, with other options.
func laboratoryOfOwn(t *testing.T, id string, change func(*Options)) *Lab {
	t.Helper()
	with := options(t)
	t.Parallel()
	await(t, built())
	with.ID += fmt.Sprintf("%s%d", id, ownLabs.Add(1))
	change(&with)
	l, err := Up(t.Context(), with)
	await(t, err)
	t.Cleanup(func() { await(t, l.Down()) })
	return l
}

// A proxyMode is one of the ways in which a speaker forwards.
type proxyMode struct {
	name  string
	flags []string
}

// proxyModes returns them all.
func proxyModes(t *testing.T) []proxyMode {
	return []proxyMode{
		{name: "nftables"},
		{name: "iptables", flags: []string{"--proxy-mode=iptables"}},
		{name: "fast path", flags: []string{"--fast-path", "--fast-path-dir", filepath.Join(bpffs(t), "fanfare")}},
	}
}

// startInMode starts or restarts the speakers of all nodes with these flags.
func startInMode(t *testing.T, l *Lab, mode proxyMode) {
	t.Helper()
	for _, n := range NodeNames {
		s := l.Speaker(n)
		if s.Running() {
			await(t, s.Terminate())
		}
		s.Flags = mode.flags
		if mode.name == "fast path" {
			s.Flags = append(mode.flags[:2:2], mode.flags[2]+n)
		}
	}
	await(t, l.StartSpeakers(t.Context(), NodeNames...))
}

// through makes the router send all packets to an address through one node, until the returned
// function is called.
func through(t *testing.T, l *Lab, vip netip.Addr, node string) (end func()) {
	t.Helper()
	route := []string{netip.PrefixFrom(vip, vip.BitLen()).String(), "via", NodeAddr(node, vip).String(), "metric", "1"}
	run(t, l, "tor1", append([]string{"ip", "route", "add"}, route...)...)
	return func() { run(t, l, "tor1", append([]string{"ip", "route", "del"}, route...)...) }
}

// serveDual creates a Service of both families for the duration of a test, and returns its
// addresses once all nodes announce them.
func serveDual(t *testing.T, l *Lab, svc Service) (vips []netip.Addr) {
	t.Helper()
	svc.Families = dualStack
	four := serve(t, l, svc, NodeNames...)
	six, err := l.AwaitAddress(t.Context(), "shop/"+svc.Name, true)
	await(t, err)
	await(t, l.Router.AwaitNextHops(t.Context(), Settle, six, NodeNames...))
	return []netip.Addr{four, six}
}

// Pods of other nodes are behind VXLAN, as with flannel. The masquerade of an ingress node takes
// the overlay's address, by which the pod's node answers; nothing large stalls.
func TestNeighbourVXLAN(t *testing.T) {
	l := laboratoryOfOwn(t, "v", func(o *Options) { o.Overlays = []string{"../containerlab/overlays/vxlan.yml"} })
	for _, mode := range proxyModes(t) {
		t.Run(mode.name, func(t *testing.T) {
			startInMode(t, l, mode)
			for _, vip := range serveDual(t, l, Service{Name: "far", Endpoints: At("p21")}) {
				for _, ingress := range NodeNames {
					end := through(t, l, vip, ingress)
					sees := overlayAddr(ingress, vip)
					if ingress == "n2" {
						sees = clientAddr(vip)
					}
					exchange(t, l, vip, ingress, sees)
					end()
				}
			}
		})
	}
	t.Run("smaller MTU", func(t *testing.T) { exchangeThroughSmallerMTU(t, l) })
}

// exchangeThroughSmallerMTU checks that both ends learn that the overlay's MTU is smaller than the
// pods', by ICMP: TCP halts forever otherwise.
func exchangeThroughSmallerMTU(t *testing.T, l *Lab) {
	for _, n := range NodeNames {
		run(t, l, n, "ip", "link", "set", "flannel.1", "mtu", "1400")
	}
	for _, mode := range proxyModes(t) {
		t.Run(mode.name, func(t *testing.T) {
			startInMode(t, l, mode)
			for _, vip := range serveDual(t, l, Service{Name: "narrow", Endpoints: At("p21")}) {
				end := through(t, l, vip, "n1")
				exchange(t, l, vip, "n1", overlayAddr("n1", vip))
				end()
			}
		})
	}
}

// overlayAddr returns the address of a node's device of the overlay.
func overlayAddr(node string, like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.MustParseAddr("10.244." + node[1:] + ".0")
	}
	return netip.MustParseAddr("2001:db8:244:" + node[1:] + "::")
}

// clientAddr returns the client's address in the family of like.
func clientAddr(like netip.Addr) netip.Addr {
	if like.Is4() {
		return ClientAddr
	}
	return ClientAddr6
}

// The sizes of what crosses an overlay, in bytes.
const (
	bulk     = 10 << 20
	datagram = 8000 // several fragments
)

// exchange checks that p21 sees a client as sees, and that much data gets through each way.
func exchange(t *testing.T, l *Lab, vip netip.Addr, ingress string, sees netip.Addr) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	for _, attempt := range []struct {
		what string
		do   func() (Answer, error)
	}{
		{"a request", func() (Answer, error) { return l.Client.Get(ctx, netip.AddrPort{}, port(vip, 80)) }},
		{"a datagram", func() (Answer, error) { return l.Client.AskUDP(ctx, netip.AddrPort{}, port(vip, 7)) }},
		{"large datagrams", func() (Answer, error) { return l.Client.exchangeLarge(ctx, port(vip, 7)) }},
		{"10 MiB up", func() (Answer, error) {
			return l.Client.Exchange(ctx, netip.AddrPort{}, port(vip, 80), bulk, 0)
		}},
		{"10 MiB down", func() (Answer, error) {
			return l.Client.Exchange(ctx, netip.AddrPort{}, port(vip, 80), 0, bulk)
		}},
	} {
		if a, err := attempt.do(); err != nil || a.Pod != "p21" || a.Saw.Addr() != sees {
			t.Errorf("%s to %s through %s: %v, %+v: want p21, which sees %s", attempt.what, vip, ingress, err, a, sees)
		}
	}
}

// exchangeLarge is ExchangeUDP with several fragments. Over IPv6, and where the path's MTU is
// not known yet, each end may lose one datagram to an ICMP "packet too big", after which its
// kernel makes smaller fragments.
func (c *Client) exchangeLarge(ctx context.Context, to netip.AddrPort) (a Answer, err error) {
	for range 3 {
		patient, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if a, err = c.ExchangeUDP(patient, netip.AddrPort{}, to, datagram); err == nil {
			return a, nil
		}
	}
	return a, err
}
