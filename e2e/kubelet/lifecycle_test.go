package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// The manifests run unchanged, and a Service works.
func TestInstalledPodsServe(t *testing.T) {
	c, ctx := kubelets(t), t.Context()
	for _, name := range services {
		vip, err := c.address(ctx, name)
		must(t, err)
		must(t, c.Router.AwaitNextHops(ctx, limit, vip, nodes...))
		a, err := c.Client.Get(ctx, netip.AddrPort{}, netip.AddrPortFrom(vip, 80))
		must(t, err)
		t.Logf("%s: http://%s answered by %s, which saw %s; the client is %s", name, vip, a.Pod, a.Saw, a.From)
		if name == "local" && a.Saw != a.From {
			t.Errorf("%s saw %s, the client is %s", a.Pod, a.Saw, a.From)
		}
	}
	_, err := c.kubectl(ctx, "wait", "speakerstatus", "--all", "--for=jsonpath={.status.addresses.announced}=2",
		timeout)
	must(t, err)
	for _, what := range []string{"pods", "speakerstatuses", "addressclaims"} {
		out, err := c.kubectl(ctx, "get", what, "-A", "-o", "wide")
		must(t, err)
		t.Logf("kubectl get %s -A -o wide\n%s", what, out)
	}
}

// The running processes have the privileges of the manifests.
func TestPodRBAC(t *testing.T) {
	c, ctx := kubelets(t), t.Context()
	common := []string{"NoNewPrivs:\t1", "Seccomp:\t2"}
	want := map[string][]string{
		// CAP_NET_BIND_SERVICE, CAP_NET_ADMIN and CAP_NET_RAW are bits 10, 12 and 13.
		"speaker": append(common, "CapEff:\t0000000000003400", "CapBnd:\t0000000000003400"),
		"controller": append(common, "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000",
			"Uid:\t65532\t65532\t65532\t65532"),
	}
	for _, n := range nodes {
		seen := map[string]bool{}
		pids, err := c.kubeNodes[n].run(ctx, "pgrep", "--exact", "fanfare")
		must(t, err)
		for _, pid := range strings.Fields(pids) {
			look := func(file string) string {
				out, err := c.kubeNodes[n].run(ctx, "cat", "/proc/"+pid+"/"+file)
				must(t, err)
				return out
			}
			command := strings.Split(look("cmdline"), "\x00")[1]
			seen[command] = true
			status := look("status")
			for _, line := range want[command] {
				if !strings.Contains(status, line+"\n") {
					t.Errorf("%s on %s: want %q in\n%s", command, n, line, status)
				}
			}
			// The first mount is the root: number, parent, device, root, where, options.
			if root := strings.Fields(look("mountinfo")); root[4] != "/" || !strings.HasPrefix(root[5], "ro,") {
				t.Errorf("%s on %s: its root is %v: want it read-only", command, n, root[:6])
			}
		}
		if !seen["speaker"] {
			t.Errorf("no speaker runs on %s", n)
		}
	}
}

// pods returns the names of the pods with a label.
func (r *loadTest) pods(namespace, label string, more ...string) []string {
	r.Helper()
	args := append([]string{"-n", namespace, "get", "pods", "-l", label, "-o", "jsonpath={.items[*].metadata.name}"},
		more...)
	return strings.Fields(r.kubectl(args...))
}

// awaitGone waits for the end of terminating pods.
func (r *loadTest) awaitGone(namespace string, pods []string) {
	r.Helper()
	for _, p := range pods {
		r.kubectl("-n", namespace, "wait", "--for=delete", "pod/"+p, timeout)
	}
}

const (
	speakers    = "app.kubernetes.io/component=speaker"
	controllers = "app.kubernetes.io/component=controller"
)

// An upgrade replaces every speaker without a lost request and without a change at the
// router.
func TestUpgradeSpeakersLosesNothing(t *testing.T) {
	underLoad(t, func(_ context.Context, r *loadTest) {
		before := r.pods("fanfare-system", speakers)
		began := time.Now()
		r.kubectl("-n", "fanfare-system", "rollout", "restart", "daemonset/speaker")
		r.kubectl("-n", "fanfare-system", "rollout", "status", "daemonset/speaker", timeout)
		t.Logf("kubectl rollout restart daemonset/speaker: done after %s", since(began))
		for _, p := range r.pods("fanfare-system", speakers) {
			if slices.Contains(before, p) {
				t.Errorf("pod %s is still the same", p)
			}
		}
		r.expectRouteUntouched()
	})
}

// A speaker crashes, and kubelet restarts it in the same pod. No request is lost.
func TestSpeakerCrash(t *testing.T) {
	underLoad(t, func(ctx context.Context, r *loadTest) {
		m := r.kubeNodes["n1"]
		pid, err := m.run(ctx, "pgrep", "--full", "fanfare speaker")
		must(t, err)
		pod := r.pods("fanfare-system", speakers, "--field-selector=spec.nodeName=n1")[0]
		const restarts = "jsonpath={.status.containerStatuses[0].restartCount}"
		before, err := strconv.Atoi(r.kubectl("-n", "fanfare-system", "get", "pod", pod, "-o", restarts))
		must(t, err)
		began := time.Now()
		_, err = m.run(ctx, "kill", "-KILL", strings.TrimSpace(pid))
		must(t, err)
		r.kubectl("-n", "fanfare-system", "wait", "pod/"+pod, fmt.Sprintf("--for=%s=%d", restarts, before+1), timeout)
		r.kubectl("-n", "fanfare-system", "wait", "pod/"+pod, "--for=condition=Ready", timeout)
		t.Logf("SIGKILL: the speaker of n1 was ready again after %s", since(began))
		r.expectRouteUntouched()
	})
}

// expectRouteUntouched checks that the router has received no change since the test began.
func (r *loadTest) expectRouteUntouched() {
	r.Helper()
	for _, name := range services {
		if n := len(r.Observer.RouteChanges(r.vips[name], r.began, time.Now())); n > 0 {
			r.Errorf("%s: the route changed %d times: want it untouched", name, n)
		}
		for _, n := range nodes {
			if at := r.Observer.Withdrawn(n, r.vips[name], r.began); !at.IsZero() {
				r.Errorf("%s: %s withdrew it %s after the load began", name, n, at.Sub(r.began))
			}
		}
	}
}

// A rolling update of a workload that never has fewer pods: a new pod is ready before an
// old one stops.
func TestUpgradeWorkloadLosesNothing(t *testing.T) {
	underLoad(t, func(_ context.Context, r *loadTest) {
		before := r.pods("shop", "app=web")
		began := time.Now()
		r.kubectl("-n", "shop", "rollout", "restart", "deployment/web")
		r.kubectl("-n", "shop", "rollout", "status", "deployment/web", timeout)
		t.Logf("kubectl rollout restart deployment/web: done after %s", since(began))
		r.awaitGone("shop", before)
		t.Logf("the last old pod was removed after %s", since(began))
		for _, name := range services {
			t.Log(r.route(name))
		}
	})
}

// A node is drained: its pods terminate in order, and its speaker continues.
func TestDrainLosesNothing(t *testing.T) {
	underLoad(t, func(ctx context.Context, r *loadTest) {
		began := time.Now()
		r.kubectl("drain", "n1", "--ignore-daemonsets", "--delete-emptydir-data", timeout)
		t.Logf("kubectl drain n1: done after %s", since(began))
		must(t, r.Router.AwaitNextHops(ctx, limit, r.vips["local"], "n2"))
		must(t, r.Router.AwaitNextHops(ctx, limit, r.vips["anywhere"], nodes...))
		left := r.kubectl("get", "pods", "-A", "--field-selector=spec.nodeName=n1", "-o",
			"jsonpath={.items[*].metadata.labels.app\\.kubernetes\\.io/component}")
		if left != "speaker" {
			t.Errorf("pods on n1 are %q: want only the speaker", left)
		}
		began = time.Now()
		r.kubectl("uncordon", "n1")
		// Kubernetes moves no pod back by itself.
		moved := r.pods("shop", "app=web")
		r.kubectl("-n", "shop", "rollout", "restart", "deployment/web")
		r.kubectl("-n", "fanfare-system", "rollout", "restart", "deployment/controller")
		r.kubectl("-n", "shop", "rollout", "status", "deployment/web", timeout)
		r.kubectl("-n", "fanfare-system", "rollout", "status", "deployment/controller", timeout)
		r.awaitGone("shop", moved)
		must(t, r.Router.AwaitNextHops(ctx, limit, r.vips["local"], nodes...))
		t.Logf("kubectl uncordon n1: pods ran there again, and were announced, after %s", since(began))
	})
}

// The leading controller's pod is deleted. Another controller takes over, and assigns an
// address to a Service created after the release of the Lease.
func TestLeaderDeletedNextAssigns(t *testing.T) {
	underLoad(t, func(ctx context.Context, r *loadTest) {
		old := r.leader()
		began := time.Now()
		r.kubectl("-n", "fanfare-system", "delete", "pod", old, "--wait=false")
		// The old leader assigns addresses until its kubelet stops it.
		must(t, lab.Await(ctx, limit, "the Lease's release by "+old, func() error {
			holder, err := r.holder(ctx)
			if err == nil && strings.HasPrefix(holder, old+"_") {
				err = fmt.Errorf("%s holds it", holder)
			}
			return err
		}))
		t.Logf("the leader %s was deleted; it released the Lease after %s", old, since(began))
		began = time.Now()
		must(t, r.Kubernetes.Admin().Create(ctx, service("late", "Local")))
		t.Cleanup(func() { must(t, r.Kubernetes.Admin().Delete(context.WithoutCancel(ctx), service("late", "Local"))) })
		vip, err := r.address(ctx, "late")
		must(t, err)
		took := since(began)
		must(t, r.Router.AwaitNextHops(ctx, limit, vip, nodes...))
		leads, assigned := r.leader(), r.assigner(ctx, "late")
		t.Logf("a Service that was created then had %s after %s, by %s; %s leads", vip, took, assigned, leads)
		if leads == old || !strings.HasPrefix(assigned, leads+"_") {
			t.Errorf("%s leads, and %s assigned the address: want the same one for both, and not %s", leads, assigned,
				old)
		}
		r.awaitGone("fanfare-system", []string{old})
		r.kubectl("-n", "fanfare-system", "rollout", "status", "deployment/controller", timeout)
	})
}

// holder returns the process that holds the controllers' Lease; empty if none does.
func (r *loadTest) holder(ctx context.Context) (string, error) {
	leases, err := r.Kubernetes.Admin().List(ctx,
		schema.GroupVersionKind{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"})
	if err != nil {
		return "", err
	}
	for _, l := range leases {
		if l.GetName() == "fanfare-controller" {
			holder, _, err := unstructured.NestedString(l.Object, "spec", "holderIdentity")
			return holder, err
		}
	}
	return "", errors.New("there is no Lease fanfare-controller")
}

// leader waits until a controller leads and returns its pod. For some seconds after a
// leader has stopped, none leads.
func (r *loadTest) leader() (pod string) {
	r.Helper()
	must(r.T, lab.Await(r.Context(), limit, "a leading controller", func() error {
		holder, err := r.holder(r.Context())
		if err != nil {
			return err
		}
		pods := r.pods("fanfare-system", controllers)
		i := slices.IndexFunc(pods, func(p string) bool { return strings.HasPrefix(holder, p+"_") })
		if i < 0 {
			return fmt.Errorf("%q holds the Lease: want one of the pods %v", holder, pods)
		}
		pod = pods[i]
		return nil
	}))
	return pod
}

// assigner waits for the Event about a Service's address and returns the reporting
// controller.
func (r *loadTest) assigner(ctx context.Context, service string) (instance string) {
	r.Helper()
	uid := r.kubectl("-n", "shop", "get", "service", service, "-o", "jsonpath={.metadata.uid}")
	must(r.T, lab.Await(ctx, limit, "the Event of "+service+"'s address", func() error {
		events, err := r.Kubernetes.Admin().List(ctx,
			schema.GroupVersionKind{Group: "events.k8s.io", Version: "v1", Kind: "Event"})
		for _, e := range events {
			// not an earlier Service of that name
			about, _, _ := unstructured.NestedString(e.Object, "regarding", "uid")
			if about == uid && e.Object["reason"] == "Assigned" {
				instance, _, err = unstructured.NestedString(e.Object, "reportingInstance")
				return err
			}
		}
		return errors.Join(err, errors.New("there is none"))
	}))
	return instance
}

// A kubelet crashes. Its pods serve until Kubernetes marks the node as not Ready; then the
// other node gets all traffic until the kubelet is back.
func TestKubeletCrash(t *testing.T) {
	underLoad(t, func(ctx context.Context, r *loadTest) {
		m := r.kubeNodes["n1"]
		began := time.Now()
		must(t, m.killKubelet())
		r.kubectl("wait", "node/n1", "--for=condition=Ready=Unknown", timeout)
		t.Logf("kubelet of n1 killed: n1 was NotReady after %s", since(began))
		must(t, r.Router.AwaitNextHops(ctx, limit, r.vips["local"], "n2"))
		t.Logf("the router sent Local traffic to n2 alone after %s", since(began))
		began = time.Now()
		must(t, m.startKubelet(r.tools))
		r.kubectl("wait", "node/n1", "--for=condition=Ready", timeout)
		must(t, r.Router.AwaitNextHops(ctx, limit, r.vips["local"], nodes...))
		t.Logf("kubelet started again: n1 had its traffic after %s", since(began))
	})
}

// A node loses its power without a message to clients or the router. Requests to the node
// are lost for the router's hold time, and requests to its pods through the other node
// until Kubernetes marks it as not Ready. After its boot nothing more is lost.
func TestNodePowerFailure(t *testing.T) {
	underLoad(t, func(ctx context.Context, r *loadTest) {
		began := time.Now()
		r.Observer.Tolerate("n1", func() { must(t, r.powerOff(ctx, "n1")) })
		for _, name := range services {
			must(t, r.Router.AwaitNextHops(ctx, limit, r.vips[name], "n2"))
		}
		t.Logf("n1 without power: the router sent everything to n2 after %s", since(began))
		r.kubectl("wait", "node/n1", "--for=condition=Ready=Unknown", timeout)
		t.Logf("n1 was NotReady after %s", since(began))
		must(t, r.awaitEndpoints(ctx, 1))
		r.tolerateUntil = time.Now()
		t.Logf("its pod was no longer an endpoint after %s", since(began))
		r.pauseSecond()
		began = time.Now()
		must(t, r.powerOn(ctx, "n1"))
		r.kubectl("wait", "node/n1", "--for=condition=Ready", timeout)
		must(t, r.awaitEndpoints(ctx, 2))
		for _, name := range services {
			must(t, r.Router.AwaitNextHops(ctx, limit, r.vips[name], nodes...))
		}
		t.Logf("n1 booted: it had its traffic after %s", since(began))
		r.kubectl("-n", "fanfare-system", "rollout", "status", "daemonset/speaker", timeout)
		r.kubectl("-n", "fanfare-system", "rollout", "status", "deployment/controller", timeout)
	})
}

// awaitEndpoints waits until the EndpointSlices have that many ready pods of the workload.
func (r *loadTest) awaitEndpoints(ctx context.Context, n int) error {
	return lab.Await(ctx, limit, "ready endpoints", func() error {
		out, err := r.cluster.kubectl(ctx, "-n", "shop", "get", "endpointslices", "-o",
			"jsonpath={.items[*].endpoints[*].conditions.ready}")
		if err == nil && strings.Count(out, "true") != n*len(services) {
			err = fmt.Errorf("ready conditions of %v: %s", services, out)
		}
		return err
	})
}
