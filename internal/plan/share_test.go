package plan

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// A shared is a cluster whose Services are given by their ports and endpoints.
type shared map[string]size

// A size is how much room a Service needs: each port has as many endpoints, from one number on.
type size struct{ ports, endpoints, from int }

// snapshot makes the Services, whose names have their namespaces. Services that have not changed
// since before keep their pointers.
func (w shared) snapshot(before *cluster.Snapshot) *cluster.Snapshot {
	var services []cluster.Service
	var assigned []cluster.Assignment
	names := make([]string, 0, len(w))
	for name := range w {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		namespace, last, _ := strings.Cut(name, "/")
		n := cluster.Name{Namespace: namespace, Name: last}
		var i byte
		fmt.Sscanf(last, "s%d", &i)
		addr := netip.AddrFrom4([4]byte{192, 0, namespace[0], i})
		assigned = append(assigned, cluster.Assignment{Addr: addr, Service: n, Pool: "lan"})
		s := w[name].service(n)
		if old, had := before.Services.Get(n); had && len(old.Ports) == len(s.Ports) &&
			slices.Equal(old.Endpoints.Subsets[0].List, s.Endpoints.Subsets[0].List) {
			s = old
		}
		services = append(services, s)
	}
	return &cluster.Snapshot{Services: cluster.ServiceSet(services...), Assignments: cluster.AssignmentSet(assigned...),
		Nodes: []*cluster.Node{{Name: "n1", InternalIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}},
		Pools: []*cluster.Pool{{Name: "lan", Announce: cluster.AnnounceBGP,
			Ranges: []netipx.IPRange{netipx.MustParseIPRange("192.0.0.0-192.0.255.255")}}},
		Peers: []*cluster.Peer{{Session: bgp.Session{Name: "tor1", PeerASN: 65000}, MyASN: 65001}}, AllNodes: true,
		L2Ready: true}
}

func (z size) service(n cluster.Name) cluster.Service {
	spec, e := &cluster.Spec{Name: n}, cluster.Subset{}
	for p := range z.ports {
		port := cluster.Port{Name: fmt.Sprintf("p%05d", p), Protocol: corev1.ProtocolTCP, Port: uint16(p + 1)}
		spec.Ports = append(spec.Ports, port)
		port.Port = 80
		e.Ports = append(e.Ports, port)
	}
	for i := range z.endpoints {
		at := z.from + i
		e.List = append(e.List, cluster.Endpoint{
			Addr: netip.AddrFrom4([4]byte{10, n.Namespace[0], byte(at >> 8), byte(at)}), Ready: true, Serving: true,
		})
	}
	return cluster.Service{Spec: spec, Endpoints: &cluster.Endpoints{Subsets: []cluster.Subset{e}}}
}

// limited returns a Decider for a node with room for 1,201 entries of Services.
func limited() *Decider {
	l := proxy.DefaultLimits(proxy.ModeNFTables)
	l.Total = 1372 // an eighth remains
	return NewDecider(Config{Node: "n1", Limits: l})
}

// text is what is forwarded of each Service: ports × endpoints of the first, and whether it is
// announced.
func (w shared) text(t *testing.T, d *Desired) string {
	t.Helper()
	var lines []string
	for a := range d.Addresses.All() {
		line := fmt.Sprintf("%s %d", a.Services[0], len(a.VIP.Frontends))
		if len(a.VIP.Frontends) > 0 {
			line += fmt.Sprintf("×%d", len(a.VIP.Frontends[0].External.Backends))
		}
		if a.Announce != (len(a.VIP.Frontends) > 0) {
			t.Errorf("%s: announced %t", line, a.Announce)
		}
		code := cluster.Programmed
		switch r := d.ReasonsOf(a)[0]; {
		case len(a.VIP.Frontends) == 0:
			code = cluster.ProxyRefused
		case a.partly:
			code = cluster.ProxyLimited
			fallthrough
		default:
			if r.Code != code || a.Refused() != (code != cluster.Programmed) {
				t.Errorf("%s: reason %v, refused %t; want %s", line, r, a.Refused(), code)
			}
		}
		lines = append(lines, line)
	}
	if used := d.forwarded; used.entries > 1201 || used.entries != entries(d) {
		t.Errorf("%d entries are counted, of %d", used.entries, entries(d))
	}
	if err := d.Proxy.Validate(); err != nil {
		t.Error(err)
	}
	return strings.Join(lines, ", ")
}

func entries(d *Desired) (n int) {
	for v := range d.Proxy.VIPs.All() {
		n += v.Entries(proxy.ModeNFTables)
	}
	return n
}

// Where a node lacks room, the largest namespace yields: first what it has grown by, then its
// largest Service. A Service of 1 port with n endpoints needs 12+6n entries.
func TestNamespacesShareRoom(t *testing.T) {
	hog := shared{"evil/s1": {1, 40, 0}, "evil/s2": {1, 40, 0}, "evil/s3": {1, 40, 0}, "shop/s1": {1, 3, 0}}
	for _, c := range []struct {
		name   string
		before shared // nil: the node has just started
		change shared
		want   string
	}{
		{"everything fits", nil, shared{}, "evil/s1 1×40, evil/s2 1×40, evil/s3 1×40, shop/s1 1×3"},
		{"a Service grows beyond the room, and keeps what it has", hog, shared{"evil/s2": {1, 90, 0}},
			"evil/s1 1×40, evil/s2 1×40, evil/s3 1×40, shop/s1 1×3"},
		{"a new Service of the same namespace gets no room", hog, shared{"evil/s4": {1, 35, 0}},
			"evil/s1 1×40, evil/s2 1×40, evil/s3 1×40, evil/s4 0, shop/s1 1×3"},
		{"another namespace grows, and the largest Service of the largest one yields", hog,
			shared{"shop/s1": {1, 60, 0}}, "evil/s1 0, evil/s2 1×40, evil/s3 1×40, shop/s1 1×60"},
		{"both grow", hog, shared{"shop/s1": {1, 20, 0}, "evil/s3": {1, 400, 0}},
			"evil/s1 1×40, evil/s2 1×40, evil/s3 1×40, shop/s1 1×20"},
		{"new ports do not fit, and the old ones stay", hog, shared{"evil/s2": {30, 40, 0}},
			"evil/s1 1×40, evil/s2 1×40, evil/s3 1×40, shop/s1 1×3"},
		{"endpoints are replaced while there is no room for more of them", hog, shared{"evil/s2": {1, 90, 35}},
			"evil/s1 1×40, evil/s2 1×40, evil/s3 1×40, shop/s1 1×3"},
		{"after a start without room, the largest is refused", nil, shared{"evil/s2": {1, 90, 0}},
			"evil/s1 1×40, evil/s2 0, evil/s3 1×40, shop/s1 1×3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, w, snap := limited(), shared{}, &cluster.Snapshot{}
			if c.before != nil {
				snap = c.before.snapshot(snap)
				d.Decide(snap)
			}
			for _, more := range []shared{hog, c.change} {
				for name, z := range more {
					w[name] = z
				}
			}
			snap = w.snapshot(snap)
			if got := w.text(t, d.Decide(snap)); got != c.want {
				t.Errorf("forwards\n%s\nwant\n%s", got, c.want)
			}
			if again := d.Decide(snap); w.text(t, again) != c.want {
				t.Errorf("then\n%s", w.text(t, again))
			}
			if c.before != nil { // and back
				if got := hog.text(t, d.Decide(hog.snapshot(snap))); got !=
					"evil/s1 1×40, evil/s2 1×40, evil/s3 1×40, shop/s1 1×3" {
					t.Errorf("afterwards %s", got)
				}
			}
		})
	}
}

// What is kept of a Service has no endpoint that is gone.
func TestKeptEndpointsExist(t *testing.T) {
	w := shared{"evil/s1": {1, 60, 0}, "evil/s2": {1, 60, 0}}
	d, snap := limited(), w.snapshot(&cluster.Snapshot{})
	d.Decide(snap)
	for from := range 80 { // a rolling update beyond the room
		w["evil/s1"] = size{1, 120, from}
		snap = w.snapshot(snap)
		a := d.Decide(snap).Address(netip.AddrFrom4([4]byte{192, 0, 'e', 1}))
		if len(a.VIP.Frontends) != 1 || len(a.VIP.Frontends[0].External.Backends) != 60 || !a.Announce {
			t.Fatalf("from %d: %v, announced %t", from, a.VIP, a.Announce)
		}
		for _, b := range a.VIP.Frontends[0].External.Backends {
			if !slices.ContainsFunc(a.services[0].Endpoints.Subsets[0].List,
				func(e cluster.Endpoint) bool { return e.Addr == b.Addr.Addr() }) {
				t.Fatalf("from %d: %v is gone", from, b)
			}
		}
	}
}

// However one namespace changes its Services, another one below its fair share is served in full,
// and no node forwards more than it has room for.
func TestHostileNamespaceTakesNoRoom(t *testing.T) {
	for seed := range uint64(40) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		d, w, snap := limited(), shared{"shop/s1": {1, 3, 0}, "shop/s2": {2, 3, 0}}, &cluster.Snapshot{}
		for range 40 {
			name := fmt.Sprintf("evil/s%d", rnd.IntN(20))
			switch w[name] = (size{1 + rnd.IntN(10), 1 + rnd.IntN(60), rnd.IntN(100)}); {
			case rnd.IntN(4) == 0:
				delete(w, name)
			case rnd.IntN(4) == 0:
				w["shop/s1"] = size{1, 3 + rnd.IntN(37), rnd.IntN(4)}
			}
			snap = w.snapshot(snap)
			next := d.Decide(snap)
			w.text(t, next)
			for _, n := range []byte{1, 2} {
				if a := next.Address(netip.AddrFrom4([4]byte{192, 0, 's', n})); a.Refused() || !a.Announce {
					t.Fatalf("seed %d: shop/s%d is forwarded as %v", seed, n, a.VIP)
				}
			}
		}
	}
}

// A withdrawn address that is still forwarded needs room, too: the largest has none if there is not
// enough for all.
func TestLingeringAddressesFit(t *testing.T) {
	w := shared{"evil/s1": {1, 80, 0}, "evil/s2": {1, 65, 0}}
	d := limited().Decide(w.snapshot(&cluster.Snapshot{}))
	vip := func(i byte, endpoints int) *proxy.VIP {
		a := d.Addresses.At(0).VIP
		f := a.Frontends[0]
		f.External.Backends, f.Internal.Backends = f.External.Backends[:endpoints], f.Internal.Backends[:endpoints]
		return &proxy.VIP{Addr: netip.AddrFrom4([4]byte{192, 0, 200, i}), Frontends: []proxy.Frontend{f}}
	}
	large, small := vip(1, 60), vip(2, 3)
	if got := d.Fit([]*proxy.VIP{large, small}); len(got[0].Frontends) != 0 || got[0].Addr != large.Addr ||
		got[1] != small {
		t.Errorf("got %v", got)
	}
	if got := d.Fit([]*proxy.VIP{small}); got[0] != small {
		t.Errorf("got %v", got)
	}
}

// Unequal histories aside, nodes agree: shareOut depends on nothing but its arguments, in any order.
func TestShareOutIsPure(t *testing.T) {
	l := limited().Config.Limits
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var all []*holder
		for i := range 60 {
			h := &holder{
				addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), namespace: fmt.Sprint(rnd.IntN(8)),
				service: &cluster.Spec{},
			}
			whole := 3 + rnd.IntN(120)
			h.uses = [...]use{{entries: whole}, {entries: 3 + rnd.IntN(whole)}, {entries: 3}}
			all = append(all, h)
		}
		rooms := func() (text string) {
			total := 0
			for _, h := range all {
				h.room = wholeRoom
			}
			shareOut(l, all)
			slices.SortFunc(all, func(a, b *holder) int { return a.addr.Compare(b.addr) })
			for _, h := range all {
				text += fmt.Sprint(h.room)
				total += h.uses[h.room].entries
			}
			if total > shareable(l).entries {
				t.Fatalf("seed %d: %d entries", seed, total)
			}
			return text
		}
		want := rooms()
		rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		if got := rooms(); got != want {
			t.Fatalf("seed %d: %s in another order, and %s", seed, got, want)
		}
	}
}

// An endpoint that terminates drains only where it had flows, and takes the place of another one.
func TestKeptFrontendDrainsWhatItHad(t *testing.T) {
	at := func(n byte) netip.AddrPort { return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 80) }
	serving := func(numbers ...byte) (f proxy.Frontend) {
		for _, n := range numbers {
			f.External.Backends = append(f.External.Backends, proxy.Backend{Addr: at(n)})
		}
		return f
	}
	had, want := serving(1, 2), serving(2, 3, 4)
	want.Draining = []netip.AddrPort{at(1), at(9)}
	got := formerFrontend(&want, &had)
	if !slices.Equal(got.Draining, want.Draining[:1]) ||
		!slices.Equal(got.External.Backends, want.External.Backends[:1]) {
		t.Errorf("got %v, and %v drain", got.External.Backends, got.Draining)
	}
}
