package kube

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// aboutNode returns the objects that a speaker writes about a node.
func aboutNode(node string) []string {
	return []string{
		fmt.Sprintf(`{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {namespace: fanfare-node-lease, name: %s}, spec: {holderIdentity: %[1]s}}`, node),
		fmt.Sprintf(`{apiVersion: fanfare.io/v1alpha1, kind: SpeakerStatus, metadata: {name: %s}}`, node),
		fmt.Sprintf(`{apiVersion: events.k8s.io/v1, kind: Event, metadata: {namespace: default, name: about-%s}, eventTime: "2026-01-01T00:00:00.000000Z", type: Normal,
			reason: Announced, action: Announce, reportingController: fanfare.io/speaker, reportingInstance: %[1]s, regarding: {apiVersion: v1, kind: Node, name: %[1]s}}`, node),
	}
}

// A speaker's token lets it write about its own node and no other one, and a token that is
// bound to no node lets it write nothing. It reads no Lease but those of speakers, so that
// it cannot stop the controllers.
func TestSpeakerTokenIsBoundToNode(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		for _, node := range []string{"n1", "n2"} {
			must(t, f.Admin().Apply(t.Context(), fmt.Sprintf(`{apiVersion: v1, kind: Node, metadata: {name: %s}}`, node)))
		}
		n1, free := f.withToken("n1"), f.withToken("")
		// The API server compiles a policy some time after it was created.
		await(t, time.Minute, "the policy to be in force", func() error {
			if err := free.Apply(t.Context(), aboutNode("probe")[1]); !anyIs(err, apierrors.IsForbidden) {
				return fmt.Errorf("a token without a node: %v", err)
			}
			return nil
		})
		for i, o := range aboutNode("n1") {
			if err := n1.Create(t.Context(), o); err != nil {
				t.Errorf("the speaker of n1 may not write about it: %v", err)
			}
			if err := free.Apply(t.Context(), o); !anyIs(err, apierrors.IsForbidden) || !strings.Contains(err.Error(), "must be bound to its pod") {
				t.Errorf("a token without a node changed %s: %v", o, err)
			}
			other := aboutNode("n2")[i]
			for _, exists := range []bool{false, true} { // create, then patch
				err := n1.Apply(t.Context(), other)
				if !exists && i == 2 {
					err = n1.Create(t.Context(), other)
				}
				if !anyIs(err, apierrors.IsForbidden) || !strings.Contains(err.Error(), "a speaker of node n1 must not write for n2") {
					t.Errorf("the speaker of n1 wrote %s (exists: %t): %v", other, exists, err)
				}
				must(t, f.Admin().Apply(t.Context(), other))
			}
		}
		for _, namespace := range []string{"fanfare-system", "kube-system", "default"} {
			o := strings.Replace(aboutNode("n1")[0], "fanfare-node-lease", namespace, 1)
			for _, name := range []string{"n1", "fanfare-controller"} {
				if err := n1.Apply(t.Context(), strings.Replace(o, "name: n1", "name: "+name, 1)); !anyIs(err, apierrors.IsForbidden) {
					t.Errorf("the speaker of n1 wrote Lease %s in %s: %v", name, namespace, err)
				}
			}
		}
		// Other users are not concerned.
		if n, err := f.apiServerMetric("apiserver_validating_admission_policy_check_total", regexp.MustCompile(`policy="fanfare-speaker".*error_type="(invalid|timeout|panic)`)); err == nil && n != 0 {
			t.Errorf("the policy failed %.0f times", n)
		}
	})
}

// withToken returns a client with a token of the speaker's account that the API server has made,
// bound to a Node (KEP-4193) or, without a name, to nothing.
func (f *fanfare) withToken(node string) *Client {
	f.Helper()
	request := authenticationv1.TokenRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"},
	}
	if node != "" {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: node}
	}
	body, err := json.Marshal(request)
	must(f.T, err)
	out, err := f.Admin().discovery.RESTClient().Post().AbsPath("/api/v1/namespaces/fanfare-system/serviceaccounts/speaker/token").
		SetHeader("Content-Type", "application/json").Body(body).DoRaw(f.Context())
	must(f.T, err)
	must(f.T, json.Unmarshal(out, &request))
	config := rest.AnonymousClientConfig(f.Admin().config)
	config.BearerToken = request.Status.Token
	c, err := NewClient(config)
	must(f.T, err)
	return c
}
