package kube

import (
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

const metalLBObjects = `
apiVersion: v1
kind: Namespace
metadata: {name: metallb-system}
---
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: rest, namespace: metallb-system}
spec: {addresses: [192.0.2.0/25, "2001:db8:1::/120"]}
---
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: pinned, namespace: metallb-system}
spec: {addresses: [192.0.2.128-192.0.2.140], autoAssign: false, serviceAllocation: {priority: 10, namespaces: [elsewhere]}}
---
apiVersion: metallb.io/v1beta1
kind: BGPPeer
metadata: {name: tor1, namespace: metallb-system}
spec: {myASN: 64513, peerASN: 64512, peerAddress: 10.0.0.1, nodeSelectors: [{matchLabels: {kubernetes.io/hostname: n1}}]}
---
apiVersion: metallb.io/v1beta1
kind: BGPAdvertisement
metadata: {name: all, namespace: metallb-system}
spec: {communities: ["64513:1"]}
---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {kubernetes.io/hostname: n1}}
status: {addresses: [{type: InternalIP, address: 10.0.0.11}]}
---
`

// metalLBServices are Services as MetalLB leaves them, by the addresses in their status.
var metalLBServices = []struct{ name, annotations, spec, addrs string }{
	{"plain", `metallb.io/ip-allocated-from-pool: rest`, ``, "192.0.2.5"},
	{"asked", `metallb.universe.tf/loadBalancerIPs: 192.0.2.99`, `, externalTrafficPolicy: Local`, "192.0.2.99"},
	{"pool", `metallb.io/address-pool: rest`, ``, "192.0.2.77"},
	{"first", `metallb.io/allow-shared-ip: k`, ``, "192.0.2.9"},
	{"second", `metallb.io/allow-shared-ip: k`, ``, "192.0.2.9"},
	{"dual", `metallb.io/loadBalancerIPs: "192.0.2.11,2001:db8:1::11"`, `, ipFamilyPolicy: PreferDualStack`,
		"192.0.2.11 2001:db8:1::11"},
	// A Service that MetalLB's pool would not admit today.
	{"stranger", `metallb.io/ip-allocated-from-pool: pinned`, ``, "192.0.2.130"},
}

// metalLBCRDs returns the files of MetalLB's CRDs.
func metalLBCRDs(t *testing.T) []string {
	t.Helper()
	source, err := MetalLBSource(t.Context())
	if err != nil {
		nstest.Missing(t, err.Error())
	}
	files, err := filepath.Glob(filepath.Join(source, "config/crd/bases/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatal("no CRDs of MetalLB", err)
	}
	return files
}

// Services of MetalLB keep every address: the objects are converted from the API server, and a controller that
// serves MetalLB's class adopts what is in the status.
func TestMigrationKeepsAddresses(t *testing.T) {
	crds := metalLBCRDs(t) // before the namespace, which has no network
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		must(t, f.Admin().ApplyFiles(t.Context(), crds...))
		const class = "metallb.io/metallb"
		objects := metalLBObjects
		want := map[string][]string{}
		for i, s := range metalLBServices {
			var ingress []string
			for _, a := range strings.Fields(s.addrs) {
				ingress = append(ingress, fmt.Sprintf("{ip: %q, ipMode: VIP}", a))
			}
			want[s.name] = strings.Fields(s.addrs)
			objects += fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {namespace: default, name: %s, "+
				"annotations: {%s}}, spec: {type: LoadBalancer, loadBalancerClass: %s, ports: [{port: %d}]%s}, "+
				"status: {loadBalancer: {ingress: [%s]}}}\n---\n",
				s.name, s.annotations, class, 80+i, s.spec, strings.Join(ingress, ", "))
		}
		await(t, time.Minute, "MetalLB's objects", func() error { return f.Admin().Apply(t.Context(), objects) })
		must(t, f.WriteKubeconfig(f.kubeconfig("admin"), "admin", "system:masters"))

		out, err := exec.CommandContext(t.Context(), f.binary, "migrate", "metallb", "--kubeconfig",
			f.kubeconfig("admin"), "--lb-class", class).Output()
		if err != nil || !strings.Contains(string(out), "0 differences.") {
			t.Fatalf("%v\n%s", err, out)
		}
		must(t, f.Admin().Apply(t.Context(), string(out)))

		f.run("controller", "--lb-class="+class)
		await(t, time.Minute, "claims for all addresses", func() error { return f.claimed(want) })
		got, err := f.ingress()
		must(t, err)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("addresses %v, want %v", got, want)
		}
	})
}

// claimed returns an error unless each Service holds the claims of its addresses, and has a condition about
// them: the controller has done its work then.
func (f *fanfare) claimed(want map[string][]string) error {
	claims, err := f.Admin().List(f.Context(), kindOf("AddressClaim"))
	if err != nil {
		return err
	}
	holders := map[string]string{}
	for _, c := range claims {
		addr, _, _ := unstructured.NestedString(c.Object, "spec", "address")
		holders[addr], _, _ = unstructured.NestedString(c.Object, "spec", "services")
	}
	services, err := f.Admin().List(f.Context(), serviceKind)
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range services {
		conditions, _, _ := unstructured.NestedSlice(s.Object, "status", "conditions")
		if want[s.GetName()] != nil && len(conditions) == 0 {
			errs = append(errs, fmt.Errorf("%s has no condition", s.GetName()))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		for _, a := range want[name] {
			if !slices.Contains(strings.Split(holders[a], ", "), "default/"+name) {
				errs = append(errs, fmt.Errorf("%s is claimed by %q, want %s", a, holders[a], name))
			}
		}
	}
	return errors.Join(errs...)
}

// ingress returns the addresses in the status of each Service.
func (f *fanfare) ingress() (map[string][]string, error) {
	all, err := f.Admin().List(f.Context(), serviceKind)
	if err != nil {
		return nil, err
	}
	got := map[string][]string{}
	for _, s := range all {
		ingress, _, _ := unstructured.NestedSlice(s.Object, "status", "loadBalancer", "ingress")
		for _, i := range ingress {
			got[s.GetName()] = append(got[s.GetName()], i.(map[string]any)["ip"].(string))
		}
	}
	return got, nil
}
