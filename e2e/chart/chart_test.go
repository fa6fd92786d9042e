package chart

import (
	"bytes"
	"flag"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/fanfare-lb/fanfare/e2e/kube"
)

const chart = "../../charts/fanfare"

var update = flag.Bool("update", false, "write the golden files again")

// tool runs Helm or kubectl, and returns its output.
func tool(t *testing.T, args ...string) (string, error) {
	t.Helper()
	if testing.Short() {
		t.Skip("may have to build Helm")
	}
	tools, err := kube.Tools(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), tools, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stderr.String() + stdout.String(), err
	}
	return stdout.String(), nil
}

func must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := tool(t, args...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// objects decodes YAML documents, by kind, namespace and name.
func objects(t *testing.T, text string) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for d := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096); ; {
		var o unstructured.Unstructured
		switch err := d.Decode(&o.Object); {
		case err == io.EOF:
			return all
		case err != nil:
			t.Fatal(err)
		case len(o.Object) == 0:
			continue
		}
		key := strings.Join([]string{o.GetKind(), o.GetNamespace(), o.GetName()}, " ")
		if all[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		all[key] = o.Object
	}
}

// isHook reports whether Helm does not install an object with the others.
func isHook(_ string, o map[string]any) bool {
	_, is := (&unstructured.Unstructured{Object: o}).GetAnnotations()["helm.sh/hook"]
	return is
}

// The chart has the objects of the manifests, field by field. Helm makes the release's namespace
// itself.
func TestChartEqualsManifests(t *testing.T) {
	for _, tt := range []struct {
		kustomization, namespace string
		args                     []string
	}{
		{"manifests", "fanfare-system", []string{"--set=image.repository=fanfare"}},
		{"overlays/fast-path", "fanfare-system", []string{"--set=image.repository=fanfare,speaker.fastPath=true"}},
		{"overlays/example", "lb-system", []string{
			"--set=image.repository=registry.example/fanfare,image.tag=v1.2.3,lbClasses={example.com/lb}"}},
	} {
		t.Run(tt.kustomization, func(t *testing.T) {
			want := objects(t, must(t, "kubectl", "kustomize", "../../"+tt.kustomization))
			delete(want, "Namespace  "+tt.namespace)
			args := append([]string{"helm", "template", "fanfare", chart, "--include-crds",
				"--namespace=" + tt.namespace}, tt.args...)
			got := objects(t, strings.ReplaceAll(must(t, args...), "image: fanfare:v0.0.0", "image: fanfare"))
			maps.DeleteFunc(got, isHook)
			if d := cmp.Diff(order(want), order(got)); d != "" || len(got) < 20 {
				t.Errorf("the chart has %d objects; -manifests +chart:\n%s", len(got), d)
			}
		})
	}
}

// order sorts lists in which the order has no meaning: flags, volumes and their mounts.
func order(objects map[string]map[string]any) map[string]map[string]any {
	for _, o := range objects {
		pod, _, _ := unstructured.NestedMap(o, "spec", "template", "spec")
		if pod == nil {
			continue
		}
		sortNamed(pod["volumes"])
		for _, c := range pod["containers"].([]any) {
			c := c.(map[string]any)
			sortNamed(c["volumeMounts"])
			slices.SortFunc(c["args"].([]any)[1:],
				func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
		}
		if err := unstructured.SetNestedMap(o, pod, "spec", "template", "spec"); err != nil {
			panic(err) // It was a map before.
		}
	}
	return objects
}

func sortNamed(list any) {
	named, _ := list.([]any)
	name := func(v any) string { return v.(map[string]any)["name"].(string) }
	slices.SortFunc(named, func(a, b any) int { return strings.Compare(name(a), name(b)) })
}

// The DaemonSet that cleans nodes after helm uninstall is that of manifests/uninstall.
func TestCleanupEqualsManifest(t *testing.T) {
	const key = "DaemonSet fanfare-system cleanup"
	want := objects(t, must(t, "kubectl", "kustomize", "../../manifests/uninstall"))
	got := objects(t, must(t, "helm", "template", "fanfare", chart, "--namespace=fanfare-system",
		"--set=image.repository=fanfare"))
	text, err := (&unstructured.Unstructured{Object: got[key]}).MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	hook := objects(t, strings.ReplaceAll(string(text), "fanfare:v0.0.0", "fanfare"))
	unstructured.RemoveNestedField(hook[key], "metadata", "annotations")
	if d := cmp.Diff(order(want)[key], order(hook)[key]); d != "" {
		t.Errorf("-manifest +chart:\n%s", d)
	}
}

// What all values together change, and the hooks, is reviewed in the golden file.
func TestChartWithAllValues(t *testing.T) {
	const values, golden = "testdata/values.yaml", "testdata/all.golden.yaml"
	must(t, "helm", "lint", "--strict", chart, "--values="+values)
	got := must(t, "helm", "template", "fanfare", chart, "--namespace=lb-system", "--values="+values)
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("-want +got (-update writes it again):\n%s", d)
	}
}

// Each value of values.yaml has an effect, so that none is forgotten in a template.
func TestAllValuesAreUsed(t *testing.T) {
	text, err := os.ReadFile(chart + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	var templates strings.Builder
	for _, name := range []string{"_helpers.tpl", "controller.yaml", "speaker.yaml", "podmonitor.yaml", "objects.yaml",
		"crds.yaml", "cleanup.yaml"} {
		text, err := os.ReadFile(chart + "/templates/" + name)
		if err != nil {
			t.Fatal(err)
		}
		templates.Write(text)
	}
	all := strings.NewReplacer("$speaker.", ".Values.speaker.", " .repository", " .Values.image.repository", " .tag",
		" .Values.image.tag", " .digest", " .Values.image.digest").Replace(templates.String())
	for _, path := range paths("", values) {
		if !strings.Contains(all, ".Values"+path) {
			t.Errorf("no template uses %s", path)
		}
	}
}

// chosenByKubernetes are maps whose keys are not the chart's.
var chosenByKubernetes = []string{"nodeSelector", "resources", "podSecurityContext", "securityContext"}

// paths lists the values that are not maps of the chart itself.
func paths(prefix string, values map[string]any) (all []string) {
	for key, v := range values {
		m, _ := v.(map[string]any)
		if len(m) == 0 || slices.Contains(chosenByKubernetes, key) {
			all = append(all, prefix+"."+key)
			continue
		}
		all = append(all, paths(prefix+"."+key, m)...)
	}
	return all
}

// The schema refuses mistakes, and names the value.
func TestSchemaRefuses(t *testing.T) {
	for set, want := range map[string]string{
		"speaker.fastpath=true":                  "at '/speaker': additional properties 'fastpath' not allowed",
		"speaker.metricsPort=70000":              "at '/speaker/metricsPort': maximum",
		"image.digest=sha256:12":                 "at '/image/digest'",
		"controller.replicas=0":                  "at '/controller/replicas': minimum",
		"controller.extraArgs={log-level=debug}": "at '/controller/extraArgs/0'",
		"cleanup.timeout=4":                      "at '/cleanup/timeout'",
		"classOnly=yes":                          "at '/classOnly': got string, want boolean",
		"lbClasses=example.com/lb":               "at '/lbClasses': got string, want array",
		"pools.LAN.announce=L2":                  "invalid propertyName 'LAN'",
		"speaker.maxUnavailable=half":            "at '/speaker/maxUnavailable'",
	} {
		if out, err := tool(t, "helm", "template", chart, "--set="+set); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v, %s\nwant %q", set, err, out, want)
		}
	}
}
