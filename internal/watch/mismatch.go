package watch

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/fanfare-lb/fanfare/internal/cluster"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
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
	p.match(reflect.TypeOf(obj).Elem(), v, "")
	return p.Problems
}

var (
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// match compares a decoded JSON value with its Go type. path is its place, such as spec.ports[0].
func (p *matcher) match(t reflect.Type, v any, path string) {
	if v == nil {
		return // null is the zero value of anything
	}
	if pt := reflect.PointerTo(t); pt.Implements(jsonUnmarshaler) || pt.Implements(textUnmarshaler) {
		p.matchSelfDecoding(t, v, path)
		return
	}
	switch t.Kind() {
	case reflect.Pointer:
		p.match(t.Elem(), v, path)
	case reflect.Struct:
		p.matchStruct(t, v, path)
	case reflect.Map:
		p.matchMap(t, v, path)
	case reflect.Slice:
		if t.Elem().Kind() != reflect.Uint8 { // []byte is text in base64
			p.matchSlice(t, v, path)
		}
	case reflect.String:
		if _, ok := v.(string); !ok {
			p.Add(path, show(v), "must be text; put it in quotes")
		}
	case reflect.Bool:
		if _, ok := v.(bool); !ok {
			p.Add(path, show(v), "must be true or false")
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		p.matchInt(t, v, path)
	}
}

// matchStruct proposes a field of a similar name for an unknown one.
func (p *matcher) matchStruct(t reflect.Type, v any, path string) {
	m, ok := v.(map[string]any)
	if !ok {
		p.Add(path, show(v), "must have fields, as in name: value")
		return
	}
	fields := jsonFields(t)
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if ft, ok := fields[k]; ok {
			p.match(ft, m[k], child(path, k))
			continue
		}
		p.unknownField(child(path, k), k, fields)
	}
}

// unknownField reports a field that does not exist. In the status it is only a warning: a cluster writes it,
// perhaps a newer one, and no user restricts anything with it.
func (p *matcher) unknownField(path, name string, fields map[string]reflect.Type) {
	p.Problems = append(p.Problems, cluster.Problem{Field: path, Warning: strings.HasPrefix(path, "status."),
		Message: "there is no such field" + cluster.DidYouMean(name, slices.Collect(maps.Keys(fields)))})
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

// matchMap accepts any key, and compares each value.
func (p *matcher) matchMap(t reflect.Type, v any, path string) {
	m, ok := v.(map[string]any)
	if !ok {
		p.Add(path, show(v), "must have fields, as in name: value")
		return
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		p.match(t.Elem(), m[k], path+"["+k+"]")
	}
}

// matchSlice compares each entry of a list.
func (p *matcher) matchSlice(t reflect.Type, v any, path string) {
	list, ok := v.([]any)
	if !ok {
		p.Add(path, show(v), "must be a list, as in [a, b]")
		return
	}
	for i, e := range list {
		p.match(t.Elem(), e, fmt.Sprintf("%s[%d]", path, i))
	}
}

// matchInt refuses fractions, and numbers that the type cannot hold.
func (p *matcher) matchInt(t reflect.Type, v any, path string) {
	n, ok := v.(json.Number)
	if !ok {
		p.Add(path, show(v), "must be a number, without quotes")
		return
	}
	if _, err := strconv.ParseInt(n.String(), 10, t.Bits()); err != nil {
		p.Add(path, n.String(), fmt.Sprintf("must be a whole number of at most %d bits", t.Bits()))
	}
}

// selfDecoding says what values are valid for types that decode themselves, if their errors are
// about Go instead of YAML.
var selfDecoding = map[reflect.Type]string{
	reflect.TypeFor[metav1.Duration]():    "must be a time such as 90s or 1m30s",
	reflect.TypeFor[metav1.Time]():        "must be a time such as 2026-01-31T12:00:00Z",
	reflect.TypeFor[intstr.IntOrString](): "must be a number or a name",
}

// matchSelfDecoding lets a type such as Duration decode its own value. Its error is the message if
// selfDecoding has none.
func (p *matcher) matchSelfDecoding(t reflect.Type, v any, path string) {
	j, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(j, reflect.New(t).Interface())
	}
	if err == nil {
		return
	}
	message := selfDecoding[t]
	if message == "" {
		message = strings.TrimPrefix(err.Error(), "json: ")
	}
	p.Add(path, show(v), message)
}

// child returns the path of a field.
func child(path, field string) string {
	if path == "" {
		return field
	}
	return path + "." + field
}

// show returns a value for a Problem, at most 60 bytes of it.
func show(v any) string {
	s, ok := v.(string)
	if !ok {
		j, _ := json.Marshal(v) // it came from JSON, so it cannot fail
		s = string(j)
	}
	const most = 60
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
