package ipam

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/clustertest"
)

// No more Services share an address than its AddressClaim can hold: the API server would refuse
// the claim, again and again. A further Service gets an address of its own, or a reason.
func TestSharingBounded(t *testing.T) {
	share := func(annotations string) (most int, all []cluster.Assignment, reasons []cluster.Reason) {
		objects := []runtime.Object{clustertest.Pool("lan", "192.0.2.0/24")}
		for i := range int32(MaxSharing + 1) {
			s := clustertest.Service(fmt.Sprintf("s%03d", i))
			s.Annotations = map[string]string{
				cluster.SharingAnnotation: "k", "fanfare.io/load-balancer-ips": annotations,
			}
			s.Spec.Ports = []corev1.ServicePort{{Port: 1000 + i}}
			objects = append(objects, s)
		}
		all, reasons = allocateAll(cluster.Parse(objects...))
		count := map[string]int{}
		for _, a := range all {
			count[a.Addr.String()]++
			most = max(most, count[a.Addr.String()])
		}
		return most, all, reasons
	}
	if most, all, reasons := share(""); most != MaxSharing || len(all) != MaxSharing+1 || len(reasons) != 0 {
		t.Errorf("%d of %d share an address, want %d of %d; reasons %v", most, len(all), MaxSharing, MaxSharing+1,
			reasons)
	}
	const why = "asks for 192.0.2.9, which default/s000 holds: 256 Services share it, and no more can"
	if most, _, reasons := share("192.0.2.9"); most != MaxSharing || len(reasons) != 1 || reasons[0].Message != why {
		t.Errorf("%d share the requested address, want %d; reasons %v", most, MaxSharing, reasons)
	}
}

// manyPorts has n ports from first on.
func manyPorts(first, n int) (ports []cluster.Port) {
	for i := range n {
		ports = append(ports, cluster.Port{
			Name: fmt.Sprint("p", i), Protocol: corev1.ProtocolTCP, Port: uint16(first + i),
		})
	}
	return ports
}

// Services of few ports and of many conflict by protocol and number.
func TestPortConflict(t *testing.T) {
	udp := []cluster.Port{{Protocol: corev1.ProtocolUDP, Port: 100}}
	for name, tt := range map[string]struct {
		s, o []cluster.Port
		want string
	}{
		"few":            {manyPorts(1, 3), manyPorts(3, 3), "both serve TCP/3"},
		"few, apart":     {manyPorts(1, 3), manyPorts(4, 3), ""},
		"few and many":   {manyPorts(100, 3), manyPorts(1, 1000), "both serve TCP/100"},
		"many and few":   {manyPorts(1, 1000), manyPorts(100, 3), "both serve TCP/100"},
		"many":           {manyPorts(1, 1000), manyPorts(1000, 1000), "both serve TCP/1000"},
		"many, apart":    {manyPorts(1, 1000), manyPorts(1001, 1000), ""},
		"other protocol": {udp, manyPorts(1, 1000), ""},
		"many, and one more": {append(manyPorts(1, 9), udp...), append(manyPorts(200, 9), udp...),
			"both serve UDP/100"},
	} {
		if got, _ := portConflict(&cluster.Spec{Ports: tt.s}, &cluster.Spec{Ports: tt.o}); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

// BenchmarkPortConflict compares Services with as many ports as an address can have: the time per
// port is that of 1,000 ports.
func BenchmarkPortConflict(b *testing.B) {
	for _, n := range []int{1000, 16384} {
		s, o := &cluster.Spec{Ports: manyPorts(1, n)}, &cluster.Spec{Ports: manyPorts(n+1, n)}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				if _, is := portConflict(s, o); is {
					b.Fatal("conflict")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/port")
		})
	}
}
