package kube

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/watch"
)

// kinds are the kinds of a Snapshot.
var kinds = []schema.GroupVersionKind{
	{Version: "v1", Kind: "Service"},
	{Version: "v1", Kind: "Node"},
	{Group: "discovery.k8s.io", Version: "v1", Kind: "EndpointSlice"},
	v1alpha1.GroupVersion.WithKind("AddressPool"),
	v1alpha1.GroupVersion.WithKind("BGPPeer"),
	v1alpha1.GroupVersion.WithKind("AddressClaim"),
	v1alpha1.GroupVersion.WithKind("BGPAdvertisement"),
	v1alpha1.GroupVersion.WithKind("L2Advertisement"),
	{Version: "v1", Kind: "Namespace"},
}

// serviceCIDRKind is one of kinds, too, from Kubernetes 1.33 on.
var serviceCIDRKind = schema.GroupVersionKind{Group: "networking.k8s.io", Version: "v1", Kind: "ServiceCIDR"}

// shop stays when the test ends: deleting a namespace takes seconds, and it cannot be
// created again meanwhile.
const shop = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}"

// The addresses: nodes 192.168.0.0/24, pods 10.244.0.0/16, the pool 192.0.2.0/26 and
// 2001:db8::/112.
const world = `
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {rack: a}, annotations: {a: b}}
status:
  addresses: [{type: InternalIP, address: 192.168.0.1}, {type: Hostname, address: n1}]
  conditions: [{type: Ready, status: "True"}, {type: NetworkUnavailable, status: "False"}]
---
apiVersion: v1
kind: Node
metadata: {name: n2, labels: {rack: b}}
spec: {taints: [{key: fanfare.io/leaving, effect: NoSchedule}]}
status: {addresses: [{type: InternalIP, address: 192.168.0.2}]}
---
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: lan}
spec: {announce: Advertised, addresses: [192.0.2.0/26, "2001:db8::/112"], avoidBuggyIPs: true}
---
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: tor1}
spec: {peerAddress: 192.168.0.254, peerASN: 64512, myASN: 64513, holdTime: 9s, nodeSelector: {matchLabels: {rack: a}}}
---
apiVersion: fanfare.io/v1alpha1
kind: BGPAdvertisement
metadata: {name: lan}
spec: {pools: [lan], peers: [tor1], serviceSelector: {matchLabels: {a: b}}}
---
apiVersion: fanfare.io/v1alpha1
kind: BGPAdvertisement
metadata: {name: wide}
spec: {pools: [lan], aggregationLength: 26, aggregationLengthV6: 112}
---
apiVersion: fanfare.io/v1alpha1
kind: L2Advertisement
metadata: {name: lan}
spec: {pools: [lan], interfaces: [eth0], serviceSelector: {matchLabels: {a: b}}, preferredNodeSelectors: [{weight: 5, preference: {matchLabels: {rack: a}}}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, labels: {a: b}, annotations: {fanfare.io/address-pool: lan, other: annotation}}
spec:
  type: LoadBalancer
  selector: {app: web}
  externalTrafficPolicy: Local
  ipFamilyPolicy: PreferDualStack
  ports: [{name: http, port: 80, targetPort: 8080}, {name: dns, port: 53, protocol: UDP, targetPort: dns}]
status: {loadBalancer: {ingress: [{ip: 192.0.2.1}, {ip: "2001:db8::1"}]}}
---
apiVersion: v1
kind: Service
metadata: {name: empty, namespace: shop}
spec: {type: LoadBalancer, loadBalancerClass: fanfare.io/lb, selector: {app: none}, ports: [{port: 443}]}
---
apiVersion: v1
kind: Service
metadata: {name: foreign, namespace: shop}
spec: {type: LoadBalancer, loadBalancerClass: example.com/lb, selector: {app: web}, ports: [{port: 443}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: shop}
spec: {clusterIP: None, selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: fanfare.io/v1alpha1
kind: AddressClaim
metadata: {name: 192.0.2.1}
spec: {address: 192.0.2.1, pool: lan, node: n1, holders: [{namespace: shop, name: web}]}
---
apiVersion: fanfare.io/v1alpha1
kind: AddressClaim
metadata: {name: 2001-db8--1}
spec: {address: "2001:db8::1", pool: lan, holders: [{namespace: shop, name: web}]}
`

// pod returns a Pod with the status that its kubelet reports.
func pod(name, node, ip4, ip6 string, ready bool) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: shop, labels: {app: web}}
spec: {nodeName: %s, containers: [{name: web, image: web, ports: [{name: dns, containerPort: 5353, protocol: UDP}]}]}
status:
  phase: Running
  podIP: %[3]s
  podIPs: [{ip: %[3]s}, {ip: "%[4]s"}]
  conditions: [{type: Ready, status: "%[5]s"}]
`, name, node, ip4, ip6, map[bool]string{true: "True", false: "False"}[ready])
}

var pods = strings.Join([]string{
	pod("web-1", "n1", "10.244.1.1", "fd00:244::1:1", true),
	pod("web-2", "n2", "10.244.2.1", "fd00:244::2:1", true),
	pod("web-3", "n2", "10.244.2.2", "fd00:244::2:2", false),
}, "---")

// The snapshot from an API server equals that from a folder with the same objects: at the
// start, after changes, after an outage, and when the API server has returned with an older
// etcd.
func TestAPIServerSnapshotEqualsFiles(t *testing.T) {
	c := exclusiveControlPlane(t)
	ctx, admin := t.Context(), c.Admin()
	c.crds(t)
	must(t, admin.Apply(ctx, shop))
	must(t, admin.Apply(ctx, world))
	must(t, admin.Apply(ctx, pods))
	t.Cleanup(func() { must(t, admin.Delete(context.Background(), pods+"---"+world)) })
	api := c.open(t, watch.Options{})
	s := c.awaitFiles(t, api, ready(2))
	if s.Services.Len() != 2 || len(s.Nodes) != 2 || len(s.Pools) != 1 || len(s.Peers) != 1 || s.Claims.Len() != 2 ||
		s.Assignments.Len() != 2 || len(s.Problems) != 0 {
		t.Fatalf("the snapshot is not complete: %+v", s)
	}

	t.Run("changes", func(t *testing.T) {
		must(t, admin.Apply(ctx, pod("web-3", "n2", "10.244.2.2", "fd00:244::2:2", true)))
		must(t, admin.Patch(ctx, kinds[1], "", "n2", `{"spec":{"taints":null}}`))
		must(t, admin.Delete(ctx, "{apiVersion: fanfare.io/v1alpha1, kind: AddressClaim, metadata: "+
			"{name: 2001-db8--1}}"))
		after := c.awaitFiles(t, api, ready(3))
		if s.Services.At(1).Spec != after.Services.At(1).Spec || s.Services.At(0) != after.Services.At(0) ||
			s.Peers[0] != after.Peers[0] {
			t.Error("an unchanged object has another pointer")
		}
	})
	t.Run("one Node", func(t *testing.T) {
		api := c.open(t, watch.Options{NodeName: "n2", SkipEndpointSlices: true})
		if s := api.Snapshot(); len(s.Nodes) != 1 || s.Nodes[0].Name != "n2" || s.Services.At(1).Endpoints != nil {
			t.Errorf("the snapshot has too many objects: %+v", s)
		}
	})
	t.Run("no rights", func(t *testing.T) {
		cfg, err := c.Config("unprivileged")
		must(t, err)
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		if _, err := watch.OpenAPI(ctx, cfg, watch.Options{Log: discardLog}); err == nil ||
			!strings.Contains(err.Error(), `User "unprivileged" cannot list resource`) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("outage", func(t *testing.T) {
		before := api.Snapshot()
		c.APIServer.Kill()
		await(t, time.Minute, "Problem", func() error { return apiServerDown(api.Snapshot()) })
		if during := api.Snapshot(); !during.Services.Same(before.Services) ||
			!slices.Equal(during.Claims.Slice(), before.Claims.Slice()) {
			t.Error("an outage changed what is known")
		}
		must(t, c.StartAPIServer(ctx))
		must(t, admin.Apply(ctx, pod("web-2", "n2", "10.244.2.1", "fd00:244::2:1", false)))
		c.awaitFiles(t, api, ready(2))
	})
	t.Run("older etcd", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "etcd")
		must(t, c.Backup(ctx, dir))
		for i := range 20 { // The watches' versions are then far ahead.
			must(t, admin.Patch(ctx, kinds[1], "", "n1", fmt.Sprintf(`{"metadata":{"labels":{"i":"%d"}}}`, i)))
		}
		must(t, admin.Delete(ctx, "{apiVersion: v1, kind: Service, metadata: {name: empty, namespace: shop}}"))
		c.awaitFiles(t, api, func(s *cluster.Snapshot) bool {
			return s.Services.Len() == 1 && s.Nodes[0].Labels["i"] == "19"
		})
		must(t, c.Restore(ctx, dir))
		c.awaitFiles(t, api, func(s *cluster.Snapshot) bool {
			return s.Services.Len() == 2 && s.Nodes[0].Labels["i"] == ""
		})
		must(t, admin.Apply(ctx, pod("web-2", "n2", "10.244.2.1", "fd00:244::2:1", true)))
		c.awaitFiles(t, api, ready(3))
	})
}

var discardLog = slog.New(slog.NewTextHandler(io.Discard, nil))

func (c *Cluster) open(t *testing.T, o watch.Options) *watch.API {
	t.Helper()
	o.Log = discardLog
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cfg, err := c.Config("test", "system:masters")
	must(t, err)
	api, err := openAPI(ctx, t.Context(), cfg, o)
	must(t, err)
	return api
}

// openAPI waits no longer than ctx, and watches as long as life.
func openAPI(ctx, life context.Context, cfg *rest.Config, o watch.Options) (*watch.API, error) {
	life, cancel := context.WithCancelCause(life)
	stop := context.AfterFunc(ctx, func() { cancel(ctx.Err()) })
	defer stop()
	return watch.OpenAPI(life, cfg, o)
}

// ready reports whether n pods of the Service web are ready, each on two ports in two
// families.
func ready(n int) func(*cluster.Snapshot) bool {
	return func(s *cluster.Snapshot) bool {
		i := slices.IndexFunc(s.Services.Slice(), func(svc cluster.Service) bool { return svc.Name.Name == "web" })
		if i < 0 || s.Services.At(i).Endpoints == nil {
			return false
		}
		count := 0
		for _, subset := range s.Services.At(i).Endpoints.Subsets {
			for _, e := range subset.List {
				if e.Ready {
					count += len(subset.Ports)
				}
			}
		}
		return count == 4*n
	}
}

func apiServerDown(s *cluster.Snapshot) error {
	for _, p := range s.Problems {
		if p.Object.Kind == "API server" && strings.HasPrefix(p.Message, "does not answer since ") {
			return nil
		}
	}
	return fmt.Errorf("problems: %v", s.Problems)
}

// awaitFiles waits until the snapshot equals that of a folder with the API server's current
// objects, and is as wanted.
func (c *Cluster) awaitFiles(t *testing.T, api *watch.API, want func(*cluster.Snapshot) bool) *cluster.Snapshot {
	t.Helper()
	var s *cluster.Snapshot
	await(t, time.Minute, "the same snapshot", func() error {
		files, err := c.files(t)
		if err != nil {
			return err
		}
		s = api.Snapshot()
		if d := gocmp.Diff(files, s, compareOptions...); d != "" {
			return fmt.Errorf("-files +API server:\n%s", d)
		}
		if !want(s) {
			return fmt.Errorf("not the wanted snapshot: %+v", s)
		}
		return nil
	})
	return s
}

// compareOptions compare types that cmp cannot look into, and ignore fields that only files
// have.
var compareOptions = []gocmp.Option{
	cmpopts.EquateEmpty(),
	cmpopts.IgnoreFields(cluster.Problem{}, "File"),
	gocmp.Transformer("services", cluster.Services.Slice),
	gocmp.Transformer("claims", cluster.Claims.Slice),
	gocmp.Transformer("assignments", cluster.Assignments.Slice),
	gocmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	gocmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	gocmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	gocmp.Comparer(func(a, b netipx.IPRange) bool { return a == b }),
	gocmp.Comparer(func(a, b cluster.Selector) bool { return a.String() == b.String() }),
}

// files returns the snapshot of a folder with all objects of the API server.
func (c *Cluster) files(t *testing.T) (*cluster.Snapshot, error) {
	dir, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		return nil, err
	}
	for _, gvk := range kinds {
		objects, err := c.Admin().List(t.Context(), gvk)
		if err != nil {
			return nil, err
		}
		var text []byte
		for _, o := range objects {
			y, err := yaml.Marshal(o.Object)
			if err != nil {
				return nil, err
			}
			text = append(append(text, "---\n"...), y...)
		}
		if err := os.WriteFile(filepath.Join(dir, gvk.Kind+".yaml"), text, 0o600); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f, err := watch.OpenFiles(ctx, dir, nil, discardLog)
	if err != nil {
		return nil, err
	}
	return f.Snapshot(), nil
}
