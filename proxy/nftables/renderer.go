package nftables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A Renderer writes table inet fanfare, and the tables for redirects.
type Renderer struct {
	renderer.Host
	NFT *NFT

	// The kernel's table after a successful Update or Converge.
	uses  map[string]int // the number of elements that go to each generated chain
	table *table         // as last read; patterns are copied from it

	redirects redirectTables

	part int // the size of a part of a large change; 0: maxBatch
}

// VIPs reads the addresses of the table in the kernel, also of another version: the sets of VIPs
// keep their names.
func (n *Renderer) VIPs() ([]netip.Addr, error) { return readVIPs(n.Sock) }

// Update changes elements only.
func (n *Renderer) Update(_ context.Context, u renderer.Step) error {
	if u.Elements.Empty() {
		return nil
	}
	return n.change(u.Elements, "")
}

// change applies a change in its steps.
//
// The first step creates chains. A packet uses the rules from the time when it came to a hook
// (nft_do_chain reads gencursor once), but current elements: a chain of the same transaction would
// be empty to it, and the packet would pass. A chain is not deleted by
// the change that ends its last use, but by a later one: packets may still be inside.
func (n *Renderer) change(c state.Change, schema string) error {
	slices.SortFunc(c.Del, state.Element.Compare)
	slices.SortFunc(c.Add, state.Element.Compare)
	before, now, after := c.Steps()
	gained := state.ChainUses(c.Add)
	chains, err := n.makeChains(gained)
	if err != nil {
		return err
	}
	if err := n.applyParts(before, func(b *batch) { n.addChains(b, chains) }); err != nil {
		return err
	}
	for name := range gained {
		n.uses[name] += 0
	}
	idle, err := n.dropChains(n.idle(gained))
	if err != nil {
		return err
	}
	if err := n.applyParts(now, func(b *batch) { n.replaceChains(b, idle, schema) }); err != nil {
		return err
	}
	for _, name := range idle {
		delete(n.uses, name)
	}
	return n.applyParts(after, nil)
}

// makeChains adds the missing chains, and returns the last of them for the next transaction.
func (n *Renderer) makeChains(gained map[string]int) (rest []string, err error) {
	for name := range gained {
		if _, exists := n.uses[name]; !exists && !slices.Contains(patterns, name) {
			rest = append(rest, name)
		}
	}
	slices.Sort(rest)
	for len(rest) > maxChains {
		if err := n.apply(state.Change{}, func(b *batch) { n.addChains(b, rest[:maxChains]) }); err != nil {
			return nil, err
		}
		for _, name := range rest[:maxChains] {
			n.uses[name] += 0
		}
		rest = rest[maxChains:]
	}
	return rest, nil
}

// addChains adds chains and, for chains with a number, the elements that lead to them.
func (n *Renderer) addChains(b *batch, names []string) {
	for _, name := range names {
		b.addChain(name, n.table.generatedLike(name))
		b.addElements(state.LeadElements([]string{name}))
	}
}

// dropChains deletes idle chains, and returns the last of them for the next transaction.
func (n *Renderer) dropChains(idle []string) (rest []string, err error) {
	for rest = idle; len(rest) > maxChains; rest = rest[maxChains:] {
		if err := n.apply(state.Change{}, func(b *batch) { n.replaceChains(b, rest[:maxChains], "") }); err != nil {
			return nil, err
		}
		for _, name := range rest[:maxChains] {
			delete(n.uses, name)
		}
	}
	return rest, nil
}

// replaceChains deletes idle chains and adds the schema chain if it is not empty.
func (n *Renderer) replaceChains(b *batch, idle []string, schema string) {
	for _, name := range idle {
		b.delElements(state.LeadElements([]string{name}))
		b.delChain(name)
	}
	if schema != "" {
		b.addChain(schema, chain{})
	}
}

// Converge loads the table if it is missing or damaged, and otherwise changes only what differs
// from want. Had may contain only the VIPs, if another version wrote the table.
func (n *Renderer) Converge(ctx context.Context, have *state.State, want state.State) (renderer.Finding, error) {
	t, err := n.read()
	if err != nil {
		return renderer.Finding{}, err
	}
	all := state.RenderState(want)
	out := renderer.Finding{Found: t.damage(), Had: t.elements}
	if out.Found == "" && have != nil {
		out.Found = differenceText(state.DiffElements(t.elements, state.RenderState(*have)))
	}
	schema, reason := "", t.damage()
	out.Leaked = reason != "" // without the rules, any flow may have begun
	if reason != "" {
		if t, err = n.install(ctx, t, all, reason); err != nil {
			return out, err
		}
		schema = schemaChain(t.rulesHash())
	}
	n.adopt(t)
	if err := n.change(state.DiffElements(t.elements, all), schema); err != nil {
		return out, err
	}
	t.elements = nil // large, and the State has it from now on
	if t.spare {
		return out, deleteTable(renderer.SpareTable)
	}
	return out, nil
}

// Differs describes how the kernel's table differs from what from renders, empty if it does not.
func (n *Renderer) Differs(_ context.Context, from state.State) (string, error) {
	t, err := n.read()
	if err != nil {
		return "", err
	}
	return cmp.Or(t.damage(), differenceText(state.DiffElements(t.elements, state.RenderState(from)))), nil
}

// Lacks returns nil: one table serves both families.
func (n *Renderer) Lacks(state.SetID) error { return nil }

// Probe adds an element that no rule uses, and deletes it.
func (n *Renderer) Probe(context.Context) error {
	e := []state.Element{{Set: state.SetDrain,
		Key: string(make([]byte, state.FieldsSize(state.Specs[state.SetDrain].Key)))}}
	b := newBatch(n.Sock.Seq)
	b.addElements(e)
	b.delElements(e)
	return n.commit(b)
}

// Remove deletes the tables. Conntrack keeps translating existing flows.
func (n *Renderer) Remove(context.Context) error {
	return DeleteTables()
}

// read reads the table, and tells the watch that all changes until then are included.
func (n *Renderer) read() (*table, error) {
	n.Dumped()
	return readTable(n.Sock)
}

// install loads all rules: by netlink if they were read before, otherwise by nft. An existing table is
// replaced in one transaction that includes all elements. Without one, the elements follow in a
// second transaction through netlink if they are many or nft loads the rules: netlink is many times
// faster.
func (n *Renderer) install(ctx context.Context, t *table, all []state.Element, reason string) (*table, error) {
	n.Log.InfoContext(ctx, "loading the rules", "reason", reason)
	upgrade := t.schema != "" && (!t.ours() || t.damage() == "")
	if !upgrade && n.table != nil {
		loaded, err := n.reload(t.found, all)
		if err == nil {
			return loaded, nil
		}
		n.Log.WarnContext(ctx, "loading the rules with nft instead of netlink", "err", err)
	}
	if !t.found {
		all = nil
	}
	scripts := []string{Script(all)}
	if upgrade {
		scripts = upgradeScripts(all)
	}
	for _, script := range scripts {
		if err := n.IgnoringOwn(n.Sock, 1, func() error { return n.NFT.load(ctx, script) }); err != nil {
			return nil, fmt.Errorf("load the rules: %w", n.NFT.Explain(ctx, err))
		}
		n.Changed(0)
	}
	return n.readLoaded(all)
}

// readLoaded reads a table that was just loaded with elements, without listing these: a walk
// through all sets takes as long as loading them, and until it is done the new table forwards
// nothing. If another program has changed elements meanwhile, the watch signals it, and the next
// Set compares.
func (n *Renderer) readLoaded(elements []state.Element) (*table, error) {
	n.Dumped()
	t, err := readStructure(n.Sock)
	if err != nil || !t.found {
		return t, err
	}
	t.elements = elements
	return t, nil
}

// adopt makes a table that was read the current one.
func (n *Renderer) adopt(t *table) {
	n.table = t
	n.uses = state.ChainUses(t.elements)
	for _, name := range t.madeChains() {
		n.uses[name] += 0
	}
}

// apply commits a change, in whose lists the elements of each set are together, with the additions
// of more.
func (n *Renderer) apply(c state.Change, more func(*batch)) error {
	b := newBatch(n.Sock.Seq)
	if more != nil {
		more(b)
	}
	b.delElements(c.Del)
	b.addElements(c.Add)
	if err := n.commit(b); err != nil {
		return err
	}
	state.CountUses(n.uses, c.Del, -1)
	state.CountUses(n.uses, c.Add, 1)
	return nil
}

// commit commits a batch, unless it is empty.
func (n *Renderer) commit(b *batch) (err error) {
	if b.empty() {
		return nil
	}
	start := time.Now()
	if b.large() {
		err = n.IgnoringOwn(n.Sock, 1, func() error { return b.commit(n.Sock) })
	} else {
		err = b.commit(n.Sock)
	}
	if err != nil {
		return err
	}
	n.Changed(time.Since(start))
	return nil
}

// spareChains is how many unused shared chains are kept. A new chain makes the kernel validate all
// rules, and the number of some Service's backends is likely to have existed before.
const spareChains = 32

// idle returns the generated chains that are unused, also by this change, and must be deleted.
func (n *Renderer) idle(gained map[string]int) []string {
	var dedicated, shared []string
	for name, uses := range n.uses {
		if uses != 0 || gained[name] != 0 || slices.Contains(patterns, name) {
			continue
		}
		if _, numbered := state.NumberOf(name); numbered {
			shared = append(shared, name)
		} else {
			dedicated = append(dedicated, name)
		}
	}
	if len(shared) > spareChains {
		dedicated = append(dedicated, shared...)
	}
	slices.Sort(dedicated)
	return dedicated
}

// differenceText describes how the kernel's elements differ from the written ones, with the first
// example of each kind.
func differenceText(c state.Change) string {
	switch {
	case c.Empty():
		return ""
	case len(c.Add) == 0:
		return fmt.Sprintf("%d unknown or changed elements, such as %s", len(c.Del), c.Del[0])
	default:
		return fmt.Sprintf("%d elements missing or changed, such as %s", len(c.Add), c.Add[0])
	}
}

// DeleteTables removes all tables that a Renderer leaves in the kernel.
func DeleteTables() error {
	return errors.Join(deleteTable(renderer.SpareTable), deleteTable(renderer.TableName), deleteRedirects())
}

func deleteTable(name string) error { return deleteTableOf(unix.NFPROTO_INET, name) }

// deleteTableOf deletes a table of a family. A missing table is no error.
func deleteTableOf(family uint8, name string) error {
	s, err := nfnl.Dial()
	if err != nil {
		return err
	}
	defer s.Close()
	b := newBatch(0)
	b.family = family
	b.delTable(name)
	// A kernel without nftables, or without tables in it, has no table of this name.
	err = b.commit(s)
	for _, none := range []error{unix.ENOENT, unix.EINVAL, unix.EPROTONOSUPPORT, unix.EOPNOTSUPP} {
		if errors.Is(err, none) {
			return nil
		}
	}
	return err
}
