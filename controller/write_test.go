package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// events are the Events of Services in the store, as "Type Reason service: note".
func (s *store) events(t *testing.T) []string {
	var out []string
	for path, o := range s.objects {
		if strings.Contains(path, "/events/") {
			e := into[eventsv1.Event](t, o)
			if e.Regarding.Kind == "Service" {
				out = append(out, e.Type+" "+e.Reason+" "+e.Regarding.Name+": "+e.Note)
			}
		}
	}
	slices.Sort(out)
	return out
}

func (s *store) get(t *testing.T, name string) corev1.Service {
	return into[corev1.Service](t, s.objects[servicesPath+name])
}

func (s *store) claim(t *testing.T, a string) (v1alpha1.AddressClaim, bool) {
	o, ok := s.objects[claimsPath+"/"+v1alpha1.ClaimName(netip.MustParseAddr(a))]
	return into[v1alpha1.AddressClaim](t, o), ok
}

// settleAll makes passes over what is there, each with a fresh cache.
func (s *store) settleAll(t *testing.T, c *controller) {
	t.Helper()
	for range 3 {
		c.source = s.source()
		if left, errs := c.pass(t.Context()); left || len(errs) != 0 {
			t.Fatal(left, errs)
		}
	}
}

func start(t *testing.T, s *store, rt http.RoundTripper) *controller {
	t.Helper()
	o := options(s)
	o.Config = s.config(rt)
	c, err := newController(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Each change has one Event, whatever is repeated.
func TestEventsOnce(t *testing.T) {
	s := newStore(t)
	c := start(t, s, nil)
	w := &world{store: s}
	w.setPool("dmz", 1)
	s.put(servicesPath+"a", nil, from(t, w.service("a")))
	s.settleAll(t, c)
	s.put(servicesPath+"b", nil, from(t, w.service("b")))
	s.settleAll(t, c)
	s.remove(servicesPath + "a")
	s.settleAll(t, c)
	s.settleAll(t, start(t, s, nil)) // a new leader has nothing to add
	want := []string{
		"Normal Assigned a: has 192.0.3.1 of pool dmz",
		"Normal Assigned b: has 192.0.3.1 of pool dmz",
		"Warning PoolExhausted b: every IPv4 address of pool dmz is taken; add addresses",
	}
	if got := s.events(t); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if cond := s.get(t, "b").Status.Conditions; len(cond) != 1 || cond[0].Type != cluster.AddressAssigned ||
		cond[0].Status != "True" {
		t.Errorf("conditions %v", cond)
	}
}

// A failing round-tripper fails the requests whose path contains something.
type failing struct {
	*store
	part string
}

func (f *failing) RoundTrip(r *http.Request) (*http.Response, error) {
	if f.part != "" && strings.Contains(r.URL.Path, f.part) {
		return nil, errors.New("connection refused")
	}
	return f.store.RoundTrip(r)
}

// Events that could not be sent are sent later, once.
func TestEventsRetried(t *testing.T) {
	s := newStore(t)
	s.populate(t)
	f := &failing{s, "/events"}
	c := start(t, s, f)
	c.source = s.source()
	if _, errs := c.pass(t.Context()); len(errs) != 1 {
		t.Errorf("errors %v, want that of the Event", errs)
	}
	if got := s.events(t); len(got) != 0 {
		t.Errorf("events %v", got)
	}
	f.part = ""
	s.settleAll(t, c)
	if got := s.events(t); len(got) != 5 {
		t.Errorf("%d events, want one for each Service: %v", len(got), got)
	}
}

// A terminating round-tripper refuses Events as the API server does in a namespace that is being
// deleted, or as for other reasons.
type terminating struct {
	*store
	refusal *apierrors.StatusError
}

func (f terminating) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.Contains(r.URL.Path, "/events") {
		return f.store.RoundTrip(r)
	}
	status := f.refusal.Status()
	status.APIVersion, status.Kind = "v1", "Status"
	b, err := json.Marshal(status)
	return &http.Response{StatusCode: int(status.Code), Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(b))}, err
}

// An Event that a namespace's deletion refuses is no warning, and one that is refused for another
// reason is.
func TestEventsOfDeletedNamespace(t *testing.T) {
	events := schema.GroupResource{Group: "events.k8s.io", Resource: "events"}
	ending := apierrors.NewForbidden(events, "e", errors.New("namespace shop is being terminated"))
	ending.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause,
		Field: "metadata.namespace"}}
	for name, tt := range map[string]struct {
		refusal *apierrors.StatusError
		warns   bool
	}{
		"being deleted": {ending, false},
		"deleted":       {apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "shop"), false},
		"no right":      {apierrors.NewForbidden(events, "e", errors.New("RBAC")), true},
	} {
		s := newStore(t)
		s.populate(t)
		var log bytes.Buffer
		o := options(s)
		o.Config, o.Log = s.config(terminating{s, tt.refusal}), slog.New(slog.NewTextHandler(&log, nil))
		c, err := newController(o)
		if err != nil {
			t.Fatal(err)
		}
		s.settleAll(t, c)
		if warns := strings.Contains(log.String(), "level=WARN"); warns != tt.warns {
			t.Errorf("%s: warns %t, want %t:\n%s", name, warns, tt.warns, &log)
		}
	}
}

// What has changed since the snapshot was made is not written over.
func TestStale(t *testing.T) {
	for name, change := range map[string]func(*corev1.Service){
		"family":  func(s *corev1.Service) { s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} },
		"request": func(s *corev1.Service) { s.Annotations = map[string]string{"fanfare.io/address-pool": "dmz"} },
		"type":    func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP },
		"class":   func(s *corev1.Service) { s.Spec.LoadBalancerClass = new("example.com/lb") },
		"status": func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "a.example.com"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			w := &world{store: s}
			w.setPool("lan", 3)
			s.put(servicesPath+"a", nil, from(t, w.service("a")))
			c := start(t, s, nil)
			c.source = s.source()
			svc := s.get(t, "a")
			change(&svc)
			s.put(servicesPath+"a", s.objects[servicesPath+"a"], from(t, svc))
			s.wrote = func(path string, _, _ object) {
				if !strings.Contains(path, "/addresspools/") && !strings.Contains(path, "/events/lan.") {
					t.Errorf("%s was written", path)
				}
			}
			if _, errs := c.pass(t.Context()); len(errs) != 1 || !errors.Is(errs[0], errStale) {
				t.Errorf("errors %v, want that the snapshot is behind", errs)
			}
		})
	}
}

// confirmReleased, by what the Service is when it is looked at.
func TestConfirmReleased(t *testing.T) {
	a := netip.MustParseAddr("192.0.2.1")
	with := func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}, {IP: "192.0.2.2"}}
	}
	for _, tt := range []struct {
		name    string
		change  func(*corev1.Service) // nil: there is no such Service
		bound   bool                  // the claim is bound to the Service as it is
		want    string                // a part of the error
		touched bool                  // the Service is at another version afterwards
	}{
		{"gone", nil, true, "", false},
		{"without the address", func(*corev1.Service) {}, false, "", false},
		{"without the address, but a write may be in flight", func(*corev1.Service) {}, true, "", true},
		{"with the address", with, false, "the API server knows more", false},
		{"no LoadBalancer, with the address still",
			func(s *corev1.Service) { with(s); s.Spec.Type = corev1.ServiceTypeNodePort }, false, "", true},
		{"no LoadBalancer, without", func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeNodePort
		}, false, "", false},
		{"of another class, with the address",
			func(s *corev1.Service) {
				with(s)
				s.Spec.LoadBalancerClass = new("example.com/lb")
			}, false, "of class example.com/lb", false},
		{"of another class, without", func(s *corev1.Service) {
			s.Spec.LoadBalancerClass = new("example.com/lb")
		}, false, "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStore(t)
			h := cluster.Holder{Name: cluster.Name{Namespace: "shop", Name: "a"}, UID: "uid-1", ResourceVersion: "1"}
			if tt.change != nil {
				svc := (&world{store: s}).service("a")
				tt.change(svc)
				o := s.put(servicesPath+"a", nil, from(t, svc))
				if !tt.bound {
					h.ResourceVersion = "0"
				}
				if meta(o, "uid") != string(h.UID) {
					t.Fatal(meta(o, "uid"))
				}
			}
			version := s.version
			err := start(t, s, nil).writer.confirmReleased(t.Context(), a, h)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
			if touched := s.version != version; touched != tt.touched {
				t.Errorf("written: %t, want %t", touched, tt.touched)
			}
			if tt.change != nil && tt.touched && slices.Contains(addrs(s.get(t, "a")), a.String()) {
				t.Error("the address is still there")
			}
		})
	}
}

// Two touches within a second are two versions.
func TestTouch(t *testing.T) {
	s := newStore(t)
	s.put(servicesPath+"a", nil, from(t, (&world{store: s}).service("a")))
	c := start(t, s, nil)
	for range 3 {
		svc := s.get(t, "a")
		version := s.version
		if _, err := c.writer.patchStatus(t.Context(), &svc, touch(&svc)); err != nil {
			t.Fatal(err)
		}
		if s.version == version {
			t.Error("the version stands still")
		}
	}
}

// A reserved claim outlives its Service and is given only to who asks for it.
func TestReserved(t *testing.T) {
	s := newStore(t)
	c := start(t, s, nil)
	w := &world{store: s}
	w.setPool("dmz", 1)
	s.put(servicesPath+"a", nil, from(t, w.service("a")))
	s.settleAll(t, c)
	claim, ok := s.claim(t, "192.0.3.1")
	if !ok || len(claim.Spec.Holders) != 1 || claim.Spec.Holders[0].UID == "" || claim.Spec.Pool != "dmz" {
		t.Fatalf("claim %v", claim)
	}
	claim.Spec.Reserved = true
	s.put(claimsPath+"/192.0.3.1", s.objects[claimsPath+"/192.0.3.1"], from(t, claim))
	s.remove(servicesPath + "a")
	s.put(servicesPath+"b", nil, from(t, w.service("b")))
	s.settleAll(t, c)
	if claim, ok := s.claim(t, "192.0.3.1"); !ok || len(claim.Spec.Holders) != 0 || len(addrs(s.get(t, "b"))) != 0 {
		t.Fatalf("claim %v, b has %v", claim.Spec, addrs(s.get(t, "b")))
	}
	again := w.service("a")
	again.Annotations = map[string]string{"fanfare.io/load-balancer-ips": "192.0.3.1"}
	s.put(servicesPath+"a", nil, from(t, again))
	s.settleAll(t, c)
	if got := addrs(s.get(t, "a")); !slices.Equal(got, []string{"192.0.3.1"}) {
		t.Errorf("a has %v", got)
	}
}

func TestHealth(t *testing.T) {
	c := start(t, newStore(t), nil)
	get := func(path string) int {
		w := httptest.NewRecorder()
		c.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code
	}
	if get("/readyz") != http.StatusServiceUnavailable || get("/healthz") != http.StatusOK {
		t.Error("before the API server was read: want not ready, and healthy")
	}
	c.health.ready.Store(true)
	c.health.progress()
	if get("/readyz") != http.StatusOK || get("/healthz") != http.StatusOK || get("/metrics") != http.StatusOK {
		t.Error("in a pass: want ready and healthy")
	}
	c.health.at.Store(time.Now().Add(-2 * stuckAfter).UnixNano())
	if get("/healthz") != http.StatusServiceUnavailable {
		t.Error("stuck for two minutes: want unhealthy")
	}
}

// Run leads without an election, and ends with its context.
func TestRun(t *testing.T) {
	s := newStore(t)
	s.populate(t)
	ctx, cancel := context.WithCancel(t.Context())
	o := options(s)
	o.Monitoring.MetricsAddress, o.Monitoring.HealthAddress = "127.0.0.1:0", "127.0.0.1:0"
	o.Open = func(context.Context) (cluster.Source, error) { return s.source(), nil }
	told := make(chan struct{}, 10)
	s.wrote = func(path string, _, _ object) {
		if strings.Contains(path, "/events/") {
			told <- struct{}{}
		}
	}
	done := make(chan error)
	go func() { done <- Run(ctx, o) }()
	for range 5 {
		<-told
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	o = options(s)
	o.Open = func(context.Context) (cluster.Source, error) { return nil, errors.New("forbidden") }
	if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("error %v, want that of Open", err)
	}
}

// The controller restores ipMode VIP of an address of a pool (KEP-1860).
func TestAddressesAreVIPs(t *testing.T) {
	s := newStore(t)
	c := start(t, s, nil)
	w := &world{store: s}
	w.setPool("dmz", 1)
	modes := func() (modes []string) {
		for _, i := range s.get(t, "a").Status.LoadBalancer.Ingress {
			modes = append(modes, i.IP+" "+string(*i.IPMode))
		}
		return modes
	}
	s.put(servicesPath+"a", nil, from(t, w.service("a")))
	s.settleAll(t, c)
	want := []string{"192.0.3.1 VIP"}
	if got := modes(); !slices.Equal(got, want) {
		t.Errorf("a new one: %v, want %v", got, want)
	}
	svc := s.get(t, "a")
	svc.Status.LoadBalancer.Ingress[0].IPMode = new(corev1.LoadBalancerIPModeProxy)
	s.put(servicesPath+"a", s.objects[servicesPath+"a"], from(t, svc))
	s.settleAll(t, c)
	if got := modes(); !slices.Equal(got, want) {
		t.Errorf("one that another client changed: %v, want %v", got, want)
	}
}
