package controller

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// sharing is a Service on a port that shares addresses by a key.
func (s *store) sharing(name string, port int32) *corev1.Service {
	svc := (&world{store: s}).service(name)
	svc.Annotations = map[string]string{cluster.SharingAnnotation: "k"}
	svc.Spec.Ports[0].Port = port
	return svc
}

func (s *store) addrs(t *testing.T, name string) []string { return addrs(s.get(t, name)) }

// Two Services come to share an address, one goes, and the other keeps it.
func TestShare(t *testing.T) {
	s := newStore(t)
	c := start(t, s, nil)
	w := &world{store: s}
	w.setPool("dmz", 2)
	s.put(servicesPath+"a", nil, from(t, s.sharing("a", 80)))
	s.put(servicesPath+"b", nil, from(t, s.sharing("b", 81)))
	s.settleAll(t, c)
	a, b := s.addrs(t, "a"), s.addrs(t, "b")
	if len(a) != 1 || !slices.Equal(a, b) {
		t.Fatalf("a has %v, b has %v", a, b)
	}
	if claim, _ := s.claim(t, a[0]); len(claim.Spec.Holders) != 2 {
		t.Errorf("holders %v", claim.Spec.Holders)
	}
	if claim, _ := s.claim(t, a[0]); claim.Spec.Services != "shop/a, shop/b" {
		t.Errorf("spec.services is %q", claim.Spec.Services)
	}
	s.remove(servicesPath + "a")
	s.settleAll(t, c)
	if claim, _ := s.claim(t, a[0]); len(claim.Spec.Holders) != 1 || !slices.Equal(s.addrs(t, "b"), a) {
		t.Errorf("holders %v, b has %v", claim.Spec.Holders, s.addrs(t, "b"))
	}
}

// A controller that has not heard yet that a Service shares no more does not put
// another one beside it.
func TestShareChecksLiveHolders(t *testing.T) {
	s := newStore(t)
	c := start(t, s, nil)
	w := &world{store: s}
	w.setPool("dmz", 1)
	s.put(servicesPath+"a", nil, from(t, s.sharing("a", 80)))
	s.settleAll(t, c)
	s.put(servicesPath+"b", nil, from(t, s.sharing("b", 81)))
	c.source = s.source()
	a := s.get(t, "a")
	a.Annotations = nil
	s.put(servicesPath+"a", s.objects[servicesPath+"a"], from(t, a))
	if _, errs := c.pass(t.Context()); len(errs) != 1 {
		t.Errorf("errors %v, want one", errs)
	}
	if b := s.addrs(t, "b"); len(b) != 0 {
		t.Errorf("b has %v", b)
	}
	s.settleAll(t, c)
	if b := s.get(t, "b"); len(b.Status.Conditions) != 1 ||
		b.Status.Conditions[0].Reason != string(cluster.PoolExhausted) {
		t.Errorf("conditions %v", b.Status.Conditions)
	}
}

// A Service that is deleted and created again has its address again, although
// others wait for one; who does not ask for that has not.
func TestReserve(t *testing.T) {
	for _, reserve := range []string{"true", ""} {
		s := newStore(t)
		c := start(t, s, nil)
		w := &world{store: s}
		w.setPool("dmz", 1)
		a := w.service("a")
		a.Annotations = map[string]string{cluster.ReserveAnnotation: reserve}
		s.put(servicesPath+"a", nil, from(t, a))
		s.settleAll(t, c)
		was := s.addrs(t, "a")
		s.put(servicesPath+"b", nil, from(t, w.service("b")))
		s.remove(servicesPath + "a")
		s.settleAll(t, c)
		if claim, _ := s.claim(t, was[0]); reserve != "" && claim.Spec.Services != "kept for shop/a" {
			t.Errorf("spec.services is %q", claim.Spec.Services)
		}
		s.put(servicesPath+"a", nil, from(t, a))
		s.settleAll(t, c)
		has, other := s.addrs(t, "a"), s.addrs(t, "b")
		if reserve == "" {
			has, other = other, has
		}
		if len(was) != 1 || !slices.Equal(has, was) || len(other) != 0 {
			t.Errorf("reserve %q: a had %v; the wanted Service has %v, and the other %v", reserve, was, has, other)
		}
		claim, _ := s.claim(t, was[0])
		if len(claim.Spec.Holders) != 1 || claim.Spec.Holders[0].Reserve != (reserve != "") ||
			len(claim.Spec.ReservedFor) != 0 {
			t.Errorf("reserve %q: claim %+v", reserve, claim.Spec)
		}
	}
}

// Services without a class are left alone where they are another's, with the address
// that they have from before.
func TestClassOnly(t *testing.T) {
	s := newStore(t)
	w := &world{store: s}
	w.setPool("dmz", 1)
	s.put(servicesPath+"a", nil, from(t, w.service("a")))
	s.settleAll(t, start(t, s, nil))
	o := options(s)
	o.Classes.Only = true
	c, err := newController(o)
	if err != nil {
		t.Fatal(err)
	}
	source := s.source()
	source.Snapshot().Services = cluster.Services{} // as a source of only our class has it
	c.source = source
	_, errs := c.pass(t.Context())
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "it is of no class now") {
		t.Errorf("errors %v", errs)
	}
	claim, _ := s.claim(t, "192.0.3.1")
	if len(s.addrs(t, "a")) != 1 || len(claim.Spec.Holders) != 1 {
		t.Errorf("a has %v, and the claim is of %v", s.addrs(t, "a"), claim.Spec.Holders)
	}
}
