package kube

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

const manifests = "../../manifests"

// resources returns the files that kubectl apply -k applies, in order.
func resources(t *testing.T) (files []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(manifests, "kustomization.yaml"))
	must(t, err)
	var k struct{ Resources []string }
	must(t, yaml.Unmarshal(text, &k))
	for _, name := range k.Resources {
		files = append(files, filepath.Join(manifests, name))
	}
	return files
}

// objectsOf returns the objects of files.
func objectsOf(t *testing.T, files ...string) (all []*unstructured.Unstructured) {
	t.Helper()
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		objects, err := decode(string(text))
		must(t, err)
		all = append(all, objects...)
	}
	return all
}

// applyStrictly applies an object as kubectl apply --server-side --validate=strict does,
// and returns the result.
func (c *Cluster) applyStrictly(t *testing.T, o *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	body, err := o.MarshalJSON()
	must(t, err)
	var now *unstructured.Unstructured
	// A new CRD's kind is served a moment later.
	await(t, time.Minute, o.GetKind()+" "+o.GetName(), func() error {
		r, err := c.Admin().resource(o)
		if err == nil {
			now, err = r.Patch(t.Context(), o.GetName(), types.ApplyPatchType, body,
				metav1.PatchOptions{FieldManager: "kubectl", FieldValidation: metav1.FieldValidationStrict})
		}
		if err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
			t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
		return err
	})
	return now
}

// The API server accepts the manifests twice, and then the samples. It admits the pods. The
// programs run with the pods' arguments, answer the probes, and give the sample Service its
// addresses.
func TestManifestsInstallAndRun(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t) // for the kubeconfigs
		installed := objectsOf(t, resources(t)...)
		version := map[*unstructured.Unstructured]string{}
		for _, o := range installed {
			version[o] = f.applyStrictly(t, o).GetResourceVersion()
		}
		for _, o := range installed {
			now := f.applyStrictly(t, o)
			// A CRD's conditions are written when it is established.
			if o.GetKind() != "CustomResourceDefinition" && now.GetResourceVersion() != version[o] {
				t.Errorf("applying %s %s again changes it", o.GetKind(), o.GetName())
			}
		}

		node, _, _ := strings.Cut(oneNode, "---")
		must(t, f.Admin().Apply(t.Context(), shop+"\n---"+node))
		samples, err := filepath.Glob("../../manifests/samples/*.yaml")
		must(t, err)
		for _, o := range objectsOf(t, samples...) {
			f.applyStrictly(t, o)
		}

		must(t, os.Setenv("NODE_NAME", "n1")) // This process runs only this test.
		var images []string
		for command, pod := range templates(t, installed) {
			f.checkAdmission(pod)
			c := pod.Spec.Containers[0]
			images = append(images, c.Image)
			args := c.Args[1:]
			if command == "speaker" {
				args = append(args, "--run-dir", f.runDir()) // not the machine's
			}
			p := f.run(command, args...)
			for _, checkProbe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
				f.checkProbe(p, c, checkProbe.HTTPGet)
			}
		}
		if len(images) != 2 || images[0] != images[1] {
			t.Errorf("images %v, want one for both", images)
		}
		await(t, 60*time.Second, "the sample Service's addresses", func() error {
			o, err := f.get(serviceKind, "web")
			if err != nil {
				return err
			}
			return expectCount(len(addresses(o)), 2)
		})
	})
}

// templates returns the pods of the Deployment and the DaemonSet, by command.
func templates(t *testing.T, installed []*unstructured.Unstructured) map[string]corev1.PodTemplateSpec {
	t.Helper()
	pods := map[string]corev1.PodTemplateSpec{}
	for _, o := range installed {
		var err error
		var pod corev1.PodTemplateSpec
		switch o.GetKind() {
		case "Deployment":
			var d appsv1.Deployment
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d)
			pod = d.Spec.Template
		case "DaemonSet":
			var d appsv1.DaemonSet
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d)
			pod = d.Spec.Template
		default:
			continue
		}
		must(t, err)
		pods[pod.Spec.Containers[0].Args[0]] = pod
	}
	if len(pods) != 2 {
		t.Fatalf("%d kinds of pods, want the controller's and the speaker's", len(pods))
	}
	return pods
}

// checkAdmission checks that the API server admits a pod to the namespace: its priority
// class exists, and the namespace's pod security allows the pod's privileges. For a
// DaemonSet such a failure would only show as missing pods.
func (f *fanfare) checkAdmission(pod corev1.PodTemplateSpec) {
	f.Helper()
	p := corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: pod.ObjectMeta, Spec: pod.Spec,
	}
	p.Namespace, p.Name = "fanfare-system", "admitted"
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&p)
	must(f.T, err)
	o := &unstructured.Unstructured{Object: object}
	r, err := f.Admin().resource(o)
	must(f.T, err)
	if _, err := r.Create(f.Context(), o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll},
		FieldValidation: metav1.FieldValidationStrict}); err != nil {
		f.Errorf("pod of %s: %v", pod.Spec.ServiceAccountName, err)
	}
}

// checkProbe waits until a program answers a kubelet's probe, and checks that it answers at
// that path only.
func (f *fanfare) checkProbe(p *program, c corev1.Container, action *corev1.HTTPGetAction) {
	f.Helper()
	i := slices.IndexFunc(c.Ports, func(port corev1.ContainerPort) bool { return port.Name == action.Port.StrVal })
	if i < 0 {
		f.Fatalf("%s: no port %s", c.Name, action.Port.StrVal)
	}
	ask := func(path string) (int, error) {
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", c.Ports[i].ContainerPort, path))
		if err != nil {
			return 0, err
		}
		resp.Body.Close()
		return resp.StatusCode, nil
	}
	await(f.T, 60*time.Second, p.name+" "+action.Path, func() error {
		if err := p.alive(); err != nil {
			f.Fatal(err)
		}
		code, err := ask(action.Path)
		if err != nil {
			return err
		}
		return expectCount(code, http.StatusOK)
	})
	if code, err := ask(action.Path + "-not"); err != nil || code != http.StatusNotFound {
		f.Errorf("%s%s-not: %d, %v; want 404", p.name, action.Path, code, err)
	}
}
