package metallb

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/fanfare-lb/fanfare/internal/testing/crdtest"
)

var update = flag.Bool("update", false, "update the golden files")

// A golden archive has MetalLB's objects, perhaps more objects of the cluster, and what
// `fanfare migrate metallb` prints about them and testdata/cluster.yaml. Its comment may have options.
func TestGolden(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) { testGolden(t, path) })
	}
}

const printed = "printed.yaml"

func testGolden(t *testing.T, path string) {
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	in, want := &Cluster{}, ""
	input := &txtar.Archive{Comment: a.Comment}
	in.Read("cluster.yaml", read(t, "testdata/cluster.yaml"))
	for _, f := range a.Files {
		if f.Name == printed {
			want = string(f.Data)
			continue
		}
		in.Read(f.Name, f.Data)
		input.Files = append(input.Files, f)
	}
	out := Convert(in, optionsOf(string(a.Comment)))
	got, err := Report(in, out, Compare(in, out, optionsOf(string(a.Comment))))
	if err != nil {
		t.Fatal(err)
	}
	checkCRDs(t, out)
	if *update {
		input.Files = append(input.Files, txtar.File{Name: printed, Data: []byte(got)})
		if err := os.WriteFile(path, txtar.Format(input), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if d := gocmp.Diff(want, got); d != "" {
		t.Errorf("-want +got (-update updates it):\n%s", d)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// optionsOf reads words such as class=metallb.io/metallb of a comment.
func optionsOf(comment string) (o Options) {
	for _, word := range strings.Fields(comment) {
		if class, ok := strings.CutPrefix(word, "class="); ok {
			o.Class = class
		}
		if label, ok := strings.CutPrefix(word, "node-label="); ok {
			o.NodeLabel, o.NodeValue, _ = strings.Cut(label, "=")
		}
	}
	return o
}

// checkCRDs checks the printed objects as the API server would.
func checkCRDs(t *testing.T, out *Conversion) {
	t.Helper()
	for _, o := range out.objects() {
		text, err := document(o.kind, o.object)
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]any
		if err := yaml.Unmarshal(text, &fields); err != nil {
			t.Fatal(err)
		}
		crdtest.Integers(fields)
		for _, e := range validator(t, o.kind).Create(fields) {
			t.Errorf("%s %s: %s", o.kind, o.name, e)
		}
	}
}

var validators = map[string]crdtest.Validator{}

// validator loads the CRD of a kind once.
func validator(t *testing.T, kind string) crdtest.Validator {
	t.Helper()
	if _, ok := validators[kind]; !ok {
		validators[kind] = crdtest.Load(t, strings.ToLower(kind)+"s")
	}
	return validators[kind]
}

// With a node label, objects have the names that they have without one: in a move node by node, the second
// conversion takes the place of the first.
func TestNodeLabelKeepsNames(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		in := &Cluster{}
		in.Read("cluster.yaml", read(t, "testdata/cluster.yaml"))
		for _, f := range a.Files {
			if f.Name != printed {
				in.Read(f.Name, f.Data)
			}
		}
		without := namesOf(Convert(in, Options{}))
		if d := gocmp.Diff(without, namesOf(Convert(in,
			Options{NodeLabel: "example.com/announcer", NodeValue: "fanfare"}))); d != "" {
			t.Errorf("%s: -without a label +with one:\n%s", path, d)
		}
	}
}

// namesOf returns the kinds and names of converted objects.
func namesOf(c *Conversion) (names []string) {
	for _, o := range c.Pools {
		names = append(names, "AddressPool "+o.Name)
	}
	for _, o := range c.Peers {
		names = append(names, "BGPPeer "+o.Name)
	}
	for _, o := range c.Advertisements {
		names = append(names, "BGPAdvertisement "+o.Name)
	}
	for _, o := range c.L2Advertisements {
		names = append(names, "L2Advertisement "+o.Name)
	}
	return names
}
