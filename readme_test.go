package fanfare

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/election"
	"github.com/fanfare-lb/fanfare/internal/ipam"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/watch"
)

var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```")

// The YAML of the README results in the plan that the README shows.
func TestReadme(t *testing.T) {
	text, dir := read(t, "README.md"), t.TempDir()
	for i, m := range yamlBlock.FindAllStringSubmatch(text, -1) {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), []byte(m[1]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if plan := planOf(t, dir, "node1"); !strings.Contains(text, "--node-name node1\n"+plan+"```\n") {
		t.Errorf("the README shows another plan than\n%s", plan)
	}
}

// The YAML of docs/reference/layer2.md is valid and has the described effect: the node that
// the Service names answers for its address, on the named interfaces.
func TestLayer2(t *testing.T) {
	dir := t.TempDir()
	for i, m := range yamlBlock.FindAllStringSubmatch(read(t, "docs/reference/layer2.md"), -1) {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), []byte(m[1]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	files, err := watch.OpenFiles(t.Context(), dir, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	snap := ipam.NewSource(files, nil).Snapshot()
	if len(snap.Problems) != 0 || snap.Assignments.Len() != 1 || len(snap.L2Advertisements) != 1 {
		t.Fatalf("assigned %v, advertised by %v, problems %v", snap.Assignments.Slice(), snap.L2Advertisements,
			snap.Problems)
	}
	assigned := snap.Assignments.Slice()[0]
	addr := assigned.Addr
	eligibility, ok, why := election.EligibilityOf(snap, snap.OriginOf(assigned), snap.Services.Slice())
	if !ok {
		t.Fatal(why)
	}
	eligibility.AllowNode = cluster.PoolNamed(snap.Pools, assigned.Pool).PermitsL2Node()
	lan := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	node := func(name string, labels map[string]string, interfaces ...string) election.Node {
		n := election.Node{Name: name, Labels: labels}
		for _, i := range interfaces {
			n.Interfaces = append(n.Interfaces, cluster.Interface{Name: i, Prefixes: lan})
		}
		return n
	}
	zone := map[string]string{"topology.kubernetes.io/zone": "a"}
	excluded := []election.Node{node("node3", zone, "eth1"),
		node("control", map[string]string{"node-role.kubernetes.io/control-plane": ""}, "eth0")}
	owner := func(nodes []election.Node, pinned bool) string {
		e := election.New(nodes)
		a := e.Address(addr, eligibility, snap.Services.Slice(), nil)
		if !pinned {
			a.Pinned = ""
		}
		name, _ := e.Elect(&a)
		return name
	}
	all := append(excluded, node("node1", nil, "bond0", "eth0", "eth1"), node("node2", zone, "eth0"))
	if named, preferred, none := owner(all, true), owner(all, false),
		owner(excluded, true); named != "node1" || preferred != "node2" || none != "" {
		t.Errorf("%s is on %s, without the annotation on %s, and without both on %q", addr, named, preferred, none)
	}
	first := node("node1", nil, "bond0", "eth0", "eth1")
	if got := fmt.Sprint(eligibility.Interfaces(addr, &first)); got != "[bond0 eth0]" {
		t.Errorf("%s is announced on %s", addr, got)
	}
}

// planOf returns the output of `fanfare plan`.
func planOf(t *testing.T, dir, node string) string {
	t.Helper()
	files, err := watch.OpenFiles(t.Context(), dir, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return plan.Decide(plan.Config{Node: node, NodeCIDR: true}, ipam.NewSource(files, nil).Snapshot()).String()
}
