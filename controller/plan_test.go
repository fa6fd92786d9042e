package controller

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
)

var update = flag.Bool("update", false, "write the golden files again")

// A golden archive holds the objects of a cluster and the writes that follow.
func TestPlan(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) { testPlan(t, path) })
	}
}

func testPlan(t *testing.T, path string) {
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var objects []runtime.Object
	var want string
	out := &txtar.Archive{Comment: a.Comment}
	for _, f := range a.Files {
		if f.Name == "writes.txt" {
			want = string(f.Data)
			continue
		}
		objects = append(objects, decode(t, string(f.Data))...)
		out.Files = append(out.Files, f)
	}
	snap := cluster.Parse(objects...)
	for _, p := range snap.Problems {
		if !p.Warning {
			t.Errorf("problem in the input: %s", p)
		}
	}
	as, reasons := ipam.NewAllocator(snap, ipam.Settled).Allocate(time.Time{})
	got := plan(ipam.NewAllocator(snap, settled), as, reasons, nil,
		time.Time{}).String()
	if !*update {
		if d := gocmp.Diff(want, got); d != "" {
			t.Errorf("-want +got (-update writes it again):\n%s", d)
		}
		return
	}
	out.Files = append(out.Files, txtar.File{Name: "writes.txt", Data: []byte(got)})
	if err := os.WriteFile(path, txtar.Format(out), 0o644); err != nil {
		t.Fatal(err)
	}
}

// decode reads the objects of a file, strictly.
func decode(t *testing.T, s string) []runtime.Object {
	t.Helper()
	var objects []runtime.Object
	for doc := range strings.SplitSeq(s, "\n---\n") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			t.Fatal(err)
		}
		obj := map[string]runtime.Object{
			"Service": &corev1.Service{}, "Node": &corev1.Node{}, "Namespace": &corev1.Namespace{},
			"AddressPool": &v1alpha1.AddressPool{}, "AddressClaim": &v1alpha1.AddressClaim{},
			"BGPPeer": &v1alpha1.BGPPeer{}, "BGPAdvertisement": &v1alpha1.BGPAdvertisement{},
			"L2Advertisement": &v1alpha1.L2Advertisement{},
		}[kind.Kind]
		if obj == nil {
			t.Fatalf("no such kind: %q", kind.Kind)
		}
		if err := yaml.UnmarshalStrict([]byte(doc), obj); err != nil {
			t.Fatalf("%s: %v", doc, err)
		}
		objects = append(objects, obj)
	}
	return objects
}

// Status and claims that are as wanted are not written again.
func TestNothingToWrite(t *testing.T) {
	s := newStore(t)
	c, err := newController(options(s))
	if err != nil {
		t.Fatal(err)
	}
	s.populate(t)
	for range 2 { // the second pass only receives what the first one wrote
		c.source = s.source()
		if left, errs := c.pass(t.Context()); left || len(errs) != 0 {
			t.Fatal(left, errs)
		}
	}
	version := s.version
	c.source = s.source()
	snap := c.source.Snapshot()
	as, reasons := ipam.NewAllocator(snap, ipam.Settled).Allocate(time.Time{})
	if len(as) < 3 || len(reasons) == 0 {
		t.Fatalf("a dull cluster: %v %v", as, reasons)
	}
	if got := plan(ipam.NewAllocator(snap, settled), as, reasons, nil,
		time.Time{}).String(); got != "" {
		t.Errorf("would write\n%s", got)
	}
	c.pass(t.Context())
	if s.version != version {
		t.Error("wrote")
	}
}

func TestMessageLength(t *testing.T) {
	long := strings.Repeat("ä", maxMessage)
	if got := cut(long); len(got) > maxMessage || !strings.HasSuffix(got, "ä…") {
		t.Errorf("%d bytes, ends in %q", len(got), got[len(got)-6:])
	}
	if got := cut("short"); got != "short" {
		t.Error(got)
	}
}
