package cluster

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What a Service's annotations may change is what its pool lists: nothing by default, and
// nothing for an address whose pool is gone.
func TestPermissions(t *testing.T) {
	var p Problems
	list := func(text ...string) *Communities { return parseCommunities("x", text, "", &p) }
	asks := &Spec{Communities: list("64500:1", "blackhole", "64500:1:2", "64500:1:3"), L2Node: "n1"}
	const field = "metadata.annotations[fanfare.io/bgp-communities]: "
	const node = "metadata.annotations[fanfare.io/l2-node]: n1 is ignored: "
	const all = "64500:1, blackhole, 64500:1:2, 64500:1:3 are left out: "
	for _, tt := range []struct {
		name string
		pool *Pool
		ask  *Spec
		want []string
	}{
		{"no pool", nil, asks, []string{field + all + "the AddressPool of the address is gone",
			node + "the AddressPool of the address is gone"}},
		{"an empty list", &Pool{Name: "lan", Announce: AnnounceAdvertised}, asks,
			[]string{field + all + "spec.allowedServiceCommunities of AddressPool lan does not list them",
				node + "spec.allowL2Node of AddressPool lan is not true"}},
		{"a part", &Pool{Name: "lan", Announce: AnnounceAdvertised,
			ServiceCommunities: list("64500:1", "64500:1:2", "64500:1:3", "no-export"), AllowL2Node: true}, asks,
			[]string{field + "blackhole is left out: spec.allowedServiceCommunities of AddressPool " +
				"lan does not list it"}},
		{"all", &Pool{Name: "lan", ServiceCommunities: asks.Communities, AllowL2Node: true}, asks, nil},
		{"only by BGP", &Pool{Name: "lan", Announce: AnnounceBGP, ServiceCommunities: asks.Communities}, asks, nil},
		{"only over Layer 2", &Pool{Name: "lan", Announce: AnnounceL2, AllowL2Node: true}, asks, nil},
		{"no annotation", &Pool{Name: "lan"}, &Spec{}, nil},
	} {
		var got []string
		for _, p := range tt.pool.RefusedAnnotations(tt.ask) {
			got = append(got, p.Clause())
		}
		if fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s: got\n%s\nwant\n%s", tt.name, strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
		}
	}
	pool := &Pool{ServiceCommunities: list("64500:1", "64500:1:2", "no-export")}
	if got, _ := pool.PermitCommunities(asks.Communities); fmt.Sprint(*got) !=
		fmt.Sprint(*list("64500:1", "64500:1:2")) {
		t.Errorf("permits %v", *got)
	}
	if got, _ := pool.PermitCommunities(list("blackhole")); got != nil {
		t.Errorf("permits %v, want nil", got)
	}
	if len(p) != 0 {
		t.Error(p)
	}
}

// The problems of an object are short, whatever its annotations contain: every node shows them.
func TestProblemsAreShort(t *testing.T) {
	long := strings.Repeat("x,", 100_000)
	o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Annotations: map[string]string{
		addressAnnotations[0]: long, addressAnnotations[1]: "192.0.2.1," + long, poolAnnotations[0]: long,
		poolAnnotations[1]: long + "y", communitiesAnnotation: long[:1000], schedulerAnnotation: long,
		l2NodeAnnotation: long, ReserveAnnotation: long, sourceRangesAnnotation: long[:1000],
	}}}
	o.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}}
	snap := Parse(o)
	if len(snap.Problems) == 0 {
		t.Fatal("no problem")
	}
	for _, p := range snap.Problems {
		if n := len(p.String()); n > 1500 {
			t.Errorf("%d bytes: %.300s", n, p)
		}
	}
	for _, code := range []Code{RequestRefused, Contradiction} {
		if text := clauses(snap.Services.At(0).Spec, code); text == "" || len(text) > 3000 { // of two annotations each
			t.Errorf("%s: %d bytes", code, len(text))
		}
	}
}
