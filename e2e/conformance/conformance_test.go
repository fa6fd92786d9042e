package conformance

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
)

var pageFlag = flag.String("page", "", "write the page of results to this file of Markdown")

// docs is the folder of the page, and source the root of the repository.
const docs, source = "../../docs/benchmarks", "../.."

// The page is what its results and the present code give. With -page the page is written.
func TestPageIsOfItsResults(t *testing.T) {
	all, err := read(docs)
	must(t, err)
	files, err := all.files(source)
	must(t, err)
	if *pageFlag != "" {
		must(t, measure.WriteFiles(filepath.Dir(*pageFlag), files))
		return
	}
	for _, f := range files {
		if have, err := os.ReadFile(filepath.Join(docs, f.Name)); err != nil || !bytes.Equal(have, f.Content) {
			t.Errorf("%s is not made of %s.json and the present code (%v): run `make generate`", f.Name, page, err)
		}
	}
}

// Results replace older ones of the same test and set-up, and those of excluded tests go. The page shows
// each outcome, with the message of what did not pass.
func TestMergedResultsOnPage(t *testing.T) {
	const tcp = loadBalancers + "should be able to change the type and ports of a TCP service [Slow]"
	excluded := exclusions[0].Test
	all := file{Results: []Result{
		{Setup: "bgp", Test: tcp, Outcome: Failed, Code: "a"}, {Setup: "l2", Test: tcp, Outcome: Passed, Code: "a"},
		{Setup: "bgp", Test: excluded, Outcome: Passed}, {Setup: "gone", Test: tcp, Outcome: Passed},
	}}
	all.merge([]Result{
		{Setup: "bgp", Test: tcp, Outcome: Passed, Code: "a"},
		{Setup: "l2-iptables", Test: tcp, Outcome: Failed, Code: "a", Message: "no answer from a | b\nstack"},
	})
	if got := all.Count(Passed); got != 2 || len(all.Results) != 3 {
		t.Errorf("%d passed of %+v", got, all.Results)
	}
	text, err := all.render()
	must(t, err)
	for _, want := range []string{
		"| addresses and ports | LoadBalancers should be able to change the type and ports of a TCP service | passed " +
			"| passed | ? | **failed** |",
		"| l2-iptables | failed: no answer from a / b |",
		"cleanup finalizer for service | – | – | – | – |",
		"2 of 3 results",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	if all.heading("a").Old || !all.heading("b").Old {
		t.Error("the page of code a: want it old with code b only")
	}
	again, err := all.lines()
	must(t, err)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, page+".json"), again, 0o644))
	if back, err := read(dir); err != nil || !reflect.DeepEqual(back, all) {
		t.Errorf("stored and read: %+v, %v, want %+v", back, err, all)
	}
}

// An exclusion names a test and set-ups that exist, and no two tests have the same name.
func TestTableIsConsistent(t *testing.T) {
	names := map[string]bool{}
	for _, test := range Tests {
		if names[test.Name] {
			t.Errorf("%s: twice", test.Name)
		}
		names[test.Name] = true
	}
	for _, e := range exclusions {
		if !names[e.Test] {
			t.Errorf("exclusion of %q: no such test", e.Test)
		}
		for _, s := range e.Setups {
			if !slices.ContainsFunc(Setups, func(have Setup) bool { return have.Name == s }) {
				t.Errorf("exclusion of %s: no set-up %q", e.Test, s)
			}
		}
	}
}

// Each test that is not left out is in one lane, with tests of the same provider.
func TestLanes(t *testing.T) {
	for _, s := range Setups {
		lanes := Lanes(s, regexp.MustCompile(""))
		n := map[string]int{}
		for _, l := range lanes {
			for _, test := range l.Tests {
				n[test.Name]++
				if test.Provider != l.Tests[0].Provider {
					t.Errorf("%s: lane %s has two providers", s.Name, l.Name)
				}
			}
		}
		for _, test := range Tests {
			want := 1
			if LeftOut(s, test) != "" {
				want = 0
			}
			if n[test.Name] != want {
				t.Errorf("%s: %s in %d lanes, want %d", s.Name, test.Name, n[test.Name], want)
			}
		}
	}
	one := Lanes(Setups[0], regexp.MustCompile("source ranges"))
	if len(one) != 1 || len(one[0].Tests) != 1 {
		t.Errorf("tests with source ranges: %+v", one)
	}
}

// Tests of a newer Kubernetes are found, and tests that it lacks.
func TestUnknownTests(t *testing.T) {
	var list strings.Builder
	for _, test := range Tests[1:] {
		list.WriteString("    k8s.io/kubernetes@v1.37.2/test/e2e/network/loadbalancer.go:132: " + test.Name + "\n")
	}
	list.WriteString("    e2e/network/loadbalancer.go:1: [sig-network] LoadBalancers should be new\n    " +
		"e2e/network/dns.go:1: [sig-network] DNS should work\n")
	added, gone := Unknown(list.String())
	if !slices.Equal(added, []string{"[sig-network] LoadBalancers should be new"}) ||
		!slices.Equal(gone, []string{Tests[0].Name}) {
		t.Errorf("added %q, gone %q", added, gone)
	}
}

// A test counts as passed only if a report says so.
func TestReports(t *testing.T) {
	lane := Lane{Tests: []Test{{Name: "a [Slow]"}, {Name: "b"}, {Name: "c"}, {Name: "d"}, {Name: "e"}}}
	got, err := readReports("testdata", lane)
	must(t, err)
	want := []Result{
		{Test: "a [Slow]", Outcome: Passed, Took: 21 * time.Second},
		{Test: "b", Outcome: Failed, Took: 3 * time.Second, Message: "no answer\nin 20 s"},
		{Test: "c", Outcome: Skipped, Message: "skipped - needs two nodes"},
		{Test: "d", Outcome: Failed, Message: "e2e.test did not run it"},
		{Test: "e", Outcome: Failed, Message: "e2e.test did not run it"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
