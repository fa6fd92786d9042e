package plan

import (
	"reflect"
	"slices"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/healthcheck"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
)

// The count is of ready pods on this node, not of their ports. As with kube-proxy, a last pod
// that serves while it terminates does not count, and Services without an address do.
func TestChecks(t *testing.T) {
	snap := plantest.Snapshot(t, []byte(plantest.HealthServices))
	ours := []healthcheck.Check{
		{Namespace: "shop", Name: "a-ours", Port: 32001, Family: healthcheck.IPv4, Endpoints: 2},
		{Namespace: "shop", Name: "a-ours", Port: 32001, Family: healthcheck.IPv6, Endpoints: 0},
		{Namespace: "shop", Name: "d-waits", Port: 32004, Family: healthcheck.IPv4, Endpoints: 1},
	}
	all := slices.Insert(slices.Clone(ours), 2,
		healthcheck.Check{Namespace: "shop", Name: "b-kube-proxys", Port: 32002, Family: healthcheck.IPv4})
	for _, row := range []struct {
		which HealthChecks
		want  []healthcheck.Check
	}{{HealthChecksLabelled, ours}, {HealthChecksAll, all}, {HealthChecksNone, nil}} {
		if got := Decide(Config{Node: "n1", HealthChecks: row.which}, snap).Checks; !reflect.DeepEqual(got, row.want) {
			t.Errorf("%d: %v, want %v", row.which, got, row.want)
		}
	}
}
