package state_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// applyChange does to a list what the kernel does to its sets, with the same
// errors: what is added must not be there, what is deleted must.
func applyChange(t *testing.T, have []state.Element, c state.Change) []state.Element {
	t.Helper()
	type key struct {
		set state.SetID
		key string
	}
	m := make(map[key]state.Element)
	for _, e := range have {
		m[key{e.Set, e.Key}] = e
	}
	for _, e := range c.Del {
		if _, ok := m[key{e.Set, e.Key}]; !ok {
			t.Fatalf("delete %s: not there", e)
		}
		delete(m, key{e.Set, e.Key})
	}
	for _, e := range c.Add {
		if _, ok := m[key{e.Set, e.Key}]; ok {
			t.Fatalf("add %s: there already", e)
		}
		m[key{e.Set, e.Key}] = e
	}
	var out []state.Element
	for _, e := range m {
		out = append(out, e)
	}
	slices.SortFunc(out, state.Element.Compare)
	return out
}

// From any state to any state: what the diff of the values adds and deletes
// turns the elements of one into those of the other, and nothing that stays is
// touched.
func TestDiffAppliesToAnyState(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		w := proxytest.NewWorld(seed)
		have := state.State{Node: "n1"}
		elements := state.RenderState(have)
		for range 10 {
			want := w.Next(have)
			if err := want.Validate(); err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, want)
			}
			vips := state.DiffVIPs(have.VIPs, want.VIPs)
			c := state.DiffStates(have, want, vips, state.RepliesOf(have.VIPs))
			for _, e := range c.Del {
				if slices.Contains(c.Add, e) {
					t.Fatalf("seed %d: %s is deleted and added", seed, e)
				}
			}
			elements = applyChange(t, elements, c)
			if diff := cmp.Diff(proxytest.ElementsText(state.RenderState(want)),
				proxytest.ElementsText(elements)); diff != "" {
				t.Fatalf("seed %d: (-want +got)\n%s\nfrom\n%sto\n%s", seed, diff, have, want)
			}
			have = want
		}
	}
}

// Every address whose VIP differs is in one change, also where versions share memory.
func TestDiffVIPs(t *testing.T) {
	w := proxytest.NewWorld(5)
	vip := func(i int) *state.VIP { return proxytest.BenchVIP(i, 0) }
	have := state.VIPs{}
	for range 300 {
		var more []*state.VIP
		for range w.IntN(5) {
			more = append(more, vip(w.IntN(600)))
		}
		want := proxytest.WithVIPs(have, more...)
		switch w.IntN(20) {
		case 0: // many are gone
			want = proxytest.VIPsOf(want.Slice()[w.IntN(want.Len()+1):]...)
		case 1: // no shared memory
			want = proxytest.VIPsOf(want.Slice()...)
		case 2:
			want = proxytest.WithVIPs(want, proxytest.BenchState(500).VIPs.Slice()...)
		}
		if got, want := state.DiffVIPs(have, want), slowDiff(have, want); !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		have = want
	}
}

// slowDiff looks every address up.
func slowDiff(have, want state.VIPs) (changes []state.VIPChange) {
	was, is := state.State{VIPs: have}, state.State{VIPs: want}
	for v := range proxytest.WithVIPs(have, want.Slice()...).All() {
		if c := (state.VIPChange{Have: was.VIP(v.Addr), Want: is.VIP(v.Addr)}); c.Have != c.Want {
			changes = append(changes, c)
		}
	}
	return changes
}

func TestRenderIsSortedAndUnique(t *testing.T) {
	w := proxytest.NewWorld(1)
	s := state.State{}
	for range 200 {
		s = w.Next(s)
		all := state.RenderState(s)
		for i := 1; i < len(all); i++ {
			if all[i-1].Compare(all[i]) >= 0 {
				t.Fatalf("%s before %s", all[i-1], all[i])
			}
		}
	}
}

// What a packet may ask for because of what it met is there before, and goes after.
func TestSteps(t *testing.T) {
	frontend := func(sources []string, affinity time.Duration, pods ...string) state.State {
		f := state.Frontend{Protocol: state.UDP, Port: 80, Affinity: affinity, Sources: proxytest.Prefixes(sources...)}
		if sources == nil {
			f.Sources = nil
		}
		f.External = state.Target{Backends: proxytest.Backends(0, pods...), Remote: state.Masquerade}
		f.Internal = f.External
		return state.State{
			Node: "n1", VIPs: proxytest.VIPsOf(&state.VIP{
				Addr: proxytest.At("vip", 0), Frontends: []state.Frontend{f},
			}),
		}
	}
	ten, narrow := []string{"10.0.0.0/8"}, []string{"10.0.0.0/16"}
	for _, tc := range []struct {
		name          string
		have, want    state.State
		before, after string // names of sets, with - for what is deleted
	}{
		{"source ranges", frontend(nil, 0, "pod1"), frontend(ten, 0, "pod1"), "allowed4", ""},
		{"no source ranges", frontend(ten, 0, "pod1"), frontend(nil, 0, "pod1"), "", "-allowed4 -iinrange4 -xinrange4"},
		{"another list", frontend(ten, 0, "pod1"), frontend(narrow, 0, "pod1"), "", ""},
		{"affinity", frontend(nil, 0, "pod1"), frontend(nil, time.Hour, "pod1"), "", ""},
		{"another timeout", frontend(nil, time.Hour, "pod1"), frontend(nil, time.Minute, "pod1"), "", ""},
		{"no affinity", frontend(nil, time.Hour, "pod1"), frontend(nil, 0, "pod1"), "",
			"-iback4 -isched4 -itable4 -learn4 -postrouting4 -tables4 -xback4 -xsched4 -xtable4"},
		{"another backend with affinity", frontend(nil, time.Hour, "pod1"), frontend(nil, time.Hour, "pod2"), "",
			"-hair4 -iback4 -repliers4 -replies4 -tables4 -xback4"},
		{"fewer backends", frontend(nil, 0, "pod1", "remote"), frontend(nil, 0, "pod1"), "",
			"-ieps4 -imasq4 -postrouting4 -repliers4 -replies4 -xeps4 -xmasq4"},
		{"another backend", frontend(nil, 0, "pod1"), frontend(nil, 0, "pod2"), "", "-hair4 -repliers4 -replies4"},
	} {
		c := state.DiffElements(state.RenderState(tc.have), state.RenderState(tc.want))
		before, now, after := c.Steps()
		if got := namesOfSets(before); got != tc.before {
			t.Errorf("%s: %q before; want %q", tc.name, got, tc.before)
		}
		if got := namesOfSets(after); got != tc.after {
			t.Errorf("%s: %q after; want %q", tc.name, got, tc.after)
		}
		// One after the other they make the change, and no element is there but for its own sake.
		elements := state.RenderState(tc.have)
		for _, step := range []state.Change{before, now, after} {
			elements = applyChange(t, elements, step)
		}
		if diff := cmp.Diff(proxytest.ElementsText(state.RenderState(tc.want)),
			proxytest.ElementsText(elements)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tc.name, diff)
		}
	}
}

// namesOfSets are the sets that a change is about, with - for what it deletes.
func namesOfSets(c state.Change) string {
	var all []string
	for _, e := range c.Add {
		all = append(all, state.Specs[e.Set].Name)
	}
	for _, e := range c.Del {
		all = append(all, "-"+state.Specs[e.Set].Name)
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " ")
}
