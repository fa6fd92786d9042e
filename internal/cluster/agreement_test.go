package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/crdtest"
)

// specs are specs of one kind, from testdata/specs.
type specs struct {
	Kind, Plural, Name string

	Base map[string]any // what a spec has unless it says otherwise
	Good []map[string]any
	Bad  []badSpec
}

// A badSpec is a spec that is refused, and how.
type badSpec struct {
	Name  string // of the object; that of the kind when empty
	Spec  map[string]any
	Field string
	Says  string // a part of what the parser says, and the API server as well
	API   string // a part of what the API server says where the words are its own

	Beyond  string // why CEL cannot see the mistake; the API server takes the object
	Decoded string // why the parser cannot see it, since decoding lost it; the parser takes the object
}

// The API server and the parser must refuse the same objects. Otherwise an object is
// stored that nothing uses, or works from a file and not in a cluster.
func TestAgreement(t *testing.T) {
	paths, err := filepath.Glob("testdata/specs/*.yaml")
	if err != nil || len(paths) != 5 {
		t.Fatalf("specs of %d kinds, want 5: %v", len(paths), err)
	}
	beyond := 0
	for _, path := range paths {
		s := loadSpecs(t, path)
		t.Run(s.Kind, func(t *testing.T) {
			v := crdtest.Load(t, s.Plural)
			for _, spec := range s.Good {
				s.accepted(t, v, spec)
			}
			for _, bad := range s.Bad {
				s.refused(t, v, bad)
				if bad.Beyond != "" {
					beyond++
				}
			}
		})
	}
	if beyond > 5 {
		t.Errorf("CEL cannot see %d mistakes; more than 5 are too many", beyond)
	}
}

func loadSpecs(t *testing.T, path string) specs {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := specs{Name: "x"}
	if err := yaml.UnmarshalStrict(b, &s); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return s
}

func (s specs) accepted(t *testing.T, v crdtest.Validator, spec map[string]any) {
	t.Helper()
	text := s.object(t, s.Name, spec)
	if errs := serverSays(t, v, text); len(errs) != 0 {
		t.Errorf("%s\nthe API server refuses it: %v", text, errs.ToAggregate())
	}
	if p := parser(text); len(p) != 0 {
		t.Errorf("%s\nthe parser refuses it: %v", text, p)
	}
}

func (s specs) refused(t *testing.T, v crdtest.Validator, bad badSpec) {
	t.Helper()
	name := bad.Name
	if name == "" {
		name = s.Name
	}
	text := s.object(t, name, bad.Spec)
	errs, p := serverSays(t, v, text), parser(text)
	want := bad.API
	if want == "" {
		want = bad.Says
	}
	switch {
	case bad.Beyond != "" && len(errs) != 0:
		t.Errorf("%s\nthe API server sees it after all: %v", text, errs.ToAggregate())
	case bad.Beyond == "" && !namesPlace(errs, bad.Field, want):
		t.Errorf("%s\nthe API server says %v, want %s: %s", text, errs.ToAggregate(), bad.Field, want)
	}
	switch {
	case bad.Decoded != "" && len(p) != 0:
		t.Errorf("%s\nthe parser sees it after all: %v", text, p)
	case bad.Decoded == "" && !parserSays(p, bad.Field, bad.Says):
		t.Errorf("%s\nthe parser says %v, want %s: %s", text, p, bad.Field, bad.Says)
	}
}

// object is a manifest in JSON.
func (s specs) object(t *testing.T, name string, spec map[string]any) string {
	t.Helper()
	merged := maps.Clone(s.Base)
	if merged == nil {
		merged = map[string]any{}
	}
	maps.Copy(merged, spec)
	maps.DeleteFunc(merged, func(_ string, v any) bool { return v == nil })
	b, err := json.Marshal(map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": s.Kind,
		"metadata": map[string]any{"name": name}, "spec": merged})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func serverSays(t *testing.T, v crdtest.Validator, text string) field.ErrorList {
	t.Helper()
	var obj map[string]any
	if err := yaml.Unmarshal([]byte(text), &obj); err != nil {
		t.Fatal(err)
	}
	return v.Create(crdtest.Integers(obj).(map[string]any))
}

// parser is what is said to an object from a file: by the decoder, and if it decodes by
// the Builder.
func parser(text string) []Problem {
	it := decodeObjects([]byte(text), schema.GroupVersionKind{})[0]
	p := []Problem(it.problems)
	if it.obj == nil {
		return p
	}
	b := NewBuilder()
	b.Set(it.obj, "")
	return append(p, b.problems[it.key.String()]...)
}

// namesPlace allows for a rule that is about more than the field with the mistake.
func namesPlace(errs field.ErrorList, place, want string) bool {
	for _, e := range errs {
		above := e.Field == "<nil>" || e.Field == "" || strings.HasPrefix(place, e.Field) || strings.HasPrefix(e.Field, place)
		if above && strings.Contains(e.Error(), want) {
			return true
		}
	}
	return false
}

func parserSays(p []Problem, place, want string) bool {
	for _, e := range p {
		if e.Field == place && strings.Contains(e.Message, want) {
			return true
		}
	}
	return false
}

// Lists are bounded in the CRDs, since CEL has a budget. The parser has the same bounds.
func TestBoundsAgree(t *testing.T) {
	text := func(format string) func(int) any {
		return func(i int) any { return fmt.Sprintf(format, i) }
	}
	requirement := func(i int) any { return map[string]any{"key": fmt.Sprintf("k%d", i), "operator": "Exists"} }
	service := func(i int) any { return map[string]any{"namespace": "shop", "name": fmt.Sprintf("web-%d", i)} }
	kinds := map[string]specs{}
	for _, path := range []string{"addressclaim", "addresspool", "bgpadvertisement", "bgppeer", "l2advertisement"} {
		s := loadSpecs(t, "testdata/specs/"+path+".yaml")
		kinds[s.Kind] = s
	}
	for _, tt := range []struct {
		kind, field string
		most        int
		entry       func(int) any
	}{
		{"AddressPool", "addresses", 256, func(i int) any { return fmt.Sprintf("192.0.%d.%d", i/256, i%256) }},
		{"AddressPool", "namespaces", 256, text("shop-%d")},
		{"AddressPool", "namespaceSelector.matchExpressions", 8, requirement},
		{"AddressPool", "serviceSelector.matchExpressions", 8, requirement},
		{"BGPPeer", "nodeSelector.matchExpressions", 8, requirement},
		{"BGPAdvertisement", "pools", 64, text("lan-%d")},
		{"BGPAdvertisement", "peers", 64, text("tor%d")},
		{"BGPAdvertisement", "communities", 64, text("64500:%d")},
		{"BGPAdvertisement", "serviceSelector.matchExpressions", 8, requirement},
		{"BGPAdvertisement", "nodeSelector.matchExpressions", 8, requirement},
		{"L2Advertisement", "pools", 64, text("lan-%d")},
		{"L2Advertisement", "interfaces", 16, text("eth%d")},
		{"L2Advertisement", "preferredNodeSelectors", 16, func(int) any { return map[string]any{"weight": 1, "preference": map[string]any{}} }},
		{"AddressClaim", "holders", 256, service},
		{"AddressClaim", "reservedFor", 256, service},
	} {
		s := kinds[tt.kind]
		v := crdtest.Load(t, s.Plural)
		var list []any
		for i := range tt.most {
			list = append(list, tt.entry(i))
		}
		s.accepted(t, v, nested(tt.field, list))
		s.refused(t, v, badSpec{Spec: nested(tt.field, append(list, tt.entry(tt.most))), Field: "spec." + tt.field,
			Says: fmt.Sprintf("has %d entries, and may have %d", tt.most+1, tt.most), API: fmt.Sprintf("must have at most %d items", tt.most)})
	}
}

// nested is a spec with a value at a path of fields.
func nested(path string, value any) map[string]any {
	first, rest, more := strings.Cut(path, ".")
	if more {
		value = nested(rest, value)
	}
	return map[string]any{first: value}
}
