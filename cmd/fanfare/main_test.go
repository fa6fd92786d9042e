package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/speaker"
)

// run runs a command line and returns what it prints.
func run(args ...string) (string, error) {
	cmd := root()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

// Mistakes of users are reported with what would be right.
func TestUsageErrors(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	dir := t.TempDir()
	for _, row := range []struct {
		args string
		want string
	}{
		{"plan --files " + dir, "--node-name: missing"},
		{"plan --node-name n1", "no --files, and no API server"},
		{"plan --node-name n1 --files " + dir + " --kubeconfig " + dir, "--files and --kubeconfig: give one of them"},
		{"plan --node-name n1 --class-only --files " + dir, "--files and --class-only: give one of them"},
		{"plan --node-name n1 --lb-class=metallb.io/metallb --files " + dir,
			"--files and --lb-class: give one of them"},
		{"plan --node-name n1 --lb-class=metallb.io/metallb --lb-class=a,,b --kubeconfig " + dir,
			`--lb-class "": want a loadBalancerClass`},
		{"plan --node-name n1 --kubeconfig " + dir + "/none", dir + "/none"},
		{"plan --node-name n1 --files " + dir + "/none", dir + "/none"},
		{"plan --node-name n1 --files " + dir + " --detect-local cidr=10.0.0.0/99",
			`--detect-local "cidr=10.0.0.0/99": want a prefix such as`},
		{"plan --node-name n1 --files " + dir + " --detect-local pods", `--detect-local "pods": want auto, node-cidr`},
		{"plan --node-name n1 --files " + dir + " --health-check-node-ports some",
			`--health-check-node-ports "some": want labelled, all or none`},
		{"plan --node-name n1 --files " + dir + " --snat-ports none", `--snat-ports "none": want fully-random`},
		{"speaker --node-name n1 --files " + dir + " --log-level loud", `--log-level "loud": want debug`},
		{"speaker --node-name n1 --files " + dir + " --linger-bgp -1s", "--linger-bgp -1s: want zero or more"},
		{"speaker --node-name n1 --files " + dir + " --members-port 0", "--members-port 0: want a port"},
		{"speaker --node-name n1 --files " + dir + " --lease-interval 1ms",
			"--lease-interval 1ms: want zero, or a second or more"},
		{"status --run-dir " + dir, "no speaker answers at " + dir},
		{"routes --run-dir " + dir, "no speaker answers at " + dir},
		{"migrate metallb --files " + dir + " --kubeconfig " + dir, "--files and --kubeconfig: give one of them"},
		{"migrate metallb", "no --files, and no API server"},
		{"migrate metallb --files " + dir + "/none", dir + "/none"},
		{"migrate metallb --files " + dir + " --node-label fanfare",
			`--node-label "fanfare": want a label and its value`},
		{"stauts", `unknown command "stauts"`},
	} {
		_, err := run(strings.Fields(row.args)...)
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("fanfare %s: %v; want %q in it", row.args, err, row.want)
		}
	}
}

func TestPlan(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"pool.yaml", "peer.yaml", "service.yaml"} {
		data, err := os.ReadFile(filepath.Join("../../manifests/samples", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	node := "apiVersion: v1\nkind: Node\nmetadata: {name: node1, labels: {topology.kubernetes.io/rack: a}}\nstatus: " +
		"{addresses: [{type: InternalIP, address: 10.0.0.11}]}\n"
	if err := os.WriteFile(filepath.Join(dir, "node.yaml"), []byte(node), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := run("plan", "--files", dir, "--node-name", "node1", "--run-dir", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"session tor1: AS64513 to AS64512", "announce 192.0.2.",
		"ToAnnounce: to be announced to tor1"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "problems") {
		t.Errorf("the samples have problems:\n%s", out)
	}
	if _, said, _ := strings.Cut(out, "\nassumed\n"); !strings.Contains(said,
		"  the session with router tor1 is established: its AS number is 64512, it expects this node with AS number "+
			"64513, it is on a link of the node, since ebgpMultihopTTL is not set\n") ||
		strings.Contains(said, "interface") {
		t.Errorf("the plan has only BGP, and assumptions %q", said)
	}
}

// On the node itself a plan knows the interfaces; on another machine it does not.
func TestPlanOnNode(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		const objects = `apiVersion: v1
kind: Node
metadata: {name: node1}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}
---
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: lan}
spec: {announce: L2, addresses: [192.0.2.64/27, 198.51.100.0/24]}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web, annotations: {fanfare.io/load-balancer-ips: 192.0.2.64}}
spec: {type: LoadBalancer, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: far, annotations: {fanfare.io/load-balancer-ips: 198.51.100.1}}
spec: {type: LoadBalancer, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: web, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.1.5], nodeName: node1, conditions: {ready: true}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: far, labels: {kubernetes.io/service-name: far}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.1.5], nodeName: node1, conditions: {ready: true}}]
`
		if err := os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(objects), 0o600); err != nil {
			t.Fatal(err)
		}
		node, other := nstest.New(t, "node"), nstest.New(t, "other")
		nstest.Link(t, node, "eth0", other, "eth0")
		node.Addr("eth0", "192.0.2.11/24")
		other.Addr("eth0", "192.0.2.12/24")
		plan := func(on *nstest.NS) (out string) {
			t.Helper()
			var err error
			on.Do(func() { out, err = run("plan", "--files", dir, "--node-name", "node1", "--run-dir", t.TempDir()) })
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		for _, want := range []string{
			"192.0.2.64 shop/web l2 ToAnnounce: to be announced on eth0 (the only candidate)\n",
			"198.51.100.1 shop/far l2 NoCandidate: not announced: of 1 node none can answer: 1 has no interface in " +
				"the subnet of 198.51.100.1\n",
		} {
			// The kernel reports the carrier in the background.
			for end := time.Now().Add(time.Minute); !strings.Contains(plan(node), want); {
				if time.Now().After(end) {
					t.Fatalf("no %q in\n%s", want, plan(node))
				}
			}
		}
		if out := plan(other); !strings.Contains(out,
			"198.51.100.1 shop/far l2 ToAnnounce: to be announced on the interfaces with the subnet of 198.51.100.1 "+
				"(the only candidate)\n") {
			t.Errorf("on another machine:\n%s", out)
		}
		// Assumptions are listed.
		const (
			here   = "\n  node node1 has an interface for each address: unknown, because this machine is not the node\n"
			others = "\n  the speakers of all other nodes run, and each has an interface for each address: `fanfare " +
				"status` on a node shows the facts\n"
		)
		says := func(on *nstest.NS, want string) {
			t.Helper()
			_, said, _ := strings.Cut(plan(on), "\nassumed")
			if said != want {
				t.Errorf("%s: assumed %q, want %q", on.Name, said, want)
			}
		}
		says(node, "")
		says(other, here)
		another := "apiVersion: v1\nkind: Node\nmetadata: {name: node2}\nstatus: {addresses: [{type: InternalIP, " +
			"address: 192.0.2.13}]}\n"
		if err := os.WriteFile(filepath.Join(dir, "node2.yaml"), []byte(another), 0o600); err != nil {
			t.Fatal(err)
		}
		says(node, others)
		says(other, here+others[1:])
	})
}

// A plan without rights to read fails with the reason, and does not wait.
func TestPlanWithoutRights(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"you may not"}`)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: " +
		"c}}]\nclusters: [{name: c, cluster: {server: " + server.URL + "}}]\n"
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := run("plan", "--kubeconfig", file, "--node-name", "n1", "--timeout", "1s", "--run-dir", t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "services cannot be read since") ||
		!strings.Contains(err.Error(), "you may not") {
		t.Errorf("error %v", err)
	}
}

func TestPrintStatus(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	behind := now.Add(-5 * time.Second)
	reason := func(protocol string, code cluster.Code, message string) speaker.ReasonStatus {
		return speaker.ReasonStatus{Service: "shop/web", Protocol: protocol, Code: code, Message: message}
	}
	st := &speaker.Status{
		Node: "n1", Version: "v1", Started: now.Add(-time.Hour), Error: "forward: no\nannounce: no", Behind: &behind,
		BGP: bgp.Status{Sessions: []bgp.SessionStatus{
			{Name: "tor1", PeerAddress: netip.MustParseAddr("10.0.0.1"), PeerASN: 65000, State: bgp.Established,
				Since: now.Add(-time.Minute), Advertised: 1, BFD: &bgp.BFDStatus{State: "Up"}},
			{Name: "tor2", PeerAddress: netip.MustParseAddr("10.0.0.2"), PeerASN: 65000, State: bgp.Active,
				Since: now.Add(-time.Minute), LastError: "connection refused"},
		}},
		Addresses: []speaker.AddressStatus{
			{Address: netip.MustParseAddr("192.0.2.1"), Services: []string{"shop/web"}, Ports: []string{"tcp/80"},
				Announced: true, Programmed: true, Weight: 3, Attributes: []string{"med 10 community 64500:1"},
				Reasons: []speaker.ReasonStatus{reason("proxy", cluster.Programmed, "fine"),
					reason("bgp", cluster.Announced, "announced to tor1"),
					reason("bgp", cluster.AttributeOverride, "10 counts")}},
			{Address: netip.MustParseAddr("192.0.2.2"), Services: []string{"shop/web"},
				Ports: []string{"tcp/1", "tcp/2", "tcp/3", "tcp/4"}, Programmed: true,
				Reasons: []speaker.ReasonStatus{reason("proxy", cluster.NoEndpoints,
					"connections are refused: no endpoint is ready anywhere"),
					reason("bgp", cluster.NoEndpoints, "not announced: no endpoint is ready anywhere")}},
			{Address: netip.MustParseAddr("192.0.2.3"), Services: []string{"shop/web"}, Announced: true,
				Programmed: true, Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"),
					netip.MustParsePrefix("192.0.2.3/32")},
				Attributes: []string{"192.0.2.0/24 med 1", "192.0.2.3/32 to tor1 med 2, to tor2"},
				Reasons: []speaker.ReasonStatus{reason("bgp", cluster.Announced, "announced"),
					reason("bgp", cluster.AggregateRefused, "announced on its own"),
					reason("bgp", cluster.AttributeClash, "2 counts")}},
			{Address: netip.MustParseAddr("192.0.2.4"), Services: []string{"shop/web"}, Announced: true,
				Programmed: true, Owner: "n1", OwnerBy: "named by its AddressClaim",
				L2: &l2.Status{Phase: l2.Held, Interfaces: []string{"eth0", "eth1"}},
				Reasons: []speaker.ReasonStatus{reason("l2", cluster.Announced,
					"announced on eth0 (named by its AddressClaim)")}},
			{Address: netip.MustParseAddr("192.0.2.5"), Services: []string{"shop/web"}, Programmed: true, Owner: "n2",
				OwnerBy: "the only candidate", Reasons: []speaker.ReasonStatus{reason("l2", cluster.AnotherNode,
					"not announced: node n2 answers for it (the only candidate)")}},
			{Address: netip.MustParseAddr("192.0.2.6"), Services: []string{"shop/web"}, Programmed: true,
				Reasons: []speaker.ReasonStatus{reason("l2", cluster.NoCandidate,
					"not announced: of 3 nodes none can answer: 3 are not Ready")}},
		},
		Proxy: proxy.Status{Repairs: 2, LastRepair: now.Add(-time.Minute), Found: "table missing",
			AffinityFull: []proxy.AffinityFull{{Frontend: "192.0.2.1 tcp/80 shop/web", Evicted: 16384,
				Last: now.Add(-time.Minute)}}},
		Waiting: []speaker.ReasonStatus{{Service: "shop/db", Protocol: "ipam", Code: cluster.NoPool,
			Message: "there is no AddressPool"}},
		Problems: []cluster.Problem{{Object: cluster.Named("AddressPool", "lan"), File: "pool.yaml",
			Field: "spec.addresses[0]", Value: "x", Message: "want a prefix"}},
	}
	var out bytes.Buffer
	if err := printStatus(&out, st, now); err != nil {
		t.Fatal(err)
	}
	want := `node n1, fanfare v1, up 60m

ROUTER  ADDRESS   AS     SESSION      SINCE  ROUTES  BFD
tor1    10.0.0.1  65000  Established  60s    1       Up
tor2    10.0.0.2  65000  Active       60s    0       -

ADDRESS    SERVICE   PORTS           FORWARDED  ANNOUNCED
192.0.2.1  shop/web  tcp/80          yes        yes, weight 3, med 10 community 64500:1
192.0.2.2  shop/web  tcp/1,tcp/2,+2  yes        no: no endpoint is ready anywhere
192.0.2.3  shop/web  -               yes        yes, in 192.0.2.0/24, 192.0.2.0/24 med 1, 192.0.2.3/32 to tor1 med 2, to tor2
192.0.2.4  shop/web  -               yes        yes, on eth0, eth1 (named by its AddressClaim)
192.0.2.5  shop/web  -               yes        no: node n2 answers for it (the only candidate)
192.0.2.6  shop/web  -               yes        no: of 3 nodes none can answer: 3 are not Ready

Needs attention:
  forward: no; announce: no
  a change has been waiting for 5s
  another program changed the kernel's table; it was repaired 2 times, last 60s ago: table missing
  session affinity of 192.0.2.1 tcp/80 shop/web is full, last 60s ago: its clients of longest ago were forgotten for new ones, 16384 so far
  router tor2: connection refused
  AddressPool lan (pool.yaml): spec.addresses[0] "x": want a prefix
  Service shop/db: there is no AddressPool
  Service shop/web (192.0.2.2): connections are refused: no endpoint is ready anywhere
  Service shop/web (192.0.2.3): announced on its own
  Service shop/web (192.0.2.3): 2 counts
  Service shop/web (192.0.2.6): not announced: of 3 nodes none can answer: 3 are not Ready
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The table shows interfaces whose replies leave by another one.
func TestPrintInterfaces(t *testing.T) {
	iface := func(name string, last byte, subnet string) l2.Interface {
		return l2.Interface{
			Name: name, MAC: l2.MAC{2, 0, 0, 0, 0, last}, Prefixes: []netip.Prefix{netip.MustParsePrefix(subnet)},
		}
	}
	st := &speaker.Status{L2: speaker.L2Status{Interfaces: []l2.Interface{iface("eth0", 1, "192.0.2.0/24"),
		iface("eth1", 2, "198.51.100.0/24")}}}
	printed := func() string {
		var out bytes.Buffer
		w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
		printInterfaces(w, st)
		w.Flush()
		return out.String()
	}
	if diff := cmp.Diff(`
INTERFACE  MAC                SUBNETS          ANSWERS FOR
eth0       02:00:00:00:00:01  192.0.2.0/24     0
eth1       02:00:00:00:00:02  198.51.100.0/24  0
`, printed()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	st.L2.AsymmetricPaths = []l2.AsymmetricPath{{Interface: "eth1", By: "eth0"},
		{Interface: "eth1", By: "eth2", IPv6: true}}
	if diff := cmp.Diff(`
INTERFACE  MAC                SUBNETS          ANSWERS FOR  REPLIES LEAVE BY
eth0       02:00:00:00:00:01  192.0.2.0/24     0            -
eth1       02:00:00:00:00:02  198.51.100.0/24  0            eth0,eth2 (IPv6)
`, printed()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPrintRoutes(t *testing.T) {
	number := func(n uint32) *uint32 { return &n }
	all := []speaker.SessionRoutes{
		{Session: "tor1", State: bgp.Established, Routes: []bgp.AdvertisedRoute{
			{Prefix: netip.MustParsePrefix("192.0.2.1/32"), NextHop: netip.MustParseAddr("10.0.0.11"),
				ASPath: "64513 64513", MED: number(10),
				Communities: []string{"no-export"}, LargeCommunities: []string{"64500:1:2"}},
			{Prefix: netip.MustParsePrefix("2001:db8::1/128"), NextHop: netip.MustParseAddr("2001:db8::b"),
				LocalPref: number(100)},
		}},
		{Session: "tor2", State: bgp.Active},
		{Session: "tor3", State: bgp.Established, Error: "GoBGP is gone"},
	}
	const want = `ROUTER  PREFIX           NEXT HOP     AS PATH      LOCAL PREF  MED  COMMUNITIES
tor1    192.0.2.1/32     10.0.0.11    64513 64513  -           10   no-export 64500:1:2
tor1    2001:db8::1/128  2001:db8::b  -            100         -    -
tor2    none: the session is Active
tor3    none: GoBGP is gone
`
	var out bytes.Buffer
	if err := printRoutes(&out, all); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, err := selectSessions(all, []string{"tor2"}); err != nil || len(got) != 1 || got[0].Session != "tor2" {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := selectSessions(all, []string{"tor2", "tor9"}); err == nil ||
		!strings.Contains(err.Error(), `router "tor9": this node has no such session; it has ["tor1" "tor2" "tor3"]`) {
		t.Errorf("%v", err)
	}
}
