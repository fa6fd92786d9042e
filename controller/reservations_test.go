package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// reservedClaim returns the claim of an address that is reserved for Service old of a namespace.
func reservedClaim(addr, namespace string) *v1alpha1.AddressClaim {
	c := &v1alpha1.AddressClaim{ObjectMeta: metav1.ObjectMeta{Name: addr}}
	c.Spec = v1alpha1.AddressClaimSpec{
		Address: addr, Pool: "lan", ReservedFor: []v1alpha1.ClaimReservation{{Namespace: namespace, Name: "old"}},
	}
	return c
}

// A tenancy is a pool of 16 addresses, the namespaces shop and dev, and a controller.
type tenancy struct {
	*store
	t *testing.T
	c *controller
}

func newTenancy(t *testing.T, edit func(*v1alpha1.AddressPoolSpec)) *tenancy {
	t.Helper()
	s := &tenancy{store: newStore(t), t: t}
	var err error
	if s.c, err = newController(options(s.store)); err != nil {
		t.Fatal(err)
	}
	pool := &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: "lan"}}
	pool.Spec = v1alpha1.AddressPoolSpec{Announce: v1alpha1.AnnounceBGP, Addresses: []string{"192.0.2.0/28"}}
	edit(&pool.Spec)
	s.put("/apis/fanfare.io/v1alpha1/addresspools/lan", nil, from(t, pool))
	for _, name := range []string{"shop", "dev"} {
		s.put(namespacesPath+name, nil, object{"metadata": object{"name": name}})
	}
	return s
}

// create creates a Service that asks to keep its address.
func (s *tenancy) create(namespace, name string) {
	svc := (&world{store: s.store}).service(name)
	svc.Namespace = namespace
	svc.Annotations = map[string]string{cluster.ReserveAnnotation: "true"}
	s.put(s.path(namespace, name), nil, from(s.t, svc))
}

func (s *tenancy) path(namespace, name string) string {
	return namespacesPath + namespace + "/services/" + name
}

// pass has the controller write until nothing changes.
func (s *tenancy) pass() {
	s.t.Helper()
	for before := -1; s.version != before; {
		before = s.version
		s.c.source = s.source()
		if _, errs := s.c.pass(s.t.Context()); len(errs) != 0 {
			s.t.Fatal(errs)
		}
	}
}

// claims are the claims that exist, as the addresses and what kubectl shows of them.
func (s *tenancy) claims() (list []string) {
	for _, path := range slices.Sorted(maps.Keys(s.objects)) {
		if strings.HasPrefix(path, claimsPath) {
			c := into[v1alpha1.AddressClaim](s.t, s.objects[path])
			list = append(list, c.Spec.Address+" "+c.Spec.Services)
		}
	}
	return list
}

// events are the notes of the Events with a reason.
func (s *tenancy) events(reason cluster.Code) (notes []string) {
	for path, o := range s.objects {
		if strings.Contains(path, "/events/") && o["reason"] == string(reason) {
			notes = append(notes, o["note"].(string))
		}
	}
	return notes
}

// A namespace that creates and deletes Services in a loop keeps as many reserved addresses as
// the pool's namespaceReservedQuota, and other namespaces get the rest.
func TestReservationsDrainNoPool(t *testing.T) {
	for _, tt := range []struct {
		name  string
		quota *int32
		want  int
	}{{"default", nil, cluster.DefaultReservedQuota}, {"none", new(int32(0)), 0}, {"six", new(int32(6)), 6}} {
		t.Run(tt.name, func(t *testing.T) {
			s := newTenancy(t, func(p *v1alpha1.AddressPoolSpec) { p.NamespaceReservedQuota = tt.quota })
			for i := range 20 {
				name := fmt.Sprint("s", i)
				s.create("shop", name)
				s.pass()
				s.remove(s.path("shop", name))
				s.pass()
			}
			if got := s.claims(); len(got) != tt.want {
				t.Errorf("claims %q, want %d", got, tt.want)
			}
			for i := range 16 - tt.want {
				s.create("dev", fmt.Sprint("s", i))
			}
			s.pass()
			if got := s.claims(); len(got) != 16 {
				t.Errorf("claims %q, want all addresses assigned", got)
			}
			notes := s.events(cluster.QuotaExceeded)
			want := fmt.Sprintf("is not reserved: namespace shop has %d reserved IPv4 addresses of pool lan; its "+
				"namespaceReservedQuota is %d", tt.want, tt.want)
			if len(notes) != 20-tt.want || !strings.Contains(notes[0], want) {
				t.Errorf("Events %q, want %d with %q", notes, 20-tt.want, want)
			}
		})
	}
}

// The same if Services come and go together: Services that are being deleted count, too, so that a
// namespace never has more addresses than its quota.
func TestReservationsCountInQuota(t *testing.T) {
	const quota = 6
	s := newTenancy(t, func(p *v1alpha1.AddressPoolSpec) {
		p.NamespaceQuota, p.NamespaceReservedQuota = quota, new(int32(16))
	})
	for round := range 4 {
		for i := range 10 {
			if round > 0 {
				s.remove(s.path("shop", fmt.Sprintf("s%d-%d", round-1, i)))
			}
			s.create("shop", fmt.Sprintf("s%d-%d", round, i))
		}
		s.pass()
		if got := s.claims(); len(got) != quota {
			t.Errorf("round %d: claims %q, want %d", round, got, quota)
		}
	}
}

// A reservation ends with its namespace, also if that is only being deleted. One that a user has
// made stays, and none ends while the API server still has the namespace.
func TestReservationsEndWithNamespace(t *testing.T) {
	for name, end := range map[string]func(s *tenancy){
		"deleted": func(s *tenancy) { s.remove(namespacesPath + "shop") },
		"being deleted": func(s *tenancy) {
			s.put(namespacesPath+"shop", nil, object{"metadata": object{
				"name": "shop", "deletionTimestamp": "2026-01-01T00:00:00Z",
			}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTenancy(t, func(*v1alpha1.AddressPoolSpec) {})
			made := reservedClaim("192.0.2.15", "shop")
			made.Spec.Reserved = true
			s.put(claimsPath+"/192.0.2.15", nil, from(t, made))
			for _, name := range []string{"early", "late"} {
				s.create("shop", name)
			}
			s.pass()
			s.remove(s.path("shop", "early"))
			s.pass()
			if got := fmt.Sprint(s.claims()); !strings.Contains(got, "kept for shop/early") {
				t.Fatalf("claims %q: want one for the deleted Service", got)
			}
			end(s)
			s.remove(s.path("shop", "late")) // with its namespace
			s.pass()
			if got := s.claims(); len(got) != 1 || !strings.HasPrefix(got[0], "192.0.2.15 ") {
				t.Errorf("claims %q, want only the one of a user", got)
			}
		})
	}
	s := newTenancy(t, func(*v1alpha1.AddressPoolSpec) {})
	s.put(claimsPath+"/192.0.2.1", nil, from(t, reservedClaim("192.0.2.1", "shop")))
	s.c.source = withoutNamespace{s.source(), "shop"}
	if _, errs := s.c.pass(t.Context()); len(errs) != 1 ||
		!strings.Contains(errs[0].Error(), "reservation of 192.0.2.1 for namespace shop") || len(s.claims()) != 1 {
		t.Errorf("a namespace that only the snapshot lacks: %v, claims %q", errs, s.claims())
	}
}

// withoutNamespace is a source whose watch of Namespaces is behind.
type withoutNamespace struct {
	cluster.Source
	name string
}

func (w withoutNamespace) Snapshot() *cluster.Snapshot {
	s := *w.Source.Snapshot()
	s.Namespaces = slices.DeleteFunc(slices.Clone(s.Namespaces),
		func(n *cluster.Namespace) bool { return n.Name == w.name })
	return &s
}
