package election

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// An Electorate is the nodes of a cluster at one instant. It is for one goroutine.
type Electorate struct {
	nodes  []Node   // sorted by name
	hashes []uint64 // of their names
	// rosters are what terms make of the nodes: most addresses have the same.
	rosters map[string][]entry
	// equals are the last that were found on the same terms: likely those of the next.
	equals map[string][]string
}

// An entry is what terms make of one node.
type entry struct {
	not    refusal // fit, or why the node is no candidate whatever the address
	weight int
	links  []link
}

// A link is an interface that a node may answer on.
type link struct {
	prefixes []netip.Prefix
	named    bool // also for addresses that are in none of them
}

// New returns the electorate of nodes, in any order.
func New(nodes []Node) *Electorate {
	e := &Electorate{nodes: slices.Clone(nodes), rosters: map[string][]entry{}, equals: map[string][]string{}}
	slices.SortFunc(e.nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	for i := range e.nodes {
		e.hashes = append(e.hashes, hashName(e.nodes[i].Name))
	}
	return e
}

func (e *Electorate) find(node string) (i int, ok bool) {
	return slices.BinarySearchFunc(e.nodes, node, func(n Node, name string) int { return cmp.Compare(n.Name, name) })
}

// alive says whether endpoints on a node can be reached, as far as known.
func (e *Electorate) alive(node string) bool {
	i, ok := e.find(node)
	return !ok || e.nodes[i].Standing != Dead
}

// A refusal is why a node is no candidate. The order is that in which they are looked at.
type refusal uint8

const (
	fit refusal = iota
	isDead
	isNotReady
	isExcluded
	hasNoNetwork
	isUnselected
	hasNoInterface
	hasNoEndpoint
	refusals // how many there are
)

// A rank is what one candidate comes before another by.
type rank struct {
	steady, stays     bool
	serves            int
	pinned, preferred bool
	weight            int
	hash              uint64
}

// compare is negative when r comes before o.
func (r rank) compare(o rank) int {
	return cmp.Or(truth(o.steady)-truth(r.steady), truth(o.stays)-truth(r.stays), o.serves-r.serves, truth(o.pinned)-truth(r.pinned),
		truth(o.preferred)-truth(r.preferred), o.weight-r.weight, cmp.Compare(o.hash, r.hash))
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Owner is the node that shall answer for an address, empty if there is no candidate.
func (e *Electorate) Owner(a *Address) string {
	owner, _ := e.Elect(a)
	return owner
}

// Elect is Owner, and why it is that one: by what it comes before the next, in words that
// follow its name.
func (e *Electorate) Elect(a *Address) (owner, why string) {
	var best, second rank
	first, candidates := -1, 0
	e.each(a, func(i int, r rank) {
		// The nodes come by name, so of two with one hash it is the first.
		switch {
		case candidates == 0 || r.compare(best) < 0:
			second, best, first = best, r, i
		case candidates == 1 || r.compare(second) < 0:
			second = r
		}
		candidates++
	})
	switch candidates {
	case 0:
		return "", ""
	case 1:
		return e.nodes[first].Name, "the only candidate"
	default:
		return e.nodes[first].Name, best.before(second, candidates)
	}
}

// before says by what r, which comes before o, does.
func (r rank) before(o rank, candidates int) string {
	switch {
	case r.steady != o.steady:
		return "the others are back only since a moment ago"
	case r.stays != o.stays:
		return "the others are about to leave"
	case r.serves != o.serves:
		return "with endpoints of more Services that share it"
	case r.pinned != o.pinned:
		return "named by annotation fanfare.io/l2-node"
	case r.preferred != o.preferred:
		return "named by its AddressClaim"
	case r.weight != o.weight:
		return "preferred by L2Advertisements"
	default:
		return "by hash, of " + strconv.Itoa(candidates) + " candidates"
	}
}

// Rank are all candidates, the owner first: each is to answer when none before it can.
func (e *Electorate) Rank(a *Address) []string {
	type candidate struct {
		name string
		rank rank
	}
	var all []candidate
	e.each(a, func(i int, r rank) { all = append(all, candidate{e.nodes[i].Name, r}) })
	slices.SortStableFunc(all, func(x, y candidate) int { return x.rank.compare(y.rank) })
	names := make([]string, len(all))
	for i, c := range all {
		names[i] = c.name
	}
	return names
}

// Equals are the candidates of which any may be preferred: nothing but what the claim
// says and the hash tells them apart. They are sorted by name; the slice is shared.
func (e *Electorate) Equals(a *Address) []string {
	key := a.Terms.key()
	last := e.equals[key]
	names := make([]string, 0, len(e.nodes))
	best := rank{}
	e.each(a, func(i int, r rank) {
		r.preferred, r.hash = false, 0
		switch c := r.compare(best); {
		case len(names) == 0 || c < 0:
			best, names = r, append(names[:0], e.nodes[i].Name)
		case c == 0:
			names = append(names, e.nodes[i].Name)
		}
	})
	if slices.Equal(names, last) {
		return last
	}
	e.equals[key] = names
	return names
}

// None says why an address has no candidate: which condition removed how many nodes. It
// is empty if there is one.
func (e *Electorate) None(a *Address) string {
	var count [refusals]int
	roster := e.roster(a.Terms)
	for i := range e.nodes {
		not, _ := e.judge(a, &roster[i], i)
		count[not]++
	}
	if count[fit] != 0 {
		return ""
	}
	if len(e.nodes) == 0 {
		return "there is no node"
	}
	var parts []string
	for not, n := range count {
		if n != 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, refusal(not).says(a, n)))
		}
	}
	return fmt.Sprintf("of %d %s none can answer: %s", len(e.nodes), plural(len(e.nodes), "node", "nodes"), strings.Join(parts, ", "))
}

// WhyNot says why a node is no candidate, empty if it is one.
func (e *Electorate) WhyNot(a *Address, node string) string {
	i, ok := e.find(node)
	if !ok {
		return fmt.Sprintf("there is no node %s", node)
	}
	not, _ := e.judge(a, &e.roster(a.Terms)[i], i)
	if not == fit {
		return ""
	}
	return fmt.Sprintf("node %s %s", node, not.says(a, 1))
}

// says is what is said of n nodes.
func (not refusal) says(a *Address, n int) string {
	is, has := plural(n, "is", "are"), plural(n, "has", "have")
	switch not {
	case isDead:
		return has + " no speaker that is heard of"
	case isNotReady:
		return is + " not Ready"
	case isExcluded:
		return has + " the label node.kubernetes.io/exclude-from-external-load-balancers"
	case hasNoNetwork:
		return has + " the condition NetworkUnavailable"
	case isUnselected:
		return is + " not selected by L2Advertisement " + a.Terms.names()
	case hasNoInterface:
		if interfaces := a.Terms.interfaces(); interfaces != "" {
			return fmt.Sprintf("%s no interface in the subnet of %s that is one of %s", has, a.Addr, interfaces)
		}
		return fmt.Sprintf("%s no interface in the subnet of %s", has, a.Addr)
	case hasNoEndpoint:
		return has + " no ready endpoint, and externalTrafficPolicy is Local"
	default:
		return "can answer"
	}
}

func (t Terms) names() string {
	var names []string
	for _, a := range t.By {
		names = append(names, a.Name)
	}
	return strings.Join(names, ", ")
}

// interfaces are the names and patterns of those that are allowed, empty for all.
func (t Terms) interfaces() string {
	var names []string
	for _, a := range t.By {
		if len(a.Interfaces) == 0 {
			return ""
		}
		names = append(names, a.Interfaces...)
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// each calls f with every candidate, by name.
func (e *Electorate) each(a *Address, f func(i int, r rank)) {
	roster := e.roster(a.Terms)
	hash := hashAddr(a.Addr)
	for i := range e.nodes {
		not, serves := e.judge(a, &roster[i], i)
		if not != fit {
			continue
		}
		n := &e.nodes[i]
		f(i, rank{
			steady: !n.Returning, stays: n.Standing != Leaving, serves: serves, pinned: n.Name == a.Pinned, preferred: n.Name == a.Preferred,
			weight: roster[i].weight, hash: score(hash, e.hashes[i]),
		})
	}
}

// judge says whether a node is a candidate, and how many of the Services that only some
// nodes can serve it can.
func (e *Electorate) judge(a *Address, in *entry, i int) (not refusal, serves int) {
	if in.not != fit {
		return in.not, 0
	}
	if !e.nodes[i].Unknown && !in.reaches(a.Addr) {
		return hasNoInterface, 0
	}
	for _, nodes := range a.Local {
		if _, ok := slices.BinarySearch(nodes, e.nodes[i].Name); ok {
			serves++
		}
	}
	if serves == 0 && !a.Anywhere {
		return hasNoEndpoint, 0
	}
	return fit, serves
}

// reaches says whether the node may answer for addr on one of its interfaces.
func (in *entry) reaches(addr netip.Addr) bool {
	for i := range in.links {
		if in.links[i].named {
			return true
		}
		for _, p := range in.links[i].prefixes {
			if p.Contains(addr) {
				return true
			}
		}
	}
	return false
}

// roster is what terms make of the nodes, in their order.
func (e *Electorate) roster(t Terms) []entry {
	key := t.key()
	if r, ok := e.rosters[key]; ok {
		return r
	}
	r := make([]entry, len(e.nodes))
	for i := range e.nodes {
		r[i] = enter(t, &e.nodes[i])
	}
	e.rosters[key] = r
	return r
}

func enter(t Terms, n *Node) (in entry) {
	switch n.Standing {
	case Dead:
		in.not = isDead
	case NotReady:
		in.not = isNotReady
	case Excluded:
		in.not = isExcluded
	case NetworkUnavailable:
		in.not = hasNoNetwork
	case Fit, Leaving:
		in.not = fit
	}
	by, ok := t.selecting(n)
	if in.not == fit && !ok {
		in.not = isUnselected
	}
	for _, a := range by {
		in.weight += a.Weight(n.Labels)
	}
	for _, iface := range n.Interfaces {
		if ok, named := allow(by, iface.Name); ok {
			in.links = append(in.links, link{iface.Prefixes, named})
		}
	}
	return in
}
