package metallb

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/fanfare-lb/fanfare/internal/metallb/counterparts"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// specs are the types that MetalLB's objects are read into.
var specs = map[string]any{
	"IPAddressPool v1beta1": IPAddressPoolSpec{}, "BGPPeer v1beta2": BGPPeerSpec{},
	"BGPPeer v1beta1":          bgpPeerV1beta1Spec{},
	"BGPAdvertisement v1beta1": BGPAdvertisementSpec{}, "L2Advertisement v1beta1": L2AdvertisementSpec{},
	"BFDProfile v1beta1": BFDProfileSpec{}, "Community v1beta1": CommunitySpec{},
}

func rows() map[string]bool {
	all := map[string]bool{}
	for _, f := range counterparts.Fields {
		all[f.Kind+" "+f.Version+" "+f.Path] = true
	}
	return all
}

// missing says what one set of fields has and another lacks.
func missing(t *testing.T, what string, has, lacks map[string]bool) {
	t.Helper()
	for _, f := range slices.Sorted(maps.Keys(has)) {
		if !lacks[f] {
			t.Errorf("%s: %s", what, f)
		}
	}
}

func TestFieldsAreThoseOfTheTypes(t *testing.T) {
	if len(rows()) != len(counterparts.Fields) {
		t.Error("a field is in Fields twice")
	}
	types := map[string]bool{}
	for kind, spec := range specs {
		addType(types, kind+" ", reflect.TypeOf(spec))
	}
	missing(t, "no row in Fields", types, rows())
	missing(t, "no such field is read", rows(), types)
}

func addType(all map[string]bool, prefix string, typ reflect.Type) {
	for i := range typ.NumField() {
		if typ.Field(i).Anonymous {
			addType(all, prefix, typ.Field(i).Type)
			continue
		}
		name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		all[prefix+name] = true
		below, of := ".", typ.Field(i).Type
		for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
			if of.Kind() == reflect.Slice {
				below = "[]."
			}
			of = of.Elem()
		}
		if of.Kind() == reflect.Struct && of.PkgPath() == typ.PkgPath() {
			addType(all, prefix+name+below, of)
		}
	}
}

// The table has each field of MetalLB's published CRDs and no other. The module is that of the programs that
// tests of a migration run, and nothing of it is built here.
func TestFieldsAreThoseOfTheCRDs(t *testing.T) {
	crds := map[string]bool{}
	files, err := filepath.Glob(filepath.Join(moduleDir(t), "config/crd/bases/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs: %v", err)
	}
	for _, f := range files {
		addCRD(t, crds, f)
	}
	missing(t, "no row in Fields", crds, rows())
	missing(t, "no field of MetalLB's", rows(), crds)
}

// moduleDir returns the folder of MetalLB's module in the module cache.
func moduleDir(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "go.universe.tf/metallb")
	cmd.Dir = "../../e2e/kube/metallb"
	out, err := cmd.Output()
	var module struct{ Dir, Error string }
	if json.Unmarshal(out, &module); err != nil || module.Dir == "" {
		nstest.Missing(t, fmt.Sprintf("no MetalLB module: %v %s", err, module.Error))
	}
	return module.Dir
}

// An openAPI value is the part of an OpenAPI schema that has fields.
type openAPI struct {
	Properties map[string]openAPI
	Items      *openAPI
}

// addCRD adds the fields of the kinds that are converted. The other kinds are reports.
func addCRD(t *testing.T, all map[string]bool, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var crd struct {
		Spec struct {
			Names    struct{ Kind string }
			Versions []struct {
				Name   string
				Schema struct{ OpenAPIV3Schema openAPI }
			}
		}
	}
	if err := yaml.Unmarshal(text, &crd); err != nil {
		t.Fatal(err)
	}
	for _, v := range crd.Spec.Versions {
		if kind := crd.Spec.Names.Kind; !slices.Contains([]string{"ConfigurationState", "ServiceBGPStatus",
			"ServiceL2Status"}, kind) {
			addSchema(all, kind+" "+v.Name+" ", v.Schema.OpenAPIV3Schema.Properties["spec"])
		}
	}
}

func addSchema(all map[string]bool, prefix string, s openAPI) {
	for name, p := range s.Properties {
		all[prefix+name] = true
		below := "."
		for p.Items != nil {
			p, below = *p.Items, "[]."
		}
		if _, selector := p.Properties["matchLabels"]; !selector {
			addSchema(all, prefix+name+below, p)
		}
	}
}

// samples are values of each field that differ from its default.
var samples = map[string]any{
	"IPAddressPool v1beta1 addresses": []string{"203.0.113.0/28"}, "IPAddressPool v1beta1 autoAssign": false,
	"IPAddressPool v1beta1 avoidBuggyIPs": true, "IPAddressPool v1beta1 serviceAllocation": map[string]any{},
	"IPAddressPool v1beta1 serviceAllocation.priority":           map[string]any{"priority": 1},
	"IPAddressPool v1beta1 serviceAllocation.namespaces":         map[string]any{"namespaces": []string{"shop"}},
	"IPAddressPool v1beta1 serviceAllocation.namespaceSelectors": map[string]any{"namespaceSelectors": sampleSelectors},
	"IPAddressPool v1beta1 serviceAllocation.serviceSelectors":   map[string]any{"serviceSelectors": sampleSelectors},

	"BGPPeer v1beta2 myASN": 65001, "BGPPeer v1beta2 peerASN": 65002, "BGPPeer v1beta2 dynamicASN": "external",
	"BGPPeer v1beta2 localASN": 65003, "BGPPeer v1beta2 peerAddress": "10.9.9.9", "BGPPeer v1beta2 interface": "eth7",
	"BGPPeer v1beta2 sourceAddress": "10.9.9.8", "BGPPeer v1beta2 peerPort": 1179, "BGPPeer v1beta2 holdTime": "9s",
	"BGPPeer v1beta2 keepaliveTime": "5s", "BGPPeer v1beta2 connectTime": "7s", "BGPPeer v1beta2 routerID": "10.9.9.7",
	"BGPPeer v1beta2 nodeSelectors": sampleSelectors,
	"BGPPeer v1beta2 password":      "secret", "BGPPeer v1beta2 passwordSecret": map[string]any{"name": "s"},
	"BGPPeer v1beta2 passwordSecret.name":      map[string]any{"name": "s"},
	"BGPPeer v1beta2 passwordSecret.namespace": map[string]any{"name": "s", "namespace": "x"},
	"BGPPeer v1beta2 bfdProfile":               "fast", "BGPPeer v1beta2 ebgpMultiHop": true,
	"BGPPeer v1beta2 vrf": "red", "BGPPeer v1beta2 disableMP": true, "BGPPeer v1beta2 dualStackAddressFamily": true,

	"BGPPeer v1beta1 myASN": 65001, "BGPPeer v1beta1 peerASN": 65002, "BGPPeer v1beta1 peerAddress": "10.9.9.9",
	"BGPPeer v1beta1 sourceAddress": "10.9.9.8", "BGPPeer v1beta1 peerPort": 1179, "BGPPeer v1beta1 holdTime": "9s",
	"BGPPeer v1beta1 keepaliveTime": "5s", "BGPPeer v1beta1 routerID": "10.9.9.7",
	"BGPPeer v1beta1 nodeSelectors": sampleSelectors,
	"BGPPeer v1beta1 password":      "secret", "BGPPeer v1beta1 bfdProfile": "fast",
	"BGPPeer v1beta1 ebgpMultiHop":               true,
	"BGPAdvertisement v1beta1 aggregationLength": 28, "BGPAdvertisement v1beta1 aggregationLengthV6": 120,
	"BGPAdvertisement v1beta1 localPref": 200, "BGPAdvertisement v1beta1 communities": []string{"64500:1"},
	"BGPAdvertisement v1beta1 ipAddressPools":         []string{"other"},
	"BGPAdvertisement v1beta1 ipAddressPoolSelectors": sampleSelectors,
	"BGPAdvertisement v1beta1 nodeSelectors":          sampleSelectors,
	"BGPAdvertisement v1beta1 peers":                  []string{"base"},
	"BGPAdvertisement v1beta1 serviceSelectors":       sampleSelectors,

	"L2Advertisement v1beta1 ipAddressPools":         []string{"other"},
	"L2Advertisement v1beta1 ipAddressPoolSelectors": sampleSelectors,
	"L2Advertisement v1beta1 nodeSelectors":          sampleSelectors,
	"L2Advertisement v1beta1 interfaces":             []string{"eth7"},
	"L2Advertisement v1beta1 serviceSelectors":       sampleSelectors,
	"BFDProfile v1beta1 receiveInterval":             50, "BFDProfile v1beta1 transmitInterval": 60,
	"BFDProfile v1beta1 detectMultiplier": 5, "BFDProfile v1beta1 echoInterval": 70,
	"BFDProfile v1beta1 echoMode": true, "BFDProfile v1beta1 passiveMode": true, "BFDProfile v1beta1 minimumTtl": 250,

	"Community v1beta1 communities":         []any{map[string]any{"name": "alias", "value": "64500:9"}},
	"Community v1beta1 communities[].name":  []any{map[string]any{"name": "alias", "value": "64500:9"}},
	"Community v1beta1 communities[].value": []any{map[string]any{"name": "alias", "value": "64500:8"}},
}

var sampleSelectors = []metav1.LabelSelector{{MatchLabels: map[string]string{"a": "b"}}}

// base has an object of each kind, and an advertisement that names a community which is not defined.
const base = `
{apiVersion: metallb.io/v1beta1, kind: IPAddressPool, metadata: {name: other, labels: {a: b}}, spec: {addresses: [192.0.2.0/28], serviceAllocation: {priority: 5}}}
---
{apiVersion: metallb.io/v1beta1, kind: BFDProfile, metadata: {name: fast}, spec: {}}
---
{apiVersion: metallb.io/v1beta2, kind: BGPPeer, metadata: {name: with-bfd}, spec: {myASN: 64513, peerASN: 64512, peerAddress: 10.0.0.2, bfdProfile: base}}
---
{apiVersion: metallb.io/v1beta1, kind: BGPAdvertisement, metadata: {name: named}, spec: {communities: [alias]}}
`

// minimal are the required fields of each kind.
var minimal = map[string]map[string]any{
	"IPAddressPool": {"addresses": []string{"192.0.2.16/28"}},
	"BGPPeer":       {"myASN": 64513, "peerASN": 64512, "peerAddress": "10.0.0.1"},
}

// No field is ignored: each changes the converted objects or the Notes.
func TestEachFieldCounts(t *testing.T) {
	for _, f := range counterparts.Fields {
		id := f.Kind + " " + f.Version + " " + f.Path
		value, ok := samples[id]
		if !ok && f.Path == "enableGracefulRestart" {
			continue // Fanfare always asks for it, as the table says
		}
		top, _, _ := strings.Cut(strings.ReplaceAll(f.Path, "[]", ""), ".")
		if convertSample(t, f, nil) == convertSample(t, f, map[string]any{top: value}) {
			t.Errorf("%s: %v changes nothing", id, value)
		}
	}
}

// convertSample converts the base and an object of the field's kind with more fields.
func convertSample(t *testing.T, f counterparts.Field, more map[string]any) string {
	t.Helper()
	spec := maps.Clone(minimal[f.Kind])
	if spec == nil {
		spec = map[string]any{}
	}
	maps.Copy(spec, more)
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "metallb.io/" + f.Version, "kind": f.Kind, "metadata": map[string]any{"name": "base"},
		"spec": spec,
	})
	if err != nil {
		t.Fatal(err)
	}
	in := &Cluster{}
	in.Read("base", []byte(base))
	in.Read("sample", text)
	for _, p := range in.Problems {
		t.Errorf("%s: %s", f.Path, p)
	}
	out := Convert(in, Options{})
	report, err := Report(in, out, Compare(in, out, Options{}))
	if err != nil {
		t.Fatal(err)
	}
	return report
}
