package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// serviceCount is the number of Services: enough that they are created faster than served.
	// Benchmarks measure thousands, with the machine to themselves.
	serviceCount = 600
	// deletedCount of them are deleted. Deleting all would take as long as creating them and
	// test nothing more.
	deletedCount = 100
)

// Services get different addresses as fast as one client creates them. The node's kernel
// refuses packets to the addresses, because there are no pods: EndpointSlices would double
// the objects. A controller that takes over writes nothing, and nothing is left of deleted
// Services.
func TestManyServicesAndTakeover(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		controller := f.run("controller", "--leader-elect", "--metrics-address=127.0.0.1:7873")
		speaker := f.speaker()
		must(t, f.Admin().Apply(t.Context(), oneNode+"---"+`
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: lan}
spec: {announce: BGP, addresses: [198.18.0.0/15]}
`))
		h := f.recordHistory(t)
		began := time.Now()
		f.createMany("/api/v1/namespaces/default/services", func(i int) string {
			return fmt.Sprintf(`{"metadata":{"name":"s%d"},"spec":{"type":"LoadBalancer","allocateLoadBalancerNodePorts":false,
				"ports":[{"name":"http","port":80,"targetPort":8080}]}}`, i)
		})
		created := time.Now()
		awaitSlowly(t, "addresses", func() error {
			return errors.Join(h.err(), expectCount(len(h.delays()), serviceCount))
		})
		addressed := time.Now()
		awaitSlowly(t, "forwarding", func() error { return f.vips(serviceCount) })
		forwarded := time.Now()
		delays := h.delays()
		slices.Sort(delays)
		t.Logf("%d Services created in %s, %.0f a second; the last address %s later, the last one "+
			"in the kernel %s later",
			serviceCount, round(created.Sub(began)), serviceCount/created.Sub(began).Seconds(),
			round(addressed.Sub(created)), round(forwarded.Sub(created)))
		t.Logf("from a Service to its address: median %s, 99%% %s, worst %s", round(delays[serviceCount/2]),
			round(delays[serviceCount*99/100]), round(delays[serviceCount-1]))
		for _, p := range []*program{controller, speaker} {
			now, peak, err := p.memory()
			must(t, err)
			t.Logf("%s: %d MiB, at most %d MiB", p.name, now, peak)
		}
		t.Logf("%d events checked", h.check(nil))

		// The speaker reports its missing router after half a minute: that Event must not count
		// as one of the controller's.
		f.awaitEventCount("bgppeer/tor9", "SessionDown", 1)
		f.takeover(controller)
		began = time.Now()
		must(t, f.deleteSome())
		deleted := time.Now()
		awaitSlowly(t, "the claims' end", func() error {
			claims, err := f.claims()
			if err == nil {
				err = expectCount(len(claims), serviceCount-deletedCount)
			}
			return err
		})
		t.Logf("%d deleted in %s, the last claim gone %s later", deletedCount, round(deleted.Sub(began)),
			round(time.Since(deleted)))
		awaitSlowly(t, "removal from the kernel", func() error { return f.vips(serviceCount - deletedCount) })
	})
}

// awaitSlowly is await for a probe that costs the measured programs CPU time.
func awaitSlowly(t *testing.T, what string, probe func() error) {
	t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	await(t, 5*time.Minute, what, func() error {
		<-tick.C
		return probe()
	})
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

func expectCount(have, want int) error {
	if have != want {
		return fmt.Errorf("%d, want %d", have, want)
	}
	return nil
}

// createMany creates objects as fast as one client can.
func (f *fanfare) createMany(path string, object func(i int) string) {
	f.Helper()
	var all errgroup.Group
	all.SetLimit(16)
	for i := range serviceCount {
		all.Go(func() error {
			return f.Admin().discovery.RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").
				Body([]byte(object(i))).Do(f.Context()).Error()
		})
	}
	must(f.T, all.Wait())
}

func (f *fanfare) deleteSome() error {
	var all errgroup.Group
	all.SetLimit(16)
	for i := range deletedCount {
		all.Go(func() error {
			return f.Admin().discovery.RESTClient().Delete().AbsPath(
				fmt.Sprintf("/api/v1/namespaces/default/services/s%d", i)).Do(f.Context()).Error()
		})
	}
	return all.Wait()
}

// vips returns an error unless the kernel has n addresses.
func (f *fanfare) vips(n int) error {
	ctx, cancel := context.WithTimeout(f.Context(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "nft", "-j", "list", "set", "inet", "fanfare", "vips4").Output()
	if err != nil {
		return fmt.Errorf("nft: %w", err)
	}
	var listed struct {
		Nftables []struct{ Set struct{ Elem []any } }
	}
	if err := json.Unmarshal(out, &listed); err != nil {
		return err
	}
	have := 0
	for _, o := range listed.Nftables {
		have += len(o.Set.Elem)
	}
	return expectCount(have, n)
}

// takeover ends the controller, and checks that the next one changes no Service and no
// claim.
func (f *fanfare) takeover(old *program) {
	f.Helper()
	f.awaitQuiet(2 * time.Second)
	before, writes := f.versions(), f.requests("POST|PUT|PATCH|DELETE")
	old.stop()
	began := time.Now()
	next := f.run("controller", "--leader-elect", "--metrics-address=127.0.0.1:7474")
	await(f.T, time.Minute, "the next controller's first pass", func() error {
		passes, err := next.metric("fanfare_controller_pass_duration_seconds_count")
		if err != nil {
			return err
		}
		assigned, err := next.metric("fanfare_controller_addresses_assigned")
		if err != nil || passes == 0 || assigned != serviceCount {
			return fmt.Errorf("%.0f passes, %.0f addresses: %w", passes, assigned, err)
		}
		return nil
	})
	f.Logf("another controller leads after %s", round(time.Since(began)))
	f.awaitQuiet(2 * time.Second)
	if after := f.versions(); !maps.Equal(before, after) {
		f.Error("a controller that took over changed Services or claims")
	}
	if n := f.requests("POST|PUT|PATCH|DELETE") - writes; n != 0 {
		f.Errorf("a controller that took over tried to write %.0f times", n)
	}
}

// versions returns the resource versions of all Services and claims.
func (f *fanfare) versions() map[string]string {
	f.Helper()
	out := map[string]string{}
	for _, kind := range []string{"Service", "AddressClaim"} {
		gvk := kindOf(kind)
		if kind == serviceKind.Kind {
			gvk = serviceKind
		}
		all, err := f.Admin().List(f.Context(), gvk)
		must(f.T, err)
		for i := range all {
			out[kind+" "+all[i].GetName()] = all[i].GetResourceVersion()
		}
	}
	return out
}
