package metallb

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// YAML returns the objects as documents for kubectl apply.
func (conversion *Conversion) YAML() ([]byte, error) {
	var b bytes.Buffer
	for _, o := range conversion.objects() {
		text, err := document(o.kind, o.object)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", o.kind, o.name, err)
		}
		b.WriteString("---\n")
		b.Write(text)
	}
	return b.Bytes(), nil
}

// An entry is one object of a Conversion.
type entry struct {
	kind, name string
	object     runtime.Object
}

// objects returns all of them, in the order in which they depend on each other: kubectl applies them
// in this order.
func (conversion *Conversion) objects() (all []entry) {
	for _, o := range conversion.Pools {
		all = append(all, entry{"AddressPool", o.Name, o})
	}
	for _, o := range conversion.Peers {
		all = append(all, entry{"BGPPeer", o.Name, o})
	}
	for _, o := range conversion.Advertisements {
		all = append(all, entry{"BGPAdvertisement", o.Name, o})
	}
	for _, o := range conversion.L2Advertisements {
		all = append(all, entry{"L2Advertisement", o.Name, o})
	}
	return all
}

// has reports whether a Problem's object is one of them.
func (conversion *Conversion) has(object cluster.Key) bool {
	return slices.ContainsFunc(conversion.objects(),
		func(e entry) bool { return cluster.Named(e.kind, e.name) == object })
}

// document returns an object as YAML, without an empty spec.
func document(kind string, o runtime.Object) ([]byte, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	if spec, ok := fields["spec"].(map[string]any); ok && len(spec) == 0 {
		delete(fields, "spec")
	}
	for _, name := range []string{"transmitInterval", "receiveInterval"} {
		text, _, _ := unstructured.NestedString(fields, "spec", "bfd", name)
		if d, err := time.ParseDuration(text); err == nil { // the CRD's pattern wants 1500ms, not 1.5s
			_ = unstructured.SetNestedField(fields, fmt.Sprintf("%dms", d.Milliseconds()), "spec", "bfd", name)
		}
	}
	fields["apiVersion"], fields["kind"] = v1alpha1.GroupVersion.String(), kind
	return yaml.Marshal(fields)
}

// comments returns lines of text as comments of YAML, with a title.
func comments(title string, lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n", title)
	for _, l := range lines {
		fmt.Fprintf(&b, "# - %s\n", commented(l))
	}
	return b.String()
}

// commented returns text that stays in its comment. Users of a namespace choose parts of it, such as keys in
// annotations, and whatever ends a line in YAML could begin an object that an administrator applies.
func commented(text string) string {
	text = strings.Map(func(r rune) rune {
		if r != '\n' && (unicode.IsControl(r) || r == '\u2028' || r == '\u2029') {
			return ' '
		}
		return r
	}, text)
	return strings.ReplaceAll(text, "\n", "\n#   ")
}

// texts returns a line for each Problem.
func texts(list []cluster.Problem) (lines []string) {
	for _, p := range list {
		lines = append(lines, p.String())
	}
	return lines
}

// Report returns what `fanfare migrate metallb` prints: the objects, and as comments what was not read,
// what has no counterpart, what to do, and the differences.
func Report(c *Cluster, out *Conversion, d *Comparison) (string, error) {
	objects, err := out.YAML()
	if err != nil {
		return "", err
	}
	todo := slices.DeleteFunc(slices.Clone(out.Notes), func(n cluster.Problem) bool { return !n.Warning })
	return strings.Join(slices.DeleteFunc([]string{
		comments("NOT READ: these objects or fields are not converted.", texts(c.Problems)),
		comments("NO COUNTERPART: Fanfare does not do this.", texts(out.Lost())),
		comments("TO DO, TO KNOW:", texts(todo)),
		d.String(),
		string(objects),
	}, func(s string) bool { return s == "" }), "\n"), nil
}
