package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// rights are the additional rights of the accounts: in every namespace, or in the named
// one.
var rights = map[string]string{
	"controller": `
create addressclaims.fanfare.io
create events.events.k8s.io
create leases.coordination.k8s.io in fanfare-system
create secrets in fanfare-system
create subjectaccessreviews.authorization.k8s.io
create tokenreviews.authentication.k8s.io
delete addressclaims.fanfare.io
get addressclaims.fanfare.io
get addresspools.fanfare.io
get bgpadvertisements.fanfare.io
get l2advertisements.fanfare.io
get namespaces
get services
list addressclaims.fanfare.io
list addresspools.fanfare.io
list bgpadvertisements.fanfare.io
list bgppeers.fanfare.io
list endpointslices.discovery.k8s.io
list l2advertisements.fanfare.io
list namespaces
list nodes
list servicecidrs.networking.k8s.io
list services
list speakerstatuses.fanfare.io
patch addressclaims.fanfare.io
patch addresspools.fanfare.io/status
patch bgpadvertisements.fanfare.io/status
patch l2advertisements.fanfare.io/status
patch services/status
watch addressclaims.fanfare.io
watch addresspools.fanfare.io
watch bgpadvertisements.fanfare.io
watch bgppeers.fanfare.io
watch endpointslices.discovery.k8s.io
watch l2advertisements.fanfare.io
watch namespaces
watch nodes
watch servicecidrs.networking.k8s.io
watch services
watch speakerstatuses.fanfare.io
`,
	"speaker": `
create events.events.k8s.io
create leases.coordination.k8s.io in fanfare-node-lease
create speakerstatuses.fanfare.io
create subjectaccessreviews.authorization.k8s.io
create tokenreviews.authentication.k8s.io
list addressclaims.fanfare.io
list addresspools.fanfare.io
list bgpadvertisements.fanfare.io
list bgppeers.fanfare.io
list endpointslices.discovery.k8s.io
list l2advertisements.fanfare.io
list nodes
list services
patch events.events.k8s.io
patch leases.coordination.k8s.io in fanfare-node-lease
patch speakerstatuses.fanfare.io
watch addressclaims.fanfare.io
watch addresspools.fanfare.io
watch bgpadvertisements.fanfare.io
watch bgppeers.fanfare.io
watch endpointslices.discovery.k8s.io
watch l2advertisements.fanfare.io
watch leases.coordination.k8s.io in fanfare-node-lease
watch nodes
watch services
`,
}

// The accounts have exactly the rights listed above, of all requests that the API server
// supports.
func TestRolesGrantOnlyListedRights(t *testing.T) {
	c := exclusiveControlPlane(t)
	must(t, c.Install(t.Context(), "../../manifests"))
	all := c.allRequests(t)
	common := c.allowed(t, "default:unprivileged", all)
	for account, want := range rights {
		if *oldest { // Kubernetes 1.32 has no ServiceCIDRs.
			want = strings.NewReplacer("list servicecidrs.networking.k8s.io\n", "",
				"watch servicecidrs.networking.k8s.io\n", "").Replace(want)
		}
		got := slices.DeleteFunc(c.allowed(t, "fanfare-system:"+account, all),
			func(r string) bool { return slices.Contains(common, r) })
		if got := "\n" + strings.Join(got, "\n") + "\n"; got != want {
			t.Errorf("the %s may:%swant:%s", account, got, want)
		}
	}
	for name, want := range map[string]bool{"fanfare-controller": true, "another": false} {
		for _, verb := range []string{"get", "update"} {
			lease := authorizationv1.ResourceAttributes{
				Verb: verb, Group: "coordination.k8s.io", Resource: "leases", Namespace: "fanfare-system", Name: name,
			}
			if got, err := c.review(t, "fanfare-system:controller", lease); err != nil || got != want {
				t.Errorf("the controller may %s Lease %s: %t, %v", verb, name, got, err)
			}
		}
	}
}

// allRequests returns each verb for each resource and subresource, in all namespaces and in
// each of Fanfare's.
func (c *Cluster) allRequests(t *testing.T) (all []authorizationv1.ResourceAttributes) {
	t.Helper()
	_, groups, err := c.Admin().discovery.ServerGroupsAndResources()
	must(t, err)
	verbs := []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "impersonate",
		"bind", "escalate"}
	seen := map[string]bool{}
	for _, g := range groups {
		group, _, grouped := strings.Cut(g.GroupVersion, "/")
		if !grouped {
			group = ""
		}
		for _, r := range g.APIResources {
			if key := group + "/" + r.Name; seen[key] {
				continue // another version of the resource
			} else {
				seen[key] = true
			}
			name, sub, _ := strings.Cut(r.Name, "/")
			for _, verb := range verbs {
				a := authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: name, Subresource: sub}
				all = append(all, a)
				for _, namespace := range []string{"fanfare-node-lease", "fanfare-system"} {
					if a.Namespace = namespace; r.Namespaced {
						all = append(all, a)
					}
				}
			}
		}
	}
	if len(all) < 500 {
		t.Fatalf("the API server lists only %d requests", len(all))
	}
	return all
}

// allowed returns those requests that a service account may make, sorted, as text. A right
// in every namespace includes Fanfare's.
func (c *Cluster) allowed(t *testing.T, account string, all []authorizationv1.ResourceAttributes) []string {
	t.Helper()
	var asking errgroup.Group
	asking.SetLimit(16)
	var mu sync.Mutex
	review := map[authorizationv1.ResourceAttributes]bool{}
	for _, a := range all {
		asking.Go(func() error {
			ok, err := c.review(t, account, a)
			mu.Lock()
			defer mu.Unlock()
			review[a] = ok
			return err
		})
	}
	must(t, asking.Wait())
	var out []string
	for _, a := range all {
		everywhere := a
		everywhere.Namespace = ""
		if review[a] && (a.Namespace == "" || !review[everywhere]) {
			out = append(out, describe(a))
		}
	}
	slices.Sort(out)
	return out
}

func describe(a authorizationv1.ResourceAttributes) string {
	s := a.Verb + " " + a.Resource
	if a.Group != "" {
		s += "." + a.Group
	}
	if a.Subresource != "" {
		s += "/" + a.Subresource
	}
	if a.Namespace != "" {
		s += " in " + a.Namespace
	}
	return s
}

// review asks the API server for the right.
func (c *Cluster) review(t *testing.T, account string, a authorizationv1.ResourceAttributes) (bool, error) {
	namespace, _, _ := strings.Cut(account, ":")
	body, err := json.Marshal(authorizationv1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"},
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:" + account,
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace,
				"system:authenticated"},
			ResourceAttributes: &a,
		},
	})
	if err != nil {
		return false, err
	}
	out, err := c.Admin().discovery.RESTClient().Post().AbsPath("/apis/authorization.k8s.io/v1/subjectaccessreviews").
		SetHeader("Content-Type", "application/json").Body(body).DoRaw(t.Context())
	if err != nil {
		return false, err
	}
	var answer authorizationv1.SubjectAccessReview
	err = json.Unmarshal(out, &answer)
	return answer.Status.Allowed, err
}

// forbidden are requests with which an attacker who controls a program could do harm
// elsewhere.
var forbidden = map[string][]string{
	"speaker": {
		`{apiVersion: v1, kind: Service, metadata: {namespace: default, name: web, annotations: {a: b}}}`,
		`{apiVersion: fanfare.io/v1alpha1, kind: AddressClaim, metadata: {name: 192.0.2.99}, spec: {address: 192.0.2.99}}`,
		`{apiVersion: fanfare.io/v1alpha1, kind: AddressPool, metadata: {name: lan}, spec: {announce: BGP, addresses: [203.0.113.0/24]}}`,
		`{apiVersion: fanfare.io/v1alpha1, kind: BGPPeer, metadata: {name: tor9}, spec: {peerAddress: 203.0.113.1, peerASN: 1, myASN: 2}}`,
		`{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {a: b}}}`,
		`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: default, name: web-1}, addressType: IPv4, endpoints: []}`,
		`{apiVersion: v1, kind: Pod, metadata: {namespace: fanfare-system, name: p}, spec: {containers: [{name: c, image: i}]}}`,
	},
	"controller": {
		`{apiVersion: v1, kind: Service, metadata: {namespace: default, name: web, annotations: {a: b}}}`,
		`{apiVersion: fanfare.io/v1alpha1, kind: AddressPool, metadata: {name: lan}, spec: {announce: BGP, addresses: [203.0.113.0/24]}}`,
		`{apiVersion: fanfare.io/v1alpha1, kind: SpeakerStatus, metadata: {name: n1}}`,
		`{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {a: b}}}`,
		`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: default, name: web-1}, addressType: IPv4, endpoints: []}`,
		`{apiVersion: v1, kind: Namespace, metadata: {name: default, labels: {a: b}}}`,
		`{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {namespace: kube-system, name: fanfare-controller}}`,
		`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: x}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}, subjects: [{kind: ServiceAccount, name: controller, namespace: fanfare-system}]}`,
	},
}

// The API server refuses no request of the programs, and refuses all harmful ones.
func TestProgramsRequestNothingForbidden(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		controller := f.run("controller", "--leader-elect", "--log-level=debug")
		speaker := f.speaker("--log-level=debug")
		must(t, f.Admin().Apply(t.Context(), oneNode+"---"+oneService("web", "10.244.1.5")+"---"+
			oneService("gone", "10.244.1.6")))
		await(t, 60*time.Second, "addresses", func() error { return expectCount(len(f.addressesByPrefix("")), 2) })
		must(t, f.Admin().Delete(t.Context(), oneService("gone", "")))
		await(t, 60*time.Second, "the claim's end", func() error {
			claims, err := f.claims()
			return errors.Join(err, expectCount(len(claims), 1))
		})
		await(t, 60*time.Second, "the pool's status and the speaker's", func() error {
			pool, err := f.get(kindOf("AddressPool"), "lan")
			must(t, err)
			n, _, _ := unstructured.NestedInt64(pool.Object, "status", "ipv4", "assigned")
			s, err := f.get(kindOf("SpeakerStatus"), "n1")
			if err != nil || s == nil || n != 1 {
				return fmt.Errorf("pool %v, speaker %v: %w", pool.Object["status"], s, err)
			}
			m, _, _ := unstructured.NestedInt64(s.Object, "status", "addresses", "forwarded")
			return expectCount(int(m), 1)
		})
		controller.stop() // It releases the Lease.
		speaker.stop()
		refused, err := f.apiServerMetric("apiserver_request_total", regexp.MustCompile(`code="(401|403)"`))
		must(t, err)
		if refused != 0 || controller.logged("forbidden") || speaker.logged("forbidden") {
			t.Errorf("%.0f requests were refused; the logs:\n%s\n%s", refused, controller.tail(), speaker.tail())
		}

		for account, objects := range forbidden {
			f.expectForbidden(account, objects)
		}
		err = f.as("speaker").Patch(t.Context(), serviceKind, "default", "web",
			`{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.99"}]}}}`, "status")
		if !apierrors.IsForbidden(err) {
			t.Errorf("the speaker assigned an address: %v", err)
		}
	})
}

// unreadable are kinds that an account may not read.
var unreadable = map[string][]string{
	"speaker":    {"Secret", "ConfigMap", "Pod", "Namespace"},
	"controller": {"Secret", "ConfigMap", "Pod"}, // namespaceSelectors need Namespaces' labels
}

// expectForbidden checks that an account may not apply the objects, nor read unreadable
// kinds.
func (f *fanfare) expectForbidden(account string, objects []string) {
	f.Helper()
	c := f.as(account)
	for _, o := range objects {
		if err := c.Apply(f.Context(), o); !anyIs(err, apierrors.IsForbidden) {
			f.Errorf("the %s applied %s: %v", account, o, err)
		}
	}
	for _, kind := range unreadable[account] {
		gvk := serviceKind
		gvk.Kind = kind
		if _, err := c.List(f.Context(), gvk); !anyIs(err, apierrors.IsForbidden) {
			f.Errorf("the %s listed %s: %v", account, kind, err)
		}
	}
}

// as returns a client with the rights of an account.
func (f *fanfare) as(account string) *Client {
	f.Helper()
	cfg := f.SpeakerConfig("n1")
	if account != "speaker" {
		var err error
		cfg, err = f.Config("system:serviceaccount:fanfare-system:" + account)
		must(f.T, err)
	}
	c, err := NewClient(cfg)
	must(f.T, err)
	return c
}

// anyIs reports whether what is true of err or of an error that it joins.
func anyIs(err error, what func(error) bool) bool {
	var many interface{ Unwrap() []error }
	if errors.As(err, &many) {
		return slices.ContainsFunc(many.Unwrap(), func(err error) bool { return anyIs(err, what) })
	}
	return err != nil && what(err)
}
