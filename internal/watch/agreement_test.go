package watch

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/crdtest"
)

// The API server and the parser must refuse the same objects. Otherwise an object is
// stored that nothing uses, or works from a file and not in a cluster.
func TestParserAgreesWithCRDs(t *testing.T) {
	beyond := 0
	for _, s := range crdtest.LoadSpecs(t) {
		t.Run(s.Kind, func(t *testing.T) {
			v := crdtest.Load(t, s.Plural)
			for _, spec := range s.Good {
				accepted(t, v, s.Object(t, "", spec))
			}
			for _, bad := range s.Bad {
				refused(t, v, s.Object(t, bad.Name, bad.Spec), bad)
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

func accepted(t *testing.T, v crdtest.Validator, text string) {
	t.Helper()
	if errs := serverSays(t, v, text); len(errs) != 0 {
		t.Errorf("%s\nthe API server refuses it: %v", text, errs.ToAggregate())
	}
	if p := parser(text); len(p) != 0 {
		t.Errorf("%s\nthe parser refuses it: %v", text, p)
	}
}

func refused(t *testing.T, v crdtest.Validator, text string, bad crdtest.BadSpec) {
	t.Helper()
	errs, p := serverSays(t, v, text), parser(text)
	switch want := bad.SaysOfAPI(); {
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
func parser(text string) []cluster.Problem {
	it := decodeObjects([]byte(text), schema.GroupVersionKind{})[0]
	p := []cluster.Problem(it.problems)
	if it.obj == nil {
		return p
	}
	b := cluster.NewBuilder()
	b.Limit(cluster.Scope{NoSecrets: true, NoAdvertisements: true}) // what the object refers to is not there
	b.Set(it.obj, "")
	return append(p, b.Snapshot().Problems...)
}

// namesPlace allows for a rule that is about more than the field with the mistake.
func namesPlace(errs field.ErrorList, place, want string) bool {
	for _, e := range errs {
		above := e.Field == "<nil>" || e.Field == "" || strings.HasPrefix(place, e.Field) ||
			strings.HasPrefix(e.Field, place)
		if above && strings.Contains(e.Error(), want) {
			return true
		}
	}
	return false
}

func parserSays(p []cluster.Problem, place, want string) bool {
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
	kinds := map[string]crdtest.Specs{}
	for _, s := range crdtest.LoadSpecs(t) {
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
		{"L2Advertisement", "preferredNodeSelectors", 16,
			func(int) any { return map[string]any{"weight": 1, "preference": map[string]any{}} }},
		{"AddressClaim", "holders", 256, service},
		{"AddressClaim", "reservedFor", 256, service},
	} {
		s := kinds[tt.kind]
		v := crdtest.Load(t, s.Plural)
		var list []any
		for i := range tt.most {
			list = append(list, tt.entry(i))
		}
		accepted(t, v, s.Object(t, "", nested(tt.field, list)))
		refused(t, v, s.Object(t, "", nested(tt.field, append(list, tt.entry(tt.most)))),
			crdtest.BadSpec{Field: "spec." + tt.field,
				Says: fmt.Sprintf("has %d entries, and may have %d", tt.most+1, tt.most),
				API:  fmt.Sprintf("must have at most %d items", tt.most)})
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

// Any text in a field is refused by both or by none.
func FuzzAgreement(f *testing.F) {
	fields := []struct{ kind, field string }{
		{"AddressPool", "addresses"}, {"AddressPool", "namespaces"},
		{"BGPPeer", "peerAddress"}, {"BGPPeer", "interface"}, {"BGPPeer", "sourceAddress"}, {"BGPPeer", "device"},
		{"BGPPeer", "routerID"}, {"BGPPeer", "passwordSecretRef.name"},
		{"BGPAdvertisement", "pools"}, {"BGPAdvertisement", "communities"},
		{"L2Advertisement", "interfaces"},
		{"BGPAdvertisement", "nodeSelector.matchExpressions.key"},
		{"BGPAdvertisement", "nodeSelector.matchExpressions.values"},
		{"AddressPool", "serviceSelector.matchLabels.key"}, {"AddressPool", "serviceSelector.matchLabels.value"},
		{"AddressClaim", "address"},
	}
	kinds, validators := map[string]crdtest.Specs{}, map[string]crdtest.Validator{}
	for _, s := range crdtest.LoadSpecs(f) {
		kinds[s.Kind], validators[s.Kind] = s, crdtest.Load(f, s.Plural)
	}
	for i := range fields {
		for _, text := range []string{
			"192.0.2.1", "192.0.2.0/24", "192.0.2.1-192.0.2.9", " 192.0.2.1 - 192.0.2.9 ", "2001:db8::1", "::1-::9",
			"2001:DB8::A", "fe80::1%eth0", "::ffff:192.0.2.1", "0.0.0.0/0", "255.255.255.255", "127.0.0.1-127.0.0.2",
			"eth0", "eth*", "eth0.100", "lan", "Lan", "example.com/lan", "..", "-", "/", ":", "%",
			"64500:1", "large:1:2:3", "no-export", "65535:6", "64500:00001", "4294967295:1:1", "1.2.3.004", "\t", "é",
		} {
			f.Add(uint8(i), text)
		}
	}
	f.Fuzz(func(t *testing.T, n uint8, text string) {
		if text == "" || !utf8.ValidString(text) {
			return // "" is lost in decoding, and JSON has no other text
		}
		at := fields[int(n)%len(fields)]
		s, name, spec := kinds[at.kind], "", nested(at.field, text)
		switch at.field {
		case "addresses", "namespaces", "pools", "communities", "interfaces":
			spec = nested(at.field, []any{text})
		case "interface":
			spec["peerAddress"] = nil
		case "nodeSelector.matchExpressions.key":
			spec = nested("nodeSelector.matchExpressions", []any{map[string]any{"key": text, "operator": "Exists"}})
		case "nodeSelector.matchExpressions.values":
			spec = nested("nodeSelector.matchExpressions",
				[]any{map[string]any{"key": "a", "operator": "In", "values": []any{text}}})
		case "serviceSelector.matchLabels.key":
			spec = nested("serviceSelector.matchLabels", map[string]any{text: "a"})
		case "serviceSelector.matchLabels.value":
			spec = nested("serviceSelector.matchLabels", map[string]any{"a": text})
		case "address":
			a, err := netip.ParseAddr(text)
			if err != nil || a.Zone() != "" {
				return
			}
			name = v1alpha1.ClaimName(a)
		}
		object := s.Object(t, name, spec)
		errs, p := serverSays(t, validators[at.kind], object), parser(object)
		if len(errs) == 0 && len(p) != 0 && at.field == "addresses" && strings.Contains(text, "-") &&
			strings.Contains(text, ":") {
			return // what CEL cannot see of IPv6 ranges
		}
		if (len(errs) == 0) != (len(p) == 0) {
			t.Errorf("%s\nthe API server says %v, the parser %v", object, errs.ToAggregate(), p)
		}
	})
}
