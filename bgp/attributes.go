package bgp

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
	"strings"
	"unique"
)

// Attributes are the attributes of a route to one router, apart from prefix and next hop. They are
// comparable. The zero value adds none to those of every route.
type Attributes struct {
	Communities      Communities
	LargeCommunities LargeCommunities
	// LocalPref is the preference inside of an AS. Only iBGP routers get it (RFC 4271 §5.1.5);
	// unset, it is 100.
	LocalPref Metric
	// MED says which of several links to this AS a router should use, the least first
	// (RFC 4271 §5.1.4).
	MED Metric
	// Prepend is how often the session's own AS number is repeated in the AS path to eBGP
	// routers, at most 16. AS paths to iBGP routers do not contain it.
	Prepend uint8
}

// maxPrepend is more than any network needs, and less than routers refuse: many limit the length of
// an AS path.
const maxPrepend = 16

// A Metric is a number that may be unset, which differs from 0.
type Metric struct {
	Set   bool
	Value uint32
}

// MetricOf returns a set Metric.
func MetricOf(n uint32) Metric { return Metric{true, n} }

// A Community is an AS number and a number that this AS defines (RFC 1997), 16 bits each.
type Community uint32

// LLGRStale marks routes of a router that is gone (RFC 9494 §4.4). It is not allowed: GoBGP exports
// such routes to no router, and this node is not gone.
const LLGRStale Community = 0xffff0006

// CommunityNames are the well-known communities that a route may have, by the names that FRR and
// most routers give them.
var CommunityNames = map[string]Community{
	"graceful-shutdown": 0xffff0000, // RFC 8326
	"accept-own":        0xffff0001, // RFC 7611
	"no-llgr":           0xffff0007, // RFC 9494
	"blackhole":         0xffff029a, // RFC 7999
	"no-export":         0xffffff01, // RFC 1997
	"no-advertise":      0xffffff02, // RFC 1997
	"local-as":          0xffffff03, // RFC 1997: NO_EXPORT_SUBCONFED
	"no-peer":           0xffffff04, // RFC 3765
}

var communityNames = func() map[Community]string {
	names := map[Community]string{LLGRStale: "llgr-stale"}
	for name, c := range CommunityNames {
		names[c] = name
	}
	return names
}()

func (c Community) String() string {
	if name, ok := communityNames[c]; ok {
		return name
	}
	return c.number()
}

func (c Community) number() string { return fmt.Sprintf("%d:%d", c>>16, c&0xffff) }

// A LargeCommunity is an AS number and two numbers that this AS defines (RFC 8092). AS 4294967295
// is reserved for this package.
type LargeCommunity struct{ ASN, Local1, Local2 uint32 }

func (c LargeCommunity) String() string { return fmt.Sprintf("%d:%d:%d", c.ASN, c.Local1, c.Local2) }

// Compare orders by AS number first.
func (c LargeCommunity) Compare(d LargeCommunity) int {
	return cmp.Or(cmp.Compare(c.ASN, d.ASN), cmp.Compare(c.Local1, d.Local1), cmp.Compare(c.Local2, d.Local2))
}

// Communities is a comparable set: 4 bytes for each, sorted.
type Communities string

// CommunitiesOf makes a set.
func CommunitiesOf(list ...Community) Communities {
	list = slices.Clone(list)
	slices.Sort(list)
	var b []byte
	for _, c := range slices.Compact(list) {
		b = binary.BigEndian.AppendUint32(b, uint32(c))
	}
	return Communities(b)
}

// All returns the members of the set, sorted.
func (s Communities) All() iter.Seq[Community] {
	return func(yield func(Community) bool) {
		for ; len(s) >= 4; s = s[4:] {
			if !yield(Community(binary.BigEndian.Uint32([]byte(s[:4])))) {
				return
			}
		}
	}
}

// With returns the union of two sets.
func (s Communities) With(t Communities) Communities {
	return union(s, t, Communities.All, CommunitiesOf)
}

func (s Communities) String() string { return words(s.All()) }

// LargeCommunities is a comparable set: 12 bytes for each, sorted.
type LargeCommunities string

// LargeCommunitiesOf makes a set.
func LargeCommunitiesOf(list ...LargeCommunity) LargeCommunities {
	list = slices.Clone(list)
	slices.SortFunc(list, LargeCommunity.Compare)
	var b []byte
	for _, c := range slices.Compact(list) {
		for _, n := range []uint32{c.ASN, c.Local1, c.Local2} {
			b = binary.BigEndian.AppendUint32(b, n)
		}
	}
	return LargeCommunities(b)
}

// All returns the members of the set, sorted.
func (s LargeCommunities) All() iter.Seq[LargeCommunity] {
	return func(yield func(LargeCommunity) bool) {
		for ; len(s) >= 12; s = s[12:] {
			number := func(at int) uint32 { return binary.BigEndian.Uint32([]byte(s[at : at+4])) }
			if !yield(LargeCommunity{number(0), number(4), number(8)}) {
				return
			}
		}
	}
}

// With returns the union of two sets.
func (s LargeCommunities) With(t LargeCommunities) LargeCommunities {
	return union(s, t, LargeCommunities.All, LargeCommunitiesOf)
}

func (s LargeCommunities) String() string { return words(s.All()) }

// union returns s or t itself if the other is empty, as is usual.
func union[S ~string, T any](s, t S, all func(S) iter.Seq[T], of func(...T) S) S {
	switch {
	case t == "":
		return s
	case s == "":
		return t
	}
	return of(slices.AppendSeq(slices.Collect(all(s)), all(t))...)
}

func words[T fmt.Stringer](list iter.Seq[T]) string {
	var out []string
	for x := range list {
		out = append(out, x.String())
	}
	return strings.Join(out, " ")
}

// String is empty without attributes. Otherwise it is like a router's configuration, such as "med
// 10 community 64500:1 no-export".
func (a Attributes) String() string {
	var parts []string
	add := func(is bool, word string, value any) {
		if is {
			parts = append(parts, fmt.Sprintf("%s %v", word, value))
		}
	}
	add(a.LocalPref.Set, "local-preference", a.LocalPref.Value)
	add(a.MED.Set, "med", a.MED.Value)
	add(a.Prepend > 0, "prepend", a.Prepend)
	add(a.Communities != "", "community", a.Communities)
	add(a.LargeCommunities != "", "large-community", a.LargeCommunities)
	return strings.Join(parts, " ")
}

// maxCommunities is the number of bytes that a route's communities may take. All other parts of a
// message of 4,096 bytes (RFC 4271 §4.1) take less than 300, even with the longest AS path, an IPv6
// prefix, two next hops and a weight.
const maxCommunities = 3600

// fits returns why the communities of a do not fit into one message, nil if they do. One message
// must contain all attributes of a route.
func (a Attributes) fits() error {
	n := len(a.Communities) + len(a.LargeCommunities)
	if n <= maxCommunities {
		return nil
	}
	return fmt.Errorf("%d communities and %d large communities take %d bytes: a BGP message has "+
		"room for %d; remove some", len(a.Communities)/4, len(a.LargeCommunities)/12, n, maxCommunities)
}

// fault returns why no router can receive a, nil if routers can.
func (a Attributes) fault() error {
	if err := a.fits(); err != nil {
		return err
	}
	if a.Prepend > maxPrepend {
		return fmt.Errorf("prepend %d: must be at most %d", a.Prepend, maxPrepend)
	}
	for c := range a.Communities.All() {
		if c == LLGRStale {
			return fmt.Errorf("community %s: is for what others have announced (RFC 9494 §4.4)", c)
		}
	}
	for c := range a.LargeCommunities.All() {
		if c.ASN == markASN {
			return fmt.Errorf("large community %s: AS %d is reserved (RFC 7300)", c, c.ASN)
		}
	}
	return nil
}

// PeerAttributes are the attributes of a route for each router. They are comparable, and equal
// values share memory, however many routes have them. Zero: no Attributes for any router.
type PeerAttributes struct{ first unique.Handle[group] }

// A group is the routers with the same attributes. Groups form a linked list, so that equal lists
// can be one value.
type group struct {
	peers      Peers
	attributes Attributes
	next       PeerAttributes
}

// ForAll returns the same attributes for all routers.
func ForAll(a Attributes) PeerAttributes {
	if a == (Attributes{}) {
		return PeerAttributes{}
	}
	return PeerAttributes{unique.Make(group{attributes: a})}
}

// ForEach returns different attributes for routers, by the session's name. It must name all
// sessions that get the route.
func ForEach(attributes map[string]Attributes) PeerAttributes {
	peers := map[Attributes][]string{}
	for name, a := range attributes {
		peers[a] = append(peers[a], name)
	}
	var groups []group
	for a, names := range peers {
		if len(peers) == 1 {
			return ForAll(a)
		}
		groups = append(groups, group{peers: PeersOf(names...), attributes: a})
	}
	slices.SortFunc(groups, func(a, b group) int { return cmp.Compare(b.peers, a.peers) })
	var chain PeerAttributes
	for _, g := range groups {
		g.next = chain
		chain.first = unique.Make(g)
	}
	return chain
}

// Differ reports whether routers get different attributes.
func (p PeerAttributes) Differ() bool { return p != PeerAttributes{} && p.first.Value().peers != "" }

// String returns the attributes for all routers or, if they differ, text such as "to tor1 med 10,
// to tor2 med 20".
func (p PeerAttributes) String() string {
	var parts []string
	for g := range p.groups() {
		text := g.attributes.String()
		if g.peers != "" {
			text = strings.TrimSpace("to " + g.peers.String() + " " + text)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// groups returns the groups of p, sorted by their routers.
func (p PeerAttributes) groups() iter.Seq[group] {
	return func(yield func(group) bool) {
		for p != (PeerAttributes{}) {
			g := p.first.Value()
			if !yield(g) {
				return
			}
			p = g.next
		}
	}
}

func (p PeerAttributes) fault() error {
	for g := range p.groups() {
		if err := g.attributes.fault(); err != nil {
			return err
		}
	}
	return nil
}

// Of returns the attributes for the router of a session.
func (p PeerAttributes) Of(session string) Attributes {
	for g := range p.groups() {
		if g.peers.Has(session) {
			return g.attributes
		}
	}
	return Attributes{}
}

// split separates the attributes that are equal for all routers from the rest. GoBGP's table has
// the shared ones; its export policy adds the rest for each group. Prepend is always in the rest,
// because the AS path depends on the session.
func (p PeerAttributes) split() (shared Attributes, rest []group) {
	first := true
	for g := range p.groups() {
		if first {
			shared, first = g.attributes, false
		} else {
			shared = shared.and(g.attributes)
		}
	}
	shared.Prepend = 0
	for g := range p.groups() {
		if own := g.attributes.without(shared); own != (Attributes{}) {
			rest = append(rest, group{peers: g.peers, attributes: own})
		}
	}
	return shared, rest
}

// and returns what a and b have in common. A preference of 0 is always shared, because GoBGP's
// policies cannot set it.
func (a Attributes) and(b Attributes) Attributes {
	return Attributes{
		Communities:      CommunitiesOf(filter(a.Communities.All(), b.Communities.All(), true)...),
		LargeCommunities: LargeCommunitiesOf(filter(a.LargeCommunities.All(), b.LargeCommunities.All(), true)...),
		LocalPref:        sharedPreference(a.LocalPref, b.LocalPref),
		MED:              sameMetric(a.MED, b.MED),
	}
}

// without returns the attributes of a that shared lacks. A preference that differs from the shared
// one stays, with its default if unset, because the policy must overwrite the shared one.
func (a Attributes) without(shared Attributes) Attributes {
	if a.LocalPref == shared.LocalPref {
		a.LocalPref = Metric{}
	} else if !a.LocalPref.Set {
		a.LocalPref = MetricOf(defaultLocalPref)
	}
	if a.MED == shared.MED {
		a.MED = Metric{}
	}
	a.Communities = CommunitiesOf(filter(a.Communities.All(), shared.Communities.All(), false)...)
	a.LargeCommunities = LargeCommunitiesOf(filter(a.LargeCommunities.All(), shared.LargeCommunities.All(), false)...)
	return a
}

// defaultLocalPref is GoBGP's default. On the wire it looks like a preference that was set.
const defaultLocalPref = 100

func sameMetric(a, b Metric) Metric {
	if a == b {
		return a
	}
	return Metric{}
}

func sharedPreference(a, b Metric) Metric {
	if zero := MetricOf(0); a == zero || b == zero {
		return zero
	}
	return sameMetric(a, b)
}

// filter returns the members of a that are in b or, if in is false, that are not.
func filter[T comparable](a, b iter.Seq[T], in bool) (some []T) {
	other := slices.Collect(b)
	for x := range a {
		if slices.Contains(other, x) == in {
			some = append(some, x)
		}
	}
	return some
}
