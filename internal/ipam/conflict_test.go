package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/clustertest"
)

var conflictTime = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// A conflictWorld is one Service with 192.0.2.1, assigned at conflictTime, of a pool of two addresses.
// Node n1 reports that another host uses that address.
type conflictWorld struct {
	announce    cluster.Announce
	addresses   []string
	quota       int32
	annotations map[string]string
	addr        string
	created     time.Time // of the claim
	reserved    bool
	replaced    int32
	conflicts   []cluster.Conflict
	more        []runtime.Object
	now         time.Time
}

func newConflictWorld() *conflictWorld {
	w := &conflictWorld{
		announce: cluster.AnnounceL2, addresses: []string{"192.0.2.1-192.0.2.2"}, addr: "192.0.2.1",
		created: conflictTime, now: conflictTime.Add(10 * time.Second),
	}
	w.report("192.0.2.1")
	return w
}

func (w *conflictWorld) report(addr string) {
	w.conflicts = append(w.conflicts, cluster.Conflict{
		Addr: netip.MustParseAddr(addr), Node: "n1", MAC: "02:00:00:00:00:09", Interface: "eth0",
	})
	slices.SortFunc(w.conflicts, func(a, b cluster.Conflict) int { return a.Addr.Compare(b.Addr) })
}

// snapshot is the cluster, without the reports.
func (w *conflictWorld) snapshot() *cluster.Snapshot {
	pool, service, claim := clustertest.Pool("lan", w.addresses...), clustertest.Service("web", w.addr),
		clustertest.Claim(w.addr, "web")
	switch w.announce {
	case cluster.AnnounceL2:
		pool.Spec.Announce = "L2"
	case cluster.AnnounceBGP:
	case cluster.AnnounceAdvertised:
		pool.Spec.Announce = "Advertised"
	}
	pool.Spec.NamespaceQuota = w.quota
	service.Annotations = w.annotations
	claim.CreationTimestamp, claim.Spec.Reserved, claim.Spec.Replaced = metav1.NewTime(w.created), w.reserved,
		w.replaced
	return cluster.Parse(append(w.more, pool, service, claim)...)
}

// allocate returns what Allocate decides, once its result is the same after a restart.
func (w *conflictWorld) allocate(t *testing.T) string {
	t.Helper()
	before, snap := w.snapshot(), w.snapshot()
	snap.Conflicts = w.conflicts
	got := render(NewAllocator(before, Settled).Next(snap).Allocate(w.now))
	if fresh := render(NewAllocator(snap, Settled).Allocate(w.now)); got != fresh {
		t.Errorf("after a report:\n%safter a restart:\n%s", got, fresh)
	}
	return got
}

// A Service gets another address in place of one that another host has, if it never served clients and
// the Service did not choose it. Otherwise it keeps the address, and the reason says what to do.
func TestConflictingAddressIsReplaced(t *testing.T) {
	const replaced = "192.0.2.2 default/web pool lan\n" +
		"192.0.2.2 default/web ipam AddressInUse: 192.0.2.2 replaces 192.0.2.1: node n1 reports that " +
		"02:00:00:00:00:09 answers for that on eth0\n"
	kept := func(why string) string {
		return "192.0.2.1 default/web pool lan\n192.0.2.1 default/web ipam AddressInUse: 192.0.2.1 is kept, although " +
			"node n1 reports that 02:00:00:00:00:09 answers for it on eth0; " + why + "\n"
	}
	because := func(why string) string {
		return kept("not replaced, because " + why + ": take the address from that host, or request another one")
	}
	for name, tt := range map[string]struct {
		change func(*conflictWorld)
		want   string
	}{
		"new":       {func(*conflictWorld) {}, replaced},
		"no report": {func(w *conflictWorld) { w.conflicts = nil }, "192.0.2.1 default/web pool lan\n"},
		"BGP": {func(w *conflictWorld) {
			w.announce = cluster.AnnounceBGP
		}, "192.0.2.1 default/web pool lan\n"},
		"advertised": {func(w *conflictWorld) { w.announce = cluster.AnnounceAdvertised }, replaced},
		"held": {func(w *conflictWorld) {
			w.conflicts[0].Held = true
		}, because("a node has answered for it before")},
		"old": {func(w *conflictWorld) {
			w.now = conflictTime.Add(3 * time.Minute)
		}, because("it was assigned more than 2 minutes before")},
		"of the future": {func(w *conflictWorld) {
			w.now = conflictTime.Add(-time.Hour)
		}, because("it was assigned more than 2 minutes before")},
		"requested": {annotated("fanfare.io/load-balancer-ips", "192.0.2.1"), because("the Service requests it")},
		"shared": {annotated("fanfare.io/allow-shared-ip", "a"),
			because("the Service shares or reserves its address")},
		"reserving": {annotated("fanfare.io/reserve", "true"),
			because("the Service shares or reserves its address")},
		"reserved": {func(w *conflictWorld) {
			w.reserved = true
		}, because("its AddressClaim is not of this Service alone")},
		"often replaced": {func(w *conflictWorld) {
			w.replaced = maxReplaced
		}, because("3 addresses of the Service were replaced before")},
		"none free": {func(w *conflictWorld) {
			w.addresses = []string{"192.0.2.1/32"}
		}, kept("no other address is free: take the address from that host, or add addresses to the pool")},
		"all in use": {func(w *conflictWorld) {
			w.report("192.0.2.2")
		}, kept("no other address is free: take the address from that host, or add addresses to the pool")},
		"quota": {func(w *conflictWorld) { w.quota = 1 }, replaced},
	} {
		t.Run(name, func(t *testing.T) {
			w := newConflictWorld()
			tt.change(w)
			if got := w.allocate(t); got != tt.want {
				t.Errorf("got\n%swant\n%s", got, tt.want)
			}
		})
	}
}

func annotated(key, value string) func(*conflictWorld) {
	return func(w *conflictWorld) { w.annotations = map[string]string{key: value} }
}

// A new Service gets an address that another host uses only if there is no other.
func TestConflictingAddressIsLastChoice(t *testing.T) {
	w := newConflictWorld()
	w.addresses = []string{"192.0.2.1-192.0.2.4"}
	w.conflicts[0].Held = true // web stays
	w.report("192.0.2.2")
	w.report("192.0.2.3")
	for i, want := range []string{"192.0.2.4", "192.0.2.2", "192.0.2.3"} {
		name := fmt.Sprint("s", i)
		w.more = append(w.more, clustertest.Service(name))
		got := w.allocate(t)
		if !strings.Contains(got, want+" default/"+name+" ") {
			t.Errorf("%s: got\n%swant %s", name, got, want)
		}
	}
}

// A host that answers for every address, or a node that reports every address, costs a Service
// maxReplaced addresses, and no Service that was there before any.
func TestEveryAddressConflicts(t *testing.T) {
	w := newConflictWorld()
	w.addresses = []string{"192.0.2.0/24"}
	before := clustertest.Claim("192.0.2.200", "before")
	before.CreationTimestamp = metav1.NewTime(conflictTime.Add(-time.Hour))
	w.more = []runtime.Object{clustertest.Service("before", "192.0.2.200"), before}
	w.report("192.0.2.200")
	replaced := 0
	for range 20 {
		got := w.allocate(t)
		if !strings.Contains(got, "192.0.2.200 default/before") {
			t.Fatalf("lost the address of before:\n%s", got)
		}
		if strings.Contains(got, w.addr+" default/web") {
			break
		}
		replaced++
		w.follow(t, got)
	}
	if replaced != maxReplaced {
		t.Errorf("replaced %d times, want %d", replaced, maxReplaced)
	}
}

// follow does what a controller and a speaker do after a decision: the address is written, and the
// speaker finds another host there, too.
func (w *conflictWorld) follow(t *testing.T, decision string) {
	t.Helper()
	for line := range strings.Lines(decision) {
		addr, rest, _ := strings.Cut(line, " ")
		if a, err := netip.ParseAddr(addr); err == nil && strings.HasPrefix(rest, "default/web pool ") {
			w.addr, w.created = a.String(), w.now
			w.replaced++
			w.report(a.String())
			w.now = w.now.Add(10 * time.Second)
		}
	}
}
