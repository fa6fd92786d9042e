package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
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
	for _, c := range s.Conditions {
		fmt.Fprintf(&b, " %s %s %s: %s", c.Type, c.Status, c.Reason, c.Message)
	}
	return b.String()
}

func TestPoolStatuses(t *testing.T) {
	snap := cluster.Parse(decode(t, `kind: AddressPool
metadata: {name: both}
spec: {addresses: [192.0.2.0/30, "2001:db8::/64"], avoidBuggyIPs: true}
---
kind: AddressPool
metadata: {name: drained}
spec: {addresses: [192.0.3.1], allocation: Drained}
---
kind: AddressPool
metadata: {name: full}
spec: {addresses: [192.0.4.1], allocation: OnRequest}
---
kind: AddressPool
metadata: {name: request}
spec: {addresses: [192.0.5.1-192.0.5.2], allocation: OnRequest}
---
kind: AddressPool
metadata: {name: wrong}
spec: {addresses: [192.0.6.1, nonsense]}
---
kind: AddressClaim
metadata: {name: 192.0.4.1}
spec: {address: 192.0.4.1, reserved: true}
---
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.0.0.1, ipFamilies: [IPv4, IPv6], ports: [{port: 80}]}`)...)
	as, _ := ipam.Allocate(snap)
	got := poolStatuses(snap, as)
	want := []string{
		`both IPv4 1 of 3, 2 free; IPv6 1 of 9223372036854775807, 9223372036854775806 free; Ready True Ready: has addresses to give`,
		`drained IPv4 0 of 1, 1 free; Ready False Drained: gives out no more addresses; those that Services have stay`,
		`full IPv4 0 of 1, 0 free; Ready False PoolExhausted: every address is taken; add addresses`,
		`request IPv4 0 of 2, 2 free; Ready True Ready: has addresses to give to Services that ask for them`,
		`wrong IPv4 0 of 1, 1 free; Ready False Invalid: AddressPool wrong: spec.addresses[1] "nonsense": is no IP address; write one such as 192.0.2.10 or 2001:db8::10`,
	}
	for i, name := range slices.Sorted(maps.Keys(got)) {
		if l := line(name, got[name]); l != want[i] {
			t.Errorf("got\n%s\nwant\n%s", l, want[i])
		}
	}
}

// A storm of changes writes a pool once a second, and the last one counts; nothing
// is written while nothing changes, nor by the next leader.
func TestPoolsSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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

// A pool that is deleted and created again has no status, whether or not a pass
// came between.
func TestPoolComesAgain(t *testing.T) {
	for _, seen := range []bool{true, false} {
		t.Run(fmt.Sprintf("seen gone %t", seen), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const path = "/apis/fanfare.io/v1alpha1/addresspools/lan"
				s := newStore(t)
				c := start(t, s, nil)
				pass := func() {
					time.Sleep(poolInterval)
					c.source = s.source()
					c.pass(t.Context())
				}
				create := func() {
					pool := &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: "lan", CreationTimestamp: metav1.Now()}}
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
