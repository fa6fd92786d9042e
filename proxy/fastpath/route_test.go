package fastpath

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Each of many backends gets the route of "ip route get", even if lookups for others fail.
func TestRoutes(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		l.node.Route("10.244.2.0/24", "", "cali1")
		l.node.Route("fd00:244:2::/64", "", "cali2")
		l.node.Route("10.244.3.0/24", "10.0.1.2", "")
		l.node.Route("fd00:244:3::/64", "fd00:1::2", "")
		rule := netlink.NewRule() // policy routing: another table for some backends
		rule.Table, rule.Dst = 77, mustNet("10.244.2.128/25")
		if err := netlink.RuleAdd(rule); err != nil {
			t.Fatal(err)
		}
		if err := netlink.RouteAdd(&netlink.Route{Table: 77, Dst: mustNet("10.244.2.128/25"),
			LinkIndex: l.link("cali2").Attrs().Index}); err != nil {
			t.Fatal(err)
		}
		if err := netlink.RouteAdd(&netlink.Route{Dst: mustNet("10.244.4.0/24"), Type: unix.RTN_PROHIBIT}); err != nil {
			t.Fatal(err)
		}
		cali1, cali2 := uint32(l.link("cali1").Attrs().Index), uint32(l.link("cali2").Attrs().Index)
		want := make(map[netip.Addr]backendRoute)
		var all []netip.Addr
		for i := range 60 {
			for _, tt := range []struct {
				format string
				route  backendRoute
			}{
				{"10.244.2.%d", backendRoute{index: cali1}},
				{"fd00:244:2::%d", backendRoute{index: cali2}},
				{"10.244.3.%d", backendRoute{why: "backend %s is behind a gateway, not on a link of this node"}},
				{"fd00:244:3::%d", backendRoute{why: "backend %s is behind a gateway, not on a link of this node"}},
				{"203.0.113.%d", backendRoute{why: "no route to backend %s: network is unreachable"}},
				{"2001:db8:9::%d", backendRoute{why: "no route to backend %s: network is unreachable"}},
				{"10.244.4.%d", backendRoute{why: "no route to backend %s: permission denied"}},
				{"127.0.0.%d", backendRoute{why: "backend %s is the node itself"}},
			} {
				a := netip.MustParseAddr(fmt.Sprintf(tt.format, 100+i))
				if tt.route.index == cali1 && i >= 28 {
					tt.route.index = cali2 // by policy routing
				}
				if tt.route.why != "" {
					tt.route.why = fmt.Sprintf(tt.route.why, a)
				}
				all, want[a] = append(all, a), tt.route
			}
		}
		got := findRoutes(all)
		for a, w := range want {
			if got[a] != w {
				t.Errorf("%s: %+v; want %+v", a, got[a], w)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%d routes for %d backends", len(got), len(want))
		}
	})
}

// A frontend with more backends than one lookup handles is taken soon after Grow, in spite of
// other calls of Shrink and Grow. No state remains after it is removed.
func TestManyBackends(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		l.node.Route("10.244.2.0/24", "", "cali1")
		p := l.path()
		s := State{Outward: []string{"eth0"}, VIPs: []*VIP{{Addr: at("vip", 0)}}}
		for _, proto := range []uint8{TCP, UDP} {
			f := Frontend{Addr: port("vip", 0, 80), Protocol: proto, Take: true}
			for i := range byte(3 * routesPerCall) {
				f.Backends = append(f.Backends, Backend{
					Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 2, i}), 8080), Weight: 1,
				})
			}
			s.VIPs[0].Frontends = append(s.VIPs[0].Frontends, f)
		}
		next := s
		next.VIPs = slices.Insert(slices.Clone(s.VIPs), 1, &VIP{Addr: at("vip2", 0)})
		for range 3 {
			l.set(p, s)
			l.set(p, next)
			if err := p.Shrink(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			if st := p.Status(); len(st.NotOffloaded) > 0 && !st.Busy {
				t.Errorf("left %+v, and no lookup is pending", st.NotOffloaded)
			}
			l.set(p, s)
			l.await("both frontends to be taken",
				func() bool { st := p.Status(); return len(st.NotOffloaded) == 0 && !st.Busy })
			p.check(t, 2, 3*routesPerCall, 1)
			l.set(p, State{Outward: s.Outward})
			p.check(t, 0, 0, 0)
		}
	})
}

// check compares the numbers of taken frontends, their routes and interfaces.
func (d *Datapath) check(t *testing.T, taken, routes, interfaces int) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.table.frontends) != taken || len(d.routes.of) != routes || len(d.routes.links) != interfaces ||
		d.routes.unresolved != 0 {
		t.Errorf("%d are taken, by %d routes and %d interfaces, %d routes unknown; want %d, %d, %d",
			len(d.table.frontends), len(d.routes.of), len(d.routes.links), d.routes.unresolved, taken, routes,
			interfaces)
	}
}

func mustNet(prefix string) *net.IPNet {
	_, n, err := net.ParseCIDR(prefix)
	if err != nil {
		panic(err) // constants only
	}
	return n
}
