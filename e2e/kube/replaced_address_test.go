package kube

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
	"github.com/fanfare-lb/fanfare/internal/testing/clustertest"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A conflictBed is a node and a host on one link, with a pool of eight of the link's addresses.
type conflictBed struct {
	*fanfare
	printer *nstest.NS
}

func newConflictBed(t *testing.T) *conflictBed {
	node, printer := nstest.Node(t), nstest.New(t, "printer")
	nstest.Link(t, node, "eth0", printer, "eth0")
	node.Addr("eth0", "192.0.2.1/24")
	f := newFanfare(t)
	f.run("controller")
	f.speaker()
	pool, _, _ := strings.Cut(oneNode, "---\napiVersion: fanfare.io/v1alpha1\nkind: BGPPeer")
	must(t, f.Admin().Apply(t.Context(), strings.NewReplacer("192.0.2.0/24", "192.0.2.64/29", "announce: BGP",
		"announce: L2").Replace(pool)))
	return &conflictBed{f, printer}
}

// announced creates a Service and returns its address once the node answers for it.
func (b *conflictBed) announced(name string) (vip string) {
	must(b.T, b.Admin().Apply(b.Context(), oneService(name, "10.244.1.5")))
	await(b.T, time.Minute, "an address for "+name, func() (err error) { vip, err = b.assigned(name); return err })
	b.awaitEvent("service/"+name, "Announced", "node n1 answers for "+vip)
	return vip
}

// firstChoice is the address that the controller gives to a Service of this name in the empty pool.
func firstChoice(t *testing.T, name string) string {
	pool := clustertest.Pool("lan", "192.0.2.64/29")
	pool.Spec.Announce = v1alpha1.AnnounceL2
	all, why := ipam.NewAllocator(cluster.Parse(pool, clustertest.Service(name)), ipam.Settled).Allocate(time.Time{})
	if len(all) != 1 {
		t.Fatalf("allocated %v: %v", all, why)
	}
	return all[0].Addr.String()
}

// replaced returns how many addresses in use the Service had before its own, by its claim.
func (b *conflictBed) replaced(vip string) (int64, error) {
	claim, err := b.get(kindOf("AddressClaim"), vip)
	if err != nil || claim == nil {
		return 0, fmt.Errorf("claim of %s: %v, %w", vip, claim, err)
	}
	n, _, err := unstructured.NestedInt64(claim.Object, "spec", "replaced")
	return n, err
}

// message is the condition's message about a Service's address.
func (b *conflictBed) message(name string) (string, error) {
	o, err := b.get(serviceKind, name)
	if err != nil || o == nil {
		return "", fmt.Errorf("service %s: %v, %w", name, o, err)
	}
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	return fmt.Sprint(conditions), nil
}

// A Service whose new address a host on the link has gets another one, which the node announces.
// The next Service avoids the address, too.
func TestAddressInUseIsReplaced(t *testing.T) {
	isolated(t, func(t *testing.T) {
		b := newConflictBed(t)
		taken := firstChoice(t, "web")
		b.printer.Addr("eth0", taken+"/24")
		must(t, b.Admin().Apply(t.Context(), oneService("web", "10.244.1.5")))
		var vip string
		await(t, time.Minute, "another address", func() (err error) {
			if vip, err = b.assigned("web"); err == nil && vip == taken {
				err = fmt.Errorf("still %s", vip)
			}
			return err
		})
		b.awaitEvent("service/web", "Announced", "node n1 answers for "+vip)
		if n, err := b.replaced(vip); err != nil || n != 1 {
			t.Errorf("claim of %s: replaced %d, %v", vip, n, err)
		}
		for i := range 6 {
			if next := b.announced(fmt.Sprint("next", i)); next == taken {
				t.Errorf("%s was assigned again", next)
			}
		}
	})
}

// A host that answers for every address takes no address from a Service that was there before, and
// three from a new one, which then keeps the next and says why.
func TestHostThatAnswersForAllAddresses(t *testing.T) {
	isolated(t, func(t *testing.T) {
		b := newConflictBed(t)
		first := b.announced("first")
		for i := 64; i < 72; i++ {
			b.printer.Addr("eth0", fmt.Sprintf("192.0.2.%d/24", i))
		}
		must(t, b.Admin().Apply(t.Context(), oneService("late", "10.244.1.5")))
		await(t, 2*time.Minute, "the end of the replacements", func() error {
			text, err := b.message("late")
			if err == nil && !strings.Contains(text,
				"not replaced, because 3 addresses of the Service were replaced before") {
				err = fmt.Errorf("conditions: %s", text)
			}
			return err
		})
		vip, err := b.assigned("late")
		if err != nil {
			t.Fatal(err)
		}
		if n, err := b.replaced(vip); err != nil || n != 3 {
			t.Errorf("claim of %s: replaced %d, %v", vip, n, err)
		}
		if now, err := b.assigned("first"); err != nil || now != first {
			t.Errorf("first has %s, %v, and had %s", now, err, first)
		}
	})
}
