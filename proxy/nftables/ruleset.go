package nftables

import (
	"context"
	_ "embed"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Schema is the version of the table's layout for people. What machines go by
// is the hash of the text beside it: a change of the text can not be forgotten.
const Schema = 3

//go:embed ruleset.nft
var staticRules string

// markChain is the chain that sets the bits of a mark, and no others. The parts
// are its name, the bits that stay, and the bits that are set.
const markChain = `
	chain %s {
		meta mark set meta mark & %#x | %#x
	}
`

// patternMark is a mark whose chain always exists.
var patternMark = state.Mark{Value: 1, Mask: 1}

// patterns are the made chains that always exist. The others are copies of
// their rules with another modulus, or another mark.
var patterns = append(countPatterns(), patternMark.Chain(), learnPatterns[0], learnPatterns[1],
	state.PatternAffinity(0).Recall(), state.PatternAffinity(1).Recall())

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

// rulesetText is the table without elements, with the given made chains
// besides the patterns, as nft reads it.
func rulesetText(made []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {\n", renderer.TableName)
	for run := range state.BySet(state.LeadElements(slices.Concat(state.FixedNumbers, patterns, made))) {
		id := run[0].Set
		fmt.Fprintf(&b, "\tmap %s { typeof meta priority : verdict; comment \"what the numbers in %s stand for\"; elements = {%s }; }\n",
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
		if id, ok := state.ParseRecallChain(name); ok {
			b.WriteString(affinityTextOf(id))
			continue
		}
		fmt.Fprintf(&b, "\n\tchain %s {\n\t}\n", name) // addAffinityRules fills it
	}
	b.WriteString("}\n")
	return b.String()
}

// listText is elements as they stand between braces.
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

// replaceScript makes one batch of nft that puts the table with these
// elements in the place of whatever table was there.
func replaceScript(all []state.Element) string {
	var made []string
	for name := range state.ChainUses(all) {
		if !slices.Contains(patterns, name) {
			made = append(made, name)
		}
	}
	slices.Sort(made)

	var b strings.Builder
	// Adding first makes the deletion right whether or not it exists.
	fmt.Fprintf(&b, "add table inet %[1]s\ndelete table inet %[1]s\n%s", renderer.TableName, rulesetText(made))
	for chunk := range state.BySet(all) {
		fmt.Fprintf(&b, "add element inet %s %s {%s }\n", renderer.TableName, state.Specs[chunk[0].Set].Name, listText(chunk))
	}
	return b.String()
}

// Text returns the table for a State as nft reads it, but for the rules of affinity. It is for
// people, and for tests that follow packets through rules.
func Text(s state.State) string { return replaceScript(state.RenderState(s)) }

// upgradeScripts put the table in the place of one with other rules, that works.
//
// One transaction would not do: packets that are in a chain when it comes go on by
// the rules of before, while the kernel looks up sets as they are after it, that is,
// empty. And sets of intervals show their elements a moment after the rules are
// there that ask them. A pod would be taken for an external client. So hooks come
// when all else is there, rules go before their sets, and a spare table does the
// same meanwhile. (nft_do_chain keeps to one generation, nft_lookup does not;
// nf_tables_commit calls the sets' commit last.)
func upgradeScripts(all []state.Element) []string {
	head := fmt.Sprintf("table inet %s {\n", renderer.TableName)
	asleep := strings.Replace(replaceScript(all), "\n"+head, "\n"+head+"\tflags dormant\n", 1)
	awake := head + "}\n"
	spare := strings.NewReplacer("inet "+renderer.TableName, "inet "+renderer.SpareTable)
	return []string{
		spare.Replace(asleep),
		spare.Replace(awake),
		"flush table inet " + renderer.TableName,
		asleep,
		awake,
		"flush table inet " + renderer.SpareTable,
		"delete table inet " + renderer.SpareTable,
	}
}

// textHash names the text and the rules that a table was made from.
func textHash() string {
	parts := []string{rulesetText(nil)}
	for _, r := range slices.Concat(learnRules(state.PatternAffinity(0), time.Second), learnRules(state.PatternAffinity(1), time.Second)) {
		parts = append(parts, string(r))
	}
	return state.ShortHash(parts...)
}

// schemaPrefix begins the name of the empty chain that says what the table is:
// "schema-1-<hash of the text>-<hash of the rules as the kernel shows them>".
// The second hash is taken right after nft has loaded the text. It lets a
// process that finds the table, or is notified of a change, see whether
// every rule is still what it was.
const schemaPrefix = "schema-"

func schemaChain(rulesHash string) string {
	return fmt.Sprintf("%s%d-%s-%s", schemaPrefix, Schema, textHash(), rulesHash)
}

// nft runs a script of nft as one transaction.
func nft(ctx context.Context, script string) error { return runNFT(ctx, script, "-f", "-") }

// nftCheck has the kernel check a script and change nothing.
func nftCheck(ctx context.Context, script string) error { return runNFT(ctx, script, "-c", "-f", "-") }

func runNFT(ctx context.Context, script string, args ...string) error {
	cmd := exec.CommandContext(ctx, "nft", args...)
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, renderer.FirstLines(string(out), 3))
	}
	return nil
}
