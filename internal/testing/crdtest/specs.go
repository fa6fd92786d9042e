package crdtest

import (
	"embed"
	"encoding/json"
	"io/fs"
	"maps"
	"testing"

	"sigs.k8s.io/yaml"
)

// Specs are good and bad specs of one kind, from a file in testdata/specs.
type Specs struct {
	Kind, Plural, Name string

	Base map[string]any // what a spec has unless it says otherwise
	Good []map[string]any
	Bad  []BadSpec
}

// A BadSpec is a spec that is refused, and how.
type BadSpec struct {
	Name  string // of the object; that of the kind when empty
	Spec  map[string]any
	Field string
	Says  string // a part of what the parser says, and the API server as well
	API   string // a part of what the API server says where the words are its own

	Beyond  string // why CEL cannot see the mistake; the API server takes the object
	Decoded string // why the parser cannot see it, since decoding lost it; the parser takes the object
}

//go:embed testdata/specs/*.yaml
var specs embed.FS

// LoadSpecs reads the specs of every kind.
func LoadSpecs(t testing.TB) []Specs {
	t.Helper()
	paths, err := fs.Glob(specs, "testdata/specs/*.yaml")
	if err != nil || len(paths) != 5 {
		t.Fatalf("specs of %d kinds, want 5: %v", len(paths), err)
	}
	var all []Specs
	for _, path := range paths {
		b, err := specs.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		s := Specs{Name: "x"}
		if err := yaml.UnmarshalStrict(b, &s); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all = append(all, s)
	}
	return all
}

// Object is an object with a spec, in JSON. Its name is that of the kind when empty.
func (s Specs) Object(t testing.TB, name string, spec map[string]any) string {
	t.Helper()
	if name == "" {
		name = s.Name
	}
	merged := maps.Clone(s.Base)
	if merged == nil {
		merged = map[string]any{}
	}
	maps.Copy(merged, spec)
	maps.DeleteFunc(merged, func(_ string, v any) bool { return v == nil })
	b, err := json.Marshal(map[string]any{"apiVersion": "fanfare.io/v1alpha1", "kind": s.Kind,
		"metadata": map[string]any{"name": name}, "spec": merged})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// SaysOfAPI is a part of what the API server says, empty when it takes the object.
func (b BadSpec) SaysOfAPI() string {
	switch {
	case b.Beyond != "":
		return ""
	case b.API != "":
		return b.API
	}
	return b.Says
}
