package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A table is table inet fanfare as read from the kernel.
type table struct {
	found bool
	spare bool   // an upgrade did not finish
	flags string // such as dormant, as opaque bytes
	// userdata has the comment, as opaque bytes.
	userdata string
	schema   string // the name of the schema chain, empty if there is none

	// chains has every chain but the schema's: hook, priority, policy and rules, without counters.
	chains map[string]chain
	// sets has the attributes of every set and map, without elements, as opaque bytes.
	sets map[string]string
	// elements are sorted. For a table of another schema they are only the VIPs, as far as they can
	// be read.
	elements []state.Element
	leads    []state.Element // of the maps of numbers, sorted
	missing  []string        // sets that do not exist
	catchAll []string        // sets with a catch-all element, which Fanfare never writes
}

// A chain is the content of one chain.
type chain struct {
	hook, policy, kind string   // how it is hooked, as opaque bytes; empty without a hook
	rules              [][]byte // the expressions of each rule, without counters
}

// base is all that a chain is created with but its name.
func (c chain) base() string { return c.hook + c.policy + c.kind }

// empty returns the chain without its rules.
func (c chain) empty() chain { return chain{hook: c.hook, policy: c.policy, kind: c.kind} }

// equal compares expressions as bytes: a rule with other registers differs.
func (c chain) equal(o chain) bool {
	return c.base() == o.base() && slices.EqualFunc(c.rules, o.rules, slices.Equal)
}

// readTable reads the whole table. Of a table with other rules it reads only the VIPs.
func readTable(s *nfnl.Socket) (*table, error) {
	t, err := readStructure(s)
	if err != nil || !t.found {
		return t, err
	}
	if err := t.readElements(s, t.ours()); err != nil {
		return nil, err
	}
	return t, nil
}

// readStructure reads everything but the elements.
func readStructure(s *nfnl.Socket) (*table, error) {
	t := &table{chains: make(map[string]chain), sets: make(map[string]string)}
	if err := t.readTable(s); err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	if !t.found {
		return t, nil
	}
	if err := t.readChains(s); err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	if err := t.readRules(s); err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	if err := t.readSets(s); err != nil {
		return nil, fmt.Errorf("list sets: %w", err)
	}
	return t, nil
}

// list dumps one kind of object of our table, see [renderer.Dump]: of the chain or set of that name, or
// all if it is empty. Of tables it lists all.
func list(s *nfnl.Socket, kind uint8, name string, reset func(), each func(data []byte)) error {
	var e nfnl.Encoder
	if kind != unix.NFT_MSG_GETTABLE {
		e.Text(unix.NFTA_SET_ELEM_LIST_TABLE, renderer.TableName) // the same number for chains, rules and sets
	}
	if name != "" {
		e.Text(unix.NFTA_SET_ELEM_LIST_SET, name) // the same number as NFTA_RULE_CHAIN
	}
	return renderer.Dump(s, kind, unix.NFPROTO_INET, e.B, reset, func(_ uint8, data []byte) {
		// Old kernels ignore the table in the request.
		if kind == unix.NFT_MSG_GETTABLE || nfnl.CString(nfnl.Attribute(data, unix.NFTA_SET_ELEM_LIST_TABLE)) ==
			renderer.TableName {
			each(data)
		}
	})
}

// readTable finds the table and its flags: a dormant table has no hooks. list may call the
// functions again, because it reads a list again that changed meanwhile (see list), so each
// begins with reset.
func (t *table) readTable(s *nfnl.Socket) error {
	reset := func() { t.found, t.flags, t.userdata, t.spare = false, "", "", false }
	return list(s, unix.NFT_MSG_GETTABLE, "", reset, func(data []byte) {
		switch nfnl.CString(nfnl.Attribute(data, unix.NFTA_TABLE_NAME)) {
		case renderer.TableName:
			t.found = true
			t.flags = string(nfnl.Attribute(data, unix.NFTA_TABLE_FLAGS))
			t.userdata = string(nfnl.Attribute(data, tableUserdata))
		case renderer.SpareTable:
			t.spare = true
		}
	})
}

// readChains reads the hooks of chains, and the schema.
func (t *table) readChains(s *nfnl.Socket) error {
	reset := func() { t.schema = ""; clear(t.chains) }
	return list(s, unix.NFT_MSG_GETCHAIN, "", reset, func(data []byte) {
		name := nfnl.CString(nfnl.Attribute(data, unix.NFTA_CHAIN_NAME))
		if strings.HasPrefix(name, schemaPrefix) {
			t.schema = name
			return
		}
		t.chains[name] = chain{
			hook:   string(nfnl.Attribute(data, unix.NFTA_CHAIN_HOOK)),
			policy: string(nfnl.Attribute(data, unix.NFTA_CHAIN_POLICY)),
			kind:   string(nfnl.Attribute(data, unix.NFTA_CHAIN_TYPE)),
		}
	})
}

func (t *table) readRules(s *nfnl.Socket) error {
	reset := func() {
		for name, c := range t.chains {
			t.chains[name] = c.empty()
		}
	}
	return list(s, unix.NFT_MSG_GETRULE, "", reset, func(data []byte) {
		name := nfnl.CString(nfnl.Attribute(data, unix.NFTA_RULE_CHAIN))
		if c, ok := t.chains[name]; ok {
			c.rules = append(c.rules, normal(nfnl.Attribute(data, unix.NFTA_RULE_EXPRESSIONS)))
			t.chains[name] = c
		}
	})
}

// setAttributes are the attributes that a set is created with. Others are counters or numbers.
var setAttributes = []uint16{
	unix.NFTA_SET_FLAGS, unix.NFTA_SET_KEY_TYPE, unix.NFTA_SET_KEY_LEN, unix.NFTA_SET_DATA_TYPE, unix.NFTA_SET_DATA_LEN,
	unix.NFTA_SET_POLICY, unix.NFTA_SET_DESC, unix.NFTA_SET_TIMEOUT, unix.NFTA_SET_GC_INTERVAL, unix.NFTA_SET_USERDATA,
	unix.NFTA_SET_OBJ_TYPE, setExpr, setExpressions,
}

// From linux/netfilter/nf_tables.h, which x/sys does not have: expressions for each element, and the
// comment of a table.
const (
	setExpr        = 17 // NFTA_SET_EXPR
	setExpressions = 18 // NFTA_SET_EXPRESSIONS
	tableUserdata  = 6  // NFTA_TABLE_USERDATA
)

// readSets reads the attributes of sets. Counters, such as the number of elements, are left out,
// because they differ between reads.
func (t *table) readSets(s *nfnl.Socket) error {
	return list(s, unix.NFT_MSG_GETSET, "", func() { clear(t.sets) }, func(data []byte) {
		var made nfnl.Encoder
		name := nfnl.CString(nfnl.Attribute(data, unix.NFTA_SET_NAME))
		for _, a := range setAttributes {
			made.Bytes(a, nfnl.Attribute(data, a))
		}
		t.sets[name] = string(made.B)
	})
}

// normal copies the expressions of a rule without the values of counters.
func normal(expressions []byte) []byte {
	var e nfnl.Encoder
	for _, expr := range nfnl.Attributes(expressions) {
		name := nfnl.Attribute(expr, unix.NFTA_EXPR_NAME)
		at := e.Open(unix.NFTA_LIST_ELEM)
		e.Bytes(unix.NFTA_EXPR_NAME, name)
		if data := nfnl.Attribute(expr, unix.NFTA_EXPR_DATA); data != nil && nfnl.CString(name) != "counter" {
			e.Bytes(unix.NFTA_EXPR_DATA|unix.NLA_F_NESTED, data)
		}
		e.Close(at)
	}
	return e.B
}

// generatedLike returns the generated chain of that name, made from its pattern.
func (t *table) generatedLike(name string) chain {
	var pattern string
	var edit func(kind string, data []byte)
	if m, ok := state.ParseMarkChain(name); ok {
		pattern = patternMark.Chain()
		edit = func(kind string, data []byte) {
			if kind == "bitwise" { // a mark is in host byte order
				binary.NativeEndian.PutUint32(nfnl.Attribute(data, unix.NFTA_BITWISE_MASK, unix.NFTA_DATA_VALUE),
					^m.Mask)
				binary.NativeEndian.PutUint32(nfnl.Attribute(data, unix.NFTA_BITWISE_XOR, unix.NFTA_DATA_VALUE),
					m.Value)
			}
		}
	} else if d, ok := state.ParseLearnChain(name); ok {
		pattern = patternLearn
		edit = func(kind string, data []byte) {
			// A deletion has no timeout, or that of the map.
			ms := nfnl.Attribute(data, unix.NFTA_DYNSET_TIMEOUT)
			if kind == "dynset" && len(ms) == 8 && binary.BigEndian.Uint64(ms) > 0 {
				binary.BigEndian.PutUint64(ms, uint64(d.Milliseconds()))
			}
		}
	} else {
		count, _ := state.ParseCountChain(name)
		pattern = count.Pattern().Name()
		moduli := map[string]uint16{"numgen": unix.NFTA_NG_MODULUS, "hash": unix.NFTA_HASH_MODULUS}
		edit = func(kind string, data []byte) {
			if m := nfnl.Attribute(data, moduli[kind]); moduli[kind] != 0 && len(m) == 4 {
				copy(m, state.Encoding(nil).Modulus(count.Slots))
			}
		}
	}
	var c chain
	for _, r := range t.chains[pattern].rules {
		c.rules = append(c.rules, edited(r, edit))
	}
	return c
}

// edited copies the expressions of a rule, and calls edit with the kind and the attributes of each. The
// results of Attribute are parts of the copy.
func edited(expressions []byte, edit func(kind string, data []byte)) []byte {
	out := slices.Clone(expressions)
	for _, expr := range nfnl.Attributes(out) {
		edit(nfnl.CString(nfnl.Attribute(expr, unix.NFTA_EXPR_NAME)), nfnl.Attribute(expr, unix.NFTA_EXPR_DATA))
	}
	return out
}

// readElements lists the elements, all or only the VIPs, and what numbers stand for. A table without
// maps of numbers is from an older version, or has other rules.
func (t *table) readElements(s *nfnl.Socket, whole bool) error {
	t.elements, t.leads, t.missing, t.catchAll = nil, nil, nil, nil
	for id := range state.SetID(state.SetsAll) {
		leads := id >= state.SetCount
		if !whole && !leads && id != state.SetVIPs && id != state.SetVIPs+1 {
			continue
		}
		name := state.Specs[id].Name
		all, catchAll, err := dumpSet(s, id)
		switch {
		case errors.Is(err, unix.ENOENT):
			if !leads {
				t.missing = append(t.missing, name)
			}
			continue
		case err != nil:
			return fmt.Errorf("list %s: %w", name, err)
		case catchAll:
			t.catchAll = append(t.catchAll, name)
		}
		if leads {
			t.leads = append(t.leads, all...)
		} else {
			t.elements = append(t.elements, all...)
		}
	}
	return nil
}

// readSet lists the elements of one set, sorted.
func readSet(s *nfnl.Socket, id state.SetID) ([]state.Element, error) {
	all, _, err := dumpSet(s, id)
	return all, err
}

// dumpSet is like readSet. It also reports whether the set has a catch-all element.
func dumpSet(s *nfnl.Socket, id state.SetID) (all []state.Element, catchAll bool, err error) {
	spec := &state.Specs[id]
	var ends []string
	reset := func() { all, ends, catchAll = nil, nil, false }
	err = list(s, unix.NFT_MSG_GETSETELEM, spec.Name, reset, func(data []byte) {
		for _, item := range nfnl.Attributes(nfnl.Attribute(data, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			key := string(nfnl.Attribute(item, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE))
			if len(key) != state.FieldsSize(spec.Key) {
				catchAll = catchAll || key == ""
				continue // of another schema
			}
			if isIntervalEnd(item) {
				ends = append(ends, key)
				continue
			}
			all = append(all, state.Element{Set: id, Key: key, Data: elementData(spec, item)})
		}
	})
	if err != nil {
		return nil, false, err
	}
	if spec.Interval {
		return state.PairIntervals(all, ends), catchAll, nil
	}
	slices.SortFunc(all, state.Element.Compare)
	return all, catchAll, nil
}

// isIntervalEnd reports whether an element is only the end of an interval.
func isIntervalEnd(item []byte) bool {
	flags := nfnl.Attribute(item, unix.NFTA_SET_ELEM_FLAGS)
	return len(flags) == 4 && flags[3]&unix.NFT_SET_ELEM_INTERVAL_END != 0
}

// elementData returns the value of a map's element. Fanfare writes only goto verdicts; another
// verdict gets a name that matches nothing.
func elementData(spec *state.SetSpec, item []byte) string {
	if spec.Ranges {
		return rangeEnd(spec, item)
	}
	if value := string(nfnl.Attribute(item, unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VALUE)); spec.Numbers() &&
		len(value) == state.FieldNumber.Size() {
		return state.ParseNumber(value).Chain()
	} else if !spec.Verdicts() {
		return value
	}
	v := nfnl.Attribute(item, unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VERDICT)
	if string(nfnl.Attribute(v, unix.NFTA_VERDICT_CODE)) != string(verdictGoto) {
		return "?"
	}
	return nfnl.CString(nfnl.Attribute(v, unix.NFTA_VERDICT_CHAIN))
}

// rangeEnd returns the last key of a range. A range without one, or with another length, is not
// Fanfare's: then the result equals no last key.
func rangeEnd(spec *state.SetSpec, item []byte) string {
	end := string(nfnl.Attribute(item, setElemKeyEnd, unix.NFTA_DATA_VALUE))
	if len(end) != state.FieldsSize(spec.Key) {
		return string(make([]byte, state.FieldsSize(spec.Key)))
	}
	return end
}

// rulesHash is a hash of everything that is neither an element nor generated.
func (t *table) rulesHash() string {
	parts := []string{t.flags}
	for _, name := range t.staticChains() {
		c := t.chains[name]
		parts = append(parts, name, c.base())
		for _, r := range c.rules {
			parts = append(parts, string(r))
		}
		parts = append(parts, "")
	}
	for _, name := range t.staticSets() {
		parts = append(parts, name, t.sets[name])
	}
	return state.ShortHash(parts...)
}

// staticChains returns the chains that every table has, sorted.
func (t *table) staticChains() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(t.chains)), func(name string) bool {
		return state.IsGenerated(name) && !slices.Contains(patterns, name)
	})
}

// staticSets returns the sets and maps that every table has, sorted.
func (t *table) staticSets() []string {
	return slices.Sorted(maps.Keys(t.sets))
}

// ours reports whether a process with the same ruleset wrote the table.
func (t *table) ours() bool {
	return t.found && strings.HasPrefix(t.schema, schemaChain(""))
}

// readVIPs lists the addresses that the table forwards, sorted, for any schema: none without a
// table.
func readVIPs(s *nfnl.Socket) ([]netip.Addr, error) {
	var all []netip.Addr
	for _, id := range []state.SetID{state.SetVIPs, state.SetVIPs + 1} {
		elements, err := readSet(s, id)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", state.Specs[id].Name, err)
		}
		for _, e := range elements {
			a, _ := netip.AddrFromSlice([]byte(e.Key))
			all = append(all, a)
		}
	}
	return all, nil
}
