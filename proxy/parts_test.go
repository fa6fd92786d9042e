package proxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// held is what a kernel has between two transactions.
type held map[element]string // data by set and key

func (h held) apply(c change) error {
	for _, e := range c.del {
		if _, ok := h[element{set: e.set, key: e.key}]; !ok {
			return fmt.Errorf("%s is deleted and not there", e)
		}
		delete(h, element{set: e.set, key: e.key})
	}
	for _, e := range c.add {
		k := element{set: e.set, key: e.key}
		if _, ok := h[k]; ok {
			return fmt.Errorf("%s is added and there", e)
		}
		h[k] = e.data
	}
	return nil
}

// missing is what a packet is sent to and does not find, of all packets that there may be.
func (h held) missing() error {
	for k, chain := range h {
		var s side
		switch base(k.set) {
		case setExtSvc:
			s = external
		case setIntSvc:
			s = internal
		default:
			continue
		}
		if err := h.follow(s, family(h.vip(k)), k.key, chain); err != nil {
			return fmt.Errorf("%s: %w", element{set: k.set, key: k.key, data: chain}, err)
		}
	}
	return nil
}

func (h held) vip(k element) netip.Addr {
	a, _, _ := frontendOf(k.set, k.key)
	return a
}

// follow leads a packet for the frontend of that key from chain to chain.
func (h held) follow(s side, f setID, key, chain string) error {
	if rest, split := strings.CutPrefix(chain, splitPrefix); split {
		chain = external.prefix + rest
	}
	next, asks := map[string]setID{s.fence: s.fenced, s.sticky: s.sched, s.turn: s.turns}[chain]
	if asks {
		to, ok := h[element{set: next + f, key: key}]
		if !ok {
			return fmt.Errorf("nothing in %s", specs[next+f].name)
		}
		return h.follow(s, f, key, to)
	}
	c, ok := parseCountChain(chain)
	if !ok {
		return nil
	}
	of := s
	if c.side == external.prefix {
		of = external
	}
	set := of.eps + f
	if c.schedule.table {
		set = of.slots + f
	}
	for slot := range c.slots {
		if _, ok := h[element{set: set, key: string(append([]byte(key), encoding(nil).slot(slot)...))}]; !ok {
			return fmt.Errorf("%s, and no slot %d in %s", chain, slot, specs[set].name)
		}
	}
	return nil
}

// A large change is made in parts, between which no packet misses what it is sent to, and
// which together are the change.
func TestParts(t *testing.T) {
	w := newWorld(5)
	have := State{Node: "n1"}
	several := 0
	for range 300 {
		want := w.next(have)
		vips, err := diffVIPs(have.VIPs, want.VIPs)
		if err != nil {
			t.Fatal(err)
		}
		c := diffStates(have, want, vips)
		slices.SortFunc(c.del, element.compare)
		slices.SortFunc(c.add, element.compare)
		h := make(held)
		if err := h.apply(change{add: renderState(have)}); err != nil {
			t.Fatal(err)
		}
		before, now, after := c.steps()
		for _, step := range []change{before, now, after} {
			slices.SortFunc(step.del, element.compare)
			slices.SortFunc(step.add, element.compare)
			parts := partsOf(step, 1+w.IntN(2000))
			if len(parts) > 1 {
				several++
			}
			for _, part := range parts {
				if err := h.apply(part); err != nil {
					t.Fatal(err)
				}
				if err := h.missing(); err != nil {
					t.Fatalf("%v, from\n%sto\n%s", err, have, want)
				}
			}
		}
		for _, e := range renderState(want) {
			k := element{set: e.set, key: e.key}
			if data, ok := h[k]; !ok || data != e.data {
				t.Fatalf("%s is missing in the end", e)
			}
			delete(h, k)
		}
		for k, data := range h {
			t.Fatalf("%s is left over", element{set: k.set, key: k.key, data: data})
		}
		have = want
	}
	if several < 100 {
		t.Errorf("only %d changes had several parts", several)
	}
}

// What must change at one moment is in one part, however small these are.
func TestPartsKeepTogether(t *testing.T) {
	state := func(owned, sources []string) State {
		v := largeVIP(3, 2, Random)
		for i := range v.Frontends {
			v.Frontends[i].Sources = prefixes(sources...)
		}
		return State{Node: "n1", VIPs: []*VIP{v}, Owned: prefixes(owned...), Clients: LocalClients{CIDRs: prefixes(owned...)}}
	}
	have := state([]string{"192.0.2.0/24"}, []string{"10.0.0.0/8", "11.0.0.0/8"})
	want := state([]string{"192.0.2.0/25", "198.51.100.0/24"}, []string{"10.0.0.0/9", "12.0.0.0/8"})
	vips, err := diffVIPs(have.VIPs, want.VIPs)
	if err != nil {
		t.Fatal(err)
	}
	c := diffStates(have, want, vips)
	slices.SortFunc(c.del, element.compare)
	slices.SortFunc(c.add, element.compare)
	_, now, _ := c.steps()
	parts := partsOf(now, 1)
	var got []string
	for _, p := range parts {
		got = append(got, fmt.Sprintf("-%d +%d %s", len(p.del), len(p.add), specs[p.add[0].set].name))
	}
	want3 := []string{"-2 +2 allowed4", "-2 +2 allowed4", "-2 +2 allowed4", "-2 +4 owned4"}
	if !slices.Equal(got, want3) {
		t.Errorf("parts %q; want %q", got, want3)
	}
}

// The kernel holds each State although each change is made in many small parts.
func TestStatesInParts(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		p := newProxy(t)
		p.renderer.(*nftRenderer).part = 500
		w := newWorld(9)
		s := State{Node: "n1"}
		for range 40 {
			s = w.next(s)
			mustSet(t, p, s)
			checkKernel(t, s)
		}
		if s := p.Status(); s.Repairs != 0 {
			t.Errorf("%d repairs, %s; no program interfered", s.Repairs, s.Found)
		}
	})
}
