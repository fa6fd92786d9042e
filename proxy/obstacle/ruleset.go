package obstacle

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Priorities of hooks, from linux/netfilter_ipv4.h; lower ones come first. Fanfare's rules
// translate at PriorityNFTables, before kube-proxy's, or in iptables mode at PriorityIPTables
// (NF_IP_PRI_NAT_DST), which cannot be changed.
const (
	priorityConntrack = -200
	PriorityNFTables  = -101
	PriorityIPTables  = -100
)

// A tableID names a table of nftables, also one of iptables-nft. Family is NFPROTO_*.
type tableID struct {
	family uint8
	name   string
}

// String returns the table's family and name as nft prints them.
func (t tableID) String() string {
	return map[uint8]string{unix.NFPROTO_IPV4: "ip ", unix.NFPROTO_IPV6: "ip6 ", unix.NFPROTO_INET: "inet "}[t.family] + t.name
}

// A chainID names a chain or, in the same way, a set.
type chainID struct {
	table tableID
	name  string
}

// A hookedChain is a base chain: the kernel calls it at a hook.
type hookedChain struct {
	chainID
	kind     string // filter, nat, route
	hook     uint32
	priority int32
	drops    bool // its policy
}

// sees reports whether the chain sees packets of the family.
func (c hookedChain) sees(f state.SetID) bool {
	return c.table.family == unix.NFPROTO_INET || c.table.family == []uint8{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6}[f]
}

// A ruleset is the nftables rules of this namespace. It reads chains and sets on demand and
// caches them: of tables with tens of thousands of chains only a few are needed.
type ruleset struct {
	sock  *nfnl.Socket
	bases []hookedChain
	// kubeProxy are kube-proxy's base chains that translate incoming traffic.
	kubeProxy []hookedChain
	rules     map[chainID][][]byte
	sets      map[chainID]*valueSet
	defs      map[tableID]map[string]*valueSet
	nat       int32 // the priority at which our rules translate
	err       error // what could not be read: such rules may do anything
}

// readRuleset lists the base chains of other programs. Of kube-proxy's table, which is large and
// whose rules are known, it keeps only the chain that translates. After an error the ruleset is
// usable, and has the chains that were read.
func readRuleset(s *nfnl.Socket, nat int32) (*ruleset, error) {
	r := &ruleset{sock: s, nat: nat, rules: make(map[chainID][][]byte), sets: make(map[chainID]*valueSet), defs: make(map[tableID]map[string]*valueSet)}
	err := r.list(unix.NFT_MSG_GETCHAIN, unix.AF_UNSPEC, nil, func() { r.bases, r.kubeProxy = nil, nil }, func(family uint8, data []byte) {
		hook := nfnl.Attribute(data, unix.NFTA_CHAIN_HOOK)
		c := hookedChain{chainID: chainID{tableID{family, nfnl.CString(nfnl.Attribute(data, unix.NFTA_CHAIN_TABLE))}, nfnl.CString(nfnl.Attribute(data, unix.NFTA_CHAIN_NAME))}}
		if hook == nil || !c.table.foreign() && !c.table.kubeProxy() {
			return
		}
		c.kind = nfnl.CString(nfnl.Attribute(data, unix.NFTA_CHAIN_TYPE))
		c.hook = nfnl.Uint32(nfnl.Attribute(hook, unix.NFTA_HOOK_HOOKNUM))
		c.priority = int32(nfnl.Uint32(nfnl.Attribute(hook, unix.NFTA_HOOK_PRIORITY)))
		c.drops = nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_CHAIN_POLICY)) == 0 && nfnl.Attribute(data, unix.NFTA_CHAIN_POLICY) != nil
		switch {
		case !c.table.kubeProxy():
			r.bases = append(r.bases, c)
		case c.kind == "nat" && c.hook == hookPrerouting:
			r.kubeProxy = append(r.kubeProxy, c)
		}
	})
	return r, err
}

// foreign reports whether a table belongs to neither Fanfare nor kube-proxy, and has a family
// that sees IP packets at layer 3.
func (t tableID) foreign() bool {
	switch t.family {
	case unix.NFPROTO_IPV4, unix.NFPROTO_IPV6, unix.NFPROTO_INET:
		return t.name != renderer.TableName && t.name != renderer.SpareTable && t.name != renderer.RedirectTable && !t.kubeProxy()
	}
	return false
}

// listAttempts limits how often a list is read again because it changed meanwhile. A busy
// node with many programs may change its rules at any time.
const listAttempts = 20

// list repeats a dump while the ruleset changes during it: the kernel marks such a dump as
// inconsistent (NLM_F_DUMP_INTR). It calls reset before every attempt, then each for every entry.
func (r *ruleset) list(kind, family uint8, request []byte, reset func(), each func(family uint8, data []byte)) error {
	var err error
	for range listAttempts {
		reset()
		if err = r.sock.DumpFamilies(unix.NFNL_SUBSYS_NFTABLES, kind, family, request, each); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return err
}

// chain returns the encoded expressions of each rule of a chain, in order; false if the chain
// cannot be read.
func (r *ruleset) chain(id chainID) ([][]byte, bool) {
	if rules, ok := r.rules[id]; ok {
		return rules, true
	}
	var e nfnl.Encoder
	e.Text(unix.NFTA_RULE_TABLE, id.table.name)
	e.Text(unix.NFTA_RULE_CHAIN, id.name)
	var rules [][]byte
	err := r.list(unix.NFT_MSG_GETRULE, id.table.family, e.B, func() { rules = nil }, func(_ uint8, data []byte) {
		// Old kernels ignore the filter of the request, and dump all rules.
		if nfnl.CString(nfnl.Attribute(data, unix.NFTA_RULE_TABLE)) == id.table.name && nfnl.CString(nfnl.Attribute(data, unix.NFTA_RULE_CHAIN)) == id.name {
			rules = append(rules, slices.Clone(nfnl.Attribute(data, unix.NFTA_RULE_EXPRESSIONS)))
		}
	})
	if err != nil {
		r.err = errors.Join(r.err, err)
		return nil, false
	}
	r.rules[id] = rules
	return rules, true
}

// A valueSet is a set or map whose elements can be compared with packets.
type valueSet struct {
	flags uint32
	// fixed: elements has all of them. Otherwise the set changes with packets or time, or has
	// elements that cannot be compared: a rule with it may match.
	fixed    bool
	elements []setElement
}

// A setElement is an element of a set, or of a map if it has a value or a verdict. In a set of
// intervals without end, the element after the interval marks its end.
type setElement struct {
	key, end string // end: of a range, inclusive; empty: none
	ends     bool   // the key is the first one after an interval
	value    string
	verdict  *verdict
}

// nftSetConcat is NFT_SET_CONCAT, and nftSetElemCatchall NFT_SET_ELEM_CATCHALL, which x/sys
// does not have; nftaSetElemKeyEnd is NFTA_SET_ELEM_KEY_END.
const (
	nftSetConcat       = 0x80
	nftSetElemCatchall = 0x2
	nftaSetElemKeyEnd  = 10
)

// set returns a set with its elements; nil if it cannot be read. It does not read the elements
// of sets that packets update or that expire, nor of intervals over concatenated keys.
func (r *ruleset) set(id chainID) *valueSet {
	if s, ok := r.sets[id]; ok {
		return s
	}
	s := r.definitions(id.table)[id.name]
	const moving = unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT | unix.NFT_SET_OBJECT
	if s != nil && s.flags&moving == 0 && s.flags&(unix.NFT_SET_INTERVAL|nftSetConcat) != unix.NFT_SET_INTERVAL|nftSetConcat {
		r.elements(id, s)
	}
	r.sets[id] = s
	return s
}

// definitions returns the sets of a table by name, without elements. The kernel also lists
// anonymous sets, which rules refer to by generated names.
func (r *ruleset) definitions(t tableID) map[string]*valueSet {
	if defs, ok := r.defs[t]; ok {
		return defs
	}
	defs := make(map[string]*valueSet)
	var e nfnl.Encoder
	e.Text(unix.NFTA_SET_TABLE, t.name)
	err := r.list(unix.NFT_MSG_GETSET, t.family, e.B, func() { clear(defs) }, func(_ uint8, data []byte) {
		if nfnl.CString(nfnl.Attribute(data, unix.NFTA_SET_TABLE)) == t.name {
			defs[nfnl.CString(nfnl.Attribute(data, unix.NFTA_SET_NAME))] = &valueSet{flags: nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_SET_FLAGS))}
		}
	})
	r.err = errors.Join(r.err, err)
	r.defs[t] = defs
	return defs
}

// elements reads the elements of a set and sorts them by key, for findInterval.
func (r *ruleset) elements(id chainID, s *valueSet) {
	var e nfnl.Encoder
	e.Text(unix.NFTA_SET_ELEM_LIST_TABLE, id.table.name)
	e.Text(unix.NFTA_SET_ELEM_LIST_SET, id.name)
	s.fixed = true
	err := r.list(unix.NFT_MSG_GETSETELEM, id.table.family, e.B, func() { s.elements = nil }, func(_ uint8, data []byte) {
		for _, item := range nfnl.Attributes(nfnl.Attribute(data, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			s.add(item)
		}
	})
	if err != nil {
		r.err = errors.Join(r.err, err)
		s.fixed = false
	}
	slices.SortFunc(s.elements, func(a, b setElement) int { return strings.Compare(a.key, b.key) })
}

// add appends an element. A catch-all element ("*" in nft) matches any key, so that
// no comparison decides: the set is not fixed then.
func (s *valueSet) add(item []byte) {
	flags := nfnl.Uint32(nfnl.Attribute(item, unix.NFTA_SET_ELEM_FLAGS))
	if flags&nftSetElemCatchall != 0 {
		s.fixed = false
		return
	}
	s.elements = append(s.elements, setElement{
		key: string(nfnl.Attribute(item, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE)), ends: flags&unix.NFT_SET_ELEM_INTERVAL_END != 0,
		end:     string(nfnl.Attribute(item, nftaSetElemKeyEnd, unix.NFTA_DATA_VALUE)),
		value:   string(nfnl.Attribute(item, unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VALUE)),
		verdict: parseVerdict(nfnl.Attribute(item, unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VERDICT)),
	})
}

// A verdict is what a rule decides about a packet.
type verdict struct {
	code  int32  // NF_ACCEPT and the like, or negative: NFT_JUMP and the like
	chain string // the target of a jump or goto
}

// parseVerdict decodes the attributes of NFTA_DATA_VERDICT; nil if there is no verdict.
func parseVerdict(b []byte) *verdict {
	code := nfnl.Attribute(b, unix.NFTA_VERDICT_CODE)
	if len(code) != 4 {
		return nil
	}
	return &verdict{int32(binary.BigEndian.Uint32(code)), nfnl.CString(nfnl.Attribute(b, unix.NFTA_VERDICT_CHAIN))}
}
