package fanfare

import (
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/ipam"
	"github.com/fanfare-lb/fanfare/internal/watch"
)

var (
	planned   = regexp.MustCompile(`fanfare plan --files \S+ --node-name (\S+)\n`)
	tableCell = regexp.MustCompile(`(?m)^\|(.*)\|\s*$`)
)

// pages are the documentation's pages, without the decision records.
func pages(t *testing.T) (names []string) {
	for _, name := range files(t, ".md") {
		if within(name, "docs") && !within(name, "docs/decisions") {
			names = append(names, name)
		}
	}
	return names
}

// The index links to every page once.
func TestDocsIndex(t *testing.T) {
	found := map[string]int{}
	for _, l := range links(read(t, "docs/README.md")) {
		found[path.Join("docs", l)]++
	}
	for _, name := range append(pages(t), "docs/decisions/README.md") {
		if name != "docs/README.md" && found[name] != 1 {
			t.Errorf("docs/README.md links %d times to %s, want once", found[name], name)
		}
	}
}

// Pages and table cells are not too long.
func TestDocsPageLength(t *testing.T) {
	const maxWords, maxCell = 2500, 200
	for _, name := range pages(t) {
		text := read(t, name)
		if n := len(strings.Fields(text)); n > maxWords {
			t.Errorf("%s has %d words, want at most %d; split it", name, n, maxWords)
		}
		for _, row := range tableCell.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			for _, cell := range strings.Split(row[1], "|") {
				if n := len([]rune(strings.TrimSpace(cell))); n > maxCell {
					t.Errorf("%s: a cell has %d characters, want at most %d: %s", name, n, maxCell, cell)
				}
			}
		}
	}
}

// The YAML of a tutorial or task is valid as it stands. The page names each address that
// Services get from it. Each plan in the page is that of the YAML before it.
func TestDocsExamples(t *testing.T) {
	for _, name := range pages(t) {
		if !within(name, "docs/tutorials") && !within(name, "docs/tasks") {
			continue
		}
		text := read(t, name)
		files, err := watch.OpenFiles(t.Context(), examples(t, text), nil, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		snap := ipam.NewSource(files, nil).Snapshot()
		if len(snap.Problems) != 0 {
			t.Errorf("%s: problems %v", name, snap.Problems)
		}
		for a := range snap.Assignments.All() {
			if !strings.Contains(text, a.Addr.String()) {
				t.Errorf("%s: %s gets %s, which the page does not name", name, a.Service, a.Addr)
			}
		}
		for _, at := range planned.FindAllStringSubmatchIndex(text, -1) {
			if want := planOf(t, examples(t, text[:at[0]]), text[at[2]:at[3]]); !strings.HasPrefix(text[at[1]:], want) {
				t.Errorf("%s shows another plan than\n%s", name, want)
			}
		}
	}
}

// examples returns a directory with the YAML blocks of a text.
func examples(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	for i, m := range yamlBlock.FindAllStringSubmatch(text, -1) {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), []byte(m[1]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
