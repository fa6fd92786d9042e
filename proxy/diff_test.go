package proxy

import (
	"slices"
	"testing"

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
	for seed := range uint64(300) {
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
