package state

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// AffinityMap is the map from all clients of a family to the backends that they had: client . VIP .
// protocol . port : backend's number. The kernel fills it.
func AffinityMap(f SetID) string { return "affinity" + "46"[f:f+1] }

// An AffinityKey identifies a frontend in the keys of the affinity map: all but the client.
type AffinityKey string

// AffinityOf returns the key of a frontend.
func AffinityOf(vip netip.Addr, at Port) AffinityKey {
	return AffinityKey(affinityAddr(vip).Proto(at.Proto).Port(at.Port))
}

// Text returns a frontend as far as its key shows it, for messages: an IPv6 address is hashed.
func (k AffinityKey) Text() (vip, port string) {
	vip, rest := fmt.Sprintf("%x", string(k[:4])), Encoding(k[4:])
	return vip, fmt.Sprintf("%s/%d", Protocol(rest[0]), binary.BigEndian.Uint16(rest[4:]))
}

// AffinityKeySize is the number of bytes of a key of the affinity map.
const AffinityKeySize = 16

// affinityAddr encodes an address for the affinity map. IPv6 addresses are hashed: nft 1.0.6 aborts
// on a statement that changes a map with a key of more than 16 bytes. Clients with the same hash
// would share a backend anyway, because they have the same slot.
func affinityAddr(a netip.Addr) Encoding {
	if a.Is4() {
		return Encoding(nil).Addr(a)
	}
	return Encoding(nil).Slot(int(KernelHash(Encoding(nil).Addr(a), math.MaxUint32)))
}

// SplitAffinityKey splits a key of the affinity map.
func SplitAffinityKey(key string) (client string, frontend AffinityKey) {
	return key[:4], AffinityKey(key[4:])
}

// LearnChain is the chain that records clients for the duration d, such as learn10800.
func LearnChain(d time.Duration) string { return learnChain + strconv.Itoa(int(d/time.Second)) }

const learnChain = "learn"

// ParseLearnChain returns the timeout in the name of a learn chain.
func ParseLearnChain(name string) (d time.Duration, ok bool) {
	n, err := strconv.Atoi(strings.TrimPrefix(name, learnChain))
	d = time.Duration(n) * time.Second
	return d, err == nil && n > 0 && LearnChain(d) == name
}

// LearnText returns the chain that records clients. A statement that finds the map full ends its
// rule, so the last rule gets only packets whose client could not be recorded. The client may have
// an entry for a backend that has gone, which "add" would keep.
func LearnText(d time.Duration) string {
	var b strings.Builder
	for _, op := range []string{"delete @%s { %s : meta priority }",
		"add @%s { %s timeout " + strconv.Itoa(int(d/time.Second)) + "s : meta priority } return"} {
		for f := range SetID(2) {
			fmt.Fprintf(&b, "\n\t\t"+op, AffinityMap(f), clientKey[f])
		}
	}
	return fmt.Sprintf("\n\tchain %s {%s\n\t\tcounter goto full\n\t}\n", LearnChain(d), b.String())
}

// clientKey is the key of the affinity map as nft writes it.
var clientKey = [2]string{
	"ip saddr . ip daddr . meta l4proto . th dport",
	"jhash ip6 saddr mod 4294967295 seed 0xfa17 . jhash ip6 daddr mod 4294967295 seed 0xfa17 . meta l4proto . th dport",
}

// MaxClients is how many entries the affinity map of a family has at most, by ruleset.nft: 4 MiB of buckets, and some
// 30 MB when it is full.
const MaxClients = 1 << 18

// toNumbered returns the rules that translate to the backend whose number is in the packet's
// priority.
func toNumbered(side string) string {
	rule := fmt.Sprintf("dnat ip to ip daddr . meta l4proto . th dport . meta priority map @%sback", side)
	return rule + "4\n\t\t" + strings.ReplaceAll(rule, "ip ", "ip6 ") + "6"
}

// clientChain returns the chain that chooses a backend by the client's address, and records it. First
// the packet's priority is the number of the table, and then that of the backend.
func clientChain(c CountChain, side, first string) string {
	table := "meta priority set ip daddr . meta l4proto . th dport map @" + side + "table"
	slot := fmt.Sprintf("meta priority set ip daddr . meta priority . %s mod %d seed 0xfa17 map @tables",
		c.Schedule.value, c.Slots)
	six := strings.NewReplacer("ip ", "ip6 ").Replace
	return fmt.Sprintf(`
	chain %s {%s
		%s4
		%s6
		%s4
		%s6
		jump learning
		%s
		counter drop
	}
`, c.Name(), first, table, six(table), slot, six(slot), toNumbered(side))
}

// A clientTable distributes the clients of a frontend over its backends. The frontends of a VIP whose
// backends are the same pods share it, whatever the ports of the pods: one for each of 16,384
// frontends would need four million slots.
type clientTable struct {
	list  string   // the numbers and weights of the backends
	ids   []uint32 // the number of each backend
	slots []int
}

// clientTables are the tables of a VIP, by number. Number 0 stands for none.
type clientTables map[uint32]clientTable

// renderFrontend appends the elements that affinity adds to both sides of a frontend.
func (t clientTables) renderFrontend(all []Element, vip netip.Addr, fe *Frontend) []Element {
	if fe.Affinity == 0 || len(fe.External.Backends)+len(fe.Internal.Backends) == 0 {
		return all
	}
	f := Family(vip)
	key := make(Encoding, 0, 48).Addr(vip).Proto(fe.Protocol).Port(fe.Port)
	all = append(all, Element{Set: setLearn + f, Key: string(key), Data: LearnChain(fe.Affinity)})
	for _, s := range []Side{External, Internal} {
		backends := fe.Target(s).Backends
		if len(backends) == 0 {
			continue
		}
		n, ids := t.of(backends)
		all = append(all, Element{Set: s.Table + f, Key: string(key), Data: string(Encoding(nil).ID(n))})
		for i, b := range backends {
			all = append(all, Element{
				Set: s.Back + f, Key: string(key.ID(ids[i])), Data: string(make(Encoding, 0, 20).AddrPort(b.Addr)),
			})
		}
	}
	return all
}

// of returns the number of the table for these backends, and the numbers of the backends.
func (t clientTables) of(backends []Backend) (n uint32, ids []uint32) {
	ids = BackendIDs(backends)
	list := make(Encoding, 0, 8*len(ids))
	for i, b := range backends {
		list = list.ID(ids[i]).Slot(b.EffectiveWeight())
	}
	n = max(1, shortID(list))
	for t[n].list != "" && t[n].list != string(list) {
		n = max(1, n+1)
	}
	if t[n].list == "" {
		t[n] = clientTable{string(list), ids, ClientSlots(backends, tableSize(len(backends)))}
	}
	return n, ids
}

// render appends the slots of all tables.
func (t clientTables) render(all []Element, vip netip.Addr) []Element {
	for _, n := range slices.Sorted(maps.Keys(t)) {
		key := make(Encoding, 0, 24).Addr(vip).ID(n)
		for slot, i := range t[n].slots {
			all = append(all, Element{
				Set: SetTables + Family(vip), Key: string(key.Slot(slot)), Data: string(Encoding(nil).ID(t[n].ids[i])),
			})
		}
	}
	return all
}

// ClientSlots returns the index of the backend for each slot of a client, of which there are size, a
// prime. It depends on the addresses without their ports, so that a client has the same pod behind
// all ports.
func ClientSlots(backends []Backend, size int) []int {
	hosts := slices.Clone(backends)
	for i := range hosts {
		hosts[i].Addr = netip.AddrPortFrom(hosts[i].Addr.Addr(), 0)
	}
	return maglevSlots(hosts, size)
}

// BackendIDs returns the numbers by which the affinity map and the tables of clients know backends:
// hashes of their addresses, which other backends do not change. Two backends with one address have
// another port, which then counts too.
func BackendIDs(backends []Backend) []uint32 {
	ids := make([]uint32, len(backends))
	taken := make(map[uint32]bool, len(backends))
	for i, b := range backends {
		id := shortID(Encoding(nil).Addr(b.Addr.Addr()))
		if taken[id] {
			id = shortID(Encoding(nil).AddrPort(b.Addr))
		}
		for id = max(1, id); taken[id]; {
			id = max(1, id+1)
		}
		ids[i], taken[id] = id, true
	}
	return ids
}

// shortID returns the first bytes of a hash.
func shortID(b []byte) uint32 {
	h := sha256.Sum256(b)
	return binary.BigEndian.Uint32(h[:])
}

// sameHosts reports whether two targets share a table of clients.
func sameHosts(a, b *Target) bool {
	return a != nil && slices.EqualFunc(a.Backends, b.Backends, func(a, b Backend) bool {
		return a.Addr.Addr() == b.Addr.Addr() && a.EffectiveWeight() == b.EffectiveWeight()
	})
}

// affinity reports whether any frontend has affinity.
func (v *VIP) affinity() bool {
	return slices.ContainsFunc(v.Frontends, func(f Frontend) bool { return f.Affinity != 0 })
}
