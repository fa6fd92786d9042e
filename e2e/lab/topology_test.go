package lab

import (
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// The addresses that the lab computes are those of the file.
func TestTopologyAddresses(t *testing.T) {
	top, err := ReadTopology("../containerlab/fanfare.clab.yml")
	if err != nil {
		t.Fatal(err)
	}
	exec := map[string]string{}
	for _, n := range top.Nodes {
		for _, line := range n.Exec {
			exec[n.Name] += strings.Join(line, " ") + "\n"
		}
	}
	want := func(node string, addr netip.Addr) {
		t.Helper()
		if !strings.Contains(exec[node], "addr add "+addr.String()+"/") {
			t.Errorf("%s does not get %s", node, addr)
		}
	}
	for _, n := range NodeNames {
		want(n, NodeAddr(n, ClientAddr))
		want(n, NodeAddr(n, ClientAddr6))
	}
	for _, p := range PodNames {
		want(p, PodAddr(p, "IPv4"))
		want(p, PodAddr(p, "IPv6"))
	}
	want("client", ClientAddr)
	want("client", ClientAddr6)
}

func TestParseTopology(t *testing.T) {
	const text = `
name: two
topology:
  defaults: {kind: linux, sysctls: {a.b: 1, c.d: 2}, exec: [ip link]}
  nodes:
    a: {sysctls: {c.d: 3}, exec: [ip addr  show], binds: ["x/y:/z:ro"]}
    b: {}
  links:
    - endpoints: ["a:eth1", "b:eth7"]
`
	top, err := parseTopology([]byte(text), "/dir")
	if err != nil {
		t.Fatal(err)
	}
	a := top.Nodes[0]
	if a.Sysctls["a.b"] != "1" || a.Sysctls["c.d"] != "3" {
		t.Errorf("sysctls %v: want the node's over the defaults'", a.Sysctls)
	}
	if len(a.Exec) != 2 || !slices.Equal(a.Exec[1], []string{"ip", "addr", "show"}) {
		t.Errorf("exec %q: want the defaults' first, words apart", a.Exec)
	}
	if a.Binds["/z"] != "/dir/x/y" {
		t.Errorf("binds %v", a.Binds)
	}
	if want := (Link{Interface{"a", "eth1"}, Interface{"b", "eth7"}}); len(top.Links) != 1 || top.Links[0] != want {
		t.Errorf("links %v: want %v", top.Links, want)
	}
}

// The parser refuses what the lab would do differently from containerlab.
func TestParseTopologyRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"topology: {nodes: {a: {kind: nokia_srlinux}}}": "nokia_srlinux",

		"topology: {nodes: {a: {kind: linux, startup-delay: 3}}}": "startup-delay",

		`topology: {nodes: {a: {kind: linux, exec: ["sh -c 'x'"]}}}`:                                     "quotes",
		`topology: {nodes: {a: {kind: linux}}, links: [{endpoints: ["a:eth1", "b:eth1"]}]}`:              `no node "b"`,
		`topology: {nodes: {a: {kind: linux}}, links: [{endpoints: ["a:eth1"]}]}`:                        "want two",
		`topology: {nodes: {a: {kind: linux}}, links: [{endpoints: ["a:sixteen-bytes-ifx", "a:eth1"]}]}`: "15 bytes",
	} {
		if _, err := parseTopology([]byte(text), "."); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want an error with %q", text, err, want)
		}
	}
}

// The files that the topology binds exist.
func TestTopologyFilesExist(t *testing.T) {
	top, err := ReadTopology("../containerlab/fanfare.clab.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range top.Nodes {
		for inside, host := range n.Binds {
			if strings.Contains(host, "/bin/") {
				continue // built
			}
			if _, err := os.Stat(host); err != nil {
				t.Errorf("%s: %s: %v", n.Name, inside, err)
			}
		}
	}
}

// The example for containerlab works in the lab too.
func TestTopologyExample(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	text, err := os.ReadFile("../containerlab/examples/web.yaml")
	await(t, err)
	t.Cleanup(func() { await(t, l.Cluster.Delete("example")) })
	await(t, l.Cluster.PutText("example", string(text)))
	for _, v6 := range []bool{false, true} {
		vip, err := l.AwaitAddress(ctx, "shop/web", v6)
		await(t, err)
		await(t, l.Router.AwaitNextHops(ctx, Settle, vip, "n1", "n2"))
		a, err := l.Client.Get(ctx, netip.AddrPort{}, port(vip, 80))
		await(t, err)
		t.Logf("http://%s answered by %s", port(vip, 80), a.Pod)
	}
}

// An overlay adds nodes, links and commands to a topology and removes nothing.
func TestTopologyOverlay(t *testing.T) {
	const base, overlay = "../containerlab/fanfare.clab.yml", "../containerlab/overlays/control-plane.yml"
	plain, err := ReadTopology(base)
	await(t, err)
	added, err := Options{Topology: base, Overlays: []string{overlay}}.topology()
	await(t, err)
	if len(added.Nodes) != len(plain.Nodes)+1 || len(added.Links) != len(plain.Links)+3 {
		t.Errorf("%d nodes and %d links, then %d and %d: want one and three more", len(plain.Nodes), len(plain.Links),
			len(added.Nodes), len(added.Links))
	}
	find := func(in *Topology, name string) Node {
		i := slices.IndexFunc(in.Nodes, func(n Node) bool { return n.Name == name })
		if i < 0 {
			t.Fatalf("there is no %s", name)
		}
		return in.Nodes[i]
	}
	n1, more := find(plain, "n1"), find(added, "n1")
	if got := more.Exec[:len(n1.Exec)]; !reflect.DeepEqual(got, n1.Exec) || len(more.Exec) != len(n1.Exec)+1 {
		t.Errorf("n1 runs %v", more.Exec)
	}
	if !reflect.DeepEqual(more.Sysctls, n1.Sysctls) || !reflect.DeepEqual(more.Binds, n1.Binds) {
		t.Errorf("n1 has other sysctls or binds: %+v", more)
	}
	if cp := find(added, "cp"); len(cp.Exec) == 0 {
		t.Error("cp has no address")
	}
}
