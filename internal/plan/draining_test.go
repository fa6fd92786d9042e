package plan

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
	"github.com/fanfare-lb/fanfare/proxy"
)

// Every endpoint of a port gets new flows in its frontend or is draining.
func TestEveryEndpointIsUsedOrDraining(t *testing.T) {
	draining := 0
	for seed := range uint64(300) {
		w := plantest.NewWorld(seed)
		for range 20 {
			w.Step()
		}
		snap := w.Snapshot()
		for a := range Decide(Config{Node: "n1"}, snap).Addresses.All() {
			for _, f := range a.VIP.Frontends {
				all := append(endpointsOf(f.External), endpointsOf(f.Internal)...)
				for _, d := range f.Draining {
					if slices.Contains(all, d) {
						t.Errorf("seed %d: %s drains in %s, which sends it new flows", seed, d, f.Name)
					}
				}
				draining += len(f.Draining)
				if !slices.IsSortedFunc(f.Draining, netip.AddrPort.Compare) {
					t.Errorf("seed %d: %v is not sorted", seed, f.Draining)
				}
				want := known(snap, f.Name)
				got := slices.Concat(all, f.Draining)
				slices.SortFunc(got, netip.AddrPort.Compare)
				if got = slices.Compact(got); !slices.Equal(got, want) {
					t.Errorf("seed %d: %s: %v are in it, want %v", seed, f.Name, got, want)
				}
			}
		}
	}
	if draining == 0 {
		t.Error("nothing drained in any world")
	}
}

func endpointsOf(t proxy.Target) (out []netip.AddrPort) {
	for _, b := range t.Backends {
		out = append(out, b.Addr)
	}
	return out
}

// known returns all endpoints of a frontend's Service; in a World, Services have one port.
func known(snap *cluster.Snapshot, frontend string) (out []netip.AddrPort) {
	for s := range snap.Services.All() {
		if s.Name.String()+":http" == frontend {
			for e := range s.Endpoints.All() {
				out = append(out, netip.AddrPortFrom(e.Addr, 8080))
			}
		}
	}
	return out
}

// Draining endpoints are of the frontend's port and family.
func TestDrainingPerPortAndFamily(t *testing.T) {
	snap := plantest.Snapshot(t, []byte(`
apiVersion: v1
kind: Node
metadata: {name: n1}
---
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: lan}
spec: {announce: L2, addresses: [192.0.2.0/24, "2001:db8::/64"]}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
  ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}]
status: {loadBalancer: {ingress: [{ip: 192.0.2.1}, {ip: "2001:db8::1"}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: web-4, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: dns, port: 5353, protocol: UDP}]
endpoints:
- {addresses: [10.244.1.9], nodeName: n1, conditions: {ready: false, serving: false, terminating: true}}
- {addresses: [10.244.1.5], nodeName: n1, conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [10.244.2.5], nodeName: n2, conditions: {ready: true}}
- {addresses: [10.244.2.6], nodeName: n2, conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [10.244.2.7], nodeName: n2, conditions: {ready: false}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: web-5, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: dns, port: 5353, protocol: UDP}]
endpoints:
- {addresses: [10.244.1.8], nodeName: n1, conditions: {ready: true}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: web-6, labels: {kubernetes.io/service-name: web}}
addressType: IPv6
ports: [{name: http, port: 8080}, {name: dns, port: 5353, protocol: UDP}]
endpoints:
- {addresses: ["fd00::6"], nodeName: n2, conditions: {ready: false, serving: true, terminating: true}}
- {addresses: ["fd00::5"], nodeName: n2, conditions: {ready: true}}
`))
	want := map[string][]netip.AddrPort{
		// n1 has no ready endpoint for http: external clients get 10.244.1.5 (KEP-1669).
		"192.0.2.1 tcp":   targets("10.244.1.9:8080", "10.244.2.6:8080", "10.244.2.7:8080"),
		"192.0.2.1 udp":   targets("10.244.1.5:5353", "10.244.1.9:5353", "10.244.2.6:5353", "10.244.2.7:5353"),
		"2001:db8::1 tcp": targets("[fd00::6]:8080"),
		"2001:db8::1 udp": targets("[fd00::6]:5353"),
	}
	for a := range Decide(Config{Node: "n1"}, snap).Addresses.All() {
		for _, f := range a.VIP.Frontends {
			key := a.Addr.String() + " " + f.Protocol.String()
			if !slices.Equal(f.Draining, want[key]) {
				t.Errorf("%s: %v drain, want %v", key, f.Draining, want[key])
			}
			delete(want, key)
		}
	}
	for key := range want {
		t.Errorf("%s: there is no such frontend", key)
	}
}

func targets(in ...string) (out []netip.AddrPort) {
	for _, s := range in {
		out = append(out, netip.MustParseAddrPort(s))
	}
	return out
}
