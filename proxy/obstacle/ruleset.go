package obstacle

import (
	"encoding/binary"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
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
	return map[uint8]string{unix.NFPROTO_IPV4: "ip ", unix.NFPROTO_IPV6: "ip6 ", unix.NFPROTO_INET: "inet "}[t.family] +
		t.name
}

// kubeProxy reports whether a table is kube-proxy's in its nftables mode.
func (t tableID) kubeProxy() bool {
	return t.name == "kube-proxy" && (t.family == unix.NFPROTO_IPV4 || t.family == unix.NFPROTO_IPV6)
}

// foreign reports whether a table belongs to neither Fanfare nor kube-proxy, and has a family
// that sees IP packets at layer 3.
func (t tableID) foreign() bool {
	switch t.family {
	case unix.NFPROTO_IPV4, unix.NFPROTO_IPV6, unix.NFPROTO_INET:
		return t.name != renderer.TableName && t.name != renderer.SpareTable && t.name != renderer.RedirectTable &&
			!t.kubeProxy()
	}
	return false
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

// A ruleset is the nftables rules of this namespace. It reads chains on demand, since few of tens
// of thousands are needed, and leaves the lookup in sets to the kernel.
type ruleset struct {
	sock  *nfnl.Socket
	bases []hookedChain // of other programs
	rules map[chainID][][]byte
	sets  map[chainID]int // the length of keys; 0: whether a set has a key cannot be asked
	nat   int32           // the priority at which our rules translate
	err   error           // what could not be read: such rules may do anything
}

// readRuleset lists the base chains of other programs. After an error the ruleset is usable, and
// has the chains that were read.
func readRuleset(s *nfnl.Socket, nat int32) (*ruleset, error) {
	r := &ruleset{sock: s, nat: nat, rules: make(map[chainID][][]byte), sets: make(map[chainID]int)}
	err := renderer.Dump(s, unix.NFT_MSG_GETCHAIN, unix.AF_UNSPEC, nil, func() { r.bases = nil },
		func(family uint8, data []byte) {
			table := tableID{family, nfnl.CString(nfnl.Attribute(data, unix.NFTA_CHAIN_TABLE))}
			hook, policy := nfnl.Attribute(data, unix.NFTA_CHAIN_HOOK), nfnl.Attribute(data, unix.NFTA_CHAIN_POLICY)
			if hook == nil || !table.foreign() && !table.kubeProxy() {
				return
			}
			r.bases = append(r.bases, hookedChain{
				chainID:  chainID{table, nfnl.CString(nfnl.Attribute(data, unix.NFTA_CHAIN_NAME))},
				kind:     nfnl.CString(nfnl.Attribute(data, unix.NFTA_CHAIN_TYPE)),
				hook:     nfnl.Uint32(nfnl.Attribute(hook, unix.NFTA_HOOK_HOOKNUM)),
				priority: int32(nfnl.Uint32(nfnl.Attribute(hook, unix.NFTA_HOOK_PRIORITY))),
				drops:    policy != nil && nfnl.Uint32(policy) == nfDrop,
			})
		})
	return r, err
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
	err := renderer.Dump(r.sock, unix.NFT_MSG_GETRULE, id.table.family, e.B, func() { rules = nil },
		func(_ uint8, data []byte) {
			// Old kernels ignore the filter of the request, and dump all rules.
			if nfnl.CString(nfnl.Attribute(data, unix.NFTA_RULE_TABLE)) == id.table.name &&
				nfnl.CString(nfnl.Attribute(data, unix.NFTA_RULE_CHAIN)) == id.name {
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

// keyLength returns the length of a set's keys in registers, 0 if packets or time change the set,
// or it cannot be read. The kernel knows anonymous sets by generated names.
func (r *ruleset) keyLength(id chainID) int {
	if length, ok := r.sets[id]; ok {
		return length
	}
	var e nfnl.Encoder
	e.Text(unix.NFTA_SET_TABLE, id.table.name)
	e.Text(unix.NFTA_SET_NAME, id.name)
	data, err := r.sock.Get(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETSET, id.table.family, e.B)
	r.err = errors.Join(r.err, err)
	const moving = unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT | unix.NFT_SET_OBJECT
	if nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_SET_FLAGS))&moving == 0 {
		r.sets[id] = int(nfnl.Uint32(nfnl.Attribute(data, unix.NFTA_SET_KEY_LEN)))
	}
	return r.sets[id]
}

// nftSetElemCatchall is NFT_SET_ELEM_CATCHALL, which x/sys does not have.
const nftSetElemCatchall = 0x2

// element returns the attributes of a set's element for a key, of the interval that has the key,
// or of the element that matches any key ("*" in nft); maybe if it cannot be asked.
func (r *ruleset) element(id chainID, key []byte) (found ternary, element []byte) {
	for _, any := range []bool{false, true} {
		var e nfnl.Encoder
		e.Text(unix.NFTA_SET_ELEM_LIST_TABLE, id.table.name)
		e.Text(unix.NFTA_SET_ELEM_LIST_SET, id.name)
		list, item := e.Open(unix.NFTA_SET_ELEM_LIST_ELEMENTS), e.Open(unix.NFTA_LIST_ELEM)
		if any {
			e.Uint32(unix.NFTA_SET_ELEM_FLAGS, nftSetElemCatchall)
		} else {
			k := e.Open(unix.NFTA_SET_ELEM_KEY)
			e.Bytes(unix.NFTA_DATA_VALUE, key)
			e.Close(k)
		}
		e.Close(item)
		e.Close(list)
		data, err := r.sock.Get(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETSETELEM, id.table.family, e.B)
		switch {
		case err == nil:
			return yes, nfnl.Attribute(data, unix.NFTA_SET_ELEM_LIST_ELEMENTS, unix.NFTA_LIST_ELEM)
		case any && errors.Is(err, unix.EINVAL): // before Linux 5.13
		case !errors.Is(err, unix.ENOENT):
			r.err = errors.Join(r.err, err)
			return maybe, nil
		}
	}
	return no, nil
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
