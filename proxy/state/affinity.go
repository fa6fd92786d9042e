package state

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An AffinityID identifies the objects that a frontend with affinity has in the nftables table: a
// map of its clients, a chain that looks clients up and one that records them. It is, for example,
// 4-192.0.2.1-tcp-80 or 6-2001.db8..1-udp-53: nft allows no colons in names.
//
// With one map for all, the clients of one Service could displace those of all others.
type AffinityID string

// PatternAffinity is the ID of the map and chains that always exist, one for each family. The
// others are copies of these.
func PatternAffinity(f SetID) AffinityID { return [2]AffinityID{"4", "6"}[f] }

// AffinityOf returns the ID of a frontend.
func AffinityOf(vip netip.Addr, at Port) AffinityID {
	return AffinityID(fmt.Sprintf("%s-%s-%s-%d", PatternAffinity(Family(vip)), strings.ReplaceAll(vip.String(), ":", "."), at.Proto, at.Port))
}

// Map is the map from the frontend's clients, by address, to backends.
func (id AffinityID) Map() string { return affinityMap + string(id) }

// Recall is the chain that looks up the client's previous backend.
func (id AffinityID) Recall() string { return recallChain + string(id) }

// Learn is the chain that records clients for the duration d.
func (id AffinityID) Learn(d time.Duration) string {
	return learnChain + strconv.Itoa(int(d/time.Second)) + "-" + string(id)
}

const (
	affinityMap = "aff-"
	recallChain = "recall-"
	learnChain  = "learn" // learn10800-ID: for 10,800 s
)

// Family is 0 for IPv4 and 1 for IPv6.
func (id AffinityID) Family() SetID {
	if strings.HasPrefix(string(id), string(PatternAffinity(0))) {
		return 0
	}
	return 1
}

// Frontend returns the frontend of the ID; ok is false for a pattern and for an invalid ID.
func (id AffinityID) Frontend() (vip netip.Addr, at Port, ok bool) {
	parts := strings.Split(string(id), "-")
	if len(parts) != 4 {
		return vip, at, false
	}
	text := parts[1]
	if parts[0] == string(PatternAffinity(1)) {
		text = strings.ReplaceAll(text, ".", ":")
	}
	vip, err := netip.ParseAddr(text)
	if err != nil {
		return vip, at, false
	}
	n, err := strconv.ParseUint(parts[3], 10, 16)
	if err != nil {
		return vip, at, false
	}
	for _, p := range []Protocol{TCP, UDP, SCTP} {
		if at = (Port{Proto: p, Port: uint16(n)}); AffinityOf(vip, at) == id {
			return vip, at, true
		}
	}
	return vip, at, false
}

func (id AffinityID) valid() bool {
	_, _, ok := id.Frontend()
	return ok || id == PatternAffinity(0) || id == PatternAffinity(1)
}

// ParseAffinityMap returns the ID in the name of a map.
func ParseAffinityMap(name string) (id AffinityID, ok bool) {
	rest, ok := strings.CutPrefix(name, affinityMap)
	return AffinityID(rest), ok && AffinityID(rest).valid()
}

// ParseRecallChain returns the ID in the name of a recall chain.
func ParseRecallChain(name string) (id AffinityID, ok bool) {
	rest, ok := strings.CutPrefix(name, recallChain)
	return AffinityID(rest), ok && AffinityID(rest).valid()
}

// ParseLearnChain returns the ID and the timeout in the name of a learn chain.
func ParseLearnChain(name string) (id AffinityID, d time.Duration, ok bool) {
	seconds, rest, _ := strings.Cut(strings.TrimPrefix(name, learnChain), "-")
	n, err := strconv.Atoi(seconds)
	id, d = AffinityID(rest), time.Duration(n)*time.Second
	return id, d, err == nil && n > 0 && id.valid() && id.Learn(d) == name
}

// renderAffinity appends the elements that affinity adds to both sides of a frontend.
func renderAffinity(all []Element, vip netip.Addr, fe *Frontend) []Element {
	if fe.Affinity == 0 || len(fe.External.Backends)+len(fe.Internal.Backends) == 0 {
		return all
	}
	f := Family(vip)
	id := AffinityOf(vip, Port{fe.Protocol, fe.Port})
	key := make(Encoding, 0, 48).Addr(vip).Proto(fe.Protocol).Port(fe.Port)
	all = append(all,
		Element{Set: SetLearn + f, Key: string(key), Data: id.Learn(fe.Affinity)},
		Element{Set: SetRecall + f, Key: string(key), Data: id.Recall()})
	for _, s := range []struct {
		set      SetID
		backends []Backend
	}{{SetExtBack, fe.External.Backends}, {SetIntBack, fe.Internal.Backends}} {
		for _, b := range s.backends {
			all = append(all, Element{Set: s.set + f, Key: string(key.AddrPort(b.Addr))})
		}
	}
	return all
}

// affinity reports whether any frontend has affinity.
func (v *VIP) affinity() bool {
	return slices.ContainsFunc(v.Frontends, func(f Frontend) bool { return f.Affinity != 0 })
}
