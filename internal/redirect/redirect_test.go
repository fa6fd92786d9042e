package redirect

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/kernel/neighbour"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
)

// Connections are redirected to another owner if it forwards and its address on the link
// is known.
func TestRedirect(t *testing.T) {
	prefixes := func(all ...string) (out []netip.Prefix) {
		for _, p := range all {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	addr := netip.MustParseAddr
	vip4, vip6 := addr("192.0.2.1"), addr("2001:db8::1")
	eth0 := l2.Interface{Name: "eth0", Prefixes: prefixes("192.0.2.0/24", "2001:db8::/64")}
	mac := l2.MAC{2, 12}
	offered := []cluster.Interface{{Name: "ens2", MAC: l2.MAC{2, 2}, Prefixes: prefixes("192.0.2.0/24")},
		{Name: "ens3", MAC: mac, Prefixes: prefixes("192.0.2.0/24", "2001:db8::/64", "192.0.2.12/32",
			"2001:db8::12/128")}}
	alive := membership.Member{Node: "n2", Alive: true, Interfaces: offered}
	onEth0 := func(to4, to6 string) []proxy.Redirect {
		return []proxy.Redirect{{VIP: vip4, Interface: "eth0", Via: addr(to4), Onward: addr(to4), OnwardMAC: mac},
			{VIP: vip6, Interface: "eth0", Via: addr(to6), Onward: addr(to6), OnwardMAC: mac}}
	}
	toN2 := onEth0("192.0.2.12", "2001:db8::12")
	unresponsive := []neighbour.Host{{Interface: "eth0", Addr: addr("192.0.2.12"), MAC: mac},
		{Interface: "eth0", Addr: addr("2001:db8::12"), MAC: mac}}
	byInternalIP := []proxy.Redirect{{VIP: vip4, Interface: "eth0", Via: addr("192.0.2.22"),
		Onward: addr("192.0.2.22")}}
	for name, tt := range map[string]struct {
		member       membership.Member
		internal     []netip.Addr
		own          []l2.Interface
		only         []string // of the addresses
		mute         bool     // its kernel does not respond
		want         []proxy.Redirect
		unresponsive []neighbour.Host
		// remembered is what an earlier process knew.
		remembered map[string][]cluster.Interface
	}{
		"alive":             {member: alive, own: []l2.Interface{eth0}, want: toN2},
		"alive, not tested": {member: alive, own: []l2.Interface{eth0}, want: toN2, mute: true},
		"no interfaces, by InternalIP": {member: membership.Member{Node: "n2", Alive: true},
			internal: []netip.Addr{addr("10.0.0.12"), addr("192.0.2.22")}, own: []l2.Interface{eth0},
			want: byInternalIP},
		"not on this link": {member: membership.Member{Node: "n2", Alive: true},
			internal: []netip.Addr{addr("10.0.0.12")}, own: []l2.Interface{eth0}},
		"its speaker has crashed": {member: membership.Member{Node: "n2", Interfaces: offered},
			own: []l2.Interface{eth0}, want: toN2, unresponsive: unresponsive},
		"dead": {member: membership.Member{Node: "n2", Interfaces: offered},
			own: []l2.Interface{eth0}, mute: true, unresponsive: unresponsive},
		"crashed, no hardware address": {member: membership.Member{Node: "n2"},
			internal: []netip.Addr{addr("192.0.2.22")}, own: []l2.Interface{eth0}},
		"alive by its Lease": {member: membership.Member{Node: "n2", Alive: true, ByLease: true,
			Interfaces: offered}, own: []l2.Interface{eth0}, want: toN2, unresponsive: unresponsive},
		"its speaker was stopped": {member: membership.Member{Node: "n2", Left: true, Interfaces: offered},
			own: []l2.Interface{eth0}, want: toN2, unresponsive: unresponsive},
		"alive, just started": {member: membership.Member{Node: "n2", Alive: true},
			remembered: map[string][]cluster.Interface{"n2": offered}, own: []l2.Interface{eth0}, want: toN2},
		"not met since the start": {member: membership.Member{Node: "n3"},
			remembered: map[string][]cluster.Interface{"n2": offered}, own: []l2.Interface{eth0}, want: toN2,
			unresponsive: unresponsive},
		"not a member": {member: membership.Member{Node: "n3", Alive: true, Interfaces: offered},
			own: []l2.Interface{eth0}},
		"no interface":      {member: alive},
		"odd name":          {member: alive, own: []l2.Interface{{Name: `e"h`, Prefixes: eth0.Prefixes}}},
		"another interface": {member: alive, own: []l2.Interface{eth0}, only: []string{"eth1"}},
		"two interfaces": {member: alive,
			own: []l2.Interface{eth0, {Name: "eth1", Prefixes: eth0.Prefixes}}, only: []string{"eth0", "eth1"},
			want: []proxy.Redirect{toN2[0], {VIP: vip4, Interface: "eth1", Via: toN2[0].Via, Onward: toN2[0].Via,
				OnwardMAC: mac}, toN2[1], {VIP: vip6, Interface: "eth1", Via: toN2[1].Via, Onward: toN2[1].Via,
				OnwardMAC: mac}}},
	} {
		for i := range tt.own {
			tt.own[i].IPv6 = true
		}
		d := &plan.Desired{Answered: sortedset.AddrSet(vip4, vip6), Inputs: &plan.Inputs{
			Node: "n1", Members: &membership.Members{Nodes: []membership.Member{tt.member}}, Interfaces: tt.own,
			Nodes: []*cluster.Node{{Name: "n1"}, {Name: "n2", InternalIPs: tt.internal}},
		}}
		d.L2 = l2.State{Addresses: []l2.Address{{Addr: vip4, Interfaces: tt.only}, {Addr: vip6, Interfaces: tt.only}}}
		history := NewHistory("n1")
		history.Restore(Saved{
			Owners: map[netip.Addr][]string{vip4: {"n2"}, vip6: {"n2", "n1"}}, Interfaces: tt.remembered,
		})
		history.RecordInterfaces(d.Inputs.Members)
		mute := tt.mute
		answers := func(neighbour.Host) bool { return !mute }
		got := (&Redirects{}).Next(d, history, answers)
		if !reflect.DeepEqual(got.Rules, tt.want) || !reflect.DeepEqual(got.Unresponsive, tt.unresponsive) {
			t.Errorf("%s: %v, unresponsive %v; want %v, %v", name, got.Rules, got.Unresponsive, tt.want,
				tt.unresponsive)
		}
		if err := (proxy.State{Redirects: got.Rules}).Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if (len(got.Rules) > 0) != (got.To[vip4] == "n2") {
			t.Errorf("%s: to %v", name, got.To)
		}
		// The same inputs return the same value.
		if again := got.Next(d, history, answers); again != got {
			t.Errorf("%s: computed again", name)
		}
		history.Restore(Saved{})
		if again := got.Next(d, history, answers); again == got || !sortedset.Same(again.Rules, got.Rules) {
			t.Errorf("%s: %v after %v", name, again.Rules, got.Rules)
		}
		// The redirect to a node ends when its kernel does.
		if mute = true; len(got.Next(d, history, answers).Rules) > 0 && tt.unresponsive != nil {
			t.Errorf("%s: redirects to a node without power", name)
		}
	}
}

// A node that is no longer the owner redirects what hosts still send it to the owner, and what
// other nodes have redirected to earlier owners first.
func TestRedirectOfFormerOwner(t *testing.T) {
	addr := netip.MustParseAddr
	vip := addr("192.0.2.1")
	eth0 := l2.Interface{Name: "eth0", Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	v := &plan.Inputs{Node: "n2", Interfaces: []l2.Interface{eth0}, Members: &membership.Members{}}
	for i, name := range []string{"n1", "n2", "n3"} {
		v.Members.Nodes = append(v.Members.Nodes, membership.Member{Node: name, Alive: true})
		v.Nodes = append(v.Nodes, &cluster.Node{
			Name: name, InternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(11 + i)})},
		})
	}
	history := NewHistory("n2")
	history.Restore(Saved{Owners: map[netip.Addr][]string{vip: {"n3", "n2", "n1"}, addr("192.0.2.2"): {"n3", "n1"}}})
	got := (&Redirects{}).Next(&plan.Desired{Inputs: v}, history, nil)
	if want := []proxy.Redirect{{VIP: vip, Interface: "eth0", Via: addr("192.0.2.13"), Onward: addr("192.0.2.11"),
		Beyond: addr("192.0.2.13")}}; !reflect.DeepEqual(got.Rules, want) || len(got.To) > 0 {
		t.Errorf("%v, shown %v; want %v", got.Rules, got.To, want)
	}
}

func TestRedirectOrder(t *testing.T) {
	for _, tt := range []struct{ owners, fromHosts, fromNodes string }{
		{"", "", ""},
		{"n1", "", ""},
		{"n1 n2", "n2", "n2"},
		{"n1 n2 n3", "n2 n3", "n2 n3"},
		{"n2 n1", "n2", "n2"},
		{"n2 n1 n3", "n2 n3", "n3 n2"},
		{"n2 n3 n1 n4", "n2 n3 n4", "n4 n2 n3"},
		{"n2 n3", "", ""},
	} {
		fromHosts, fromNodes := orderOf(strings.Fields(tt.owners), "n1")
		if hosts, nodes := strings.Join(fromHosts, " "),
			strings.Join(fromNodes, " "); hosts != tt.fromHosts || nodes != tt.fromNodes {
			t.Errorf("%q: of hosts to %q, of nodes to %q; want %q, %q", tt.owners, hosts, nodes, tt.fromHosts,
				tt.fromNodes)
		}
	}
}

// Whichever order of owners each of three nodes knows, a packet gets to all of them, wherever a host
// sends it.
func TestRedirectReachesAll(t *testing.T) {
	orders := []string{"n1 n2 n3", "n1 n3 n2", "n2 n1 n3", "n2 n3 n1", "n3 n1 n2", "n3 n2 n1"}
	for i := range 6 * 6 * 6 * 3 {
		known := map[string]string{"n1": orders[i%6], "n2": orders[i/6%6], "n3": orders[i/36%6]}
		path := []string{[]string{"n1", "n2", "n3"}[i/216]}
		fromHosts, _ := orderOf(strings.Fields(known[path[0]]), path[0])
		next := fromHosts[0]
		for range proxy.MaxRedirects {
			from := path[len(path)-1]
			path = append(path, next)
			_, onward := orderOf(strings.Fields(known[next]), next)
			if next = onward[0]; next == from {
				next = onward[1]
			}
		}
		if nodes := slices.Compact(slices.Sorted(slices.Values(path))); len(nodes) < 3 {
			t.Errorf("%v: a packet goes %v", known, path)
		}
	}
}

// Only as many owners are remembered as packets are redirected to.
func TestOwnersAreBounded(t *testing.T) {
	a := netip.MustParseAddr("192.0.2.1")
	o := NewHistory("n1")
	for i := range 9 {
		o.Record(a, fmt.Sprintf("n%d", i))
	}
	if got := o.owners[a].nodes; !slices.Equal(got, []string{"n8", "n7", "n6", "n5"}) {
		t.Errorf("%q", got)
	}
}
