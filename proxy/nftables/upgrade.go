package nftables

import (
	"fmt"
	"strings"

	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Schema is the version of the table's layout, for people. Programs compare the hash of the text
// beside it, so that no change of the text is missed.
const Schema = 4

// upgradeScripts replace a table with other rules while it works.
//
// One transaction is not enough. Packets inside a chain continue with the old rules, but the kernel
// looks up sets in their new state, which is empty. And sets of intervals show their elements a
// moment after the rules that use them, so that a pod would be taken for an external client. So
// hooks are added after everything else, rules are removed before their sets, and a spare table
// forwards meanwhile. (nft_do_chain uses one generation, nft_lookup does not; nf_tables_commit
// calls the sets' commit last.)
func upgradeScripts(all []state.Element) []string {
	head := fmt.Sprintf("table inet %s {\n", renderer.TableName)
	asleep := strings.Replace(Script(all), "\n"+head, "\n"+head+"\tflags dormant\n", 1)
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

// textHash is a hash of the text and rules that a table is made from.
func textHash() string {
	return state.ShortHash(rulesetText(nil))
}

// schemaPrefix begins the name of the empty chain that identifies the table: "schema-1-<hash of the
// text>-<hash of the rules as the kernel shows them>". The second hash is taken right after nft has
// loaded the text. A process that finds the table, or is notified of a change, can check by it that
// every rule is unchanged.
const schemaPrefix = "schema-"

// schemaChain is the name of that chain for a table with this hash of its rules.
func schemaChain(rulesHash string) string {
	return fmt.Sprintf("%s%d-%s-%s", schemaPrefix, Schema, textHash(), rulesHash)
}
