package cluster

import (
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
)

// A table holds the parsed objects of one kind by name.
type table[T any] struct {
	objects map[string]*T
	changed bool // since the last snapshot
	list    []*T // what sorted returned last
}

// set replaces an object; nil deletes it. If the new object is equal, the old pointer stays.
func (t *table[T]) set(name string, v *T) {
	if t.objects == nil {
		t.objects = map[string]*T{}
	}
	t.changed = replace(t.objects, name, v) || t.changed
}

// setGood replaces an object unless the new one has problems p. Then the previous version stays, p
// says so, and replaced is false.
func (t *table[T]) setGood(name string, v *T, p Problems) (replaced bool) {
	if t.objects[name] != nil && len(p) > 0 {
		for i := range p {
			p[i].Message += StaysInUse
		}
		return false
	}
	t.set(name, v)
	return true
}

// parsed parses an object, and returns the zero value for a deleted one.
func parsed[O, T any](obj runtime.Object, parse func(O) (T, Problems)) (v T, p Problems) {
	if o, exists := obj.(O); exists {
		return parse(o)
	}
	return v, nil
}

// store parses an object of a table.
func store[O, T any](t *table[T], name string, obj runtime.Object, parse func(O) (*T, Problems)) Problems {
	v, p := parsed(obj, parse)
	t.set(name, v)
	return p
}

// storeGood is store by setGood.
func storeGood[O, T any](t *table[T], name string, obj runtime.Object, parse func(O) (*T, Problems)) Problems {
	v, p := parsed(obj, parse)
	t.setGood(name, v, p)
	return p
}

// sorted returns the objects by name: the same slice as before if none has changed.
func (t *table[T]) sorted() []*T {
	if t.changed {
		t.list = make([]*T, 0, len(t.objects))
		for _, name := range slices.Sorted(maps.Keys(t.objects)) {
			t.list = append(t.list, t.objects[name])
		}
	}
	return t.list
}

// replace sets m[k] to v, or deletes it if v is nil, and reports whether that is a change. If the
// new value is equal, the old pointer stays.
func replace[K comparable, V any](m map[K]*V, k K, v *V) bool {
	return replaceFunc(m, k, v, func(a, b *V) bool { return reflect.DeepEqual(a, b) })
}

func replaceFunc[K comparable, V any](m map[K]*V, k K, v *V, equal func(a, b *V) bool) bool {
	old := m[k]
	if old == v || old != nil && v != nil && equal(old, v) {
		return false
	}
	if v == nil {
		delete(m, k)
	} else {
		m[k] = v
	}
	return true
}
