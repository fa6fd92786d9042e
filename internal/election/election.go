package election

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// Candidates are the nodes of a cluster at one instant. Safe for concurrent use.
type Candidates struct {
	nodes  []Node   // sorted by name
	hashes []uint64 // of their names

	mu sync.Mutex // guards the caches
	// entries caches the nodes by Eligibility: most addresses have the same.
	entries map[string][]entry
	// equals caches the last result of Equals by Eligibility: the next is likely the same.
	equals map[string][]string
}

// An entry is a node under an Eligibility.
type entry struct {
	ineligible ineligible // fit, or why the node is not a candidate for any address
	weight     int
	interfaces []allowedInterface
}

// An allowedInterface is an interface that a node may answer on.
type allowedInterface struct {
	*cluster.Interface
	named bool // also for addresses outside of its subnets
}

// New returns the candidates among nodes, in any order.
func New(nodes []Node) *Candidates {
	e := &Candidates{nodes: slices.Clone(nodes), entries: map[string][]entry{}, equals: map[string][]string{}}
	slices.SortFunc(e.nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	for i := range e.nodes {
		e.hashes = append(e.hashes, hashName(e.nodes[i].Name))
	}
	return e
}

func (c *Candidates) find(node string) (i int, ok bool) {
	return slices.BinarySearchFunc(c.nodes, node, func(n Node, name string) int { return cmp.Compare(n.Name, name) })
}

// alive reports whether endpoints on a node can be reached, as far as known.
func (c *Candidates) alive(node string) bool {
	i, ok := c.find(node)
	return !ok || c.nodes[i].Availability != Dead
}

// ineligible is the reason why a node is not a candidate, in the order of the checks.
type ineligible uint8

const (
	fit ineligible = iota
	isDead
	isNotReady
	isExcluded
	hasNoNetwork
	isUnselected
	hasNoInterface
	hasBroadcast
	hasNoEndpoint
	numIneligible // how many there are
)

// A rank has the criteria that order candidates, the first one first.
type rank struct {
	steady    bool   // its speaker has not just returned
	stays     bool   // it is not about to leave
	serves    int    // how many of Address.Local it can serve
	pinned    bool   // a Service names it by annotation
	preferred bool   // the AddressClaim names it
	weight    int    // the sum of L2Advertisements' weights
	hash      uint64 // of address and node
}

// compare is negative if r comes before o.
func (r rank) compare(o rank) int {
	return cmp.Or(boolToInt(o.steady)-boolToInt(r.steady), boolToInt(o.stays)-boolToInt(r.stays), o.serves-r.serves,
		boolToInt(o.pinned)-boolToInt(r.pinned),
		boolToInt(o.preferred)-boolToInt(r.preferred), o.weight-r.weight, cmp.Compare(o.hash, r.hash))
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Elect returns the owner, and the criterion by which it comes before the next, as text
// that follows its name.
func (c *Candidates) Elect(a *Address) (owner, why string) {
	first, best, second, candidates := c.best(a)
	switch candidates {
	case 0:
		return "", ""
	case 1:
		return c.nodes[first].Name, "the only candidate"
	default:
		return c.nodes[first].Name, best.before(second, candidates)
	}
}

// Owner is Elect without the criterion.
func (c *Candidates) Owner(a *Address) string {
	first, _, _, candidates := c.best(a)
	if candidates == 0 {
		return ""
	}
	return c.nodes[first].Name
}

// Keeps reports whether the owner, or the lack of one, certainly stays the same if only these nodes
// differ from the candidates of the election. It compares only these nodes, so it may be false
// although the owner stays.
func (c *Candidates) Keeps(a *Address, owner string, differ []string) bool {
	was, known := c.find(owner)
	entries, hash := c.entriesFor(a.Eligibility), hashAddr(a.Addr)
	best, fits := c.rankOf(a, entries, hash, was, known)
	if slices.Contains(differ, owner) || owner != "" && !fits {
		return false
	}
	for _, name := range differ {
		i, known := c.find(name)
		r, is := c.rankOf(a, entries, hash, i, known)
		if is && (!fits || r.compare(best) < 0 || r.compare(best) == 0 && i < was) {
			return false
		}
	}
	return true
}

// rankOf returns the rank of the node with an index, and false if it is not a candidate.
func (c *Candidates) rankOf(a *Address, entries []entry, hash uint64, i int, known bool) (r rank, fits bool) {
	if !known {
		return r, false
	}
	not, serves := c.check(a, &entries[i], i)
	if not != fit {
		return r, false
	}
	n := &c.nodes[i]
	return rank{
		steady: !n.Returning, stays: n.Availability != Leaving, serves: serves, pinned: n.Name == a.Pinned,
		preferred: n.Name == a.Preferred, weight: entries[i].weight, hash: score(hash, c.hashes[i]),
	}, true
}

// best returns the first candidate, its rank and that of the next one.
func (c *Candidates) best(a *Address) (first int, best, second rank, candidates int) {
	c.each(a, func(i int, r rank) {
		// Nodes are in order of names: of two with the same hash the first wins.
		switch {
		case candidates == 0 || r.compare(best) < 0:
			second, best, first = best, r, i
		case candidates == 1 || r.compare(second) < 0:
			second = r
		}
		candidates++
	})
	return first, best, second, candidates
}

// before names the criterion by which r comes before o.
func (r rank) before(o rank, candidates int) string {
	switch {
	case r.steady != o.steady:
		return "the others have returned only a moment ago"
	case r.stays != o.stays:
		return "the others are about to leave"
	case r.serves != o.serves:
		return "with endpoints of more ports or Services"
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

// Equals returns the candidates that tie with the owner apart from claim and hash, sorted by name.
// The slice is shared.
func (c *Candidates) Equals(a *Address) []string {
	key := a.Eligibility.key()
	c.mu.Lock()
	last := c.equals[key]
	c.mu.Unlock()
	names := make([]string, 0, len(c.nodes))
	best := rank{}
	c.each(a, func(i int, r rank) {
		r.preferred, r.hash = false, 0
		switch order := r.compare(best); {
		case len(names) == 0 || order < 0:
			best, names = r, append(names[:0], c.nodes[i].Name)
		case order == 0:
			names = append(names, c.nodes[i].Name)
		}
	})
	if slices.Equal(names, last) {
		return last
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.equals[key] = names
	return names
}

// None explains why an address has no candidate: how many nodes each condition excluded. It is
// empty if there is a candidate.
func (c *Candidates) None(a *Address) string {
	var count [numIneligible]int
	entries := c.entriesFor(a.Eligibility)
	for i := range c.nodes {
		not, _ := c.check(a, &entries[i], i)
		count[not]++
	}
	if count[fit] != 0 {
		return ""
	}
	if len(c.nodes) == 0 {
		return "the cluster has no node"
	}
	var parts []string
	for not, n := range count {
		if n != 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, ineligible(not).describe(a, n)))
		}
	}
	nodes := cluster.Plural(len(c.nodes), "node", "nodes")
	return fmt.Sprintf("of %d %s none can answer: %s", len(c.nodes), nodes, strings.Join(parts, ", "))
}

// describe returns the predicate of a sentence whose subject is n nodes.
func (not ineligible) describe(a *Address, n int) string {
	is, has := cluster.Plural(n, "is", "are"), cluster.Plural(n, "has", "have")
	switch not {
	case isDead:
		return has + " no live speaker"
	case isNotReady:
		return is + " not Ready"
	case isExcluded:
		return has + " the label node.kubernetes.io/exclude-from-external-load-balancers"
	case hasNoNetwork:
		return has + " the condition NetworkUnavailable"
	case isUnselected:
		return is + " not selected by L2Advertisement " + a.Eligibility.names()
	case hasNoInterface:
		if interfaces := a.Eligibility.interfaces(); interfaces != "" {
			return fmt.Sprintf("%s no interface in the subnet of %s that is one of %s", has, a.Addr, interfaces)
		}
		return fmt.Sprintf("%s no interface in the subnet of %s", has, a.Addr)
	case hasBroadcast:
		return fmt.Sprintf("%s %s as the broadcast address of a subnet, which no host can have; give the "+
			"Service another address", has, a.Addr)
	case hasNoEndpoint:
		return has + " no ready endpoint, and externalTrafficPolicy is Local"
	default:
		return "can answer"
	}
}

func (e Eligibility) names() string {
	var names []string
	for _, a := range e.By {
		names = append(names, a.Name)
	}
	return strings.Join(names, ", ")
}

// interfaces returns the names and patterns of allowed interfaces, empty for all.
func (e Eligibility) interfaces() string {
	var names []string
	for _, a := range e.By {
		if len(a.Interfaces) == 0 {
			return ""
		}
		names = append(names, a.Interfaces...)
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

// each calls f with the index in nodes and the rank of every candidate, in order of names.
func (c *Candidates) each(a *Address, f func(i int, r rank)) {
	entries := c.entriesFor(a.Eligibility)
	hash := hashAddr(a.Addr)
	for i := range c.nodes {
		if r, fits := c.rankOf(a, entries, hash, i, true); fits {
			f(i, r)
		}
	}
}

// check reports whether a node is a candidate, and how many entries of a.Local it can serve.
func (c *Candidates) check(a *Address, in *entry, i int) (not ineligible, serves int) {
	if in.ineligible != fit {
		return in.ineligible, 0
	}
	if not := in.reaches(a.Addr); not != fit && !c.nodes[i].Unknown {
		return not, 0
	}
	for _, nodes := range a.Local {
		if _, ok := slices.BinarySearch(nodes, c.nodes[i].Name); ok {
			serves++
		}
	}
	if serves == 0 && !a.Anywhere {
		return hasNoEndpoint, 0
	}
	return fit, serves
}

// reaches returns fit if the node may answer for addr on one of its interfaces.
func (in *entry) reaches(addr netip.Addr) ineligible {
	not := hasNoInterface
	for _, i := range in.interfaces {
		switch {
		case i.Has(addr):
			return fit
		case i.Broadcasts(addr):
			not = hasBroadcast
		case i.named:
			return fit
		}
	}
	return not
}

// entriesFor returns the nodes under t, in their order.
func (c *Candidates) entriesFor(t Eligibility) []entry {
	key := t.key()
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, ok := c.entries[key]; ok {
		return r
	}
	r := make([]entry, len(c.nodes))
	for i := range c.nodes {
		r[i] = newEntry(t, &c.nodes[i])
	}
	c.entries[key] = r
	return r
}

func newEntry(t Eligibility, n *Node) (in entry) {
	switch n.Availability {
	case Dead:
		in.ineligible = isDead
	case NotReady:
		in.ineligible = isNotReady
	case Excluded:
		in.ineligible = isExcluded
	case NetworkUnavailable:
		in.ineligible = hasNoNetwork
	case Fit, Leaving:
		in.ineligible = fit
	}
	by, ok := t.selecting(n)
	if in.ineligible == fit && !ok {
		in.ineligible = isUnselected
	}
	for _, a := range by {
		in.weight += a.Weight(n.Labels)
	}
	for i := range n.Interfaces {
		if ok, named := allow(by, n.Interfaces[i].Name); ok {
			in.interfaces = append(in.interfaces, allowedInterface{&n.Interfaces[i], named})
		}
	}
	return in
}
