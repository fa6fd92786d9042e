package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Chains of affinity in ruleset.nft.
const (
	chainBack = "back" // accepts clients that reached a backend, and marks others as stale
	chainFull = "full" // counts
)

// stale is the priority that chain stale sets on a packet as a mark, in host byte order as meta
// shows it.
var stale = binary.NativeEndian.AppendUint32(nil, 0xfa17_57a1)

// learnPatterns are the learning chains that always exist. Their rules are not in ruleset.nft:
// those for IPv6 need more registers than nft 1.0.6 allows in a statement that changes a map,
// although it can list them.
var learnPatterns = [2]string{state.PatternAffinity(0).Learn(time.Second), state.PatternAffinity(1).Learn(time.Second)}

// affinityText has the map of a frontend with affinity and its recall chain.
const affinityText = `
	map %[1]s { typeof %[4]s saddr : %[4]s daddr . th dport; flags dynamic,timeout; comment "client : backend that it had"; }
	chain %[2]s {
		meta l4proto %[3]s dnat %[4]s to %[4]s saddr map @%[1]s
	}
`

// affinityTextOf returns affinityText for one frontend, or for a pattern.
func affinityTextOf(id state.AffinityID) string {
	_, at, ok := id.Frontend()
	if !ok {
		at.Proto = state.TCP // for a pattern
	}
	return fmt.Sprintf(affinityText, id.Map(), id.Recall(), at.Proto, [2]string{"ip", "ip6"}[id.Family()])
}

// learnRules returns the rules of a learning chain. A statement that finds the map full ends its
// rule, so the last rule gets only packets whose client could not be recorded.
func learnRules(id state.AffinityID, d time.Duration) [][]byte {
	var check, forget, learn, full nfnl.Expressions
	check.Verdict(unix.NFT_JUMP, chainBack)
	forget.Meta(unix.NFT_META_PRIORITY, nfnl.RegisterFirst)
	forget.Is(nfnl.RegisterFirst, stale)
	changeMap(&forget, id, nfnl.DynsetDelete, 0)
	forget.Counter()
	forget.Verdict(verdictDrop, "") // the client retries, and finds another backend
	changeMap(&learn, id, unix.NFT_DYNSET_OP_UPDATE, d)
	learn.Verdict(unix.NFT_RETURN, "")
	full.Counter()
	full.Verdict(unix.NFT_GOTO, chainFull)
	return [][]byte{check.Encoded(), forget.Encoded(), learn.Encoded(), full.Encoded()}
}

const verdictDrop = 0 // NF_DROP

// changeMap changes the entry of a translated flow's client. nft writes it as
//
//	update @aff-4-192.0.2.1-tcp-80 { ip saddr timeout 3h : ip daddr . th dport }
func changeMap(x *nfnl.Expressions, id state.AffinityID, op uint32, d time.Duration) {
	saddr, daddr, size := uint32(12), uint32(16), uint32(4)
	if id.Family() == 1 {
		saddr, daddr, size = 8, 24, 16
	}
	client := uint32(nfnl.RegisterFirst)
	backend := client + 4 // nft puts it there, because it allocates 16-byte registers to values
	// This tells nft the type of the addresses when it reads its own listing.
	x.Meta(unix.NFT_META_NFPROTO, client)
	x.Is(client, []byte{state.NFFamily(id.Family())})
	x.Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, saddr, size, client)
	x.Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, daddr, size, backend)
	x.Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, backend+size/4)
	x.Dynset(id.Map(), op, client, backend, uint64(d.Milliseconds()))
}

// The rules are for IPv4 alone, or for both families. If a rule puts an IPv6 address and a port
// into a map, nft 1.0.6 aborts when it loads its own listing, with everything else in that file,
// such as a firewall that is loaded at boot. So the IPv6 rules exist only if a frontend needs them.
const (
	onlyIPv4   = state.SetID(1)
	bothFamily = state.SetID(2)
)

// affinityFamilies returns the families whose rules the elements need.
func affinityFamilies(all []state.Element) state.SetID {
	if slices.ContainsFunc(all, func(e state.Element) bool { return e.Set == state.SetLearn+1 }) {
		return bothFamily
	}
	return onlyIPv4
}

// affinityFamilies returns the families whose rules the table has.
func (t *table) affinityFamilies() state.SetID {
	if len(t.chains[learnPatterns[1]].rules) == 0 {
		return onlyIPv4
	}
	return bothFamily
}

// forFrontend copies the expressions of a pattern's rule for another frontend and, in a learning
// chain, for its timeout.
func forFrontend(rule []byte, id state.AffinityID, d time.Duration) []byte {
	return nfnl.MapAttributes(rule, func(_ uint16, expr []byte) []byte {
		name := nfnl.CString(nfnl.Attribute(expr, unix.NFTA_EXPR_NAME))
		return nfnl.MapAttributes(expr, func(t uint16, data []byte) []byte {
			if t != unix.NFTA_EXPR_DATA {
				return data
			}
			return nfnl.MapAttributes(data, func(t uint16, v []byte) []byte { return valueFor(name, t, v, id, d) })
		})
	})
}

// valueFor returns the value of an attribute of an expression for another frontend.
func valueFor(expr string, t uint16, v []byte, id state.AffinityID, d time.Duration) []byte {
	_, at, _ := id.Frontend()
	switch {
	case expr == "lookup" && t == unix.NFTA_LOOKUP_SET, expr == "dynset" && t == unix.NFTA_DYNSET_SET_NAME:
		return append([]byte(id.Map()), 0)
	case expr == "dynset" && t == unix.NFTA_DYNSET_TIMEOUT && len(v) == 8 && binary.BigEndian.Uint64(v) > 0:
		return binary.BigEndian.AppendUint64(nil, uint64(d.Milliseconds()))
	case expr == "cmp" && t == unix.NFTA_CMP_DATA && string(nfnl.Attribute(v, unix.NFTA_DATA_VALUE)) == string([]byte{byte(state.TCP)}): // the pattern's protocol
		return nfnl.MapAttributes(v, func(uint16, []byte) []byte { return []byte{byte(at.Proto)} })
	}
	return v
}

// addAffinityRules fills the learning chains of a table that was just loaded with these elements.
func (n *Renderer) addAffinityRules(all []state.Element, families state.SetID) error {
	b := newBatch(n.Sock.Seq)
	for f := range families {
		b.addRules(learnPatterns[f], learnRules(state.PatternAffinity(f), time.Second))
	}
	for name := range state.ChainUses(all) {
		if id, d, ok := state.ParseLearnChain(name); ok {
			b.addRules(name, learnRules(id, d))
		}
	}
	return b.commit(n.Sock)
}

// removedBackends returns the backends that a change removes from frontends, keyed as in xback4,
// and for which kinds of clients.
func removedBackends(c state.Change) map[string]state.Sides {
	gone := make(map[string]state.Sides)
	for _, e := range c.Del {
		switch state.Base(e.Set) {
		case state.SetExtBack:
			gone[e.Key] |= state.SideExternal
		case state.SetIntBack:
			gone[e.Key] |= state.SideInternal
		default: // unrelated to affinity
		}
	}
	return gone
}

// An affinityEntry is an entry of a frontend's map of clients.
type affinityEntry struct {
	key     string // the client
	data    string // its backend
	expires time.Duration
}

// readMap lists the entries of a frontend's map; none if the map does not exist.
func readMap(s *nfnl.Socket, id state.AffinityID) (all []affinityEntry, err error) {
	var e nfnl.Encoder
	e.Text(unix.NFTA_SET_ELEM_LIST_TABLE, renderer.TableName)
	e.Text(unix.NFTA_SET_ELEM_LIST_SET, id.Map())
	err = list(s, unix.NFT_MSG_GETSETELEM, e.B, func() { all = nil }, func(data []byte) {
		for _, item := range nfnl.Attributes(nfnl.Attribute(data, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			entry := affinityEntry{
				key:  string(nfnl.Attribute(item, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE)),
				data: string(nfnl.Attribute(item, unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VALUE)),
			}
			if ms := nfnl.Attribute(item, unix.NFTA_SET_ELEM_EXPIRATION); len(ms) == 8 {
				entry.expires = time.Duration(binary.BigEndian.Uint64(ms)) * time.Millisecond
			}
			all = append(all, entry)
		}
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return all, err
}

// delEntries deletes entries of a frontend's map. They must exist.
func (b *batch) delEntries(id state.AffinityID, all []affinityEntry) {
	for len(all) > 0 {
		b.op("delete element of "+id.Map(), unix.NFT_MSG_DELSETELEM, 0, func() {
			b.e.Text(unix.NFTA_SET_ELEM_LIST_TABLE, renderer.TableName)
			b.e.Text(unix.NFTA_SET_ELEM_LIST_SET, id.Map())
			at := b.e.Open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
			for len(all) > 0 && len(b.e.B)-at < nfnl.MaxNested {
				b.item(all[0].key, 0, nil)
				all = all[1:]
			}
			b.e.Close(at)
		})
	}
}

// A forgetting describes the affinity entries that a change makes stale.
type forgetting struct {
	gone    map[string]state.Sides    // removed backends
	ids     map[state.AffinityID]bool // of their frontends
	clients []netip.Prefix            // certainly internal clients
	// kept returns all backends if the change affects which clients are internal; otherwise it is
	// nil.
	kept func() map[string]state.Sides
}

// planForget derives the stale entries from a change and the State that it leads to.
func planForget(c state.Change, want state.State) forgetting {
	f := forgetting{gone: removedBackends(c), ids: make(map[state.AffinityID]bool), clients: want.Clients.CIDRs}
	for _, e := range c.Del {
		if set := state.Base(e.Set); set == state.SetExtBack || set == state.SetIntBack {
			vip, proto, port := state.FrontendOf(e.Set, e.Key)
			f.ids[state.AffinityOf(vip, state.Port{Proto: proto, Port: port})] = true
		}
	}
	moves := func(e state.Element) bool { return state.Base(e.Set) == state.SetClients || e.Set == state.SetClientIf }
	if slices.ContainsFunc(c.Del, moves) || slices.ContainsFunc(c.Add, moves) {
		f.kept = sync.OnceValue(func() map[string]state.Sides { return removedBackends(state.Change{Del: state.RenderState(want)}) })
	}
	return f
}

func (f forgetting) empty() bool { return len(f.gone) == 0 && f.kept == nil }

// forgetAttempts limits how often entries are listed again because one expired before its deletion,
// or others were learned meanwhile.
const forgetAttempts = 3

// forget deletes the entries of clients whose backend a change removes, for all clients or for
// their kind, and reports whether there were any. It lists the maps of these frontends: 1 ms of CPU
// time for 1,000 entries, and 200 ms for a full map. Remaining entries do no harm, because the
// learning chains stop flows from following them; but that costs the first packet, which forget is
// meant to save.
func (n *Renderer) forget(f forgetting) (found bool) {
	if f.empty() {
		return false
	}
	var err error
	for range forgetAttempts {
		if found, err = n.forgetOnce(f); !errors.Is(err, unix.ENOENT) {
			break
		}
	}
	if err != nil {
		n.Log.Warn("clients may lose a packet before they find another backend", "err", err)
	}
	return found
}

// forgetAll deletes the entries that lead to expiring backends, so that these can be removed from
// xback4 and iback4. Packets that were sent there before, or by an entry that is deleted here, may
// still be on their way to the chain that judges them, so forgetAll waits for them. A packet that
// had already passed the lookup in expiring4 may have left an entry; packets that follow this entry
// leave none.
func (n *Renderer) forgetAll(f forgetting) {
	if f.empty() {
		return
	}
	n.forget(f)
	nfnl.AwaitPackets()
	if n.forget(f) {
		nfnl.AwaitPackets()
	}
}

func (n *Renderer) forgetOnce(f forgetting) (found bool, err error) {
	b := newBatch(n.Sock.Seq)
	for id := range n.maps {
		if _, _, ok := id.Frontend(); !ok || !f.concerns(id) {
			continue
		}
		all, err := readMap(n.Sock, id)
		if err != nil {
			return found, fmt.Errorf("list %s: %w", id.Map(), err)
		}
		b.delEntries(id, slices.DeleteFunc(all, func(e affinityEntry) bool { return !f.wrong(id, e) }))
	}
	return !b.empty(), n.commit(b)
}

// concerns reports whether the frontend may have stale entries.
func (f forgetting) concerns(id state.AffinityID) bool { return f.kept != nil || f.ids[id] }

// wrong reports whether an entry leads to a backend that its client no longer has. The entry shows
// the kind of client only for known addresses. If the client could be of either kind, it keeps
// backends that both kinds have.
func (f forgetting) wrong(id state.AffinityID, e affinityEntry) bool {
	client, _ := netip.AddrFromSlice([]byte(e.key))
	could := state.SideExternal | state.SideInternal
	if state.ContainsAddr(f.clients, client) {
		could = state.SideInternal
	}
	vip, at, _ := id.Frontend()
	back := string(state.Encoding(nil).Addr(vip).Proto(at.Proto).Port(at.Port)) + e.data
	return f.gone[back]&could != 0 || f.kept != nil && f.kept()[back]&could != could
}
