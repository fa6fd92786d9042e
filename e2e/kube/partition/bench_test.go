package partition

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// defaultInterval is the speakers' default interval of Lease renewals.
const defaultInterval = 5 * time.Second

// BenchmarkTwoClaim measures how long two nodes claim one address when the membership port
// of one is blocked while the API server is up. Leases are renewed at the default interval,
// so each run takes some seconds:
//
//	go test -run - -bench TwoClaim -benchtime 20x ./e2e/kube/partition
func BenchmarkTwoClaim(b *testing.B) {
	m := newMatrix(b)
	var spans []time.Duration
	for b.Loop() {
		// The random pause separates the failure from the last renewal, at which the previous run
		// ended.
		must(b, pause(b.Context(), rand.N(defaultInterval)))
		began := time.Now()
		must(b, blockMembership(b.Context(), m))
		must(b, lab.Await(b.Context(), lab.Settle, "n1 to be marked dead, and one node to claim its addresses",
			func() error {
				if err := m.wasMarkedDead("n1", began); err != nil {
					return err
				}
				return m.isClaimedBy(normal, began)
			}))
		for _, vip := range slices.Concat(m.first[:], m.second[:]) {
			two, _ := m.claims.Coverage(vip, began, time.Now())
			b.Logf("%s: claimed by two nodes for %s", vip, round(two))
			spans = append(spans, two)
		}
		m.repairAll(b)
	}
	slices.Sort(spans)
	b.ReportMetric(spans[0].Seconds(), "s-least")
	b.ReportMetric(spans[len(spans)/2].Seconds(), "s-median")
	b.ReportMetric(spans[len(spans)-1].Seconds(), "s-most")
	b.ReportMetric(0, "ns/op") // it would show mostly pauses
}
