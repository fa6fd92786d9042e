package kube

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A fieldset is a CRD's schema.
type fieldset map[string]any

// at returns the schema of a field by its path; for a list, that of its items.
func (s fieldset) at(t *testing.T, path ...string) fieldset {
	t.Helper()
	for _, name := range path {
		if items, ok := s["items"].(map[string]any); ok {
			s = items
		}
		properties, _ := s["properties"].(map[string]any)
		field, ok := properties[name].(map[string]any)
		if !ok {
			t.Fatalf("the CRD has no field %v", path)
		}
		s = field
	}
	return s
}

// without removes fields.
func (s fieldset) without(names ...string) {
	properties, _ := s["properties"].(map[string]any)
	required, _ := s["required"].([]any)
	var left []any
	for _, name := range names {
		delete(properties, name)
	}
	for _, r := range required {
		if _, ok := properties[r.(string)]; ok {
			left = append(left, r)
		}
	}
	delete(s, "required")
	if len(left) != 0 {
		s["required"] = left
	}
}

// with adds a string field.
func (s fieldset) with(name string) {
	s["properties"].(map[string]any)[name] = map[string]any{"type": "string"}
}

// otherCRDs applies the CRDs as another version of Fanfare might have them.
func (f *fanfare) otherCRDs(change func(kind string, version map[string]any, root fieldset)) {
	f.Helper()
	files, err := filepath.Glob("../../manifests/crds/*.yaml")
	must(f.T, err)
	for _, o := range objectsOf(f.T, files...) {
		kind, _, _ := unstructured.NestedString(o.Object, "spec", "names", "kind")
		versions, _, _ := unstructured.NestedSlice(o.Object, "spec", "versions")
		version := versions[0].(map[string]any)
		change(kind, version, version["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any))
		must(f.T, unstructured.SetNestedSlice(o.Object, versions, "spec", "versions"))
		must(f.T, f.Admin().apply(f.Context(), o))
	}
}

// next changes the CRDs to those of a later version with more fields and a new enumeration
// value.
func next(t *testing.T) func(string, map[string]any, fieldset) {
	return func(kind string, _ map[string]any, root fieldset) {
		if kind == "SpeakerStatus" {
			root.at(t, "status").with("next")
			root.at(t, "status", "addresses").with("next")
			return
		}
		root.at(t, "spec").with("next")
		if kind == "AddressPool" {
			root.at(t, "status").with("next")
			allocation := root.at(t, "spec", "allocation")
			allocation["enum"] = append(allocation["enum"].([]any), "Sticky")
		}
	}
}

// later are objects of a later version of Fanfare.
const later = `
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: lan}
spec: {announce: BGP, addresses: [192.0.2.0/24], next: theirs}
status: {next: kept}
---
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: sticky}
spec: {announce: BGP, addresses: [198.51.100.0/24], allocation: Sticky, next: theirs}
---
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: tor9}
spec: {peerAddress: 127.0.0.9, peerASN: 65000, myASN: 65001, next: theirs}
---
apiVersion: fanfare.io/v1alpha1
kind: AddressClaim
metadata: {name: 192.0.2.77}
spec: {address: 192.0.2.77, reserved: true, next: kept}
`

// The CRDs and another node are of the next version. Controller and speaker continue: they
// leave unknown fields as they are, and take an unknown value for the most restrictive one.
func TestNewerObjectsKeepUnknownFields(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		controller := f.run("controller")
		speaker := f.speaker()
		must(t, f.Admin().Apply(t.Context(), oneNode+"---"+oneService("web", "10.244.1.5")))
		f.awaitForwarded("web")
		f.otherCRDs(next(t))
		await(t, time.Minute, "the new fields", func() error { return f.Admin().Apply(t.Context(), later) })
		f.awaitForwarded("web")
		f.reportsAs("n2", "theirs")

		must(t, f.Admin().Apply(t.Context(), oneService("asks", "10.244.1.6")+"---"+oneService("sticks", "10.244.1.7")))
		f.annotate("asks", "fanfare.io/load-balancer-ips", "192.0.2.77")
		f.annotate("sticks", "fanfare.io/address-pool", "sticky")
		await(t, time.Minute, "the requested addresses", func() error {
			asks, err1 := f.assigned("asks")
			sticks, err2 := f.assigned("sticks")
			if asks != "192.0.2.77" || !strings.HasPrefix(sticks, "198.51.100.") {
				return fmt.Errorf("asks has %s, sticks %s: %w", asks, sticks, errors.Join(err1, err2))
			}
			return nil
		})
		f.awaitForwarded("asks")
		f.awaitForwarded("sticks")
		claim := f.object("AddressClaim", "192.0.2.77")
		if holders, _, _ := unstructured.NestedSlice(claim, "spec",
			"holders"); claim["spec"].(map[string]any)["next"] != "kept" || len(holders) != 1 {
			t.Errorf("claim %v, want one holder more and all other fields", claim["spec"])
		}
		await(t, time.Minute, "the pools' status", func() error {
			lan, sticky := f.object("AddressPool", "lan"), f.object("AddressPool", "sticky")
			n, _, _ := unstructured.NestedInt64(lan, "status", "ipv4", "assigned")
			kept, _, _ := unstructured.NestedString(lan, "status", "next")
			if n != 2 || kept != "kept" || !strings.Contains(fmt.Sprint(sticky["status"]),
				"must be Automatic, OnRequest or Drained; taken for OnRequest") {
				return fmt.Errorf("lan: %v, sticky: %v", lan["status"], sticky["status"])
			}
			return nil
		})

		// The speaker of n1 returns from the next version to this one.
		speaker.kill()
		must(t, f.Admin().Delete(t.Context(),
			"{apiVersion: fanfare.io/v1alpha1, kind: SpeakerStatus, metadata: {name: n1}}"))
		f.reportsAs("n1", "theirs")
		speaker = f.speaker()
		await(t, 60*time.Second, "a report of this version", func() error {
			status := fmt.Sprint(f.object("SpeakerStatus", "n1")["status"])
			if !strings.Contains(status, "forwarded:3") || strings.Contains(status, "next:") ||
				strings.Contains(status, "later") {
				return errors.New(status)
			}
			return nil
		})
		if other := fmt.Sprint(f.object("SpeakerStatus", "n2")["status"]); strings.Count(other, "next:theirs") != 2 {
			t.Errorf("another node's report became %s", other)
		}
		for _, p := range []*program{controller, speaker} {
			if p.logged("level=ERROR") || p.alive() != nil {
				t.Errorf("%s: %v\n%s", p.name, p.alive(), p.tail())
			}
		}
	})
}

// The CRDs are of the previous version, without a pool status and with fewer fields in
// SpeakerStatus. Each program reports that and the remedy, and all else works. After the
// CRDs are applied everything works without a restart.
func TestOlderCRDsAreReported(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		f.otherCRDs(func(kind string, version map[string]any, root fieldset) {
			switch kind {
			case "AddressPool":
				root.without("status")
				delete(version, "subresources")
			case "SpeakerStatus":
				root.at(t, "status").without("repairs", "attention", "reasons")
				root.at(t, "status", "addresses").without("lingering")
			case "BGPPeer":
				root.at(t, "spec").without("gracefulRestart")
			}
		})
		controller := f.run("controller")
		speaker := f.speaker()
		must(t, f.Admin().Apply(t.Context(), oneNode+"---"+oneService("web", "10.244.1.5")))
		f.awaitForwarded("web")
		await(t, 60*time.Second, "a message about the CRDs", func() error {
			for _, p := range []*program{controller, speaker} {
				if !p.logged("apply manifests/crds") {
					return fmt.Errorf("%s does not report it:\n%s", p.name, p.tail())
				}
			}
			return nil
		})
		must(t, f.Admin().Apply(t.Context(), oneService("late", "10.244.1.6")))
		f.awaitForwarded("late")
		must(t, f.Admin().Delete(t.Context(), oneService("web", "")))
		await(t, 60*time.Second, "the claim's end", func() error {
			claims, err := f.claims()
			return errors.Join(err, expectCount(len(claims), 1))
		})

		must(t, f.Admin().ApplyFiles(t.Context(), "../../manifests/crds"))
		await(t, 3*time.Minute, "the fields that the CRDs lacked", func() error {
			n, _, err := unstructured.NestedInt64(f.object("AddressPool", "lan"), "status", "ipv4", "assigned")
			m, _, err2 := unstructured.NestedInt64(f.object("SpeakerStatus", "n1"), "status", "addresses", "forwarded")
			return errors.Join(err, err2, expectCount(int(n), 1), expectCount(int(m), 1))
		})
	})
}

// reportsAs writes a node's SpeakerStatus as a later version would.
func (f *fanfare) reportsAs(node, next string) {
	f.Helper()
	objects, err := decode(fmt.Sprintf(`{apiVersion: fanfare.io/v1alpha1, kind: SpeakerStatus, metadata: {name: %s},
		status: {version: later, next: %s, addresses: {assigned: 9, forwarded: 9, announced: 9, lingering: 9, next: %[2]s}}}`, node, next))
	must(f.T, err)
	r, err := f.Admin().resource(objects[0])
	must(f.T, err)
	_, err = r.Apply(f.Context(), node, objects[0], metav1.ApplyOptions{FieldManager: "fanfare-speaker", Force: true})
	must(f.T, err)
}

// awaitForwarded waits until the kernel forwards a Service's address.
func (f *fanfare) awaitForwarded(name string) {
	f.Helper()
	await(f.T, 60*time.Second, "forwarding of "+name, func() error {
		vip, err := f.assigned(name)
		if err != nil {
			return err
		}
		return f.forwards(vip)
	})
}

// object returns an object of the group fanfare.io, or an empty one if it does not exist.
func (f *fanfare) object(kind, name string) map[string]any {
	f.Helper()
	o, err := f.get(kindOf(kind), name)
	must(f.T, err)
	if o == nil {
		return map[string]any{}
	}
	return o.Object
}

func (f *fanfare) annotate(service, key, value string) {
	f.Helper()
	must(f.T, f.Admin().Patch(f.Context(), serviceKind, "default", service,
		fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, key, value)))
}
