package cluster

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func annotated(keys ...string) *corev1.Service {
	o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "web", Annotations: map[string]string{},
	}}
	o.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}}
	for _, k := range keys {
		o.Annotations[k] = "true" // valid for fanfare.io/reserve
	}
	return o
}

// An annotation in the domain of Fanfare or MetalLB that does not exist is reported, with what it should have been;
// other domains' and MetalLB's own reports are not.
func TestUnknownAnnotations(t *testing.T) {
	const none = "there is no such annotation, so it has no effect"
	for key, want := range map[string]string{
		"fanfare.io/adress-pool":                     "; did you mean fanfare.io/address-pool?",
		"fanfare.io/loadBalancerIPs":                 "; did you mean fanfare.io/load-balancer-ips?",
		"fanfare.io/Reserve":                         "; did you mean fanfare.io/reserve?",
		"metallb.io/loadbalancerips":                 "; did you mean metallb.io/loadBalancerIPs?",
		"metallb.universe.tf/address-pools":          "; did you mean metallb.universe.tf/address-pool?",
		"metallb.io/something-of-tomorrow":           "",
		"fanfare.io/" + strings.Repeat("x", 63):      "",
		"metallb.io/ip-allocated-from-pool":          "known",
		"metallb.universe.tf/ip-allocated-from-pool": "known",
		"fanfare.io/reserve":                         "known",
		"example.com/adress-pool":                    "known",
	} {
		o := annotated(key)
		Trim(o)
		s := Parse(o)
		have := clauses(s.Services.At(0).Spec, UnknownAnnotation)
		if want == "known" {
			if have != "" || len(s.Problems) != 0 {
				t.Errorf("%s: %q, %v", key, have, s.Problems)
			}
			continue
		}
		if have != annotation(key)+": "+none+want || len(s.Problems) != 1 || s.Problems[0].Message != none+want ||
			s.Problems[0].Code != UnknownAnnotation || !s.Problems[0].Warning {
			t.Errorf("%s: %q, %v", key, have, s.Problems)
		}
	}
}

// As many unknown annotations as the API server stores cost little time and few words.
func TestUnknownAnnotationsAreBounded(t *testing.T) {
	var keys []string
	for i := range 15_000 { // of 256 KiB in total
		keys = append(keys, fmt.Sprintf("fanfare.io/%05d", i))
	}
	for _, o := range []*corev1.Service{annotated(keys...),
		annotated(strings.Repeat("fanfare.io/"+strings.Repeat("a", 200_000), 1))} {
		began := time.Now()
		s := Parse(o)
		if spent := time.Since(began); spent > time.Second { // it takes some milliseconds
			t.Errorf("parsed in %s", spent)
		}
		if have := clauses(s.Services.At(0).Spec, UnknownAnnotation); len(have) > 1000 ||
			len(s.Problems) > maxUnknownAnnotations {
			t.Errorf("%d bytes, %d problems", len(have), len(s.Problems))
		}
	}
	if have := clauses(Parse(annotated(keys...)).Services.At(0).Spec, UnknownAnnotation); !strings.Contains(have,
		"fanfare.io/00002") || !strings.HasSuffix(have, "; 14997 more") {
		t.Errorf("%q", have)
	}
}
