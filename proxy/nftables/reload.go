package nftables

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A table that this process has read once is loaded again from what was read, by netlink. nft takes
// longer to start, to list what exists and to parse its text than the kernel takes for the
// transaction, and until that is done nothing is forwarded.

// errReloaded means that the kernel shows other rules than it was sent.
var errReloaded = errors.New("the kernel shows other rules than it was given")

// reload replaces the table by the rules that were read last, and returns it as the kernel shows it.
// It includes the elements if they fit into one transaction. Otherwise they follow, and an existing
// table is not replaced: it forwards as far as it can until nft has loaded another one.
func (n *Renderer) reload(found bool, all []state.Element) (*table, error) {
	made := madeFor(all)
	if len(made) > maxChains || len(partsOf(state.Change{Add: all}, min(room(n.Sock), cmp.Or(n.part, maxBatch)))) > 1 {
		if found {
			return nil, fmt.Errorf("%d elements do not fit into one transaction", len(all))
		}
		all, made = nil, nil
	}
	b := newBatch(n.Sock.Seq)
	if found {
		b.delTable(renderer.TableName)
	}
	n.table.addStatic(b)
	n.addChains(b, made)
	b.addElements(all)
	if err := n.commit(b); err != nil {
		return nil, err
	}
	loaded, err := n.readLoaded(all)
	if err == nil && loaded.found && loaded.rulesHash() != n.table.rulesHash() {
		err = errReloaded
	}
	return loaded, err
}

// addStatic adds the table with what all tables have: sets and chains first, because rules and
// elements lead to them.
func (t *table) addStatic(b *batch) {
	b.addTable(t.userdata)
	for _, name := range t.staticSets() {
		b.addMap(name, t.sets[name])
	}
	chains := t.staticChains()
	for _, name := range chains {
		b.addEmptyChain(name, t.chains[name])
	}
	for _, name := range chains {
		b.addRules(name, t.chains[name].rules)
	}
	b.addElements(state.LeadElements(slices.Concat(state.FixedNumbers, patterns)))
}

// madeFor returns the generated chains that these elements need besides the patterns, sorted.
func madeFor(all []state.Element) []string {
	made := slices.Sorted(maps.Keys(state.ChainUses(all)))
	return slices.DeleteFunc(made, func(name string) bool { return slices.Contains(patterns, name) })
}
