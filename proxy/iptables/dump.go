package iptables

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Text returns the rules for a State, one family after the other, as iptables-restore reads them,
// each followed by the entries of its sets and by the sets of affinity with their timeouts. It is
// for people, and for tests that follow packets through rules.
func Text(s state.State) string {
	var b strings.Builder
	for f := range state.SetID(2) {
		p := (&Renderer{}).plan(ruleset{}, s, f)
		p.repairs = false // the order of a change
		script, _ := p.script()
		fmt.Fprintf(&b, "# IPv%c\n%s", "46"[f], script)
		for _, e := range p.add {
			fmt.Fprintln(&b, e)
		}
		var names []string
		for name, set := range p.create {
			names = append(names, fmt.Sprintf("%s %s", name, set.timeout))
		}
		slices.Sort(names)
		for _, name := range names {
			fmt.Fprintln(&b, name)
		}
	}
	return b.String()
}
