package proxy

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// applyChange does to a list what the kernel does to its sets, with the same
// errors: what is added must not be there, what is deleted must.
func applyChange(t *testing.T, have []element, c change) []element {
	t.Helper()
	type key struct {
		set setID
		key string
	}
	m := make(map[key]element)
	for _, e := range have {
		m[key{e.set, e.key}] = e
	}
	for _, e := range c.del {
		if _, ok := m[key{e.set, e.key}]; !ok {
			t.Fatalf("delete %s: not there", e)
		}
		delete(m, key{e.set, e.key})
	}
	for _, e := range c.add {
		if _, ok := m[key{e.set, e.key}]; ok {
			t.Fatalf("add %s: there already", e)
		}
		m[key{e.set, e.key}] = e
	}
	var out []element
	for _, e := range m {
		out = append(out, e)
	}
	slices.SortFunc(out, element.compare)
	return out
}

// From any state to any state: what the diff of the values adds and deletes
// turns the elements of one into those of the other, and nothing that stays is
// touched.
func TestDiffAppliesToAnyState(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		w := newWorld(seed)
		have := State{Node: "n1"}
		elements := renderState(have)
		for range 10 {
			want := w.next(have)
			if err := want.Validate(); err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, want)
			}
			vips, err := diffVIPs(have.VIPs, want.VIPs)
			if err != nil {
				t.Fatal(err)
			}
			c := diffStates(have, want, vips)
			for _, e := range c.del {
				if slices.Contains(c.add, e) {
					t.Fatalf("seed %d: %s is deleted and added", seed, e)
				}
			}
			elements = applyChange(t, elements, c)
			if diff := cmp.Diff(elementsText(renderState(want)), elementsText(elements)); diff != "" {
				t.Fatalf("seed %d: (-want +got)\n%s\nfrom\n%sto\n%s", seed, diff, have, want)
			}
			have = want
		}
	}
}

func TestRenderIsSortedAndUnique(t *testing.T) {
	w := newWorld(1)
	s := State{}
	for range 200 {
		s = w.next(s)
		all := renderState(s)
		for i := 1; i < len(all); i++ {
			if all[i-1].compare(all[i]) >= 0 {
				t.Fatalf("%s before %s", all[i-1], all[i])
			}
		}
	}
}

// What a packet may ask for because of what it met is there before, and goes after.
func TestSteps(t *testing.T) {
	frontend := func(sources []string, affinity time.Duration, pods ...string) State {
		f := Frontend{Protocol: UDP, Port: 80, Affinity: affinity, Sources: prefixes(sources...)}
		if sources == nil {
			f.Sources = nil
		}
		f.External = Target{Backends: backends(0, pods...), Remote: Masquerade}
		f.Internal = f.External
		return State{Node: "n1", VIPs: []*VIP{{Addr: at("vip", 0), Frontends: []Frontend{f}}}}
	}
	ten, narrow := []string{"10.0.0.0/8"}, []string{"10.0.0.0/16"}
	for _, tc := range []struct {
		name          string
		have, want    State
		before, after string // names of sets, with - for what is deleted
	}{
		{"a fence", frontend(nil, 0, "pod1"), frontend(ten, 0, "pod1"), "allowed4", ""},
		{"no fence", frontend(ten, 0, "pod1"), frontend(nil, 0, "pod1"), "", "-allowed4 -ifenced4 -xfenced4"},
		{"another list", frontend(ten, 0, "pod1"), frontend(narrow, 0, "pod1"), "", ""},
		{"affinity", frontend(nil, 0, "pod1"), frontend(nil, time.Hour, "pod1"), "", "learn4"},
		{"another timeout", frontend(nil, time.Hour, "pod1"), frontend(nil, time.Minute, "pod1"), "", ""},
		{"no affinity", frontend(nil, time.Hour, "pod1"), frontend(nil, 0, "pod1"), "", "-expiring4 -iback4 -isched4 -late4 -xback4 -xsched4"},
		{"another backend with affinity", frontend(nil, time.Hour, "pod1"), frontend(nil, time.Hour, "pod2"), "", "-expiring4 -hair4 -iback4 -xback4"},
		{"fewer backends", frontend(nil, 0, "pod1", "remote"), frontend(nil, 0, "pod1"), "", "-ieps4 -imasq4 -late4 -xeps4 -xmasq4"},
		{"another backend", frontend(nil, 0, "pod1"), frontend(nil, 0, "pod2"), "", "-hair4"},
	} {
		c := diffElements(renderState(tc.have), renderState(tc.want))
		before, now, after := c.steps()
		if got := setNames(before); got != tc.before {
			t.Errorf("%s: %q before; want %q", tc.name, got, tc.before)
		}
		if got := setNames(after); got != tc.after {
			t.Errorf("%s: %q after; want %q", tc.name, got, tc.after)
		}
		// One after the other they make the change, and no element is there but for its own sake.
		elements := renderState(tc.have)
		for _, step := range []change{before, now, after} {
			elements = applyChange(t, elements, step)
		}
		if diff := cmp.Diff(elementsText(renderState(tc.want)), elementsText(elements)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tc.name, diff)
		}
	}
}

// setNames are the sets that a change is about, with - for what it deletes.
func setNames(c change) string {
	var all []string
	for _, e := range c.add {
		all = append(all, specs[e.set].name)
	}
	for _, e := range c.del {
		all = append(all, "-"+specs[e.set].name)
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " ")
}
