package controller

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
)

// A clerk notes what is asked of the store: "patch services/status".
type clerk struct {
	*store
	mu    sync.Mutex
	asked map[string]bool
}

func (c *clerk) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	c.asked[ask(r)] = true
	c.mu.Unlock()
	return c.store.RoundTrip(r)
}

// ask is what the API server authorises a request as.
func ask(r *http.Request) string {
	verbs := map[string]string{"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
	p := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/apis/"), "/api/v1/")
	group, sub := "", ""
	if strings.HasPrefix(r.URL.Path, "/apis/") {
		group = "." + strings.Split(p, "/")[0]
		p = strings.Join(strings.Split(p, "/")[2:], "/")
	}
	if rest, ok := strings.CutPrefix(p, "namespaces/"); ok && strings.Contains(rest, "/") {
		p = rest[strings.Index(rest, "/")+1:]
	}
	if p, ok := strings.CutSuffix(p, "/status"); ok {
		sub = "/status"
		return verbs[r.Method] + " " + path.Dir(p) + group + sub
	}
	return verbs[r.Method] + " " + strings.Split(p, "/")[0] + group
}

// The roles allow what the controller asks for, and nothing that it does not.
func TestRoles(t *testing.T) {
	asked := map[string]bool{}
	bubble.Test(t, func(t *testing.T) { asked = everything(t) })
	// What internal/cluster watches.
	for _, r := range []string{"services", "addresspools.fanfare.io", "bgppeers.fanfare.io", "addressclaims.fanfare.io",
		"bgpadvertisements.fanfare.io", "l2advertisements.fanfare.io",
		"namespaces", "nodes", "servicecidrs.networking.k8s.io", "endpointslices.discovery.k8s.io",
		"speakerstatuses.fanfare.io"} {
		asked["list "+r], asked["watch "+r] = true, true
	}
	allowed := roles(t, "fanfare-controller", "controller")
	for _, a := range slices.Sorted(maps.Keys(asked)) {
		if !allowed[a] {
			t.Errorf("the controller asks to %s, which no role allows", a)
		}
	}
	for _, a := range slices.Sorted(maps.Keys(allowed)) {
		if !asked[a] {
			t.Errorf("a role allows to %s, which the controller does not do", a)
		}
	}
}

// everything makes a controller do all that it can do.
func everything(t *testing.T) map[string]bool {
	s := newStore(t)
	c := &clerk{store: s, asked: map[string]bool{}}
	o := options(s)
	o.Config = s.config(c)
	o.Key = cluster.Name{Namespace: "fanfare-system", Name: "fanfare-members"}
	ctl, err := newController(o)
	if err != nil {
		t.Fatal(err)
	}
	ctl.source = s.source()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer cancel()
		time.Sleep(10 * time.Second) // some renewals
	}()
	s.populate(t)
	s.put(advertsPath+"lan", nil, object{"metadata": object{"name": "lan"}})
	s.put("/apis/fanfare.io/v1alpha1/bgpadvertisements/lan", nil, object{"metadata": object{"name": "lan"}})
	o.Election = &Election{Namespace: "fanfare-system", Name: "fanfare-controller", Identity: "me"}
	o.Election.run(ctx, ctl.writer.leases, slog.New(slog.DiscardHandler), func(ctx context.Context) {
		ctl.source = s.source()
		ctl.pass(ctx)
		s.remove(servicesPath + "s0")
		// A reservation that ends with its namespace.
		s.put(namespacesPath+"default", nil, object{"metadata": object{"name": "default"}})
		s.put(claimsPath+"/192.0.2.99", nil, from(t, reservedClaim("192.0.2.99", "gone")))
		// A claim of which the controller's cache does not know.
		ctl.source = forgetful{s.source()}
		ctl.pass(ctx)
		ctl.source = s.source()
		ctl.pass(ctx)
		ctl.keepKey(ctx) // until ctx ends
	})
	return c.asked
}

// A forgetful source knows no claims.
type forgetful struct{ cluster.Source }

func (f forgetful) Snapshot() *cluster.Snapshot {
	s := *f.Source.Snapshot()
	s.Claims = cluster.Claims{}
	return &s
}

// roles is what the roles with these names allow.
func roles(t *testing.T, names ...string) map[string]bool {
	t.Helper()
	b, err := os.ReadFile("../manifests/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	allowed := map[string]bool{}
	for doc := range strings.SplitSeq(string(b), "\n---\n") {
		var r struct {
			metav1.TypeMeta
			metav1.ObjectMeta `json:"metadata"`
			Rules             []rbacv1.PolicyRule
		}
		if err := yaml.Unmarshal([]byte(doc), &r); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(r.Kind, "Role") || !slices.Contains(names, r.Name) {
			continue
		}
		for _, rule := range r.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						name, sub, _ := strings.Cut(resource, "/")
						if group != "" {
							name += "." + group
						}
						if sub != "" {
							name += "/" + sub
						}
						allowed[verb+" "+name] = true
					}
				}
			}
		}
	}
	return allowed
}
