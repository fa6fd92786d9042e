package split

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// usualInterval is that of Leases, which speakers have by default.
const usualInterval = 5 * time.Second

// How long two nodes claim one address when one hears the others no more, and they it,
// while the API server is there. Leases are renewed as often as they are by default, so
// that it takes some seconds each time:
//
//	go test -run - -bench TwoClaim -benchtime 20x ./e2e/kube/split
func BenchmarkTwoClaim(b *testing.B) {
	m := newMatrix(b)
	var spans []time.Duration
	for b.Loop() {
		// When what is blocked must not depend on when the last time ended, which was a renewal.
		must(b, pause(b.Context(), rand.N(usualInterval)))
		began := time.Now()
		must(b, deafen(b.Context(), m))
		must(b, lab.Await(b.Context(), lab.Settle, "two to claim n1's addresses, and then one", func() error {
			if err := m.passed(twice, began); err != nil {
				return err
			}
			return m.is(home, began)
		}))
		for _, vip := range slices.Concat(m.first[:], m.second[:]) {
			two, _ := m.claims.Coverage(vip, began, time.Now())
			b.Logf("%s: claimed by two for %s", vip, round(two))
			spans = append(spans, two)
		}
		m.whole(b)
	}
	slices.Sort(spans)
	b.ReportMetric(spans[0].Seconds(), "s-least")
	b.ReportMetric(spans[len(spans)/2].Seconds(), "s-median")
	b.ReportMetric(spans[len(spans)-1].Seconds(), "s-most")
	b.ReportMetric(0, "ns/op") // which is mostly pauses
}
