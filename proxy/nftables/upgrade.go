package nftables

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Schema is the version of the table's layout for people. What machines go by
// is the hash of the text beside it: a change of the text can not be forgotten.
const Schema = 3

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

// schemaChain is the name of that chain for a table whose rules have a hash.
func schemaChain(rulesHash string) string {
	return fmt.Sprintf("%s%d-%s-%s", schemaPrefix, Schema, textHash(), rulesHash)
}
