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
			must(t, f.Admin().Apply(t.Context(),
				fmt.Sprintf(`{apiVersion: v1, kind: Node, metadata: {name: %s}}`, node)))
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
			if err := free.Apply(t.Context(), o); !anyIs(err, apierrors.IsForbidden) ||
				!strings.Contains(err.Error(), "must be bound to its pod") {
				t.Errorf("a token without a node changed %s: %v", o, err)
			}
			other := aboutNode("n2")[i]
			for _, exists := range []bool{false, true} { // create, then patch
				err := n1.Apply(t.Context(), other)
				if !exists && i == 2 {
					err = n1.Create(t.Context(), other)
				}
				if !anyIs(err, apierrors.IsForbidden) ||
					!strings.Contains(err.Error(), "a speaker of node n1 must not write for n2") {
					t.Errorf("the speaker of n1 wrote %s (exists: %t): %v", other, exists, err)
				}
				must(t, f.Admin().Apply(t.Context(), other))
			}
		}
		for _, namespace := range []string{"fanfare-system", "kube-system", "default"} {
			o := strings.Replace(aboutNode("n1")[0], "fanfare-node-lease", namespace, 1)
			for _, name := range []string{"n1", "fanfare-controller"} {
				if err := n1.Apply(t.Context(), strings.Replace(o, "name: n1", "name: "+name, 1)); !anyIs(err,
					apierrors.IsForbidden) {
					t.Errorf("the speaker of n1 wrote Lease %s in %s: %v", name, namespace, err)
				}
			}
		}
		must(t, f.Admin().Create(t.Context(), speakerPod("n1")))
		f.expectRefused(f.withToken("Pod", "speaker-n1"))
		f.expectExpired()
		// Other users are not concerned.
		if n, err := f.apiServerMetric("apiserver_validating_admission_policy_check_total",
			regexp.MustCompile(`policy="fanfare-speaker".*error_type="(invalid|timeout|panic)`)); err == nil && n != 0 {
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

// expectRefused checks that a speaker of n1, with the token of its pod, may do nothing that harms
// other nodes, although all objects exist.
func (f *fanfare) expectRefused(c *Client) {
	f.Helper()
	must(f.T, f.Admin().Apply(f.Context(), foreignEvent))
	must(f.T, f.Admin().Apply(f.Context(),
		`{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {namespace: fanfare-system, name: fanfare-controller}}`))
	must(f.T, c.Apply(f.Context(), aboutNode("n1")[0])) // Its own objects are allowed.
	a := attacker{f, c}
	a.tryOwnObjects()
	a.tryLeases()
	a.tryStatuses()
	a.tryEvents()
	a.tryOthers()
}

// An attacker has a client with the token of the speaker of n1.
type attacker struct {
	*fanfare
	client *Client
}

// A target is one resource, for requests one by one.
type target struct {
	dynamic.ResourceInterface
	a attacker
}

func (a attacker) at(group, resource, namespace string) target {
	version := "v1"
	if group == "fanfare.io" {
		version = "v1alpha1"
	}
	r := a.client.dynamic.Resource(schema.GroupVersionResource{Group: group, Version: version, Resource: resource})
	if namespace == "" {
		return target{r, a}
	}
	return target{r.Namespace(namespace), a}
}

func (t target) merge(name, patch string, subresource ...string) error {
	_, err := t.Patch(t.a.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresource...)
	return err
}

func (t target) create(text string, subresource ...string) error {
	objects, err := decode(text)
	must(t.a.T, err)
	_, err = t.Create(t.a.Context(), objects[0], metav1.CreateOptions{}, subresource...)
	return err
}

func (t target) update(text string) error {
	objects, err := decode(text)
	must(t.a.T, err)
	objects[0].SetResourceVersion("1")
	_, err = t.Update(t.a.Context(), objects[0], metav1.UpdateOptions{})
	return err
}

func (t target) get(name string) error {
	_, err := t.Get(t.a.Context(), name, metav1.GetOptions{})
	return err
}

func (t target) list(selector string) error {
	_, err := t.List(t.a.Context(), metav1.ListOptions{FieldSelector: selector})
	return err
}

func (t target) watch(selector string) error {
	w, err := t.Watch(t.a.Context(), metav1.ListOptions{FieldSelector: selector})
	if err == nil {
		w.Stop()
	}
	return err
}

func (t target) remove(name string) error {
	return t.Delete(t.a.Context(), name, metav1.DeleteOptions{})
}

func (t target) removeAll() error {
	return t.DeleteCollection(t.a.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
}

// label is a harmless patch.
const label = `{"metadata":{"labels":{"a":"b"}}}`

func (a attacker) leases() target   { return a.at("coordination.k8s.io", "leases", "fanfare-node-lease") }
func (a attacker) statuses() target { return a.at("fanfare.io", "speakerstatuses", "") }
func (a attacker) events() target   { return a.at("events.k8s.io", "events", "default") }

// forbidden fails for each request that was not forbidden.
func (a attacker) forbidden(results map[string]error) {
	a.Helper()
	for what, err := range results {
		a.expectForbiddenBy(what, err)
	}
}

// tryOwnObjects: the own objects may be changed, and must not delay a deletion.
func (a attacker) tryOwnObjects() {
	a.Helper()
	for name, own := range map[string]target{"n1": a.leases(), "n1 ": a.statuses(), "about-n1": a.events()} {
		name = strings.TrimSpace(name)
		if err := own.merge(name, label); err != nil {
			a.Errorf("own %s: %v", name, err)
		}
		for _, patch := range []string{`{"metadata":{"finalizers":["example.com/keep"]}}`,
			`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n2","uid":"x"}]}}`,
			`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Namespace","name":"n1","uid":"x"}]}}`,
			`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n1","uid":"x","blockOwnerDeletion":true}]}}`} {
			a.expectForbiddenBy("patch own "+name+" with "+patch, own.merge(name, patch))
		}
	}
}

func (a attacker) tryLeases() {
	a.Helper()
	leases, system := a.leases(), a.at("coordination.k8s.io", "leases", "fanfare-system")
	own, other := aboutNode("n1")[0], aboutNode("n2")[0]
	a.forbidden(map[string]error{
		"create Lease n3": leases.create(strings.ReplaceAll(other, "n2", "n3")),
		"create a Lease with generateName": leases.create(
			`{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {namespace: fanfare-node-lease, generateName: n1}}`),
		"update Lease n2":               leases.update(other),
		"update the own Lease":          leases.update(own), // not needed
		"patch Lease n2":                leases.merge("n2", label),
		"delete Lease n2":               leases.remove("n2"),
		"delete the own Lease":          leases.remove("n1"),
		"delete all Leases":             leases.removeAll(),
		"list Leases":                   leases.list(""),
		"read the controllers' Lease":   system.get("fanfare-controller"),
		"patch the controllers' Lease":  system.merge("fanfare-controller", `{"spec":{"holderIdentity":"n1"}}`),
		"delete the controllers' Lease": system.remove("fanfare-controller"),
		"create a Lease beside it": system.create(strings.Replace(own, "fanfare-node-lease", "fanfare-system",
			1)),
		"patch a kubelet's Lease": a.at("coordination.k8s.io", "leases", "kube-node-lease").merge("n1", label),
	})
}

func (a attacker) tryStatuses() {
	a.Helper()
	statuses, other := a.statuses(), aboutNode("n2")[1]
	a.forbidden(map[string]error{
		"create SpeakerStatus n3":              statuses.create(strings.ReplaceAll(other, "n2", "n3")),
		"update SpeakerStatus n2":              statuses.update(other),
		"patch SpeakerStatus n2":               statuses.merge("n2", label),
		"patch the status of SpeakerStatus n2": statuses.merge("n2", `{"status":{}}`, "status"),
		// It has no subresource.
		"patch the status of the own SpeakerStatus": statuses.merge("n1", `{"status":{}}`, "status"),
		"delete SpeakerStatus n2":                   statuses.remove("n2"),
		"delete the own SpeakerStatus":              statuses.remove("n1"),
		"delete all SpeakerStatuses":                statuses.removeAll(),
		"list SpeakerStatuses":                      statuses.list(""),
	})
}

func (a attacker) tryEvents() {
	a.Helper()
	events, older, other := a.events(), a.at("", "events", "default"), aboutNode("n2")[2]
	a.forbidden(map[string]error{
		"create an Event of n2":              events.create(strings.ReplaceAll(other, "about-n2", "again")),
		"create an Event of another program": events.create(strings.ReplaceAll(foreignEvent, "of-kubelet", "again")),
		"patch an Event of n2":               events.merge("about-n2", label),
		"patch an Event of the kubelet":      events.merge("of-kubelet", label),
		"update an Event of n2":              events.update(other),
		"delete an Event":                    events.remove("about-n1"),
		"patch an Event by the older API":    older.merge("about-n2", label),
		"create an Event by the older API": older.create(
			`{apiVersion: v1, kind: Event, metadata: {namespace: default, name: x}, reportingComponent: fanfare.io/speaker, reportingInstance: n1, involvedObject: {namespace: default}}`),
	})
	// The API server refuses these before it asks the policy.
	for what, err := range map[string]error{
		"make an Event of n2 the own": events.merge("about-n2", `{"reportingInstance":"n1"}`),
		"create an Event of no node": events.create(strings.NewReplacer("of-kubelet", "again", "reportingInstance: n1",
			"reportingInstance: ''").Replace(foreignEvent)),
	} {
		if !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
			a.Errorf("the speaker of n1 may %s: %v", what, err)
		}
	}
}

func (a attacker) tryOthers() {
	a.Helper()
	secrets := a.at("", "secrets", "fanfare-system")
	a.forbidden(map[string]error{
		"get a token of the account": a.at("", "serviceaccounts",
			"fanfare-system").create(`{apiVersion: authentication.k8s.io/v1, kind: TokenRequest, metadata: {name: speaker}}`, "token"),
		"get a Secret":           secrets.get("other"),
		"list Secrets":           secrets.list(""),
		"list one Secret":        secrets.list("metadata.name=other"),
		"watch Secrets":          secrets.watch(""),
		"watch one Secret":       secrets.watch("metadata.name=other"),
		"list Secrets of a type": secrets.list("type=kubernetes.io/basic-auth"),
		"patch a Secret":         secrets.merge("other", label),
		"change the policy": a.at("admissionregistration.k8s.io", "validatingadmissionpolicies",
			"").remove("fanfare-speaker"),
		"grant a right": a.at("rbac.authorization.k8s.io", "clusterroles", "").merge("fanfare-speaker",
			label),
		"read a Pod": a.at("", "pods", "fanfare-system").get("speaker-n1"),
	})
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
	out, err := f.Admin().discovery.RESTClient().Post().AbsPath("/api/v1/namespaces/"+namespace+"/serviceaccounts/"+
		account+"/token").
		SetHeader("Content-Type", "application/json").Body(body).DoRaw(f.Context())
	must(f.T, err)
	must(f.T, json.Unmarshal(out, &request))
	return request.Status.Token
}
