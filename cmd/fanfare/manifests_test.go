package main

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

const manifestsDir = "../../manifests"

// A kustomization is the part of kustomize's type that is used.
type kustomization struct {
	metav1.TypeMeta
	Resources []string `json:"resources"`
}

// object decodes one object of a file, strictly: a field that Kubernetes does not
// know is a typing error.
func object(t *testing.T, file, doc string) metav1.Object {
	t.Helper()
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	obj := map[string]metav1.Object{
		"v1 Namespace":      &corev1.Namespace{},
		"v1 ServiceAccount": &corev1.ServiceAccount{},
		"rbac.authorization.k8s.io/v1 ClusterRole":                  &rbacv1.ClusterRole{},
		"rbac.authorization.k8s.io/v1 ClusterRoleBinding":           &rbacv1.ClusterRoleBinding{},
		"rbac.authorization.k8s.io/v1 Role":                         &rbacv1.Role{},
		"rbac.authorization.k8s.io/v1 RoleBinding":                  &rbacv1.RoleBinding{},
		"apps/v1 Deployment":                                        &appsv1.Deployment{},
		"apps/v1 DaemonSet":                                         &appsv1.DaemonSet{},
		"policy/v1 PodDisruptionBudget":                             &policyv1.PodDisruptionBudget{},
		"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy": &admissionv1.ValidatingAdmissionPolicy{},
		"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding": &admissionv1.
			ValidatingAdmissionPolicyBinding{},
		"apiextensions.k8s.io/v1 CustomResourceDefinition": &apiextensionsv1.CustomResourceDefinition{},
	}[kind.APIVersion+" "+kind.Kind]
	if obj == nil {
		t.Fatalf("%s: unexpected %s %s", file, kind.APIVersion, kind.Kind)
	}
	if err := yaml.UnmarshalStrict([]byte(doc), obj); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return obj
}

// objects are what kubectl apply -k would apply.
func objects(t *testing.T) []metav1.Object {
	t.Helper()
	var k kustomization
	b, err := os.ReadFile(filepath.Join(manifestsDir, "kustomization.yaml"))
	if err == nil {
		err = yaml.UnmarshalStrict(b, &k)
	}
	if err != nil {
		t.Fatal(err)
	}
	var all []metav1.Object
	for _, name := range k.Resources {
		b, err := os.ReadFile(filepath.Join(manifestsDir, name))
		if err != nil {
			t.Fatal(err)
		}
		for doc := range strings.SplitSeq(strings.TrimPrefix(string(b), "---\n"), "\n---\n") {
			all = append(all, object(t, name, doc))
		}
	}
	return all
}

func one[T metav1.Object](t *testing.T, all []metav1.Object, name string) (found T) {
	t.Helper()
	for _, o := range all {
		if v, ok := o.(T); ok && o.GetName() == name {
			return v
		}
	}
	t.Fatalf("no %T %s", found, name)
	return found
}

// Nothing is left out of the kustomization, and everything that has a namespace
// is in one of the manifests.
func TestKustomizationIsComplete(t *testing.T) {
	all := objects(t)
	var want int
	for _, pattern := range []string{"*.yaml", "crds/*.yaml"} {
		files, _ := filepath.Glob(filepath.Join(manifestsDir, pattern))
		want += len(files)
	}
	var k kustomization
	b, _ := os.ReadFile(filepath.Join(manifestsDir, "kustomization.yaml"))
	if err := yaml.Unmarshal(b, &k); err != nil {
		t.Fatal(err)
	}
	if got := len(k.Resources) + 1; got != want {
		t.Errorf("%d files are listed or are the list, and there are %d", got, want)
	}
	for _, o := range all {
		if n := o.GetNamespace(); n != "" && one[*corev1.Namespace](t, all, n).Name != leaseNamespace &&
			n != cluster.DefaultNamespace {
			t.Errorf("%s is in namespace %s", o.GetName(), n)
		}
	}
}

// parse checks that a container's arguments are flags of the command, and
// returns it with them set.
func parse(t *testing.T, cmd *cobra.Command, c corev1.Container) *cobra.Command {
	t.Helper()
	if len(c.Args) == 0 || c.Args[0] != cmd.Name() {
		t.Fatalf("container %s: arguments %q, want the command %s", c.Name, c.Args, cmd.Name())
	}
	if err := cmd.ParseFlags(c.Args[1:]); err != nil {
		t.Fatalf("container %s: %v", c.Name, err)
	}
	return cmd
}

// checkProbes checks that probes ask where the command listens, and what it answers, and that
// metrics have a port of their own. The health address is the probes' host, or every one.
func checkProbes(t *testing.T, cmd *cobra.Command, c corev1.Container) {
	t.Helper()
	if len(c.Ports) != 2 || c.Ports[0].Name != "metrics" || c.Ports[1].Name != "health" {
		t.Fatalf("container %s: ports %v, want those of metrics and health", c.Name, c.Ports)
	}
	host := ""
	for path, p := range map[string]*corev1.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		if p == nil || p.HTTPGet == nil || p.HTTPGet.Path != path || p.HTTPGet.Port.StrVal != "health" {
			t.Fatalf("container %s: probe %v, want %s on port health", c.Name, p, path)
		}
		host = p.HTTPGet.Host
	}
	for flag, want := range map[string]string{
		"metrics-address": fmt.Sprintf(":%d", c.Ports[0].ContainerPort),
		"health-address":  fmt.Sprintf("%s:%d", host, c.Ports[1].ContainerPort),
	} {
		if listen := cmd.Flags().Lookup(flag).Value.String(); listen != want {
			t.Errorf("container %s: --%s=%s, and its probes and ports are of %s", c.Name, flag, listen, want)
		}
	}
}

func TestSpeakerManifest(t *testing.T) {
	ds := one[*appsv1.DaemonSet](t, objects(t), "speaker")
	pod := ds.Spec.Template.Spec
	c := pod.Containers[0]
	cmd := parse(t, speakerCommand(), c)
	checkProbes(t, cmd, c)
	linger, err := cmd.Flags().GetDuration("linger-bgp")
	if err != nil {
		t.Fatal(err)
	}
	// What stop does after the linger time takes at most 5s.
	if grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second; grace < linger+10*time.Second {
		t.Errorf("killed after %s, which is too early for a linger time of %s", grace, linger)
	}
	if !pod.HostNetwork {
		t.Error("it needs the node's own network")
	}
	if want := []corev1.Toleration{{Operator: corev1.TolerationOpExists}}; !reflect.DeepEqual(pod.Tolerations, want) {
		t.Errorf("tolerations %v, want all", pod.Tolerations)
	}
	if u := ds.Spec.UpdateStrategy.RollingUpdate; u == nil || u.MaxUnavailable.IntValue() != 1 ||
		u.MaxSurge.IntValue() != 0 {
		t.Errorf("update strategy %v: two speakers of one node would fight for the kernel's table",
			ds.Spec.UpdateStrategy)
	}
	caps := c.SecurityContext.Capabilities
	if !reflect.DeepEqual(caps.Add, []corev1.Capability{"NET_ADMIN", "NET_BIND_SERVICE", "NET_RAW"}) ||
		!reflect.DeepEqual(caps.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("capabilities %v", caps)
	}
	if i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "NODE_NAME" }); i < 0 ||
		c.Env[i].ValueFrom.FieldRef.FieldPath != "spec.nodeName" {
		t.Error("NODE_NAME is not the node's name")
	}
	v, m := pod.Volumes, c.VolumeMounts
	if len(v) != 3 || v[0].HostPath.Path != defaultRunDir || m[0].Name != v[0].Name ||
		m[0].MountPath != cmd.Flags().Lookup("run-dir").Value.String() {
		t.Fatalf("volumes %v: want the run directory on the node, so that it outlives the pod", v)
	}
	// iptables' default path.
	if lock := "/run/xtables.lock"; v[1].HostPath.Path != lock || m[1].Name != v[1].Name || m[1].MountPath != lock {
		t.Errorf("volumes %v: want the node's lock for iptables-legacy", v)
	}
	// The file is there as soon as the controller has made the Secret, and pods start without.
	made := parse(t, controllerCommand(), one[*appsv1.Deployment](t, objects(t),
		"controller").Spec.Template.Spec.Containers[0]).Flags().Lookup("members-secret").Value.String()
	if s := v[2].Secret; s == nil || s.SecretName != made || !*s.Optional || m[2].Name != v[2].Name ||
		cmd.Flags().Lookup("members-key-file").Value.String() != m[2].MountPath+"/keys" {
		t.Errorf("volumes %v: want the speakers' key, which the controller makes as Secret %s", v, made)
	}
}

func TestControllerManifest(t *testing.T) {
	all := objects(t)
	d := one[*appsv1.Deployment](t, all, "controller")
	pod := d.Spec.Template.Spec
	c := pod.Containers[0]
	cmd := parse(t, controllerCommand(), c)
	checkProbes(t, cmd, c)
	if elect, _ := cmd.Flags().GetBool("leader-elect"); !elect || *d.Spec.Replicas != 2 {
		t.Errorf("%d replicas, leader election %t", *d.Spec.Replicas, elect)
	}
	if s := c.SecurityContext; !*pod.SecurityContext.RunAsNonRoot || *s.AllowPrivilegeEscalation ||
		!*s.ReadOnlyRootFilesystem || s.Capabilities.Add != nil {
		t.Error("it needs no privileges")
	}
	if pod.HostNetwork || len(pod.Volumes) != 0 {
		t.Error("it needs nothing of the node")
	}
	role := one[*rbacv1.Role](t, all, "controller")
	if !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
		return slices.Equal(r.ResourceNames, []string{leaseName})
	}) {
		t.Errorf("the role does not name the Lease %s", leaseName)
	}
}

// Selectors find the pods, bindings find roles and accounts.
func TestManifestReferences(t *testing.T) {
	all := objects(t)
	ds, d := one[*appsv1.DaemonSet](t, all, "speaker"), one[*appsv1.Deployment](t, all, "controller")
	pdb := one[*policyv1.PodDisruptionBudget](t, all, "controller")
	for what, s := range map[string]struct{ selector, labels map[string]string }{
		"speaker":    {ds.Spec.Selector.MatchLabels, ds.Spec.Template.Labels},
		"controller": {d.Spec.Selector.MatchLabels, d.Spec.Template.Labels},
		"budget":     {pdb.Spec.Selector.MatchLabels, d.Spec.Template.Labels},
	} {
		if !reflect.DeepEqual(s.selector, s.labels) {
			t.Errorf("%s: selector %v, labels %v", what, s.selector, s.labels)
		}
	}
	one[*corev1.ServiceAccount](t, all, ds.Spec.Template.Spec.ServiceAccountName)
	one[*corev1.ServiceAccount](t, all, d.Spec.Template.Spec.ServiceAccountName)
	for _, o := range all {
		switch b := o.(type) {
		case *rbacv1.ClusterRoleBinding:
			one[*rbacv1.ClusterRole](t, all, b.RoleRef.Name)
			one[*corev1.ServiceAccount](t, all, b.Subjects[0].Name)
		case *rbacv1.RoleBinding:
			one[*rbacv1.Role](t, all, b.RoleRef.Name)
			one[*corev1.ServiceAccount](t, all, b.Subjects[0].Name)
		}
	}
}

// The DaemonSet that removes Fanfare from all nodes has what the speaker's command line and
// mounts say, and no token.
func TestUninstallManifest(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(manifestsDir, "uninstall", "cleanup.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	ds := object(t, "cleanup.yaml", string(b)).(*appsv1.DaemonSet)
	pod, speaker := ds.Spec.Template.Spec, one[*appsv1.DaemonSet](t, objects(t), "speaker").Spec.Template.Spec
	if ds.Namespace != cluster.DefaultNamespace || !pod.HostNetwork ||
		!reflect.DeepEqual(pod.Tolerations, speaker.Tolerations) || *pod.AutomountServiceAccountToken {
		t.Errorf("pod %+v: want the speaker's network and tolerations, and no token", pod)
	}
	for _, c := range append(pod.InitContainers, pod.Containers...) {
		cmd := parse(t, cleanupCommand(), c)
		if c.Image != speaker.Containers[0].Image ||
			c.VolumeMounts[0].MountPath != cmd.Flags().Lookup("run-dir").Value.String() {
			t.Errorf("container %s: image %s, mounts %v", c.Name, c.Image, c.VolumeMounts)
		}
	}
}

// A speaker reads the cluster and writes only SpeakerStatuses and Events: an
// attacker on a node can change no Service and no claim, and see no Secret.
func TestSpeakerRole(t *testing.T) {
	role := one[*rbacv1.ClusterRole](t, objects(t), "fanfare-speaker")
	for _, r := range role.Rules {
		writes := slices.DeleteFunc(slices.Clone(r.Verbs), func(v string) bool { return v == "list" || v == "watch" })
		reports := slices.Equal(r.Resources, []string{"speakerstatuses"}) ||
			slices.Equal(r.Resources, []string{"events"})
		if len(writes) != 0 && !(reports && slices.Equal(writes, []string{"create", "patch"})) {
			t.Errorf("may %v %v", writes, r.Resources)
		}
		if slices.Contains(r.Resources, "secrets") || slices.Contains(r.Resources, "*") ||
			slices.Contains(r.Verbs, "*") {
			t.Errorf("may %v %v", r.Verbs, r.Resources)
		}
	}
}

// Fanfare runs beside MetalLB on the same nodes, so no port of it may be MetalLB's by default: metrics of
// speakers and of FRR, with and without frr-k8s, and memberlist.
func TestPortsBesideMetalLB(t *testing.T) {
	theirs := regexp.MustCompile(`\b(7472|7473|7572|7573|7946)\b`)
	for _, path := range []string{"speaker.yaml", "controller.yaml", "../overlays/fast-path/speaker.yaml"} {
		text, err := os.ReadFile(filepath.Join("../../manifests", path))
		if err != nil {
			t.Fatal(err)
		}
		if port := theirs.FindString(string(text)); port != "" {
			t.Errorf("manifests/%s has port %s, which MetalLB uses", path, port)
		}
	}
	flag := speakerCommand().Flags().Lookup("members-port")
	if theirs.MatchString(flag.DefValue) {
		t.Errorf("--members-port is %s, which MetalLB uses", flag.DefValue)
	}
}
