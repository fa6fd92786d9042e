package kube

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// overwrite is another controller, such as k3s's ServiceLB: it writes its address into a Service's
// status whenever another one is there. It returns how often it did.
func (f *fanfare) overwrite(ctx context.Context, name, addr string) *atomic.Int32 {
	f.Helper()
	w, err := f.Admin().Watch(ctx, serviceKind, "default", name)
	must(f.T, err)
	var writes atomic.Int32
	go func() {
		defer w.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case e, open := <-w.ResultChan():
				if !open {
					return
				}
				ingress, _, _ := unstructured.NestedSlice(e.Object.(*unstructured.Unstructured).Object, "status",
					"loadBalancer", "ingress")
				if len(ingress) == 1 && ingress[0].(map[string]any)["ip"] == addr {
					continue
				}
				patch := fmt.Sprintf(`{"status":{"loadBalancer":{"ingress":[{"ip":%q}]}}}`, addr)
				if f.Admin().Patch(ctx, serviceKind, "default", name, patch, "status") == nil {
					writes.Add(1)
				}
			}
		}
	}()
	return &writes
}

// Another controller overwrites the status of a Service as fast as it can: the Service keeps its
// address, the speaker keeps forwarding it, no other Service gets it, and the controller neither
// gives up nor fights at full speed. Once the other one is gone, the status is right again.
func TestStatusOverwrittenByAnotherController(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		f.run("controller")
		f.speaker()
		must(t, f.Admin().Apply(t.Context(), oneNode+"---"+poolOf(1)+"---"+oneService("web", "10.244.1.5")))
		const vip = "192.0.2.1"
		await(t, time.Minute, "the Service", func() error { return f.forwards(vip) })

		ctx, stop := context.WithCancel(t.Context())
		writes := f.overwrite(ctx, "web", "203.0.113.9")
		must(t, f.Admin().Apply(t.Context(), oneService("other", "10.244.1.6")))
		await(t, time.Minute, "an Event of the controller", func() error {
			out, err := f.kubectl("events", "--for", "service/web")
			if err == nil && !strings.Contains(out, "StatusOverwritten") {
				err = fmt.Errorf("no StatusOverwritten in\n%s", out)
			}
			return err
		})
		lost := 0
		await(t, time.Minute, "some rounds", func() error {
			if err := f.forwards(vip); err != nil {
				lost++
				t.Log(err)
			}
			if n := writes.Load(); n < 5 {
				return fmt.Errorf("overwritten %d times", n)
			}
			return nil
		})
		if lost != 0 {
			t.Errorf("the speaker did not forward %s %d times while the status was overwritten", vip, lost)
		}
		if claim, err := f.get(kindOf("AddressClaim"), vip); err != nil || claim == nil ||
			!strings.Contains(fmt.Sprint(claim.Object["spec"]), "services:default/web") {
			t.Errorf("claim %v, %v: want one of web", claim, err)
		}
		if addr, err := f.assigned("other"); err == nil {
			t.Errorf("other has %s, want no address", addr)
		}
		if n := writes.Load(); n > 7 {
			t.Errorf("the controller wrote the status back %d times in a few seconds", n)
		}
		stop()
		await(t, time.Minute, "the Service's address in its status", func() error {
			addr, err := f.assigned("web")
			if err == nil && addr != vip {
				err = fmt.Errorf("it has %s", addr)
			}
			return err
		})
	})
}
