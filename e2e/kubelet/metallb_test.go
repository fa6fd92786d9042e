package kubelet

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// The page that the test runs, and its headings.
const (
	movePage  = "tasks/move-from-metallb.md"
	converted = "1. Convert the objects"
	kept      = "2. Keep MetalLB's speakers where they are"
	started   = "3. Stop MetalLB's controller, start Fanfare"
	movedBGP  = "4. Move the nodes: BGP"
	movedL2   = "4. Move the nodes: Layer 2"
	movedBoth = "4. Move the nodes: both"
	finished  = "5. Finish"
)

// metalLBObjects are as in MetalLB's samples: a pool with a priority, several selectors in a list, a
// community with a name. Native mode has neither BFD nor graceful restart.
const metalLBObjects = `
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: lan, namespace: metallb-system}
spec:
  addresses: [192.0.2.0/24]
  serviceAllocation: {priority: 50, namespaces: [shop], serviceSelectors: [{matchExpressions: [{key: app, operator: NotIn, values: [none]}]}]}
---
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: link, namespace: metallb-system, labels: {by: arp}}
spec: {addresses: [198.51.100.200-198.51.100.203], autoAssign: false}
---
apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {name: tor1, namespace: metallb-system}
spec:
  myASN: 64497
  peerASN: 64496
  peerAddress: 198.51.100.1
  holdTime: 3s
  nodeSelectors: [{matchLabels: {kubernetes.io/hostname: n1}}, {matchLabels: {kubernetes.io/hostname: n2}}]
---
apiVersion: metallb.io/v1beta1
kind: Community
metadata: {name: communities, namespace: metallb-system}
spec: {communities: [{name: backup, value: "64496:200"}]}
---
apiVersion: metallb.io/v1beta1
kind: BGPAdvertisement
metadata: {name: lan, namespace: metallb-system}
spec: {ipAddressPools: [lan], communities: [backup], localPref: 150, aggregationLength: 32}
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata: {name: link, namespace: metallb-system}
spec: {ipAddressPoolSelectors: [{matchLabels: {by: arp}}], interfaces: [eth1], nodeSelectors: [{matchLabels: {kubernetes.io/os: linux}}]}
`

// moving returns a Service with long connections on port 7.
func moving(name, annotations string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: %s, annotations: {%s}}
spec:
  type: LoadBalancer
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http}, {name: lines, port: 7, targetPort: 7000}]
---
`, name, annotations)
}

var (
	movingServices = moving("routed", "metallb.io/loadBalancerIPs: 192.0.2.77") +
		moving("linked", "metallb.io/address-pool: link")
	// late is created while Fanfare assigns addresses.
	late = moving("late", "")
)

// The real MetalLB serves, in native mode, with BGP and over Layer 2. The commands of the page move the cluster
// to Fanfare and back, under load: no address changes, and only requests in flight at a move are lost.
func TestMoveFromMetalLB(t *testing.T) {
	c := kubelets(t)
	// The observer knows Fanfare's rules only.
	c.Observer.Tolerate("n1", func() { c.Observer.Tolerate("n2", func() { startMetalLB(t, c).all() }) })
}

func (m *move) all() {
	m.prepare()
	m.nodeByNode()
	m.rollBack()
	m.allAtOnce()
	m.both()
	m.finish()
}

// prepare takes the steps before the first move, which change nothing for clients.
func (m *move) prepare() {
	m.awaitRouted()
	m.startLoad("routed", "local")
	var err error
	m.open, err = m.c.Client.OpenFlows(m.Context(), 12, netip.AddrPortFrom(m.vips["routed"], 7))
	must(m.T, err)
	m.Cleanup(func() { must(m.T, m.open.Close()) })
	m.step(movePage, converted, 0, "")
	for _, file := range []string{"fanfare.yaml", "fanfare-finished.yaml"} {
		text, err := os.ReadFile(filepath.Join(m.dir, file))
		must(m.T, err)
		if !strings.Contains(string(text), " before, ") || !strings.Contains(string(text), " 0 differences.") {
			m.Fatalf("%s:\n%s", file, text)
		}
		comparison := string(text[strings.Index(string(text), "# COMPARISON"):])
		m.Logf("%s: %s", file, comparison[:strings.Index(comparison, "\n---")])
	}
	const speakers = "kubectl -n metallb-system get pods -l component=speaker -o name"
	pods := m.run(speakers)
	m.step(movePage, kept, 0, "")
	m.startFanfare()
	m.expectInterrupted(0, "routed", "local")
	m.startLoad("routed", "local")
	if now := m.run(speakers); now != pods {
		m.Errorf("MetalLB's speakers are %s before the first move, want the former %s", now, pods)
	}
	if n := m.changes("routed"); n > 0 || m.ended() > 0 {
		m.Errorf("before the first move the route changed %d times and %d connections ended", n, m.ended())
	}
}

// startFanfare has Fanfare assign addresses. Its speakers forward them and announce none.
func (m *move) startFanfare() {
	m.Helper()
	m.step(movePage, started, 0, "")
	must(m.T, lab.Await(m.Context(), limit, "claims", func() error {
		claims := m.run("kubectl get addressclaims -o 'jsonpath={range " +
			".items[*]}{.spec.address}={.spec.services}{\"\\n\"}{end}'")
		for name, vip := range m.vips {
			if !strings.Contains("\n"+claims, fmt.Sprintf("\n%s=shop/%s\n", vip, name)) {
				return fmt.Errorf("no claim of %s for %s:\n%s", vip, name, claims)
			}
		}
		return nil
	}))
	m.expectAddresses()
	must(m.T, lab.Await(m.Context(), limit, "all addresses to be forwarded", func() error {
		want := fmt.Sprintf("%[1]d 0;%[1]d 0;", len(m.vips))
		if got := m.run("kubectl get speakerstatus -o 'jsonpath={range .items[*]}{.status.addresses.forwarded} " +
			"{.status.addresses.announced};{end}'"); got != want {
			return fmt.Errorf("forwarded and announced are %q, want %q", got, want)
		}
		return nil
	}))
	status := m.step(movePage, started, 1, "")
	for _, vip := range m.vips {
		if !strings.Contains(status, vip.String()) || strings.Contains(status, "Established") {
			m.Errorf("fanfare status, want %s and no session:\n%s", vip, status)
		}
	}
}

// nodeByNode moves all nodes. Then Fanfare gives a new Service an address.
func (m *move) nodeByNode() {
	written := m.run(versions)
	for _, n := range nodes {
		m.toFanfare(movedBGP, n)
	}
	if now := m.run(versions); now != written {
		m.Errorf("the moves wrote Services: versions %s, want %s", now, written)
	}
	must(m.T, m.c.Kubernetes.Admin().Create(m.Context(), late))
	var err error
	m.vips["late"], err = m.c.address(m.Context(), "late")
	must(m.T, err)
	m.awaitRouted()
}

const versions = "kubectl -n shop get services -o 'jsonpath={.items[*].metadata.resourceVersion}'"

// rollBack takes all steps back. MetalLB's controller adopts the addresses, and that of the new Service.
func (m *move) rollBack() {
	for _, n := range nodes {
		m.toMetalLB(n)
	}
	m.backToMetalLBsController()
	m.expectAddresses()
	m.Logf("%d of %d connections ended", m.ended(), len(m.open.All))
	m.expectInterrupted(4, "routed", "local")
}

func (m *move) backToMetalLBsController() {
	m.Helper()
	m.inline("kubectl -n fanfare-system scale deployment controller --replicas=0", "")
	m.run("kubectl -n metallb-system scale deployment controller --replicas=1")
	m.run("kubectl -n metallb-system rollout status deployment/controller " + timeout)
	for name := range m.vips {
		m.awaitPool(name)
	}
}

// allAtOnce moves all nodes at once, for Layer 2, and takes the step back.
func (m *move) allAtOnce() {
	m.startFanfare()
	moves, err := m.c.WatchNeighboursOf("tor1")
	must(m.T, err)
	defer moves.Close()
	m.startLoad("linked")
	must(m.T, m.loads["linked"].AwaitAnswered(m.Context(), time.Now()))
	began := time.Now()
	m.step(movePage, movedL2, 0, "")
	m.awaitAnnouncer("Fanfare", began)
	m.inline("kubectl label nodes --all example.com/announcer-", "")
	m.awaitAnnouncer("MetalLB", time.Now())
	m.awaitRouted()
	m.expectMoved(moves, "linked")
}

// both moves node by node a cluster with BGP and Layer 2.
func (m *move) both() {
	moves, err := m.c.WatchNeighboursOf("tor1")
	must(m.T, err)
	defer moves.Close()
	m.startLoad("routed", "linked")
	must(m.T, m.loads["linked"].AwaitAnswered(m.Context(), time.Now()))
	m.toFanfare(movedBoth, nodes[0])
	m.toFanfare(movedBGP, nodes[1])
	m.awaitAnnouncer("Fanfare", time.Now())
	m.expectInterrupted(2, "routed")
	m.expectMoved(moves, "linked")
}

// finish removes MetalLB. A BFDProfile, which native mode refuses, is among its objects.
func (m *move) finish() {
	webhook := func(policy string) {
		m.run("kubectl patch validatingwebhookconfiguration metallb-webhook-configuration --type=json -p '" +
			`[{"op": "test", "path": "/webhooks/1/name", "value": "bfdprofilevalidationwebhook.metallb.io"}, {"op": "replace", "path": "/webhooks/1/failurePolicy", "value": "` + policy + `"}]'`)
	}
	webhook("Ignore")
	must(m.T, lab.Await(m.Context(), limit, "a BFDProfile", func() error {
		return m.c.Kubernetes.Admin().Apply(m.Context(),
			"{apiVersion: metallb.io/v1beta1, kind: BFDProfile, metadata: {name: fast, namespace: metallb-system}, "+
				"spec: {receiveInterval: 300}}")
	}))
	webhook("Fail")
	began := time.Now()
	m.startLoad("routed", "linked")
	m.step(movePage, finished, 0, "")
	m.Logf("MetalLB was removed in %s", since(began))
	for _, name := range []string{"routed", "linked"} {
		must(m.T, m.loads[name].AwaitAnswered(m.Context(), time.Now()))
		if r := m.loads[name].Stop(); len(r.Lost) > 0 {
			m.Errorf("%s: %s\n%s", name, r, r.Losses(began))
		}
	}
	if changes := m.c.Observer.RouteChanges(m.vips["routed"], began, time.Now()); len(changes) > 0 {
		m.Errorf("the end of the move changed the route: %v", changes)
	}
	m.expectAddresses()
}
