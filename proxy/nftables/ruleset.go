package nftables

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

//go:embed ruleset.nft
var staticRules string

// markChain is the chain that sets the bits of a mark, and no others. Its parameters are the name,
// the bits to keep, and the bits to set.
const markChain = `
	chain %s {
		meta mark set meta mark & %#x | %#x
	}
`

// patternMark is the mark whose chain always exists.
var patternMark = state.Mark{Value: 1, Mask: 1}

// patterns are the generated chains that always exist. The others are copies of their rules with
// another modulus or mark.
var patterns = append(countPatterns(), patternMark.Chain(), patternLearn)

// patternLearn is the learning chain that always exists.
var patternLearn = state.LearnChain(time.Second)

func countPatterns() []string {
	var names []string
	for _, s := range state.Schedules {
		for _, side := range []string{state.External.Prefix, state.Internal.Prefix, state.SplitPrefix} {
			for n := range s.Patterns() {
				names = append(names, state.CountChain{Side: side, Schedule: s, Slots: n + 1}.Name())
			}
		}
	}
	return names
}

// rulesetText returns the table without elements, with the given generated chains besides the
// patterns, as nft reads it.
func rulesetText(made []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {\n", renderer.TableName)
	for run := range state.BySet(state.LeadElements(slices.Concat(state.FixedNumbers, patterns, made))) {
		id := run[0].Set
		fmt.Fprintf(&b, "\tmap %s { typeof meta priority : verdict; comment \"what the numbers in %s stand for\"; "+
			"elements = {%s }; }\n",
			state.Specs[id].Name, state.Specs[state.NumberedSets[id]].Name, listText(run))
	}
	b.WriteString(staticRules)
	for _, name := range slices.Concat(patterns, made) {
		if m, ok := state.ParseMarkChain(name); ok {
			fmt.Fprintf(&b, markChain, name, ^m.Mask, m.Value)
			continue
		}
		if c, ok := state.ParseCountChain(name); ok {
			b.WriteString(c.Text())
			continue
		}
		if d, ok := state.ParseLearnChain(name); ok {
			b.WriteString(state.LearnText(d))
		}
	}
	b.WriteString("}\n")
	return b.String()
}

// listText returns elements as nft writes them between braces.
func listText(all []state.Element) string {
	var b strings.Builder
	for i, e := range all {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte(' ')
		b.WriteString(e.Text())
	}
	return b.String()
}

// Script returns one nft batch that replaces any existing table by one with these elements.
func Script(all []state.Element) string {
	var b strings.Builder
	// Adding the table first makes the deletion valid in any case.
	fmt.Fprintf(&b, "add table inet %[1]s\ndelete table inet %[1]s\n%s", renderer.TableName, rulesetText(madeFor(all)))
	for chunk := range state.BySet(all) {
		fmt.Fprintf(&b, "add element inet %s %s {%s }\n", renderer.TableName, state.Specs[chunk[0].Set].Name,
			listText(chunk))
	}
	return b.String()
}
