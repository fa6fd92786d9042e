package controller

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go4.org/netipx"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
)

// line is a status in one line.
func line(name string, s v1alpha1.AddressPoolStatus) string {
	var b strings.Builder
	b.WriteString(name)
	if n := s.IPv4; n != nil {
		fmt.Fprintf(&b, " IPv4 %d of %d, %d free;", n.Assigned, n.Total, n.Available)
	}
	if n := s.IPv6; n != nil {
		fmt.Fprintf(&b, " IPv6 %d of %d, %d free;", n.Assigned, n.Total, n.Available)
	}
	for _, n := range s.Namespaces {
		fmt.Fprintf(&b, " %s %d+%d;", n.Namespace, n.IPv4, n.IPv6)
	}
	if s.OtherNamespaces != 0 {
		fmt.Fprintf(&b, " %d others;", s.OtherNamespaces)
	}
	for _, c := range s.Conditions {
		fmt.Fprintf(&b, " %s %s %s: %s", c.Type, c.Status, c.Reason, c.Message)
	}
	return b.String()
}

func TestPoolStatuses(t *testing.T) {
	snap := cluster.Parse(decode(t, `kind: AddressPool
metadata: {name: both}
spec: {announce: BGP, addresses: [192.0.2.0/30, "2001:db8::/64"], avoidBuggyIPs: true}
---
kind: AddressPool
metadata: {name: drained}
spec: {announce: BGP, addresses: [192.0.3.1], allocation: Drained}
---
kind: AddressPool
metadata: {name: full}
spec: {announce: BGP, addresses: [192.0.4.1], allocation: OnRequest}
---
kind: AddressPool
metadata: {name: request}
spec: {announce: BGP, addresses: [192.0.5.1-192.0.5.2], allocation: OnRequest}
---
kind: AddressPool
metadata: {name: wrong}
spec: {announce: BGP, addresses: [192.0.6.1, nonsense]}
---
kind: AddressClaim
metadata: {name: 192.0.4.1}
spec: {address: 192.0.4.1, reserved: true}
---
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.0.0.1, ipFamilies: [IPv4, IPv6], ports: [{port: 80}]}
---
kind: AddressPool
metadata: {name: draining}
spec: {announce: BGP, addresses: [192.0.7.1], allocation: Drained}
---
kind: Service
metadata: {name: stays, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.0.0.2, ipFamilies: [IPv4], ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: 192.0.7.1}]}}
---
kind: AddressPool
metadata: {name: half}
spec: {announce: BGP, addresses: [192.0.8.1, "2001:db8:8::/64"], namespaces: [half], priority: 1}
---
kind: Service
metadata: {name: four, namespace: half}
spec: {type: LoadBalancer, clusterIP: 10.0.0.3, ipFamilies: [IPv4], ports: [{port: 80}]}
---
kind: AddressPool
metadata: {name: limited}
spec: {announce: BGP, addresses: [192.0.9.0/24], namespaces: [greedy, modest], namespaceQuota: 1, allocation: OnRequest}
---
kind: Service
metadata: {name: one, namespace: greedy}
spec: {type: LoadBalancer, clusterIP: 10.0.0.4, ipFamilies: [IPv4], ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: 192.0.9.1}]}}
---
kind: Service
metadata: {name: two, namespace: greedy}
spec: {type: LoadBalancer, clusterIP: 10.0.0.5, ipFamilies: [IPv4], ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: 192.0.9.2}]}}
---
kind: Service
metadata: {name: three, namespace: modest}
spec: {type: LoadBalancer, clusterIP: 10.0.0.6, ipFamilies: [IPv4], ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: 192.0.9.3}]}}
---
kind: AddressPool
metadata: {name: silent}
spec: {announce: Advertised, addresses: [192.0.11.1], allocation: OnRequest}
---
kind: AddressPool
metadata: {name: unusable, generation: 3}
spec: {announce: Nowhere, addresses: [192.0.12.1]}
---
kind: AddressPool
metadata: {name: onlink}
spec: {announce: BGP, addresses: [192.0.10.0/30], allocation: OnRequest}
---
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 192.0.10.1}]}
---
kind: Service
metadata: {name: careless, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.0.0.7, ipFamilies: [IPv4], ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: 192.0.10.1}]}}`)...)
	as, _ := ipam.NewAllocator(snap, ipam.Settled).Allocate(time.Time{})
	got := poolStatuses(snap, as)
	want := []string{
		`both IPv4 1 of 3, 2 free; IPv6 1 of 9223372036854775807, 9223372036854775806 free; shop 1+1; Ready True Ready: has addresses to give`,
		`drained IPv4 0 of 1, 1 free; Ready False Drained: gives out no addresses, and no Service has one: it can be removed`,
		`draining IPv4 1 of 1, 0 free; shop 1+0; Ready False Drained: gives out no addresses; Services keep the addresses that they have`,
		`full IPv4 0 of 1, 0 free; Ready False PoolExhausted: every address is taken; add addresses`,
		`half IPv4 1 of 1, 0 free; IPv6 0 of 9223372036854775807, 9223372036854775807 free; half 1+0; Ready True Ready: has addresses to give; every IPv4 address is taken`,
		`limited IPv4 3 of 256, 253 free; greedy 2+0; modest 1+0; Ready True Ready: has addresses to give to Services that ask for them; over the quota of 1, and keep what they have: namespaces greedy`,
		`onlink IPv4 1 of 3, 3 free; shop 1+0; Ready False Invalid: AddressPool onlink: spec.addresses "192.0.10.1": belongs to Node n1, so no Service gets any of it; leave it out of the pool`,
		`request IPv4 0 of 2, 2 free; Ready True Ready: has addresses to give to Services that ask for them`,
		`silent IPv4 0 of 1, 1 free; Ready False NotAdvertised: AddressPool silent: spec.announce "Advertised": no BGPAdvertisement or L2Advertisement selects this pool, so none of its addresses is announced; create one, or set spec.announce to BGP or L2`,
		`unusable Ready False Invalid: AddressPool unusable: spec.announce "Nowhere": must be BGP (to every router that selects the node), L2 (by ARP and NDP) or Advertised (as BGPAdvertisements and L2Advertisements say)`,
		`wrong IPv4 0 of 1, 1 free; Ready False Invalid: AddressPool wrong: spec.addresses[1] "nonsense": each must be a CIDR such as 192.0.2.0/26, a range such as 192.0.2.10-192.0.2.50, or one address, without leading zeros`,
	}
	for i, name := range slices.Sorted(maps.Keys(got)) {
		if l := line(name, got[name]); l != want[i] {
			t.Errorf("got\n%s\nwant\n%s", l, want[i])
		}
	}
	if n := got["unusable"].Conditions[0].ObservedGeneration; n != 3 {
		t.Errorf("observedGeneration %d of a pool that is not used, want 3", n)
	}
}

// A storm of changes writes a pool once a second, and the last one counts; nothing
// is written while nothing changes, nor by the next leader.
func TestPoolStatusRateLimit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStore(t)
		w := &world{store: s}
		w.setPool("lan", 200)
		c := start(t, s, nil)
		writes := 0
		s.wrote = func(path string, _, _ object) {
			if strings.Contains(path, "/addresspools/") {
				writes++
			}
		}
		for i := range 100 {
			name := fmt.Sprint("s", i)
			s.put(servicesPath+name, nil, from(t, w.service(name)))
			c.source = s.source()
			c.pass(t.Context())
			time.Sleep(20 * time.Millisecond)
		}
		if writes < 2 || writes > 3 {
			t.Errorf("%d writes within two seconds", writes)
		}
		time.Sleep(c.wake(c.pass(t.Context())))
		c.pass(t.Context())
		pool := into[v1alpha1.AddressPool](t, s.objects["/apis/fanfare.io/v1alpha1/addresspools/lan"])
		if n := pool.Status.IPv4; n.Assigned != 100 || n.Available != 100 {
			t.Errorf("status %v, want 100 and 100", n)
		}
		writes = 0
		time.Sleep(time.Minute)
		c.pass(t.Context())
		next := start(t, s, nil)
		next.source = s.source()
		next.pass(t.Context())
		if writes != 0 {
			t.Errorf("%d writes of what was there", writes)
		}
	})
}

// Of ten thousand namespaces a status names the hundred with most addresses.
func TestPoolNamespaces(t *testing.T) {
	snap := &cluster.Snapshot{Pools: []*cluster.Pool{{Name: "lan",
		Ranges: []netipx.IPRange{netipx.MustParseIPRange("10.0.0.0-10.255.255.255")}}}}
	var as []cluster.Assignment
	a := netip.MustParseAddr("10.0.0.0")
	for i := range maxNamespaces + 7 {
		for range 1 + i%2 {
			as = append(as, cluster.Assignment{
				Addr: a, Service: cluster.Name{Namespace: fmt.Sprintf("ns%03d", i), Name: "a"}, Pool: "lan",
			})
			a = a.Next()
		}
	}
	// One address that two Services of one namespace share, and one of another.
	last := as[len(as)-1]
	last.Service.Name = "b"
	as = append(as, last)
	last.Service.Namespace = "zz"
	as = append(as, last)
	s := poolStatuses(snap, as)["lan"]
	if len(s.Namespaces) != maxNamespaces || s.OtherNamespaces != 8 {
		t.Fatalf("%d namespaces and %d others", len(s.Namespaces), s.OtherNamespaces)
	}
	first, end := s.Namespaces[0], s.Namespaces[maxNamespaces-1]
	if first.Namespace != "ns001" || first.IPv4 != 2 || end.Namespace != "ns092" || end.IPv4 != 1 {
		t.Errorf("from %v to %v", first, end)
	}
	if want := int64(len(as) - 2); s.IPv4.Assigned != want || s.IPv4.Available != 1<<24-want {
		t.Errorf("%+v, want %d assigned", s.IPv4, want)
	}
}

// Reserved addresses count for the pool if no Service has them, and for the namespaces that they
// are reserved for and that do not have them.
func TestPoolReserved(t *testing.T) {
	addr := netip.MustParseAddr
	service := func(namespace, name string) cluster.Name { return cluster.Name{Namespace: namespace, Name: name} }
	snap := &cluster.Snapshot{
		Pools: []*cluster.Pool{{Name: "lan", Ranges: []netipx.IPRange{
			netipx.MustParseIPRange("192.0.2.0-192.0.2.15")}}},
		Claims: cluster.ClaimSet(
			&cluster.Claim{
				Addr: addr("192.0.2.1"), ReservedFor: []cluster.Name{service("shop", "a"), service("shop", "b")},
			},
			&cluster.Claim{Addr: addr("192.0.2.2"), Reserved: true},
			&cluster.Claim{
				Addr: addr("192.0.2.3"), ReservedFor: []cluster.Name{service("dev", "a"), service("shop", "c")},
				Holders: []cluster.Holder{{Name: service("shop", "d")}},
			},
			&cluster.Claim{Addr: addr("192.0.2.4"), Holders: []cluster.Holder{{Name: service("shop", "e")}}},
		),
	}
	as := []cluster.Assignment{{Addr: addr("192.0.2.3"), Service: service("shop", "d"), Pool: "lan"},
		{Addr: addr("192.0.2.4"), Service: service("shop", "e"), Pool: "lan"}}
	s := poolStatuses(snap, as)["lan"]
	if want := (v1alpha1.PoolAddresses{Total: 16, Assigned: 2, Reserved: 2, Available: 12}); *s.IPv4 != want {
		t.Errorf("%+v, want %+v", *s.IPv4, want)
	}
	want := []v1alpha1.NamespaceAddresses{{Namespace: "shop", IPv4: 2, Reserved: 1}, {Namespace: "dev", Reserved: 1}}
	if !slices.Equal(s.Namespaces, want) {
		t.Errorf("%+v, want %+v", s.Namespaces, want)
	}
}

// Each change of a pool's condition has one Event, also with the next leader, and numbers
// are no change of it.
func TestPoolEvents(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStore(t)
		w := &world{store: s}
		w.setPool("lan", 2)
		var events []string
		s.wrote = func(path string, _, after object) {
			if strings.Contains(path, "/events/") {
				if e := into[eventsv1.Event](t, after); e.Regarding.Kind == "AddressPool" {
					events = append(events, fmt.Sprintf("%s %s %s/%s: %s", e.Type, e.Reason, e.Namespace,
						e.Regarding.Name, e.Note))
				}
			}
		}
		c := start(t, s, nil)
		pass := func() {
			t.Helper()
			time.Sleep(poolInterval)
			c.source = s.source()
			if _, errs := c.pass(t.Context()); len(errs) != 0 {
				t.Fatal(errs)
			}
		}
		service := func(i int) string {
			name := fmt.Sprint("s", i)
			s.put(servicesPath+name, nil, from(t, w.service(name)))
			return name
		}
		pass()
		service(0)
		pass()
		last := service(1)
		pass()
		pass()
		c = start(t, s, nil)
		pass()
		s.remove(servicesPath + last)
		pass()
		pass()
		want := []string{
			"Normal Ready default/lan: has addresses to give",
			"Warning PoolExhausted default/lan: every address is taken; add addresses",
			"Normal Ready default/lan: has addresses to give",
		}
		if !slices.Equal(events, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(events, "\n"), strings.Join(want, "\n"))
		}
	})
}

// A pool that is deleted and created again has no status, whether or not a pass
// came between.
func TestPoolRecreated(t *testing.T) {
	for _, seen := range []bool{true, false} {
		t.Run(fmt.Sprintf("seen gone %t", seen), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				const path = "/apis/fanfare.io/v1alpha1/addresspools/lan"
				s := newStore(t)
				c := start(t, s, nil)
				pass := func() {
					time.Sleep(poolInterval)
					c.source = s.source()
					c.pass(t.Context())
				}
				create := func() {
					pool := &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{
						Name: "lan", CreationTimestamp: metav1.Now(),
					}}
					pool.Spec.Announce = v1alpha1.AnnounceBGP
					pool.Spec.Addresses = []string{"192.0.2.0/24"}
					s.put(path, nil, from(t, pool))
				}
				create()
				pass()
				s.remove(path)
				if seen {
					pass()
				}
				create()
				pass()
				if pool := into[v1alpha1.AddressPool](t, s.objects[path]); len(pool.Status.Conditions) != 1 {
					t.Errorf("the second pool's status is %+v", pool.Status)
				}
			})
		})
	}
}
