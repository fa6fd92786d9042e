package metallb

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// What a user of a namespace writes stays in its comment, whatever ends a line in YAML.
func TestCommentsStayComments(t *testing.T) {
	for _, end := range []string{"\n", "\r", "\r\n", "\u0085", "\u2028", "\u2029", "\f", "\x00"} {
		c := &Cluster{}
		for _, ns := range []string{"dev", "shop"} {
			s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
				Namespace: ns, Name: "a", Annotations: map[string]string{"metallb.io/allow-shared-ip": "k" + end +
					"kind: Evil" + end},
			}}
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
			c.Services = append(c.Services, s)
		}
		out := Convert(c, Options{})
		text, err := Report(c, out, Compare(c, out, Options{}))
		if err != nil || !strings.Contains(text, "kind: Evil") {
			t.Fatalf("%q: the key is not in a comment: %v\n%s", end, err, text)
		}
		var object any
		if err := yaml.Unmarshal([]byte(text), &object); err != nil || object != nil {
			t.Errorf("%q: %v, %v in\n%s", end, object, err, text)
		}
	}
}
