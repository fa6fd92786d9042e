package watch

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A matcher collects the mistakes of one object.
type matcher struct{ cluster.Problems }

// mismatches compares an object's JSON with its Go type. It names every field that the type lacks
// and every value of the wrong type, with its path: the decoder's own error names only one, without
// an index or the value.
func mismatches(j []byte, obj any) cluster.Problems {
	d := json.NewDecoder(bytes.NewReader(j))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return cluster.Problems{{Message: err.Error()}}
	}
	var p matcher
	p.match(reflect.TypeOf(obj).Elem(), v, nil)
	return p.Problems
}

// match compares a decoded JSON value with its Go type. at is its place, such as spec.ports[0].
func (p *matcher) match(t reflect.Type, v any, at *field.Path) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	m, isMap := v.(map[string]any)
	list, isList := v.([]any)
	switch kind := t.Kind(); {
	case v == nil: // null is the zero value of anything
	case decodesItself(t):
		p.matchValue(t, v, at)
	case kind == reflect.Struct && isMap:
		p.matchStruct(t, m, at)
	case kind == reflect.Map && isMap:
		for _, k := range slices.Sorted(maps.Keys(m)) {
			p.match(t.Elem(), m[k], at.Key(k))
		}
	case kind == reflect.Slice && isList:
		for i, e := range list {
			p.match(t.Elem(), e, at.Index(i))
		}
	default:
		p.matchValue(t, v, at)
	}
}

// decodesItself reports whether a type has its own form in JSON, as Duration does.
func decodesItself(t reflect.Type) bool {
	pt := reflect.PointerTo(t)
	return pt.Implements(reflect.TypeFor[json.Unmarshaler]()) ||
		pt.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// matchStruct proposes a field of a similar name for an unknown one. In the status that is only a warning: a cluster
// writes it, perhaps a newer one, and no user restricts anything with it.
func (p *matcher) matchStruct(t reflect.Type, m map[string]any, at *field.Path) {
	fields := jsonFields(t)
	for _, k := range slices.Sorted(maps.Keys(m)) {
		ft, ok := fields[k]
		if ok {
			p.match(ft, m[k], at.Child(k))
			continue
		}
		path := at.Child(k).String()
		p.Problems = append(p.Problems, cluster.Problem{Field: path, Warning: strings.HasPrefix(path, "status."),
			Message: "there is no such field" + cluster.DidYouMean(k, slices.Collect(maps.Keys(fields)))})
	}
}

// jsonFields returns the fields of a struct, inlined ones included, by their names in JSON.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for f := range t.Fields() {
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name == "" && (f.Anonymous || strings.Contains(opts, "inline")):
			maps.Copy(fields, jsonFields(f.Type))
		default:
			fields[name] = f.Type
		}
	}
	return fields
}

// matchValue lets the type decode the value.
func (p *matcher) matchValue(t reflect.Type, v any, at *field.Path) {
	j, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(j, reflect.New(t).Interface())
	}
	if err != nil {
		p.Add(at.String(), show(v), remedy(t, v, err))
	}
}

// remedy says which values a type has. Most of the decoder's errors are about Go instead of YAML.
func remedy(t reflect.Type, v any, err error) string {
	_, number := v.(json.Number)
	switch t {
	case reflect.TypeFor[metav1.Duration]():
		return "must be a time such as 90s or 1m30s"
	case reflect.TypeFor[metav1.Time]():
		return "must be a time such as 2026-01-31T12:00:00Z"
	case reflect.TypeFor[intstr.IntOrString]():
		return "must be a number or a name"
	}
	switch kind := t.Kind(); {
	case decodesItself(t):
	case kind == reflect.String:
		return "must be text; put it in quotes"
	case kind == reflect.Bool:
		return "must be true or false"
	case kind == reflect.Slice && t.Elem().Kind() != reflect.Uint8: // []byte is text in base64
		return "must be a list, as in [a, b]"
	case kind == reflect.Struct, kind == reflect.Map:
		return "must have fields, as in name: value"
	case number && kind >= reflect.Int && kind <= reflect.Uint64:
		return fmt.Sprintf("must be a whole number of at most %d bits", t.Bits())
	case kind >= reflect.Int && kind <= reflect.Uint64:
		return "must be a number, without quotes"
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// show returns a value for a Problem.
func show(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	j, _ := json.Marshal(v) // it came from JSON, so it cannot fail
	return string(j)
}
