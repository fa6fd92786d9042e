package speaker

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/internal/plantest"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
)

// Connections are redirected to the former owner if it forwards and its address on the link
// is known.
func TestRedirect(t *testing.T) {
	now := time.Now()
	prefixes := func(all ...string) (out []netip.Prefix) {
		for _, p := range all {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	addr := netip.MustParseAddr
	vip4, vip6 := addr("192.0.2.1"), addr("2001:db8::1")
	eth0 := l2.Interface{Name: "eth0", Prefixes: prefixes("192.0.2.0/24", "2001:db8::/64")}
	offered := []cluster.Interface{{Name: "ens3", Prefixes: prefixes("192.0.2.0/24", "2001:db8::/64", "192.0.2.12/32", "2001:db8::12/128")}}
	alive := membership.Member{Node: "n2", Alive: true, Interfaces: offered}
	onEth0 := []proxy.Redirect{{VIP: vip4, Interface: "eth0", Via: addr("192.0.2.12")}, {VIP: vip6, Interface: "eth0", Via: addr("2001:db8::12")}}
	gone := func(netip.Addr) time.Time { return time.Time{} }
	for name, tt := range map[string]struct {
		member   membership.Member
		internal []netip.Addr
		own      []l2.Interface
		only     []string // of the addresses
		want     []proxy.Redirect
		until    time.Duration
	}{
		"alive":                        {member: alive, own: []l2.Interface{eth0}, want: onEth0},
		"no interfaces, by InternalIP": {member: membership.Member{Node: "n2", Alive: true}, internal: []netip.Addr{addr("10.0.0.12"), addr("192.0.2.22")}, own: []l2.Interface{eth0}, want: []proxy.Redirect{{VIP: vip4, Interface: "eth0", Via: addr("192.0.2.22")}}},
		"not on this link":             {member: membership.Member{Node: "n2", Alive: true}, internal: []netip.Addr{addr("10.0.0.12")}, own: []l2.Interface{eth0}},
		"dead":                         {member: membership.Member{Node: "n2", Interfaces: offered}, own: []l2.Interface{eth0}},
		"alive by its Lease":           {member: membership.Member{Node: "n2", Alive: true, ByLease: true, Interfaces: offered}, own: []l2.Interface{eth0}},
		"not a member":                 {member: membership.Member{Node: "n3", Alive: true, Interfaces: offered}, own: []l2.Interface{eth0}},
		"stopped lately":               {member: membership.Member{Node: "n2", Left: true, Since: now.Add(-20 * time.Second), Interfaces: offered}, own: []l2.Interface{eth0}, want: onEth0, until: 40 * time.Second},
		"stopped long ago":             {member: membership.Member{Node: "n2", Left: true, Since: now.Add(-time.Minute), Interfaces: offered}, own: []l2.Interface{eth0}},
		"no interface":                 {member: alive},
		"odd name":                     {member: alive, own: []l2.Interface{{Name: `e"h`, Prefixes: eth0.Prefixes}}},
		"another interface":            {member: alive, own: []l2.Interface{eth0}, only: []string{"eth1"}},
		"two interfaces":               {member: alive, own: []l2.Interface{eth0, {Name: "eth1", Prefixes: eth0.Prefixes}}, only: []string{"eth0", "eth1"}, want: []proxy.Redirect{onEth0[0], {VIP: vip4, Interface: "eth1", Via: onEth0[0].Via}, onEth0[1], {VIP: vip6, Interface: "eth1", Via: onEth0[1].Via}}},
	} {
		for i := range tt.own {
			tt.own[i].IPv6 = true
		}
		d := &plan.Desired{Answered: []netip.Addr{vip4, vip6}, View: &plan.View{
			Node: "n1", Members: &membership.Members{Nodes: []membership.Member{tt.member}}, Interfaces: tt.own, Nodes: []*cluster.Node{{Name: "n1"}, {Name: "n2", InternalIPs: tt.internal}},
		}}
		d.L2 = l2.State{Addresses: []l2.Address{{Addr: vip4, Interfaces: tt.only}, {Addr: vip6, Interfaces: tt.only}}, Speakers: []l2.MAC{{2, 1}}}
		handover := newHandoverState("n1", nil)
		handover.setFormerOwner(vip4, "n2")
		handover.setFormerOwner(vip6, "n2")
		got := (&redirects{}).next(d, handover.formerOwners, handover.revision(), gone, time.Minute, now)
		if !reflect.DeepEqual(got.rules, tt.want) {
			t.Errorf("%s: %v; want %v", name, got.rules, tt.want)
		}
		if err := (proxy.State{Redirects: got.rules, Nodes: got.speakers}).Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if (len(got.rules) > 0) != (len(got.speakers) == 1) || (len(got.rules) > 0) != (got.formerOwner[vip4] == "n2") {
			t.Errorf("%s: nodes %v, to %v", name, got.speakers, got.formerOwner)
		}
		if tt.until == 0 != got.recheck.IsZero() || tt.until != 0 && got.recheck.Sub(now) != tt.until {
			t.Errorf("%s: until %s; want in %s", name, got.recheck, tt.until)
		}
		// The same inputs return the same value.
		if again := got.next(d, nil, handover.revision(), gone, time.Minute, now); again != got {
			t.Errorf("%s: computed again", name)
		}
		handover.setFormerOwner(vip4, "n2")
		if again := got.next(d, handover.formerOwners, handover.revision(), gone, time.Minute, now); again == got || !sortedset.Same(again.rules, got.rules) {
			t.Errorf("%s: %v after %v", name, again.rules, got.rules)
		}
		if tt.until != 0 {
			if later := got.next(d, handover.formerOwners, handover.revision()-1, gone, time.Minute, got.recheck); len(later.rules) > 0 {
				t.Errorf("%s: %v, though it was stopped a minute ago", name, later.rules)
			}
		}
	}
}

// A node keeps redirecting a lingering address to its former owner, although a third node
// answers by now.
func TestRedirectWhileLingering(t *testing.T) {
	now, vip := time.Now(), netip.MustParseAddr("192.0.2.1")
	eth0 := l2.Interface{Name: "eth0", Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	v := &plan.View{Node: "n1", Interfaces: []l2.Interface{eth0}, Members: &membership.Members{Nodes: []membership.Member{{Node: "n2", Alive: true}, {Node: "n3", Alive: true}}},
		Nodes: []*cluster.Node{{Name: "n2", InternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.12")}}, {Name: "n3", InternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.13")}}}}
	answers := &plan.Desired{Answered: []netip.Addr{vip}, View: v, L2: l2.State{Addresses: []l2.Address{{Addr: vip}}, Speakers: []l2.MAC{{2}}}}
	before := func(node string) func([]netip.Addr) map[netip.Addr]string {
		return func(of []netip.Addr) map[netip.Addr]string {
			all := map[netip.Addr]string{}
			for _, a := range of {
				all[a] = node
			}
			return all
		}
	}
	until := now.Add(time.Minute)
	left := func(netip.Addr) time.Time { return until }
	h := (&redirects{}).next(answers, before("n2"), 1, left, time.Minute, now)
	parted := h.next(&plan.Desired{View: v}, before("n3"), 2, left, time.Minute, now)
	if len(h.rules) != 1 || !sortedset.Same(parted.rules, h.rules) || parted.recheck != until {
		t.Errorf("%v until %s; want %v until %s", parted.rules, parted.recheck, h.rules, until)
	}
	if over := parted.next(&plan.Desired{View: v}, before("n3"), 2, left, time.Minute, until); len(over.rules)+len(over.speakers) > 0 {
		t.Errorf("%v after it has lingered", over.rules)
	}
}

// The previous other owner of each address is known.
func TestFormerOwners(t *testing.T) {
	c := newSpeakerGroup(t, "n1", "n2", "n3")
	a := netip.MustParseAddr("192.0.2.1")
	expect := func(when string, want map[string]string) {
		t.Helper()
		for node, of := range want {
			if got := c.nodes[node].formerOwners([]netip.Addr{a})[a]; got != of {
				t.Errorf("%s: former owner of %s is %q; want %q", when, node, got, of)
			}
		}
	}
	hold := func(node string) { c.nodes[node].reportChanges([]netip.Addr{a}) }
	hold("n1")
	expect("at first", map[string]string{"n1": "", "n2": "n1", "n3": "n1"})
	state := c.nodes["n2"].revision()
	c.nodes["n1"].reportChanges(nil)
	hold("n2")
	expect("moved", map[string]string{"n1": "n2", "n2": "n1", "n3": "n2"})
	if c.nodes["n2"].revision() != state {
		t.Error("another revision without a change")
	}
	c.nodes["n2"].reportChanges(nil)
	hold("n1")
	expect("moved back", map[string]string{"n1": "n2", "n2": "n1", "n3": "n1"})
	// A restarted speaker knows it from its state directory, and for the others it is the
	// same node.
	handover := c.join("n1", []netip.Addr{a})
	handover.setFormerOwner(a, "n2")
	c.broadcastState("n1")
	expect("restarted", map[string]string{"n1": "n2", "n2": "n1", "n3": "n1"})
	handover.prune(nil, time.Now().Add(2*holderLifetime))
	handover.reportChanges(nil)
	handover.prune(nil, time.Now().Add(2*holderLifetime))
	if got := handover.formerOwners([]netip.Addr{a}); len(got) > 0 {
		t.Errorf("an address without a Service has former owners: %v", got)
	}
}

// An offer has the interfaces' own addresses if there is room, and never instead of an
// interface.
func TestOfferHasOwnAddresses(t *testing.T) {
	snap := plantest.Snapshot(t, []byte(plantest.Advertised+linkedWorld))
	var all []l2.Interface
	for i := range 40 {
		all = append(all, l2.Interface{Name: "vlan" + strings.Repeat("x", i%3), MAC: l2.MAC{2}, Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.7")}})
	}
	for _, n := range []int{1, 20, 30} {
		var offer *interfaceOffer
		offer = offer.next(snap, all[:n:n], true)
		list, err := membership.DecodeInterfaces(offer.meta.Encoded)
		if err != nil || len(list)+offer.meta.Omitted != n {
			t.Fatalf("%d: %d offered, %d not: %v", n, len(list), offer.meta.Omitted, err)
		}
		one := membership.Member{Interfaces: list}
		if got := len(one.Addresses()); got != 0 && got != n || n == 1 && got != 1 || n == 30 && got != 0 {
			t.Errorf("%d interfaces offered %d addresses", n, got)
		}
		announced, _ := membership.EncodeInterfaces([]cluster.Interface{{Name: "vlan", MAC: l2.MAC{2}, Prefixes: all[0].Prefixes}})
		if least := 512 / len(announced); n <= 20 && len(list) < min(n, least) {
			t.Errorf("%d of %d interfaces are offered", len(list), n)
		}
	}
}
