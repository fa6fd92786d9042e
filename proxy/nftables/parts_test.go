package nftables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// held is what a kernel has between two transactions.
type held map[state.Element]string // data by set and key

func (h held) apply(c state.Change) error {
	for _, e := range c.Del {
		if _, ok := h[state.Element{Set: e.Set, Key: e.Key}]; !ok {
			return fmt.Errorf("%s is deleted and not there", e)
		}
		delete(h, state.Element{Set: e.Set, Key: e.Key})
	}
	for _, e := range c.Add {
		k := state.Element{Set: e.Set, Key: e.Key}
		if _, ok := h[k]; ok {
			return fmt.Errorf("%s is added and there", e)
		}
		h[k] = e.Data
	}
	return nil
}

// missing is what a packet is sent to and does not find, of all packets that there may be.
func (h held) missing() error {
	for k, chain := range h {
		var s state.Side
		switch state.Base(k.Set) {
		case state.SetExtSvc:
			s = state.External
		case state.SetIntSvc:
			s = state.Internal
		default:
			continue
		}
		if err := h.follow(s, state.Family(h.vip(k)), k.Key, chain); err != nil {
			return fmt.Errorf("%s: %w", state.Element{Set: k.Set, Key: k.Key, Data: chain}, err)
		}
	}
	return nil
}

func (h held) vip(k state.Element) netip.Addr {
	a, _, _ := state.FrontendOf(k.Set, k.Key)
	return a
}

// follow leads a packet for the frontend of that key from chain to chain.
func (h held) follow(s state.Side, f state.SetID, key, chain string) error {
	if rest, split := strings.CutPrefix(chain, state.SplitPrefix); split {
		chain = state.External.Prefix + rest
	}
	next, asks := map[string]state.SetID{s.SourceCheck: s.AfterSourceCheck, s.Sticky: s.Sched,
		s.RoundRobin: s.OwnChains}[chain]
	if asks {
		to, ok := h[state.Element{Set: next + f, Key: key}]
		if !ok {
			return fmt.Errorf("nothing in %s", state.Specs[next+f].Name)
		}
		return h.follow(s, f, key, to)
	}
	c, ok := state.ParseCountChain(chain)
	if !ok {
		return nil
	}
	of := s
	if c.Side == state.External.Prefix {
		of = state.External
	}
	if c.Schedule == state.Schedules[5] {
		return h.followClients(s, f, key, c.Slots)
	}
	set := of.Eps + f
	if c.Schedule.Table {
		set = of.Slots + f
	}
	for slot := range c.Slots {
		if _, ok := h[state.Element{Set: set,
			Key: string(append([]byte(key), state.Encoding(nil).Slot(slot)...))}]; !ok {
			return fmt.Errorf("%s, and no slot %d in %s", chain, slot, state.Specs[set].Name)
		}
	}
	return nil
}

// followClients leads clients of all slots to a backend.
func (h held) followClients(s state.Side, f state.SetID, key string, slots int) error {
	table, ok := h[state.Element{Set: s.Table + f, Key: key}]
	if !ok {
		return fmt.Errorf("nothing in %s", state.Specs[s.Table+f].Name)
	}
	vip := key[:state.FieldsSize(state.Specs[state.SetVIPs+f].Key)]
	for slot := range slots {
		id, ok := h[state.Element{Set: state.SetTables + f, Key: vip + table + string(state.Encoding(nil).Slot(slot))}]
		if _, there := h[state.Element{Set: s.Back + f, Key: key + id}]; !ok || !there {
			return fmt.Errorf("no backend for slot %d of a client", slot)
		}
	}
	return nil
}

// A large change is made in parts, between which no packet misses what it is sent to, and
// which together are the change.
func TestParts(t *testing.T) {
	w := proxytest.NewWorld(5)
	have := state.State{Node: "n1"}
	several := 0
	for range 300 {
		want := w.Next(have)
		vips := state.DiffVIPs(have.VIPs, want.VIPs)
		c := state.DiffStates(have, want, vips, state.RepliesOf(have.VIPs))
		slices.SortFunc(c.Del, state.Element.Compare)
		slices.SortFunc(c.Add, state.Element.Compare)
		h := make(held)
		if err := h.apply(state.Change{Add: state.RenderState(have)}); err != nil {
			t.Fatal(err)
		}
		before, now, after := c.Steps()
		for _, step := range []state.Change{before, now, after} {
			slices.SortFunc(step.Del, state.Element.Compare)
			slices.SortFunc(step.Add, state.Element.Compare)
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
		for _, e := range state.RenderState(want) {
			k := state.Element{Set: e.Set, Key: e.Key}
			if data, ok := h[k]; !ok || data != e.Data {
				t.Fatalf("%s is missing in the end", e)
			}
			delete(h, k)
		}
		for k, data := range h {
			t.Fatalf("%s is left over", state.Element{Set: k.Set, Key: k.Key, Data: data})
		}
		have = want
	}
	if several < 100 {
		t.Errorf("only %d changes had several parts", several)
	}
}

// What must change at one moment is in one part, however small these are.
func TestPartsKeepTogether(t *testing.T) {
	stateWith := func(owned, sources []string) state.State {
		v := proxytest.LargeVIP(3, 2, state.Random)
		for i := range v.Frontends {
			v.Frontends[i].Sources = proxytest.Prefixes(sources...)
		}
		return state.State{
			Node: "n1", VIPs: proxytest.VIPsOf(v), Owned: proxytest.Prefixes(owned...),
			Clients: state.LocalClients{CIDRs: proxytest.Prefixes(owned...)},
		}
	}
	have := stateWith([]string{"192.0.2.0/24"}, []string{"10.0.0.0/8", "11.0.0.0/8"})
	want := stateWith([]string{"192.0.2.0/25", "198.51.100.0/24"}, []string{"10.0.0.0/9", "12.0.0.0/8"})
	vips := state.DiffVIPs(have.VIPs, want.VIPs)
	c := state.DiffStates(have, want, vips, state.RepliesOf(have.VIPs))
	slices.SortFunc(c.Del, state.Element.Compare)
	slices.SortFunc(c.Add, state.Element.Compare)
	_, now, _ := c.Steps()
	parts := partsOf(now, 1)
	var got []string
	for _, p := range parts {
		got = append(got, fmt.Sprintf("-%d +%d %s", len(p.Del), len(p.Add), state.Specs[p.Add[0].Set].Name))
	}
	want3 := []string{"-2 +2 allowed4", "-2 +2 allowed4", "-2 +2 allowed4", "-2 +4 owned4"}
	if !slices.Equal(got, want3) {
		t.Errorf("parts %q; want %q", got, want3)
	}
}

// The kernel holds each State although each change is made in many small parts.
func TestStatesInParts(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		k := newKernel(t)
		k.part = 500
		w := proxytest.NewWorld(9)
		s := state.State{Node: "n1"}
		for range 40 {
			s = w.Next(s)
			k.set(s)
			k.check()
		}
	})
}
