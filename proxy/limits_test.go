package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// What an address needs is never counted too low, and not far too high: for States of
// all kinds.
func TestEntriesCountWhatIsRendered(t *testing.T) {
	w := newWorld(11)
	var s State
	s.Node = "n1"
	for range 300 {
		s = w.next(s)
		for _, v := range s.VIPs {
			if n := len(state.RenderVIP(v, s.Node)); n > v.Entries(ModeNFTables) {
				t.Fatalf("%d entries for %d elements of\n%s", v.Entries(ModeNFTables), n, State{Node: "n1", VIPs: []*VIP{v}})
			}
			chains := make(iptables.ChainSet)
			iptables.Render{Node: s.Node, Mark: iptables.DefaultFlag}.VIP(chains, v)
			rules, programs := 0, 0
			for _, all := range chains {
				rules += len(all)
				for _, r := range all {
					if strings.Contains(r, "--bytecode") {
						programs++
					}
				}
			}
			if rules > v.Entries(ModeIPTables) {
				t.Fatalf("%d entries for %d rules of\n%s", v.Entries(ModeIPTables), rules, State{Node: "n1", VIPs: []*VIP{v}})
			}
			if programs != v.Programs() {
				t.Fatalf("%d programs counted, %d in the rules of\n%s", v.Programs(), programs, State{Node: "n1", VIPs: []*VIP{v}})
			}
		}
	}
}

// All addresses of a node together are limited, too: the largest of the grown ones are
// refused, until the rest fits.
func TestEntriesOfAllAddresses(t *testing.T) {
	vip := func(i byte, endpoints int) *VIP {
		v := largeVIP(1, endpoints, Random)
		v.Addr = netip.AddrFrom4([4]byte{192, 0, 2, i})
		return v
	}
	have, want := []*VIP{vip(1, 100), vip(2, 100), vip(3, 300)}, []*VIP{vip(1, 150), vip(2, 400), vip(4, 300), vip(5, 1)}
	changes, err := state.DiffVIPs(have, want)
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, v := range have {
		total += v.Entries(ModeNFTables)
	}
	for most, expected := range map[int]string{1 << 20: "[]", 6 * 840: "[192.0.2.2]", 6 * 500: "[192.0.2.2 192.0.2.4]", 0: "[192.0.2.1 192.0.2.2 192.0.2.4 192.0.2.5]"} {
		l, refused := DefaultLimits(ModeNFTables), make(state.Refusals)
		l.Total = most
		l.RefuseTotal(total, changes, refused)
		got := slices.SortedFunc(maps.Keys(refused), netip.Addr.Compare)
		if fmt.Sprint(got) != expected {
			t.Errorf("of %d entries at most, %v are refused; want %s", most, got, expected)
		}
	}
}

// Each limit has a message that names what exceeds it, by how much, and what to do.
func TestLimits(t *testing.T) {
	sources := func(n int) (all []netip.Prefix) {
		for i := range n {
			all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32))
		}
		return all
	}
	for _, c := range []struct {
		name string
		mode Mode
		v    *VIP
		want string // of the error; empty: none
	}{
		{"an address without ports", ModeNFTables, &VIP{Addr: netip.MustParseAddr("192.0.2.1")}, ""},
		{"2,600 ports with maglev", ModeNFTables, largeVIP(2600, 2, Maglev), ""},
		{"10,000 ports", ModeNFTables, largeVIP(10000, 2, Random), ""},
		{"60,000 endpoints", ModeNFTables, largeVIP(1, 60000, Random), ""},
		{"all endpoints that there may be", ModeNFTables, largeVIP(1, 65535, Random), ""},
		{"one endpoint too many", ModeNFTables, largeVIP(1, 65536, Random),
			"endpoints of port tcp/1: 65536; in nftables mode an address can have 65535: use several Services, each with a part of the endpoints"},
		{"more than a table has slots", ModeNFTables, largeVIP(1, 65522, Maglev),
			"endpoints of port tcp/1 with the scheduler maglev: 65522; in nftables mode an address can have 65521: choose another scheduler, or use several Services"},
		{"too many ports", ModeNFTables, largeVIP(16385, 1, Random),
			"ports: 16385; in nftables mode an address can have 16384: give some of them to another Service with an address of its own"},
		{"too many turns", ModeNFTables, largeVIP(4097, 2, RoundRobin),
			"ports with the scheduler round robin: 4097; in nftables mode an address can have 4096: choose another scheduler, or use several Services"},
		{"too much together", ModeNFTables, largeVIP(8000, 2, Maglev), "ports, endpoints and source ranges together, as entries in the kernel: "},
		{"too many sources", ModeNFTables, &VIP{Addr: netip.MustParseAddr("192.0.2.1"), Frontends: []Frontend{{Protocol: UDP, Port: 53, Sources: sources(16385)}}},
			"source ranges of port udp/53: 16385; in nftables mode an address can have 16384: join ranges, or leave the list to a firewall"},
		{"many endpoints for iptables", ModeIPTables, largeVIP(1, 4097, Random),
			"endpoints of port tcp/1: 4097; in iptables mode an address can have 4096: use several Services, each with a part of the endpoints"},
		{"many programs", ModeIPTables, largeVIP(5, 50, Maglev), // both kinds of clients, which differ
			"rules for the schedulers maglev and source hash: 490; in iptables mode an address can have 450: choose the scheduler random for some ports, or use nftables mode"},
		{"many programs that are none in nftables", ModeNFTables, largeVIP(5, 50, Maglev), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := DefaultLimits(c.mode).Check(c.v)
			got := fmt.Sprint(err)
			if c.want == "" && err != nil || c.want != "" && !strings.Contains(got, c.want) {
				t.Errorf("%s; want %q", got, c.want)
			}
			if strings.Count(got, "\n") >= state.MaxFaults {
				t.Errorf("%d lines", strings.Count(got, "\n")+1)
			}
		})
	}
}

// Rules with programs are limited for all addresses of a node together. Addresses that have
// theirs keep them.
func TestProgramsOfAllAddresses(t *testing.T) {
	vip := func(i byte, ports int) *VIP {
		v := largeVIP(ports, 50, Maglev)
		v.Addr = netip.AddrFrom4([4]byte{192, 0, 2, i})
		return v
	}
	have := State{VIPs: []*VIP{vip(5, 4), vip(6, 4)}} // 392 rules each
	want := State{VIPs: []*VIP{vip(1, 1), vip(2, 4), have.VIPs[0], have.VIPs[1], vip(7, 1)}}
	changes, err := state.DiffVIPs(have.VIPs, want.VIPs)
	if err != nil {
		t.Fatal(err)
	}
	l, refused := DefaultLimits(ModeIPTables), make(state.Refusals)
	l.RefusePrograms(want, changes, refused)
	var got []string
	for a := range refused {
		got = append(got, a.String())
	}
	slices.Sort(got)
	if !slices.Equal(got, []string{"192.0.2.2", "192.0.2.7"}) {
		t.Errorf("refused %v", got)
	}
	DefaultLimits(ModeNFTables).RefusePrograms(want, changes, refused)
	if len(refused) != 2 {
		t.Errorf("nftables has no such rules, and refuses %d", len(refused))
	}
}

// One address that breaks a rule or a limit is refused alone, in every mode: others that
// come with it and after it are set as ever, and what it was before stays until it is right.
func TestSetRefusesOneAddress(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newProxy(t)
		good := func(i byte, version int) *VIP {
			v := benchVIP(0, version)
			v.Addr = netip.AddrFrom4([4]byte{192, 0, 2, i})
			return v
		}
		huge, broken := largeVIP(1, 66000, Random), good(3, 0)
		broken.Frontends = append(slices.Clone(broken.Frontends), broken.Frontends[0])
		refused := func(s State, vips ...*VIP) {
			t.Helper()
			err := p.Set(t.Context(), s)
			var all *Refused
			if !errors.As(err, &all) || len(all.Refusals) != len(vips) {
				t.Fatalf("got %.300s; want %d addresses refused", fmt.Sprint(err), len(vips))
			}
			for i, r := range all.Refusals {
				if r.VIP != vips[i] || r.Err == nil || !strings.Contains(err.Error(), "vip "+r.VIP.Addr.String()+" is refused: ") {
					t.Errorf("refused %s: %v; want %s", r.VIP.Addr, r.Err, vips[i].Addr)
				}
			}
		}
		state := func(vips ...*VIP) State { return State{Node: "n1", VIPs: vips, Owned: prefixes("192.0.2.0/24")} }
		two, four := good(2, 0), good(4, 0)
		refused(state(huge, two, broken), huge, broken)
		checkKernel(t, state(two))
		refused(state(huge, two, broken, four), huge, broken)
		checkKernel(t, state(two, four))
		if e := p.Status().LastError; e != "" {
			t.Errorf("last error %q", e)
		}

		// One that was right stays as it was.
		three := good(3, 1)
		refused(state(huge, two, three, four), huge)
		refused(state(huge, good(2, 1), broken, four), huge, broken)
		checkKernel(t, state(good(2, 1), three, four))
		mustSet(t, p, state(four))
		checkKernel(t, state(four))
	})
}

// The kernel may refuse what the limits allow. Set finds the addresses that it does not take.
func TestBisect(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		p := newProxy(t)
		k := &picky{Renderer: p.renderer}
		p.renderer = k
		var s State
		s.Node, s.Owned = "n1", prefixes("198.18.0.0/15")
		for i := range 200 {
			s.VIPs = append(s.VIPs, benchVIP(i, 0))
		}
		small, large := s.VIPs[7], largeVIP(3, 40, Random)
		s.VIPs = append([]*VIP{large}, s.VIPs...)
		k.refuses = []*VIP{large, small}
		err := p.Set(t.Context(), s)
		var all *Refused
		if !errors.As(err, &all) || len(all.Refusals) != 2 || all.Refusals[0].VIP != large || all.Refusals[1].VIP != small {
			t.Fatalf("got %v", err)
		}
		if !strings.Contains(err.Error(), "the kernel refuses it: no room") {
			t.Error(err)
		}
		checkKernel(t, s.Without(State{}, state.Refusals{large.Addr: {}, small.Addr: {}}))
		if k.calls > 40 {
			t.Errorf("%d attempts for 201 addresses", k.calls)
		}

		// One that is forwarded stays as it was when its change is refused.
		next := s.Without(State{}, state.Refusals{large.Addr: {}})
		next.VIPs = slices.Clone(next.VIPs)
		was, changed := next.VIPs[3], benchVIP(3, 1)
		next.VIPs[3] = changed
		k.refuses = []*VIP{changed}
		err = p.Set(t.Context(), next)
		if !errors.As(err, &all) || len(all.Refusals) != 1 || all.Refusals[0].VIP != changed {
			t.Fatalf("got %v", err)
		}
		next.VIPs[3] = was
		checkKernel(t, next)

		// No address is to blame when the kernel takes nothing at all, or not now.
		next.VIPs[3] = changed
		k.all = fmt.Errorf("nothing at all: %w", unix.ENOMEM)
		if err := p.Set(t.Context(), next); err == nil || errors.As(err, &all) {
			t.Errorf("nothing is taken: %v", err)
		}
		k.all, k.refuses = nil, nil
		mustSet(t, p, next)
		checkKernel(t, next)
	})
}

// A picky renderer has a kernel that does not take some addresses, or nothing.
type picky struct {
	renderer.Renderer
	refuses []*VIP
	all     error
	calls   int
}

func (k *picky) fails(want State) error {
	k.calls++
	for _, v := range want.VIPs {
		if slices.Contains(k.refuses, v) {
			return fmt.Errorf("no room: %w", unix.ENOMEM)
		}
	}
	return k.all
}

func (k *picky) Update(ctx context.Context, u renderer.Step) error {
	if err := k.fails(u.Want); err != nil {
		return err
	}
	return k.Renderer.Update(ctx, u)
}

func (k *picky) Converge(ctx context.Context, have *State, want State) (renderer.Finding, error) {
	if err := k.fails(want); err != nil {
		return renderer.Finding{}, err
	}
	return k.Renderer.Converge(ctx, have, want)
}

// Rules with programs go in parts of a number that is safe, and chains are deleted when all
// that lead to them are empty.
func TestProgramsGoInParts(t *testing.T) {
	have := map[string]iptables.ChainSet{"nat": make(iptables.ChainSet)}
	for i := range 5 {
		for range 100 {
			have["nat"].Add(fmt.Sprintf("FAN-x-%d", i), `-m bpf --bytecode "1,6 0 0 0" -j DNAT`)
		}
	}
	have["nat"].Add("FAN-x", "-g FAN-x-0")
	want := map[string]iptables.ChainSet{"nat": {"FAN-new": {"-j RETURN"}}}
	p := iptables.PlanTables(have, want)
	var got []string
	all := p.Parts(iptables.MaxFreed)
	for _, part := range all {
		script, _ := part.Script()
		got = append(got, strings.ReplaceAll(strings.TrimSpace(script), "\n", " "))
	}
	expected := []string{
		"*nat :FAN-new - [0:0] -A FAN-new -j RETURN -F FAN-x-0 -F FAN-x-1 COMMIT",
		"*nat -F FAN-x-2 -F FAN-x-3 COMMIT",
		"*nat -F FAN-x-4 COMMIT",
		"*nat -F FAN-x -F FAN-x-0 -F FAN-x-1 -F FAN-x-2 -F FAN-x-3 -F FAN-x-4 " +
			"-X FAN-x -X FAN-x-0 -X FAN-x-1 -X FAN-x-2 -X FAN-x-3 -X FAN-x-4 COMMIT",
	}
	if !slices.Equal(got, expected) {
		t.Errorf("got %q", got)
	}
	if few := p.Parts(500); len(few) != 1 {
		t.Errorf("%d parts for what is few enough", len(few))
	}
}
