package main

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"

	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/proxy/fastpath"
)

func TestPrintFastPath(t *testing.T) {
	for _, tt := range []struct {
		status *proxy.FastPathStatus
		want   string
	}{
		{nil, ""},
		{&proxy.FastPathStatus{Interfaces: []string{"eth0", "eth1"}, Frontends: 2, Flows: 7, Capacity: 100},
			"\nFast path on eth0,eth1, bypassing netfilter: 2 of 2 frontends, 7 of at most 100 flows\n"},
		{&proxy.FastPathStatus{Capacity: 100, Full: 3,
			Limited: []proxy.LimitedAddress{{Addr: netip.MustParseAddr("192.0.2.9"), Flows: 50, Rejected: 3}},
			NotOffloaded: []proxy.NotOffloaded{
				{Frontend: "192.0.2.1 tcp/80 shop/web", Why: "affinity"},
				{Frontend: "192.0.2.2 udp/53", Why: "backends on other nodes"},
				{Frontend: "192.0.2.3 tcp/80", Why: "affinity"},
			}}, `
Fast path on -, bypassing netfilter: 0 of 3 frontends, 0 of at most 100 flows
  3 flows found no room and use the rules
  192.0.2.9 has 50 flows, as many as there is room for others; 3 more used the rules
  left to the rules: 192.0.2.1 tcp/80 shop/web and 1 more: affinity
  left to the rules: 192.0.2.2 udp/53: backends on other nodes
`},
	} {
		var out bytes.Buffer
		printFastPath(&out, tt.status)
		if diff := cmp.Diff(tt.want, out.String()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestFastPathFlags(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"--fast-path-interface eth0", "needs --fast-path"},
		{"--fast-path --fast-path-interface eth0/1", `--fast-path-interface "eth0/1": want the name of an interface`},
		{"--fast-path --fast-path-interface a-name-that-is-too-long", "want the name of an interface"},
		{"--fast-path-dir fanfare", `--fast-path-dir "fanfare": want an absolute path`},
	} {
		_, err := run(append([]string{"speaker", "--files", t.TempDir(), "--node-name", "n1", "--run-dir", t.TempDir()},
			strings.Fields(tt.args)...)...)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want %q in it", tt.args, err, tt.want)
		}
	}
}

// The overlay is the manifests with a flag, two capabilities and a mount more, and nothing
// else is another.
func TestFastPathManifest(t *testing.T) {
	const dir = "../../overlays/fast-path"
	var k struct {
		metav1.TypeMeta
		Resources []string                `json:"resources"`
		Patches   []struct{ Path string } `json:"patches"`
	}
	read := func(name string, into any) []byte {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = yaml.UnmarshalStrict(b, into)
		}
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	read("kustomization.yaml", &k)
	if !slices.Equal(k.Resources, []string{"../../manifests"}) || len(k.Patches) != 1 {
		t.Fatalf("%+v: want the manifests and one patch", k)
	}
	patch, err := yaml.YAMLToJSON(read(k.Patches[0].Path, &appsv1.DaemonSet{}))
	if err != nil {
		t.Fatal(err)
	}
	plain := one[*appsv1.DaemonSet](t, objects(t), "speaker")
	original, err := json.Marshal(plain)
	if err != nil {
		t.Fatal(err)
	}
	patched, err := strategicpatch.StrategicMergePatch(original, patch, &appsv1.DaemonSet{})
	if err != nil {
		t.Fatal(err)
	}
	var got appsv1.DaemonSet
	if err := json.Unmarshal(patched, &got); err != nil {
		t.Fatal(err)
	}
	want := plain.DeepCopy()
	pod := &want.Spec.Template.Spec
	c := &pod.Containers[0]
	c.Args = append(c.Args, "--fast-path")
	c.SecurityContext.Capabilities.Add = append(c.SecurityContext.Capabilities.Add, "BPF", "PERFMON")
	where := filepath.Dir(fastpath.DefaultDir)
	c.VolumeMounts = append([]corev1.VolumeMount{{Name: "bpf", MountPath: where}}, c.VolumeMounts...)
	pod.Volumes = append([]corev1.Volume{{Name: "bpf", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: where, Type: new(corev1.HostPathDirectory)}}}}, pod.Volumes...)
	if !reflect.DeepEqual(&got, want) {
		t.Errorf("(-want +got)\n%s", cmp.Diff(want, &got))
	}
	parse(t, speakerCommand(), got.Spec.Template.Spec.Containers[0])
}
