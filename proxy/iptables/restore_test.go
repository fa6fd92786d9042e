package iptables

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Rules with programs go in parts of a number that is safe, and chains are deleted when all
// that lead to them are empty.
func TestProgramsGoInParts(t *testing.T) {
	have := map[string]chainSet{"nat": make(chainSet)}
	for i := range 5 {
		for range 100 {
			have["nat"].add(fmt.Sprintf("FAN-x-%d", i), `-m bpf --bytecode "1,6 0 0 0" -j DNAT`)
		}
	}
	have["nat"].add("FAN-x", "-g FAN-x-0")
	want := map[string]chainSet{"nat": {"FAN-new": {"-j RETURN"}}}
	p := planTables(have, want)
	var got []string
	all := p.parts(maxFreed)
	for _, part := range all {
		script, _ := part.script()
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
	if few := p.parts(500); len(few) != 1 {
		t.Errorf("%d parts for what is few enough", len(few))
	}
}

// Of rules that are gone the translating ones come back first: the refusing ones would end open
// connections, which nothing translates until then. A change of rules that are there begins with
// the refusing ones.
func TestOrderOfTables(t *testing.T) {
	x := &Renderer{}
	s := state.State{Node: "n1"}
	whole := ruleset{tables: chainsOf(s, 0), others: Jumps[0]}
	changed := ruleset{tables: map[string]chainSet{}, others: whole.others}
	for name, c := range map[string]struct {
		have ruleset
		want []string
	}{
		"flushed": {ruleset{}, xtRepaired},
		"nat flushed": {ruleset{tables: changed.tables,
			others: map[string]chainSet{"filter": whole.others["filter"]}}, xtRepaired},
		"chains gone, jumps are not": {changed, xtTables},
	} {
		script, _ := x.plan(c.have, s, 0).script()
		var got []string
		for line := range strings.Lines(script) {
			if table, ok := strings.CutPrefix(strings.TrimSpace(line), "*"); ok {
				got = append(got, table)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: written in the order %v, want %v", name, got, c.want)
		}
	}
}
