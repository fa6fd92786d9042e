package fanfare

import (
	"go/ast"
	"go/token"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/clustertest"
)

// The table in docs/concepts/security.md has a row for everything that a user of a namespace can
// write and that the code reads, and TestTenantIsolation tries each row.
func TestTenancyTable(t *testing.T) {
	rows := tenancyRows(t)
	for _, name := range inputs(t) {
		if !slices.Contains(rows, name) {
			t.Errorf("docs/concepts/security.md has no row for %s, which the code reads", name)
		}
	}
	for _, name := range rows {
		if len(attacks[name]) == 0 {
			t.Errorf("docs/concepts/security.md has a row for %s, which no attack tries", name)
		}
	}
	for name := range attacks {
		if !slices.Contains(rows, name) {
			t.Errorf("docs/concepts/security.md has no row for %s, which an attack tries", name)
		}
	}
}

var codeSpan = regexp.MustCompile("`([^`]+)`")

// tenancyRows are the names in the first cells of the table.
func tenancyRows(t *testing.T) (names []string) {
	t.Helper()
	_, table, found := strings.Cut(read(t, "docs/concepts/security.md"), "| a user of a namespace writes |")
	if !found {
		t.Fatal("docs/concepts/security.md has no table of what users of a namespace write")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	for _, row := range strings.Split(table, "\n")[2:] {
		for _, m := range codeSpan.FindAllStringSubmatch(strings.Split(row, "|")[1], -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// inputs are the annotations, labels and fields of Services and EndpointSlices that change what
// the code reads from them. It tries each one.
func inputs(t *testing.T) (names []string) {
	for _, name := range qualifiedNames(t) {
		annotated := func(s *corev1.Service, _ *discoveryv1.EndpointSlice) { s.Annotations[name] = "x" }
		if reads(annotated) && !reportedAsUnknown(annotated) {
			names = append(names, name)
		}
		if reads(func(s *corev1.Service, _ *discoveryv1.EndpointSlice) { s.Labels[name] = "x" }) {
			names = append(names, name)
		}
	}
	for prefix, in := range map[string]func(*corev1.Service, *discoveryv1.EndpointSlice) reflect.Value{
		"spec.": func(s *corev1.Service, _ *discoveryv1.EndpointSlice) reflect.Value {
			return reflect.ValueOf(&s.Spec)
		},
		"status.": func(s *corev1.Service, _ *discoveryv1.EndpointSlice) reflect.Value {
			return reflect.ValueOf(&s.Status)
		},
		"": func(_ *corev1.Service, e *discoveryv1.EndpointSlice) reflect.Value { return reflect.ValueOf(e) },
		"endpoints[].": func(_ *corev1.Service, e *discoveryv1.EndpointSlice) reflect.Value {
			return reflect.ValueOf(&e.Endpoints[0])
		},
	} {
		base := in(new(corev1.Service), clustertest.EndpointSlice("x", "x", "10.0.0.1")).Elem().Type()
		for i := range base.NumField() {
			name, _, _ := strings.Cut(base.Field(i).Tag.Get("json"), ",")
			if name == "" || name == "metadata" || name == "endpoints" {
				continue // TypeMeta and ObjectMeta, or its fields are tried
			}
			if reads(func(s *corev1.Service, e *discoveryv1.EndpointSlice) { change(in(s, e).Elem().Field(i)) }) {
				names = append(names, prefix+name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// reportedAsUnknown reports whether a change of a Service adds only the report of an unknown annotation.
func reportedAsUnknown(change func(*corev1.Service, *discoveryv1.EndpointSlice)) bool {
	s := clustertest.Service("x")
	s.Annotations = map[string]string{}
	change(s, nil)
	return slices.ContainsFunc(cluster.Parse(s).Services.At(0).Problems, func(p cluster.Problem) bool {
		return p.Code == cluster.UnknownAnnotation
	})
}

// qualifiedNames are the strings in internal/cluster that look like names of annotations, and the
// labels that it takes from Kubernetes' packages.
func qualifiedNames(t *testing.T) []string {
	t.Helper()
	qualified := regexp.MustCompile(`^[a-z0-9-]+(\.[a-z0-9-]+)+/[A-Za-z][A-Za-z0-9-]*$`)
	found := map[string]bool{discoveryv1.LabelServiceName: true, corev1.LabelNodeExcludeBalancers: true}
	for _, s := range sources(t) {
		if s.test() || s.dir() != "internal/cluster" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				if text, _ := strconv.Unquote(l.Value); qualified.MatchString(text) {
					found[text] = true
				}
			}
			return true
		})
	}
	return slices.Sorted(maps.Keys(found))
}

// reads reports whether an edit of a Service or of its EndpointSlice changes what is parsed, or
// what is wrong with it: of a plain Service, or of one whose policies make more fields count.
func reads(edit func(*corev1.Service, *discoveryv1.EndpointSlice)) bool {
	for _, particular := range []bool{false, true} {
		parse := func(edit func(*corev1.Service, *discoveryv1.EndpointSlice)) *cluster.Snapshot {
			s, e := clustertest.Service("x"), clustertest.EndpointSlice("x", "x", "10.0.0.1")
			s.Annotations, s.Labels = map[string]string{}, map[string]string{}
			if particular {
				s.Spec.ExternalTrafficPolicy, s.Spec.SessionAffinity = corev1.ServiceExternalTrafficPolicyLocal,
					corev1.ServiceAffinityClientIP
				s.Annotations[cluster.SharingAnnotation] = "k"
			}
			edit(s, e)
			snap := cluster.Parse([]runtime.Object{s, e}...)
			for i := range snap.Services.Len() {
				snap.Services.At(i).Spec.Labels = nil // The table has a row for labels as such.
			}
			return snap
		}
		if !reflect.DeepEqual(parse(func(*corev1.Service, *discoveryv1.EndpointSlice) {}), parse(edit)) {
			return true
		}
	}
	return false
}

// change sets a field to another value, which need not be valid.
func change(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("2001:db8::1") // another family, where it is an address
	case reflect.Int32, reflect.Int64:
		v.SetInt(-1)
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		change(v.Elem())
	case reflect.Slice:
		if v.Len() > 0 {
			v.SetLen(0)
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		change(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("x").Convert(v.Type().Key()), reflect.ValueOf("x").Convert(v.Type().Elem()))
	case reflect.Struct:
		if c, ok := v.Addr().Interface().(*metav1.Condition); ok {
			c.Type, c.Reason = cluster.AddressAssigned, "x"
			return
		}
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				change(v.Field(i))
			}
		}
	default:
	}
}
