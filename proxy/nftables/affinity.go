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
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Chains of affinity. Their rules are not in the text: those for IPv6 need more
// registers than nft 1.0.6 gives to a change of a map, though it lists them.
const (
	chainBack  = "back"  // in the text: passes clients that reached a backend
	chainFull  = "full"  // in the text: counts
	chainStale = "stale" // forgets, and drops
)

// patternLearn is the learning chain that always exists.
var patternLearn = state.LearnChain(time.Second)

// learnRules are those of a learning chain. A statement that finds the map full
// ends its rule, so that what comes through is what could not be remembered.
func learnRules(d time.Duration, families state.SetID) [][]byte {
	var check, full nfnl.Expressions
	check.Verdict(unix.NFT_JUMP, chainBack)
	full.Verdict(unix.NFT_GOTO, chainFull)
	rules := affinityRules(families, func(x *nfnl.Expressions, set string, key, value uint32) {
		x.Dynset(set, unix.NFT_DYNSET_OP_UPDATE, key, value, uint64(d.Milliseconds()))
		x.Verdict(unix.NFT_RETURN, "")
	})
	return slices.Concat([][]byte{check.Encoded()}, rules, [][]byte{full.Encoded()})
}

// staleRules are the rules of the chain for flows whose backend has gone. They are
// dropped: the client retries, and finds another backend.
func staleRules(families state.SetID) [][]byte {
	return affinityRules(families, func(x *nfnl.Expressions, set string, key, value uint32) {
		x.Dynset(set, nfnl.DynsetDelete, key, value, 0)
		x.Counter()
		x.Verdict(verdictDrop, "")
	})
}

const verdictDrop = 0 // NF_DROP

// Rules are written for IPv4 alone, or for both families. nft 1.0.6 aborts where it
// loads from its own listing a rule that changes a map with keys longer than 16 bytes,
// and loads nothing else of the file, such as a firewall that is loaded when the
// system starts. So the rules for IPv6 are there only if a frontend needs them.
const (
	onlyIPv4   = state.SetID(1)
	bothFamily = state.SetID(2)
)

// affinityFamilies are the families that the elements need rules for.
func affinityFamilies(all []state.Element) state.SetID {
	if slices.ContainsFunc(all, func(e state.Element) bool { return e.Set == state.SetLearn+1 }) {
		return bothFamily
	}
	return onlyIPv4
}

// affinityFamilies are the families that the table has rules for.
func (t *table) affinityFamilies() state.SetID {
	if len(t.chains[patternLearn].rules) < len(learnRules(time.Second, bothFamily)) {
		return onlyIPv4
	}
	return bothFamily
}

// affinityRules are one rule for each family and protocol that does something with
// the element of a translated flow in the map of its family.
func affinityRules(families state.SetID, do func(x *nfnl.Expressions, set string, key, value uint32)) [][]byte {
	var rules [][]byte
	for f := range families {
		for _, p := range []state.Protocol{state.TCP, state.UDP, state.SCTP} {
			var x nfnl.Expressions
			key, value := loadAffinity(&x, f, p)
			do(&x, state.Specs[state.SetAff+f].Name, key, value)
			rules = append(rules, x.Encoded())
		}
	}
	return rules
}

// loadAffinity puts client and frontend into registers, and the backend behind
// them. What nft writes as
//
//	tcp dport != 0 ip saddr . ct original ip daddr . meta l4proto . ct original proto-dst : ip daddr . th dport
func loadAffinity(x *nfnl.Expressions, family state.SetID, p state.Protocol) (key, value uint32) {
	nfproto, saddr, daddr, size := byte(unix.NFPROTO_IPV4), uint32(12), uint32(16), uint32(4)
	original := uint32(unix.NFT_CT_DST_IP)
	if family == 1 {
		nfproto, saddr, daddr, size = unix.NFPROTO_IPV6, 8, 24, 16
		original = unix.NFT_CT_DST_IP6
	}
	key = nfnl.RegisterFirst
	vip := key + size/4
	proto := vip + size/4
	value = proto + 2
	x.Meta(unix.NFT_META_L4PROTO, key)
	x.Is(key, byte(p))
	// What gives the ports a type when nft reads its own listing.
	x.Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, key)
	x.IsNot(key, []byte{0, 0})
	x.Meta(unix.NFT_META_NFPROTO, key)
	x.Is(key, nfproto)
	x.Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, saddr, size, key)
	x.CT(original, vip)
	x.Meta(unix.NFT_META_L4PROTO, proto)
	x.CT(unix.NFT_CT_PROTO_DST, proto+1)
	x.Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, daddr, size, value)
	x.Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, value+size/4)
	return key, value
}

// withTimeout copies the expressions of a rule of a learning chain for another
// timeout.
func withTimeout(rule []byte, d time.Duration) []byte {
	out := slices.Clone(rule)
	for _, expr := range nfnl.Attributes(out) {
		if nfnl.CString(nfnl.Attribute(expr, unix.NFTA_EXPR_NAME)) != "dynset" {
			continue
		}
		// What attribute returns is part of out.
		if t := nfnl.Attribute(expr, unix.NFTA_EXPR_DATA, unix.NFTA_DYNSET_TIMEOUT); len(t) == 8 {
			binary.BigEndian.PutUint64(t, uint64(d.Milliseconds()))
		}
	}
	return out
}

// addAffinityRules fills the chains of affinity of a table that was just loaded
// with these elements.
func (n *Renderer) addAffinityRules(all []state.Element, families state.SetID) error {
	b := newBatch(n.Sock.Seq)
	b.addRules(chainStale, staleRules(families))
	b.addRules(patternLearn, learnRules(time.Second, families))
	for name := range state.ChainUses(all) {
		if d, ok := state.ParseLearnChain(name); ok && name != patternLearn {
			b.addRules(name, learnRules(d, families))
		}
	}
	return b.commit(n.Sock)
}

// goneBacks are the frontends' backends, as in xback4, that a change takes away,
// and for which kinds of clients.
func goneBacks(c state.Change) map[string]state.Sides {
	gone := make(map[string]state.Sides)
	for _, e := range c.Del {
		switch state.Base(e.Set) {
		case state.SetExtBack:
			gone[e.Key] |= state.SideExternal
		case state.SetIntBack:
			gone[e.Key] |= state.SideInternal
		default: // has nothing to do with affinity
		}
	}
	return gone
}

// A forgetting is which entries of affinity a change makes wrong.
type forgetting struct {
	gone    map[string]state.Sides // backends that it takes away
	clients []netip.Prefix         // that are internal whatever else says so
	// kept returns all backends, if it changes who is an internal client; else it is nil.
	kept func() map[string]state.Sides
}

// planForget derives it from a change that leads to a State.
func planForget(c state.Change, want state.State) forgetting {
	f := forgetting{gone: goneBacks(c), clients: want.Clients.CIDRs}
	moves := func(e state.Element) bool { return state.Base(e.Set) == state.SetClients || e.Set == state.SetClientIf }
	if slices.ContainsFunc(c.Del, moves) || slices.ContainsFunc(c.Add, moves) {
		f.kept = sync.OnceValue(func() map[string]state.Sides { return goneBacks(state.Change{Del: state.RenderState(want)}) })
	}
	return f
}

func (f forgetting) empty() bool { return len(f.gone) == 0 && f.kept == nil }

// forgetAttempts bounds how often entries are listed again because one has expired before
// it was deleted, or others were learned meanwhile.
const forgetAttempts = 3

// forget deletes the entries of clients that would come back to backends which a
// change takes away, or that it takes away from them by making them clients of
// another kind, and says whether there were any. All entries must be listed for that, 1 ms of CPU for 1,000 and
// 200 ms for a full map. What remains does no harm: the chain stale keeps flows from
// following it, at the cost of the first packet, which this is to save.
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

// forgetAll forgets what leads to backends that expire, so that they can be taken out of xback4 and iback4.
// Packets that were sent there before, or by an entry that is forgotten here, are in flight to the chain that
// judges them, and awaited. A packet that had passed the lookup in expiring4 may have left an entry; a packet
// that follows that entry leaves none.
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
	for set := state.SetAff; set < state.SetAff+2; set++ {
		all, err := readSet(n.Sock, set)
		if err != nil {
			return found, fmt.Errorf("list %s: %w", state.Specs[set].Name, err)
		}
		b.delElements(slices.DeleteFunc(all, func(e state.Element) bool { return !f.wrong(e) }))
	}
	return !b.empty(), n.commit(b)
}

// wrong says whether an entry leads to a backend that its client no longer has.
// The entry does not show which kind of client it is, except for known addresses. One that
// could be of either kind keeps what both have.
func (f forgetting) wrong(e state.Element) bool {
	n := state.Specs[e.Set].Key[0].Size()
	client, _ := netip.AddrFromSlice([]byte(e.Key[:n]))
	could := state.SideExternal | state.SideInternal
	if state.ContainsAddr(f.clients, client) {
		could = state.SideInternal
	}
	back := e.Key[n:] + e.Data
	return f.gone[back]&could != 0 || f.kept != nil && f.kept()[back]&could != could
}
