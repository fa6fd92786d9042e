package kube

import (
	"errors"
	"io/fs"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// PutText makes the API server's objects equal to the file's: it writes only changed
// objects, deletes removed ones, and leaves an object as it was if the API server refuses
// the change.
func TestStoreWritesOnlyChanges(t *testing.T) {
	c := controlPlane(t)
	must(t, c.Admin().Apply(t.Context(), shop))
	s := &store{client: c.Admin(), files: map[string][]*unstructured.Unstructured{}}
	const (
		a       = "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: shop, name: store-a}, data: {x: one}}"
		b       = "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: shop, name: store-b}, data: {x: one}}"
		changed = "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: shop, name: store-b}, data: {x: two}}"
		refused = "{apiVersion: v1, kind: ConfigMap, metadata: {namespace: shop, name: store-b}, data: {x: [two]}}"
	)
	t.Cleanup(func() {
		if err := s.Delete("maps"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	})
	versions := func() map[string]string {
		all, err := c.Admin().List(t.Context(), schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"})
		must(t, err)
		by := map[string]string{}
		for _, o := range all {
			if o.GetNamespace() == "shop" {
				by[o.GetName()] = o.GetResourceVersion()
			}
		}
		return by
	}
	must(t, s.PutText("maps", a+"\n---\n"+b))
	first := versions()
	if first["store-a"] == "" || first["store-b"] == "" {
		t.Fatalf("there are %v", first)
	}
	must(t, s.PutText("maps", a+"\n---\n"+changed))
	second := versions()
	if second["store-a"] != first["store-a"] || second["store-b"] == first["store-b"] {
		t.Errorf("b alone changed: %v, then %v", first, second)
	}
	if err := s.PutText("maps", a+"\n---\n"+refused); err == nil {
		t.Error("not refused")
	}
	must(t, s.PutText("maps", a+"\n---\n"+changed))
	if third := versions(); third["store-b"] != second["store-b"] {
		t.Errorf("an unchanged object was written again: %v, then %v", second, third)
	}
	must(t, s.PutText("maps", b))
	if now := versions(); now["store-a"] != "" || now["store-b"] == "" {
		t.Errorf("a was removed from the file: %v", now)
	}
	must(t, s.Delete("maps"))
	if now := versions(); now["store-b"] != "" {
		t.Errorf("the file was deleted: %v", now)
	}
	if err := s.Delete("maps"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is no such file: %v", err)
	}
}
