package matrix

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

// docs is the folder of the page.
const docs = "../../docs/benchmarks"

// New results replace older ones of the same cell, and keep the others. The page has a cell
// for each feature and disturbance.
func TestMergedResultsOnPage(t *testing.T) {
	old := cellResult{Feature: "local", Disturbance: "bad-object", Kept: true, Fanfare: "old"}
	var all file
	all.Cells = []cellResult{old, {Feature: "bfd", Disturbance: "link-flap", Kept: true, Fanfare: "old"},
		{Feature: "gone", Disturbance: "link-flap"}}
	all.merge([]cellResult{{Feature: "local", Disturbance: "bad-object", Fanfare: "new",
		Result: result{Requests: count{All: 900, Lost: 7}, Back: 1500 * time.Millisecond}}})
	if len(all.Cells) != 2 || all.Versions() != "new, old" {
		t.Errorf("%+v", all.Cells)
	}
	text, err := all.render()
	must(t, err)
	for _, want := range []string{"**7/0/0/1.5**", " 0/0/0/0.0 ", "| l2-ipv4 |",
		"(../concepts/failures.md#a-speaker-stops)",
		"| router restarted | l2-* | – | – | – | – | – | Layer 2 has no BGP router |"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	if n := len(strings.Fields(text)); n > 2500 {
		t.Errorf("%d words: want at most 2500", n)
	}
}

// The page is what its results and the present code give. With -page the page is written.
func TestPageIsOfItsResults(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(docs, "matrix.json"))
	must(t, err)
	var all file
	must(t, json.Unmarshal(text, &all))
	files, err := all.files()
	must(t, err)
	if *page != "" {
		must(t, measure.WriteFiles(filepath.Dir(*page), files))
		return
	}
	for _, f := range files {
		if have, err := os.ReadFile(filepath.Join(docs, f.Name)); err != nil || !bytes.Equal(have, f.Content) {
			t.Errorf("%s is not made of matrix.json and the present code (%v): run `make generate`", f.Name, err)
		}
	}
}

// A page is old if the code of one of its cells is another one.
func TestOldPage(t *testing.T) {
	all := file{Cells: []cellResult{{Code: "a"}, {Code: "a"}}}
	if all.heading("a").Old || !all.heading("b").Old {
		t.Error("the page of code a: want it old with code b only")
	}
	all.Cells[1].Code = ""
	if !all.heading("a").Old {
		t.Error("a cell without code: want it old")
	}
}

// A tenth of the cells is selected, another one for another commit.
func TestSelection(t *testing.T) {
	count := func(s selection) (n int) {
		for _, f := range features {
			n += len(s.cells(f))
		}
		return n
	}
	total := count(selection{})
	for _, commit := range []string{"a", "b", "c"} {
		if n := count(selection{commit}); n < total/20 || n > total/5 {
			t.Errorf("commit %s: %d of %d cells: want a tenth", commit, n, total)
		}
	}
	if (selection{"a"}).String() == (selection{"b"}).String() {
		t.Error("two commits select the same cells")
	}
	union := map[string]bool{}
	for i := range 100 {
		for _, f := range features {
			for _, d := range (selection{strings.Repeat("x", i+1)}).cells(f) {
				union[f.name+"/"+d.name] = true
			}
		}
	}
	if len(union) < total*99/100 {
		t.Errorf("100 commits select %d of %d cells: want nearly all", len(union), total)
	}
}
