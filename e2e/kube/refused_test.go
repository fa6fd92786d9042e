package kube

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// hugeService returns a Service with that many EndpointSlices of 1,000 endpoints each, in
// parts that can be applied one by one.
func hugeService(name string, slices int) (parts []string) {
	parts = []string{fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {namespace: default, name: %s}
spec: {type: LoadBalancer, ports: [{name: http, port: 80, targetPort: 8080}]}
`, name)}
	for i := range slices {
		var endpoints strings.Builder
		for j := range 1000 {
			fmt.Fprintf(&endpoints, "\n- {addresses: [10.%d.%d.%d], nodeName: n1, conditions: {ready: true}}", 128+i/32,
				i%32*8+j/250, j%250+1)
		}
		parts = append(parts, fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: %[1]s-%[2]d, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:%[3]s
`, name, i, endpoints.String()))
	}
	return parts
}

// timeToServe returns the time from the creation of a Service with one endpoint until the
// kernel forwards its address.
func (f *fanfare) timeToServe(name, pod string) time.Duration {
	f.Helper()
	began := time.Now()
	must(f.T, f.Admin().Apply(f.Context(), oneService(name, pod)))
	var vip string
	await(f.T, time.Minute, "an address of "+name, func() (err error) { vip, err = f.assigned(name); return err })
	await(f.T, time.Minute, "forwarding of "+name, func() error {
		out, err := exec.CommandContext(f.Context(), "nft", "get", "element", "inet", "fanfare", "xsvc4",
			"{ "+vip+" . tcp . 80 }").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	return time.Since(began)
}

// A Service with more endpoints than an address can have is refused, with a Reason and an
// Event. Later Services are served as fast as before, and the speaker stays healthy and
// ready. With fewer endpoints the Service is served, too.
func TestRefusedServiceDelaysNoOther(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		f.run("controller")
		speaker := f.speaker("--health-address=127.0.0.1:7474")
		must(t, f.Admin().Apply(t.Context(), oneNode))
		f.timeToServe("first", "10.244.1.1")
		var before, after []time.Duration
		for i := range 5 {
			before = append(before, f.timeToServe(fmt.Sprintf("before-%d", i), "10.244.1.5"))
		}

		for _, part := range hugeService("huge", 67) {
			must(t, f.Admin().Apply(t.Context(), part))
		}
		var vip string
		await(t, time.Minute, "an address", func() (err error) { vip, err = f.assigned("huge"); return err })
		const why = "endpoints of port tcp/80: 67000; in nftables mode an address can have 65535: use several " +
			"Services, each with a part of the endpoints"
		refused := func() error {
			s, err := f.status()
			if err != nil {
				return err
			}
			for _, a := range s.Addresses {
				if a.Address == vip && !a.Programmed &&
					slices.ContainsFunc(a.Reasons, func(r struct{ Code, Message string }) bool {
						return r.Code == "ProxyRefused" && r.Message == "not forwarded: "+why
					}) {
					return nil
				}
			}
			return fmt.Errorf("%s is not refused", vip)
		}
		await(t, time.Minute, "the refusal", refused)
		f.awaitEvent("service/huge", "ProxyRefused", "node n1 does not forward "+vip+": endpoints of port tcp/80: ")

		for i := range 5 {
			after = append(after, f.timeToServe(fmt.Sprintf("after-%d", i), "10.244.1.6"))
		}
		slices.Sort(before)
		slices.Sort(after)
		t.Logf("from creation to the kernel: median %s before and %s after", before[2].Round(time.Millisecond),
			after[2].Round(time.Millisecond))
		if limit := 5*before[2] + time.Second; after[2] > limit {
			t.Errorf("a Service is served after %s, and after %s before the huge one existed", after[2], before[2])
		}
		if err := refused(); err != nil {
			t.Error(err)
		}
		speaker.awaitProbe("/healthz", "200 ok")
		speaker.awaitProbe("/readyz", "200 ok")

		for i := range 2 {
			must(t, f.Admin().Delete(t.Context(), strings.Join(hugeService("huge", 67)[66+i:67+i], "")))
		}
		await(t, time.Minute, "forwarding with fewer endpoints", func() error { return f.forwards(vip) })
	})
}
