package fanfare

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/fanfare-lb/fanfare/internal/ipam"
	"github.com/fanfare-lb/fanfare/internal/watch"
)

var resultBlock = regexp.MustCompile("(?s)^\n\n```text\n(.*?)```")

// Every example in the pages about addresses parses, and a controller decides what the page
// shows as the result.
func TestAddressExamples(t *testing.T) {
	for _, name := range []string{"docs/addresses.md", "docs/requests.md"} {
		text := read(t, name)
		results := 0
		for _, at := range yamlBlock.FindAllStringSubmatchIndex(text, -1) {
			example := text[at[2]:at[3]]
			got := allocate(t, example)
			want := resultBlock.FindStringSubmatch(text[at[1]:])
			if want == nil {
				continue
			}
			if results++; got != want[1] {
				t.Errorf("%s: %s\n-documented +is:\n%s", name, example, gocmp.Diff(want[1], got))
			}
		}
		if results == 0 {
			t.Errorf("%s: no example has a result", name)
		}
	}
}

// allocate returns what a controller decides about objects, in the words of `fanfare status`,
// with the conditions of pools.
func allocate(t *testing.T, objects string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "example.yaml"), []byte(objects), 0o644); err != nil {
		t.Fatal(err)
	}
	files, err := watch.OpenFiles(t.Context(), dir, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	snap := files.Snapshot()
	var b strings.Builder
	for _, p := range snap.Problems {
		if !strings.Contains(p.Message, "belongs to") {
			t.Errorf("%s\nis wrong: %s", objects, p)
		}
		p.File = ""
		fmt.Fprintln(&b, p)
	}
	assigned, reasons := ipam.NewAllocator(snap, ipam.Settled).Allocate(time.Time{})
	for _, a := range assigned {
		fmt.Fprintf(&b, "%s %s pool %s\n", a.Addr, a.Service, cmp.Or(a.Pool, "-"))
	}
	for _, r := range reasons {
		fmt.Fprintln(&b, r)
	}
	return b.String()
}
