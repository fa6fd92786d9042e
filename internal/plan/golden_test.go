package plan

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Each file of testdata/decide has a cluster as YAML and, for each node, the output of
// `fanfare plan`.
func TestDecide(t *testing.T) {
	paths, err := filepath.Glob("testdata/decide/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatal("no golden files", err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			golden, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			snap := plantest.Snapshot(t, golden.Files[0].Data)
			for i, f := range golden.Files[1:] {
				c := Config{Node: f.Name, NodeCIDR: true}
				got := Decide(c, snap).String()
				if alone := Decide(c, seenBy(f.Name, snap)).String(); alone != got && !snap.UsesL2() {
					t.Errorf("node %s decides otherwise when it knows the other Nodes (-alone +all):\n%s", f.Name,
						cmp.Diff(alone, got))
				}
				if !*update {
					if diff := cmp.Diff(string(f.Data), got); diff != "" {
						t.Errorf("node %s (-want +got):\n%s", f.Name, diff)
					}
				}
				golden.Files[i+1].Data = []byte(got)
			}
			if *update {
				if err := os.WriteFile(path, txtar.Format(golden), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// seenBy is the snapshot of a speaker that watches only its own Node, as in clusters without
// Layer 2: in large clusters, most events are status updates of Nodes.
func seenBy(name string, snap *cluster.Snapshot) *cluster.Snapshot {
	alone := *snap
	alone.Nodes = nil
	if n := snap.Node(name); n != nil {
		alone.Nodes = []*cluster.Node{n}
	}
	return &alone
}
