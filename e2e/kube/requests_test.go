package kube

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// requestingService returns a Service with annotations and a port.
func requestingService(name, annotations string, port int) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {namespace: default, name: %s, annotations: {%s}}, "+
		"spec: {type: LoadBalancer, ports: [{port: %d}]}}",
		name, annotations, port)
}

// Services share an address, request several by their last bytes, and have their address
// reserved, through a controller that has only the rights of its role.
func TestRequestedAndReservedAddresses(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		kept := requestingService("kept", `fanfare.io/reserve: "true"`, 80)
		must(t, f.Admin().Apply(t.Context(), `
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: lan}
spec: {announce: BGP, addresses: [192.0.2.0/24]}
---
`+requestingService("a", "fanfare.io/allow-shared-ip: k", 80)+"\n---\n"+requestingService("b", "metallb.io/allow-shared-ip: k", 81)+"\n---\n"+kept+"\n---\n"+
			requestingService("end", `fanfare.io/load-balancer-ips: "0.0.0.77, 192.0.2.78"`, 80)))
		f.run("controller")
		var shared, was string
		await(t, time.Minute, "a shared address", func() (err error) {
			shared, err = f.assigned("a")
			other, err2 := f.assigned("b")
			if err = errors.Join(err, err2); err == nil && other != shared {
				err = fmt.Errorf("a has %s, b has %s", shared, other)
			}
			return err
		})
		f.awaitClaimServices(shared, "default/a, default/b")
		f.awaitClaimServices("192.0.2.77", "default/end")
		f.awaitClaimServices("192.0.2.78", "default/end")
		await(t, time.Minute, "an address to reserve", func() (err error) { was, err = f.assigned("kept"); return err })
		f.awaitClaimServices(was, "default/kept")

		must(t, f.Admin().Delete(t.Context(), kept))
		f.awaitClaimServices(was, "kept for default/kept")
		must(t, f.Admin().Apply(t.Context(), kept))
		f.awaitClaimServices(was, "default/kept")
		await(t, time.Minute, "the reserved address", func() error {
			is, err := f.assigned("kept")
			if err == nil && is != was {
				t.Fatalf("it had %s, and now has %s", was, is)
			}
			return err
		})
	})
}

// awaitClaimServices waits until a claim shows these Services.
func (f *fanfare) awaitClaimServices(addr, want string) {
	f.Helper()
	await(f.T, time.Minute, "the claim of "+addr, func() error {
		o, err := f.get(kindOf("AddressClaim"), addr)
		if err != nil || o == nil {
			return errors.Join(err, errors.New("there is no such claim"))
		}
		if got, _, _ := unstructured.NestedString(o.Object, "spec", "services"); got != want {
			return fmt.Errorf("services %q, want %q", got, want)
		}
		return nil
	})
}
