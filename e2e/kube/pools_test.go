package kube

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const selectivePools = `
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: a}}
---
apiVersion: v1
kind: Namespace
metadata: {name: dev}
---
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: public}
spec: {announce: BGP, addresses: [192.0.2.10], namespaceSelector: {matchLabels: {team: a}}, namespaceQuota: 1}
---
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: careless}
spec: {announce: BGP, addresses: [10.96.255.0/28], allocation: OnRequest}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec: {type: LoadBalancer, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: dev, name: tool, annotations: {fanfare.io/address-pool: public}}
spec: {type: LoadBalancer, ports: [{port: 80}]}
`

// A pool with a namespaceSelector and a quota, with Namespaces and ServiceCIDRs from the
// API server and the rights of the role. A Service keeps its address when its Namespace's
// labels change, when the controller restarts, and when the pool is drained; the pool
// reports when it can be removed.
func TestPoolConditions(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		must(t, f.Admin().Apply(t.Context(), selectivePools))
		controller := f.run("controller")
		f.awaitCondition(serviceKind, "web", "True Assigned: has 192.0.2.10 of pool public")
		f.awaitCondition(serviceKind, "tool",
			"False RequestRefused: asks for pool public, which is for namespaces that match team=a, and dev does not")
		f.awaitCondition(kindOf("AddressPool"), "public", "False PoolExhausted: every address is taken; add addresses")
		if !*oldest {
			f.awaitCondition(kindOf("AddressPool"), "careless",
				`False Invalid: AddressPool careless: spec.addresses "10.96.255.0-10.96.255.15": belongs to ServiceCIDR kubernetes, so no Service gets any of it; leave it out of the pool`)
		}

		must(t, f.Admin().Apply(t.Context(), "{apiVersion: v1, kind: Namespace, metadata: {name: "+
			"shop, labels: {team: b}}}"))
		must(t, f.Admin().Apply(t.Context(), "{apiVersion: v1, kind: Namespace, metadata: {name: "+
			"dev, labels: {team: a}}}"))
		f.awaitCondition(serviceKind, "web", "True PoolExcludesService: has 192.0.2.10 of pool public; 192.0.2.10 is "+
			"kept, although pool public is for namespaces that match team=a, and shop does not")
		f.awaitCondition(serviceKind, "tool",
			"False PoolExhausted: every IPv4 address of pool public is taken; add addresses")

		controller.kill()
		must(t, f.Admin().Patch(t.Context(), kindOf("AddressPool"), "", "public", `{"spec":{"allocation":"Drained"}}`))
		f.run("controller")
		f.awaitCondition(kindOf("AddressPool"), "public",
			"False Drained: gives out no addresses; Services keep the addresses that they have")
		if addr, err := f.assigned("web"); addr != "192.0.2.10" {
			t.Errorf("web has %s: %v", addr, err)
		}
		must(t, f.Admin().Delete(t.Context(),
			"{apiVersion: v1, kind: Service, metadata: {namespace: shop, name: web}}"))
		f.awaitCondition(kindOf("AddressPool"), "public",
			"False Drained: gives out no addresses, and no Service has one: it can be removed")
		f.awaitCondition(serviceKind, "tool",
			"False RequestRefused: asks for pool public, which is Drained and allocates no addresses")
	})
}

// awaitCondition waits until an object has exactly one condition, with this text.
func (f *fanfare) awaitCondition(kind schema.GroupVersionKind, name, want string) {
	f.Helper()
	await(f.T, time.Minute, "the condition of "+kind.Kind+" "+name, func() error {
		o, err := f.get(kind, name)
		if err != nil || o == nil {
			return errors.Join(err, errors.New("there is no such object"))
		}
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		if len(conditions) != 1 {
			return fmt.Errorf("status %v", o.Object["status"])
		}
		c := conditions[0].(map[string]any)
		if got := fmt.Sprintf("%s %s: %s", c["status"], c["reason"], c["message"]); got != want {
			return errors.New("got " + got)
		}
		return nil
	})
}
