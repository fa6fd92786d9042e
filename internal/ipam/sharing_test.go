package ipam

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/clustertest"
)

// No more Services share an address than its AddressClaim can hold: the API server would refuse
// the claim, again and again. A further Service gets an address of its own, or a reason.
func TestSharingBounded(t *testing.T) {
	share := func(annotations string) (most int, all []cluster.Assignment, reasons []cluster.Reason) {
		objects := []runtime.Object{clustertest.Pool("lan", "192.0.2.0/24")}
		for i := range int32(MaxSharing + 1) {
			s := clustertest.Service(fmt.Sprintf("s%03d", i))
			s.Annotations = map[string]string{cluster.SharingAnnotation: "k", "fanfare.io/load-balancer-ips": annotations}
			s.Spec.Ports = []corev1.ServicePort{{Port: 1000 + i}}
			objects = append(objects, s)
		}
		all, reasons = Allocate(cluster.Parse(objects...))
		count := map[string]int{}
		for _, a := range all {
			count[a.Addr.String()]++
			most = max(most, count[a.Addr.String()])
		}
		return most, all, reasons
	}
	if most, all, reasons := share(""); most != MaxSharing || len(all) != MaxSharing+1 || len(reasons) != 0 {
		t.Errorf("%d of %d share an address, want %d of %d; reasons %v", most, len(all), MaxSharing, MaxSharing+1, reasons)
	}
	const why = "asks for 192.0.2.9, which default/s000 holds: 256 Services share it, and no more can"
	if most, _, reasons := share("192.0.2.9"); most != MaxSharing || len(reasons) != 1 || reasons[0].Message != why {
		t.Errorf("%d share the requested address, want %d; reasons %v", most, MaxSharing, reasons)
	}
}
