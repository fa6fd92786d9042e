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
// it stands, makes the plan that it shows.
func TestReadme(t *testing.T) {
	text, dir := read(t, "README.md"), t.TempDir()
	for i, m := range yamlBlock.FindAllStringSubmatch(text, -1) {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), []byte(m[1]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if plan := plan(t, dir, "node1"); !strings.Contains(text, "--node-name node1\n"+plan+"```\n") {
		t.Errorf("the README shows another plan than\n%s", plan)
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
