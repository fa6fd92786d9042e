package fanfare

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
	"github.com/fanfare-lb/fanfare/speaker"
)

var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```")

// Who follows the README gets what it says: the YAML in it, put into a folder as
// it stands, makes a node announce one address and forward it.
func TestReadme(t *testing.T) {
	dir := t.TempDir()
	for i, m := range yamlBlock.FindAllStringSubmatch(read(t, "README.md"), -1) {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), []byte(m[1]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	plan := plan(t, dir, "node1")
	for _, want := range []string{
		"session tor1: AS64513 to AS64512 at 198.51.100.1\n",
		"announce 192.0.2.",
		"10.244.1.10:8080",
		"shop/web bgp Announced",
	} {
		if !strings.Contains(plan, want) {
			t.Errorf("the plan lacks %q:\n%s", want, plan)
		}
	}
	if strings.Contains(plan, "problems\n") {
		t.Errorf("the plan has problems:\n%s", plan)
	}
}

// The other folder that the README names.
func TestReadmeLaboratory(t *testing.T) {
	if plan := plan(t, "e2e/containerlab/cluster", "n1"); !strings.Contains(plan, "session tor1") || strings.Contains(plan, "problems\n") {
		t.Errorf("want a session to tor1 and no problems:\n%s", plan)
	}
}

// plan is what `fanfare plan` prints.
func plan(t *testing.T, dir, node string) string {
	t.Helper()
	files, err := cluster.OpenFiles(t.Context(), dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return speaker.Decide(speaker.Config{Node: node, NodeCIDR: true}, ipam.NewSource(files, nil).Snapshot()).String()
}
