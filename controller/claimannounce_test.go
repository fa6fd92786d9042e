package controller

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go4.org/netipx"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
)

// announced counts the values of spec.announce of the claims.
func (f *field) announced() string {
	counts := map[v1alpha1.Announce]int{}
	for path, o := range f.objects {
		if strings.HasPrefix(path, claimsPath) {
			counts[into[v1alpha1.AddressClaim](f.t, o).Spec.Announce]++
		}
	}
	return fmt.Sprint(counts)
}

// Claims follow spec.announce of their pool. They keep the last value when the pool is
// deleted, and no address is lost by that.
func TestClaimAnnounceFollowsPool(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newField(t, 5, "n1")
		expect := func(when, want string) {
			t.Helper()
			f.run(5 * time.Second)
			if got := f.announced(); got != want {
				t.Errorf("%s: claims say %s, want %s", when, got, want)
			}
		}
		expect("new claims", "map[L2:5]")
		f.announce(v1alpha1.AnnounceAdvertised)
		expect("the pool changes", "map[Advertised:5]")
		f.announce("Advertized")
		expect("a mistake", "map[Advertised:5]")
		f.remove("/apis/fanfare.io/v1alpha1/addresspools/lan")
		expect("the pool is gone", "map[Advertised:5]")
		snap := f.Snapshot()
		if snap.Assignments.Len() != 5 {
			t.Fatalf("%d addresses are assigned, want 5", snap.Assignments.Len())
		}
		want := cluster.Origin{Pool: "lan", Announce: cluster.AnnounceAdvertised}
		for a := range snap.Assignments.All() {
			if got := snap.OriginOf(a); got != want {
				t.Errorf("%s is from %v, want %v", a.Addr, got, want)
			}
		}
	})
}

// A slow store serves a request after 20 ms on the clock of the bubble, as an API server needs time:
// without, a pass would write everything in no time.
type slow struct{ *store }

func (s slow) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(20 * time.Millisecond) // the server's delay, on the clock of the bubble: nothing waits
	return s.store.RoundTrip(r)
}

// A change of a pool rewrites all its claims. A pass does that in parts, so that a Service that is
// created meanwhile does not wait for all of them.
func TestClaimAnnounceLetsServicesPass(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const services = 240
		f := newField(t, services, "n1")
		f.run(5 * time.Second)
		o := options(f.store)
		o.Config, o.passTime = f.config(slow{f.store}), 0
		var err error
		if f.c, err = newController(o); err != nil {
			t.Fatal(err)
		}
		f.c.source = f
		f.announce(v1alpha1.AnnounceAdvertised)
		for passes := 1; ; passes++ {
			began := time.Now()
			left, errs := f.c.pass(t.Context())
			if len(errs) != 0 {
				t.Fatal(errs)
			}
			if took := time.Since(began); took > 2*passSlice/backgroundShare {
				t.Fatalf("pass %d took %s", passes, took)
			}
			if !left {
				break
			}
		}
		if got, want := f.announced(), fmt.Sprintf("map[Advertised:%d]", services); got != want {
			t.Errorf("claims say %s, want %s", got, want)
		}
	})
}

func TestStaleAnnounce(t *testing.T) {
	claim := func(addr, pool string, announce cluster.Announce) *cluster.Claim {
		return &cluster.Claim{Addr: netip.MustParseAddr(addr), Pool: pool, Announce: announce}
	}
	snap := &cluster.Snapshot{
		Pools: []*cluster.Pool{{Name: "lan", Announce: cluster.AnnounceBGP,
			Ranges: []netipx.IPRange{netipx.MustParseIPRange("192.0.2.1-192.0.2.9")}}},
		Claims: cluster.ClaimSet(
			claim("192.0.2.1", "lan", cluster.AnnounceBGP),
			claim("192.0.2.2", "lan", cluster.AnnounceL2),
			claim("192.0.2.3", "lan", ""),
			claim("192.0.2.4", "gone", cluster.AnnounceL2), // another pool has it now
			claim("192.0.2.77", "lan", cluster.AnnounceL2), // lan has lost it
		),
	}
	var got []string
	for _, c := range staleAnnounce(snap.Pools, snap.Claims.Slice()) {
		got = append(got, fmt.Sprint(c.claim.Addr, " ", c.announce))
	}
	if want := "[192.0.2.2 BGP 192.0.2.3 BGP]"; fmt.Sprint(got) != want {
		t.Errorf("stale: %v, want %s", got, want)
	}
}
