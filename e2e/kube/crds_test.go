package kube

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/internal/testing/crdtest"
)

// The API server refuses what the CRDs' rules forbid, with helpful messages.
func TestCRDsRefuseInvalidObjects(t *testing.T) {
	c := controlPlane(t)
	c.crds(t)
	const head = "apiVersion: fanfare.io/v1alpha1\nkind: "
	for _, tt := range []struct{ object, want string }{
		{head + `AddressPool
metadata: {name: r}
spec: {announce: BGP, addresses: [192.0.2.10/26]}`, "a CIDR must begin at its network's first address"},
		{head + `AddressPool
metadata: {name: r}
spec: {announce: BGP, addresses: [192.0.2.1-2001:db8::1]}`, "both ends of a range must be of one address family"},
		{head + `AddressPool
metadata: {name: r}
spec: {announce: BGP, addresses: [192.0.2.0/24], allocation: Sometimes}`, "supported values"},
		{head + `BGPPeer
metadata: {name: r}
spec: {peerAddress: 192.0.2.256, peerASN: 64512, myASN: 64513}`, "peerAddress"},
		{head + `BGPAdvertisement
metadata: {name: r}
spec: {pools: [lan, lan]}`, "duplicate entries"},
		{head + `BGPAdvertisement
metadata: {name: r}
spec: {aggregationLength: 33}`, "less than or equal to 32"},
		{head + `L2Advertisement
metadata: {name: r}
spec: {interfaces: ["eth[01]"]}`, "must be the name of an interface, or a pattern"},
		{head + `L2Advertisement
metadata: {name: r}
spec: {preferredNodeSelectors: [{weight: 101, preference: {}}]}`, "less than or equal to 100"},
		{head + `AddressClaim
metadata: {name: 192.0.2.1}
spec: {address: 192.0.2.2}`, "metadata.name must be spec.address"},
		{head + `AddressClaim
metadata: {name: 2001-db8--1}
spec: {address: "2001:db8:0::1"}`, "canonical form"},
		{head + `AddressClaim
metadata: {name: 192.0.2.1}
spec: {address: 192.0.2.1, typo: true}`, "typo"},
	} {
		err := c.Admin().Apply(t.Context(), tt.object)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s\nrefused with %v, want %q", tt.object, err, tt.want)
		}
	}
}

// A claim's address cannot be changed, and an existing claim cannot be created again.
// Therefore no address is assigned twice.
func TestClaimIsUnique(t *testing.T) {
	c := controlPlane(t)
	c.crds(t)
	const claim = "apiVersion: fanfare.io/v1alpha1\nkind: AddressClaim\nmetadata: {name: 192.0.2.9}\nspec: " +
		"{address: 192.0.2.9}"
	must(t, c.Admin().Create(t.Context(), claim))
	t.Cleanup(func() { must(t, c.Admin().Delete(context.Background(), claim)) })
	if err := c.Admin().Create(t.Context(), claim); err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Errorf("created twice: %v", err)
	}
	err := c.Admin().Patch(t.Context(), kinds[5], "", "192.0.2.9", `{"spec":{"address":"192.0.2.8"}}`)
	if err == nil || !strings.Contains(err.Error(), "cannot be changed") {
		t.Errorf("changed: %v", err)
	}
}

// The API server accepts and refuses the same specs as its libraries, against which the
// parser is tested.
func TestAPIServerAgreesOnSpecs(t *testing.T) {
	c := controlPlane(t)
	c.crds(t)
	for _, s := range crdtest.LoadSpecs(t) {
		for _, spec := range s.Good {
			expect(t, c.Admin(), s.Object(t, "", spec), "")
		}
		for _, bad := range s.Bad {
			expect(t, c.Admin(), s.Object(t, bad.Name, bad.Spec), bad.SaysOfAPI())
		}
	}
}

// expect creates an object in a dry run with kubectl's strict validation. Want is empty if
// the API server must accept the object.
func expect(t *testing.T, c *Client, text, want string) {
	t.Helper()
	objects, err := decode(text)
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.resource(objects[0])
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Create(t.Context(), objects[0],
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
	switch {
	case want == "" && err != nil:
		t.Errorf("%s\nrefused: %v", text, err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("%s\nrefused with %v, want %q", text, err, want)
	}
}
