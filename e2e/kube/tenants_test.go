package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

const tenantPool = `
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: lan}
spec: {announce: BGP, addresses: [192.0.2.0/28], allowedServiceCommunities: ["64500:1"]}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
`

// A namespace that creates and deletes Services in a loop keeps four reserved addresses, another
// namespace gets the rest, and kubectl lists what is reserved. The reservations end with the
// namespace. All of it with the rights of the controller's role.
func TestReservationsOnAPIServer(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		must(t, f.Admin().Apply(t.Context(), tenantPool))
		f.run("controller")
		for i := range 10 {
			name := fmt.Sprint("s", i)
			svc := strings.Replace(requestingService(name, `fanfare.io/reserve: "true"`, 80), "namespace: default",
				"namespace: shop", 1)
			must(t, f.Admin().Apply(t.Context(), svc))
			await(t, time.Minute, "an address", func() error { _, err := f.assigned(name); return err })
			must(t, f.Admin().Delete(t.Context(), svc))
			await(t, time.Minute, "the release of the address", func() error {
				claims, err := f.claims()
				for addr, holders := range claims {
					if holders != "" {
						err = errors.Join(err, fmt.Errorf("%s is held by %s", addr, holders))
					}
				}
				if want := min(i+1, cluster.DefaultReservedQuota); len(claims) != want {
					err = errors.Join(err, fmt.Errorf("%d reserved addresses, want %d", len(claims), want))
				}
				return err
			})
		}
		for i := range 16 - cluster.DefaultReservedQuota {
			must(t, f.Admin().Apply(t.Context(), requestingService(fmt.Sprint("other", i), "", 80)))
		}
		for i := range 16 - cluster.DefaultReservedQuota {
			await(t, time.Minute, "an address of another namespace",
				func() error { _, err := f.assigned(fmt.Sprint("other", i)); return err })
		}
		if reserved := f.column("addressclaims", "Reserved For"); len(reserved) != 16 ||
			len(slices.DeleteFunc(reserved, func(v any) bool { return v != "shop" })) != cluster.DefaultReservedQuota {
			t.Errorf("kubectl lists as reserved for: %v", reserved)
		}
		must(t, f.Admin().Delete(t.Context(), "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}"))
		await(t, time.Minute, "the end of the reservations", func() error {
			claims, err := f.claims()
			if len(claims) != 16-cluster.DefaultReservedQuota {
				err = errors.Join(err, fmt.Errorf("%d claims, want those of the other namespace: %v", len(claims),
					claims))
			}
			return err
		})
	})
}

// column returns the values of a column that kubectl get prints.
func (f *fanfare) column(resource, name string) (values []any) {
	f.Helper()
	b, err := f.Admin().discovery.RESTClient().Get().AbsPath("/apis/fanfare.io/v1alpha1/"+resource).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(f.Context())
	must(f.T, err)
	var table metav1.Table
	must(f.T, json.Unmarshal(b, &table))
	i := slices.IndexFunc(table.ColumnDefinitions, func(c metav1.TableColumnDefinition) bool { return c.Name == name })
	if i < 0 {
		f.Fatalf("%s have no column %s: %v", resource, name, table.ColumnDefinitions)
	}
	for _, row := range table.Rows {
		values = append(values, row.Cells[i])
	}
	return values
}

// A Service's condition says what its pool does not allow, and that it is allowed once the pool is
// changed. The API server accepts the fields of the pool.
func TestPermissionsOnAPIServer(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		must(t, f.Admin().Apply(t.Context(), strings.Replace(tenantPool, "announce: BGP", "announce: L2", 1)))
		must(t, f.Admin().Apply(t.Context(), requestingService("web",
			`fanfare.io/load-balancer-ips: 192.0.2.7, fanfare.io/l2-node: n1, fanfare.io/bgp-communities: "64500:1, blackhole"`, 80)))
		f.run("controller")
		f.awaitCondition(serviceKind, "web", "True AnnotationRefused: has 192.0.2.7 of pool lan; "+
			"metadata.annotations[fanfare.io/l2-node]: n1 is ignored: spec.allowL2Node of AddressPool lan is not true")
		must(t, f.Admin().Patch(t.Context(), kindOf("AddressPool"), "", "lan", `{"spec":{"allowL2Node":true}}`))
		f.awaitCondition(serviceKind, "web", "True Assigned: has 192.0.2.7 of pool lan")
		must(t, f.Admin().Patch(t.Context(), kindOf("AddressPool"), "", "lan", `{"spec":{"announce":"BGP"}}`))
		f.awaitCondition(serviceKind, "web", "True AnnotationRefused: has 192.0.2.7 of pool lan; "+
			"metadata.annotations[fanfare.io/bgp-communities]: blackhole is left out: spec.allowedServiceCommunities "+
			"of AddressPool lan does not list it")
	})
}
