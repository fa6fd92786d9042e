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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
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
		n1, free := f.withToken("Node", "n1"), f.withToken("", "")
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
		must(t, f.Admin().Create(t.Context(), speakerPod("n1")))
		f.expectRefused(f.withToken("Pod", "speaker-n1"))
		f.expectExpired()
		// Other users are not concerned.
		if n, err := f.apiServerMetric("apiserver_validating_admission_policy_check_total", regexp.MustCompile(`policy="fanfare-speaker".*error_type="(invalid|timeout|panic)`)); err == nil && n != 0 {
			t.Errorf("the policy failed %.0f times", n)
		}
	})
}

// speakerPod returns a pod of the DaemonSet on a node.
func speakerPod(node string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {namespace: fanfare-system, name: speaker-%s}, spec: {nodeName: %[1]s, serviceAccountName: speaker, containers: [{name: c, image: i}]}}`, node)
}

// foreignEvent is the Event of another program on n1.
const foreignEvent = `{apiVersion: events.k8s.io/v1, kind: Event, metadata: {namespace: default, name: of-kubelet}, eventTime: "2026-01-01T00:00:00.000000Z", type: Normal,
	reason: Started, action: Start, reportingController: kubelet, reportingInstance: n1, regarding: {apiVersion: v1, kind: Node, name: n1}}`

// expectRefused checks that a speaker of n1, with the token of its pod, may do nothing of what
// harms other nodes, although all objects exist.
func (f *fanfare) expectRefused(c *Client) {
	f.Helper()
	ctx := f.Context()
	must(f.T, f.Admin().Apply(ctx, foreignEvent))
	must(f.T, f.Admin().Apply(ctx, `{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {namespace: fanfare-system, name: fanfare-controller}}`))
	of := func(group, resource, namespace string) dynamic.ResourceInterface {
		version := "v1"
		if group == "fanfare.io" {
			version = "v1alpha1"
		}
		r := c.dynamic.Resource(schema.GroupVersionResource{Group: group, Version: version, Resource: resource})
		if namespace == "" {
			return r
		}
		return r.Namespace(namespace)
	}
	leases, statuses, events := of("coordination.k8s.io", "leases", "fanfare-node-lease"), of("fanfare.io", "speakerstatuses", ""), of("events.k8s.io", "events", "default")
	must(f.T, c.Apply(ctx, aboutNode("n1")[0])) // Its own objects are allowed.
	for _, own := range []struct {
		dynamic.ResourceInterface
		name string
	}{{leases, "n1"}, {statuses, "n1"}, {events, "about-n1"}} {
		if _, err := own.Patch(ctx, own.name, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
			f.Errorf("own %s: %v", own.name, err)
		}
		for _, patch := range []string{`{"metadata":{"finalizers":["example.com/keep"]}}`,
			`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n2","uid":"x"}]}}`,
			`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Namespace","name":"n1","uid":"x"}]}}`,
			`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n1","uid":"x","blockOwnerDeletion":true}]}}`} {
			_, err := own.Patch(ctx, own.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			f.expectForbiddenBy("patch own "+own.name+" with "+patch, err)
		}
	}
	merge := func(r dynamic.ResourceInterface, name, patch string, subresource ...string) error {
		_, err := r.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresource...)
		return err
	}
	create := func(r dynamic.ResourceInterface, text string, subresource ...string) error {
		objects, err := decode(text)
		must(f.T, err)
		_, err = r.Create(ctx, objects[0], metav1.CreateOptions{}, subresource...)
		return err
	}
	update := func(r dynamic.ResourceInterface, text string, subresource ...string) error {
		objects, err := decode(text)
		must(f.T, err)
		objects[0].SetResourceVersion("1")
		_, err = r.Update(ctx, objects[0], metav1.UpdateOptions{}, subresource...)
		return err
	}
	get := func(r dynamic.ResourceInterface, name string) error {
		_, err := r.Get(ctx, name, metav1.GetOptions{})
		return err
	}
	list := func(r dynamic.ResourceInterface, selector string) error {
		_, err := r.List(ctx, metav1.ListOptions{FieldSelector: selector})
		return err
	}
	watch := func(r dynamic.ResourceInterface, selector string) error {
		w, err := r.Watch(ctx, metav1.ListOptions{FieldSelector: selector})
		if err == nil {
			w.Stop()
		}
		return err
	}
	remove := func(r dynamic.ResourceInterface, name string) error {
		return r.Delete(ctx, name, metav1.DeleteOptions{})
	}
	removeAll := func(r dynamic.ResourceInterface) error {
		return r.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	}
	// The API server refuses these before it asks the policy.
	for what, err := range map[string]error{
		"make an Event of n2 the own": merge(events, "about-n2", `{"reportingInstance":"n1"}`),
		"create an Event of no node":  create(events, strings.NewReplacer("of-kubelet", "again", "reportingInstance: n1", "reportingInstance: ''").Replace(foreignEvent)),
	} {
		if !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
			f.Errorf("the speaker of n1 may %s: %v", what, err)
		}
	}
	n2 := aboutNode("n2")
	system, accounts := of("coordination.k8s.io", "leases", "fanfare-system"), of("", "serviceaccounts", "fanfare-system")
	secrets := of("", "secrets", "fanfare-system")
	const label = `{"metadata":{"labels":{"a":"b"}}}`
	for what, err := range map[string]error{
		"create Lease n2":                           create(leases, strings.ReplaceAll(n2[0], "n2", "n3")),
		"create a Lease with generateName":          create(leases, `{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {namespace: fanfare-node-lease, generateName: n1}}`),
		"update Lease n2":                           update(leases, n2[0]),
		"update own Lease":                          update(leases, aboutNode("n1")[0]), // not needed
		"patch Lease n2":                            merge(leases, "n2", label),
		"delete Lease n2":                           remove(leases, "n2"),
		"delete own Lease":                          remove(leases, "n1"),
		"delete all Leases":                         removeAll(leases),
		"list Leases":                               list(leases, ""),
		"read the controllers' Lease":               get(system, "fanfare-controller"),
		"patch the controllers' Lease":              merge(system, "fanfare-controller", `{"spec":{"holderIdentity":"n1"}}`),
		"delete the controllers' Lease":             remove(system, "fanfare-controller"),
		"create a Lease beside it":                  create(system, strings.Replace(aboutNode("n1")[0], "fanfare-node-lease", "fanfare-system", 1)),
		"patch a kubelet's Lease":                   merge(of("coordination.k8s.io", "leases", "kube-node-lease"), "n1", label),
		"create SpeakerStatus n3":                   create(statuses, strings.ReplaceAll(n2[1], "n2", "n3")),
		"update SpeakerStatus n2":                   update(statuses, n2[1]),
		"patch SpeakerStatus n2":                    merge(statuses, "n2", label),
		"patch the status of SpeakerStatus n2":      merge(statuses, "n2", `{"status":{}}`, "status"),
		"patch the status of the own SpeakerStatus": merge(statuses, "n1", `{"status":{}}`, "status"), // has no subresource
		"delete SpeakerStatus n2":                   remove(statuses, "n2"),
		"delete the own SpeakerStatus":              remove(statuses, "n1"),
		"delete all SpeakerStatuses":                removeAll(statuses),
		"list SpeakerStatuses":                      list(statuses, ""),
		"create an Event of n2":                     create(events, strings.ReplaceAll(n2[2], "about-n2", "again")),
		"create an Event of another program":        create(events, strings.ReplaceAll(foreignEvent, "of-kubelet", "again")),
		"patch an Event of n2":                      merge(events, "about-n2", label),
		"patch an Event of the kubelet":             merge(events, "of-kubelet", label),
		"update an Event of n2":                     update(events, n2[2]),
		"delete an Event":                           remove(events, "about-n1"),
		"patch an Event by the older API":           merge(of("", "events", "default"), "about-n2", label),
		"create an Event by the older API":          create(of("", "events", "default"), `{apiVersion: v1, kind: Event, metadata: {namespace: default, name: x}, reportingComponent: fanfare.io/speaker, reportingInstance: n1, involvedObject: {namespace: default}}`),
		"get a token of the account":                create(accounts, `{apiVersion: authentication.k8s.io/v1, kind: TokenRequest, metadata: {name: speaker}}`, "token"),
		"get a Secret":                              get(secrets, "other"),
		"list Secrets":                              list(secrets, ""),
		"list one Secret":                           list(secrets, "metadata.name=other"),
		"watch Secrets":                             watch(secrets, ""),
		"watch one Secret":                          watch(secrets, "metadata.name=other"),
		"list Secrets of a type":                    list(secrets, "type=kubernetes.io/basic-auth"),
		"patch a Secret":                            merge(secrets, "other", label),
		"change the policy":                         remove(of("admissionregistration.k8s.io", "validatingadmissionpolicies", ""), "fanfare-speaker"),
		"grant a right":                             merge(of("rbac.authorization.k8s.io", "clusterroles", ""), "fanfare-speaker", label),
		"read a Pod":                                get(of("", "pods", "fanfare-system"), "speaker-n1"),
	} {
		f.expectForbiddenBy(what, err)
	}
}

func (f *fanfare) expectForbiddenBy(what string, err error) {
	f.Helper()
	if !apierrors.IsForbidden(err) {
		f.Errorf("the speaker of n1 may %s: %v", what, err)
	}
}

// expectExpired checks that the token of a pod or node that is gone is worth nothing.
func (f *fanfare) expectExpired() {
	f.Helper()
	const n9 = "{apiVersion: v1, kind: Node, metadata: {name: n9}}"
	must(f.T, f.Admin().Apply(f.Context(), n9))
	must(f.T, f.Admin().Create(f.Context(), speakerPod("n9")))
	tokens := map[string]*Client{"node": f.withToken("Node", "n9"), "pod": f.withToken("Pod", "speaker-n9")}
	for of, c := range tokens {
		if err := c.Apply(f.Context(), aboutNode("n9")[1]); err != nil {
			f.Errorf("token of the %s: %v", of, err)
		}
	}
	must(f.T, f.Admin().Delete(f.Context(), n9))
	must(f.T, f.Admin().Delete(f.Context(), speakerPod("n9")))
	for of, c := range tokens {
		await(f.T, time.Minute, "the end of the token of a "+of, func() error {
			if err := c.Apply(f.Context(), aboutNode("n9")[1]); !anyIs(err, apierrors.IsUnauthorized) {
				return fmt.Errorf("it is accepted: %v", err)
			}
			return nil
		})
	}
}

// withToken returns a client with a token of the speaker's account that the API server has made,
// bound to a Node or a Pod (KEP-4193) or, without a name, to nothing.
func (f *fanfare) withToken(kind, name string) *Client {
	f.Helper()
	var bound *authenticationv1.BoundObjectReference
	if name != "" {
		bound = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: kind, Name: name}
	}
	config := rest.AnonymousClientConfig(f.Admin().config)
	config.BearerToken = f.token("fanfare-system", "speaker", bound)
	c, err := NewClient(config)
	must(f.T, err)
	return c
}

// token returns a token of an account.
func (f *fanfare) token(namespace, account string, bound *authenticationv1.BoundObjectReference) string {
	f.Helper()
	request := authenticationv1.TokenRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"},
		Spec:     authenticationv1.TokenRequestSpec{BoundObjectRef: bound},
	}
	body, err := json.Marshal(request)
	must(f.T, err)
	out, err := f.Admin().discovery.RESTClient().Post().AbsPath("/api/v1/namespaces/"+namespace+"/serviceaccounts/"+account+"/token").
		SetHeader("Content-Type", "application/json").Body(body).DoRaw(f.Context())
	must(f.T, err)
	must(f.T, json.Unmarshal(out, &request))
	return request.Status.Token
}
