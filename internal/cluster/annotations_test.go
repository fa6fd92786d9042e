package cluster

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A list in an annotation has a bound: 60,000 names of pools took every node 19 s to parse.
// A longer list counts for nothing.
func TestAnnotationBounds(t *testing.T) {
	list := func(n int, name string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, name+",", i)
		}
		return strings.TrimSuffix(b.String(), ",")
	}
	for _, tt := range []struct {
		annotation, name string
		most             int
		count            func(*Spec) int
		bad              bool // the Service gets no other address
	}{
		{"fanfare.io/load-balancer-ips", "2001:db8::%x:1", maxRequested, func(s *Spec) int { return len(s.Requested) },
			true},
		{"fanfare.io/address-pool", "p%x", maxRequestedPools, func(s *Spec) int { return len(s.RequestedPools) }, true},
		{"fanfare.io/allow-shared-ip-namespaces", "n%x", maxSharingNamespaces,
			func(s *Spec) int { return len(s.Sharing.Namespaces) }, false},
		{"fanfare.io/bgp-communities", "64500:%d", maxServiceCommunities, func(s *Spec) int {
			if s.Communities == nil {
				return 0
			}
			return len(s.Communities.Standard)
		}, false},
	} {
		for n, want := range map[int]int{tt.most: tt.most, tt.most + 1: 0, 30_000: 0} {
			o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web",
				Annotations: map[string]string{
					SharingAnnotation: "k", tt.annotation: list(n, tt.name)}}}
			o.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}}
			snap := Parse(o)
			s := snap.Services.At(0).Spec
			if got := tt.count(s); got != want || (len(snap.Problems) == 0) != (n == tt.most) ||
				(clauses(s, RequestRefused) != "") != (tt.bad && n != tt.most) {
				t.Errorf("%s: %d of %d count, want %d; problems %v, bad request %q", tt.annotation, got, n, want,
					snap.Problems, clauses(s, RequestRefused))
			}
		}
	}
}

// clauses returns the Problems of a Service with a code.
func clauses(s *Spec, code Code) string {
	var all []string
	for _, p := range s.Problems {
		if p.Code == code {
			all = append(all, p.Clause())
		}
	}
	return strings.Join(all, "; ")
}

// An object with very many mistakes has a bounded number of problems.
func TestProblemsAreBounded(t *testing.T) {
	o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	o.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}}
	for i := range maxProblems + 5 {
		o.Spec.LoadBalancerSourceRanges = append(o.Spec.LoadBalancerSourceRanges, fmt.Sprint("x", i))
	}
	p := Parse(o).Problems
	if len(p) != maxProblems+1 || !strings.Contains(problemText(Parse(o)), "has 5 more problems") {
		t.Errorf("%d problems, want %d: %v", len(p), maxProblems+1, p)
	}
}
