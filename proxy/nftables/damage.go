package nftables

import (
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// damage describes how the table, apart from its elements, differs from what was loaded; empty if
// it does not.
func (t *table) damage() string {
	switch {
	case !t.found:
		return "table missing"
	case t.schema == "":
		return "schema unknown"
	case !t.ours():
		return "schema " + strings.TrimPrefix(t.schema, schemaPrefix)
	case len(t.missing) > 0:
		return "sets missing: " + strings.Join(t.missing, ", ")
	case t.schema != schemaChain(t.rulesHash()):
		return "chains, rules or sets changed"
	case len(t.catchAll) > 0:
		return "an element for all keys in " + strings.Join(t.catchAll, ", ")
	}
	if damaged := t.damagedChains(); len(damaged) > 0 {
		return "chains changed: " + strings.Join(damaged, ", ")
	}
	if !slices.Equal(t.leads, state.LeadElements(slices.Concat(state.FixedNumbers, patterns, t.madeChains()))) {
		return "what numbers stand for changed"
	}
	return ""
}

// damagedChains returns the generated chains whose rules differ from their pattern.
func (t *table) damagedChains() []string {
	var damaged []string
	for _, name := range t.madeChains() {
		if !t.chains[name].equal(t.generatedLike(name)) {
			damaged = append(damaged, name)
		}
	}
	return damaged
}

// madeChains returns the generated chains other than the patterns, sorted.
func (t *table) madeChains() []string {
	var names []string
	for name := range t.chains {
		if state.IsGenerated(name) && !slices.Contains(patterns, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
