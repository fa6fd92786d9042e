package kubelet

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// l2Objects announce addresses of the nodes' own segment over layer 2. Only a Service that
// requests the pool gets one.
const l2Objects = `
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: link}
spec: {announce: Advertised, addresses: [198.51.100.200-198.51.100.203], allocation: OnRequest}
---
apiVersion: fanfare.io/v1alpha1
kind: L2Advertisement
metadata: {name: link}
spec: {pools: [link], interfaces: [eth1]}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: linked, annotations: {fanfare.io/address-pool: link}}
spec:
  type: LoadBalancer
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http}]
`

// Pods with the manifests' privileges receive ARP requests and their answers are accepted.
// The router has no route and sends ARP requests.
func TestPodsAnswerARP(t *testing.T) {
	c, ctx := kubelets(t), t.Context()
	must(t, c.Kubernetes.Admin().Apply(ctx, l2Objects))
	t.Cleanup(func() {
		_, err := c.kubectl(context.WithoutCancel(ctx), "-n", "shop", "delete", "service/linked",
			"l2advertisement/link", "addresspool/link")
		must(t, err)
	})
	vip, err := c.address(ctx, "linked")
	must(t, err)
	// The entry of an earlier run must not replace a pod's answer.
	_, err = c.Namespace("tor1").Run(ctx, "ip", "neigh", "flush", "to", vip.String())
	must(t, err)
	var a lab.Answer
	must(t, lab.Await(ctx, limit, "an answer from "+vip.String(), func() (err error) {
		a, err = c.Client.Get(ctx, netip.AddrPort{}, netip.AddrPortFrom(vip, 80))
		return err
	}))
	entry, err := c.Namespace("tor1").Run(ctx, "ip", "neigh", "show", vip.String())
	must(t, err)
	t.Logf("http://%s answered by %s; the router has %s", vip, a.Pod, entry)
	if !slices.ContainsFunc(nodes, func(n string) bool {
		mac, err := c.MAC(n)
		must(t, err)
		return strings.Contains(entry, mac)
	}) {
		t.Errorf("the router has %q for %s: want the hardware address of a node", entry, vip)
	}
}
