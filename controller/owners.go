package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/election"
)

const (
	// ownerInterval is how often it is looked at most at which node should answer for each
	// address. That takes some 70 ms of CPU for 10,000 of them and 100 nodes, and a storm
	// of changes has a pass every 20 ms.
	ownerInterval = time.Second
	// DefaultSettle is how long a change of a node has to last before addresses are spread
	// over nodes anew. It is longer than most restarts of anything.
	DefaultSettle = 30 * time.Second
)

// owners keeps the nodes that AddressClaims name: those that should answer for their
// addresses by ARP and NDP. Speakers fail over by themselves and at once, without it.
type owners struct {
	settler settler
	// echoes are the claims that were written, as the snapshot still has them.
	echoes map[*cluster.Claim]string
	// done is the snapshot of which all was written.
	done *cluster.Snapshot
	at   time.Time // when that was looked at last
	// due is after how long there may be something to do although nothing changes; zero
	// when that cannot be.
	due time.Duration
}

func newOwners(settle time.Duration) owners {
	return owners{settler: settler{after: cmp.Or(settle, DefaultSettle)}, echoes: map[*cluster.Claim]string{}}
}

// prefer writes the nodes that claims should name, as far as they do not, until the time
// is over.
func (c *controller) prefer(ctx context.Context, snap *cluster.Snapshot, until time.Time) (left bool, errs []error) {
	o := &c.owners
	now := time.Now()
	if !o.wanted(snap, now) {
		return false, nil
	}
	var nodes []election.Node
	nodes, o.due = o.settler.take(now, candidates(snap))
	o.at, o.done = now, nil
	list := preferences(snap, nodes, o.named(snap))
	written := make([]bool, len(list))
	left, errs = c.each(ctx, until, len(list), func(i int) error {
		err := c.write(ctx, list[i])
		written[i] = err == nil
		return err
	})
	for i, p := range list {
		if written[i] {
			o.echoes[p.claim] = p.node
		}
	}
	if !left && len(errs) == 0 {
		o.done = snap
	}
	return left, errs
}

// wanted says whether it is time to look, and sets when it will be.
func (o *owners) wanted(snap *cluster.Snapshot, now time.Time) bool {
	o.due = 0
	if !snap.L2Ready {
		return false
	}
	early := o.at.Add(ownerInterval).Sub(now)
	if snap == o.done {
		o.due = o.settler.wait(now)
		if o.due == 0 || o.due > time.Nanosecond {
			return false
		}
	}
	if early > 0 {
		o.due = early
		return false
	}
	return true
}

// named returns what node a claim names, as far as known, and forgets the echoes that
// have come back.
func (o *owners) named(snap *cluster.Snapshot) func(*cluster.Claim) string {
	awaited := make(map[*cluster.Claim]string, len(o.echoes))
	for claim, node := range o.echoes {
		if snap.Claim(claim.Addr) == claim {
			awaited[claim] = node
		}
	}
	o.echoes = awaited
	return func(c *cluster.Claim) string {
		if node, ok := awaited[c]; ok {
			return node
		}
		return c.Node
	}
}

func (c *controller) write(ctx context.Context, p preference) error {
	err := stale(c.writer.setNode(ctx, p.claim, p.node))
	c.metrics.wrote("prefer", err)
	if err != nil {
		return fmt.Errorf("node of claim %s: %w", p.claim.Addr, err)
	}
	c.Log.Info("node preferred", "vip", p.claim.Addr, "node", p.node, "before", cmp.Or(p.was, "none"))
	return nil
}

// A preference is the node that a claim should name, and does not.
type preference struct {
	claim     *cluster.Claim
	node, was string
}

// preferences are those that are to be written, by address. An address that nobody can
// answer for keeps the node that it had: it may come back.
func preferences(snap *cluster.Snapshot, nodes []election.Node, named func(*cluster.Claim) string) (list []preference) {
	ballots, claims := ballots(snap, nodes, named)
	for i, node := range election.Prefer(ballots) {
		if was := ballots[i].Preferred; node != "" && node != was {
			list = append(list, preference{claims[i], node, was})
		}
	}
	return list
}

// ballots are of the addresses that Services have, that are claimed, and that go over L2.
func ballots(snap *cluster.Snapshot, nodes []election.Node, named func(*cluster.Claim) string) (list []election.Ballot, claims []*cluster.Claim) {
	e := election.New(nodes)
	for all := snap.Assignments; len(all) > 0; {
		n := 1
		for n < len(all) && all[n].Addr == all[0].Addr {
			n++
		}
		same := all[:n]
		all = all[n:]
		claim := snap.Claim(same[0].Addr)
		services := holding(snap, same)
		terms, ok, _ := election.EligibilityOf(snap, snap.OriginOf(same[0]), services)
		if claim == nil || !ok {
			continue
		}
		a := e.Address(same[0].Addr, terms, services, claim)
		list = append(list, election.Ballot{Addr: a.Addr, Equal: e.Equals(&a), Preferred: named(claim)})
		claims = append(claims, claim)
	}
	return list, claims
}

// holding are the Services that hold an address, the oldest first, as speakers have them.
func holding(snap *cluster.Snapshot, same []cluster.Assignment) (services []cluster.Service) {
	for _, a := range same {
		i, ok := slices.BinarySearchFunc(snap.Services, a.Service, func(s cluster.Service, n cluster.Name) int { return s.Name.Compare(n) })
		if ok {
			services = append(services, snap.Services[i])
		}
	}
	slices.SortFunc(services, func(a, b cluster.Service) int {
		return cmp.Or(a.Created.Compare(b.Created), a.Name.Compare(b.Name))
	})
	return services
}

// candidates are the nodes as the API server shows them. One whose kubelet is silent
// counts as dead as long as fewer than half are: else it is rather the API server, or who
// watches kubelets for it, that is cut off.
func candidates(snap *cluster.Snapshot) []election.Node {
	silent := 0
	for _, n := range snap.Nodes {
		if n.Silent {
			silent++
		}
	}
	nodes := make([]election.Node, len(snap.Nodes))
	for i, n := range snap.Nodes {
		s := speakerOf(snap, n.Name)
		alive := s != nil && !(n.Silent && 2*silent < len(snap.Nodes))
		nodes[i] = election.Node{Name: n.Name, Labels: n.Labels, Standing: election.StandingOf(n, alive)}
		if s != nil {
			nodes[i].Interfaces = s.Interfaces
		}
	}
	return nodes
}

func speakerOf(snap *cluster.Snapshot, node string) *cluster.Speaker {
	i, ok := slices.BinarySearchFunc(snap.Speakers, node, func(s *cluster.Speaker, n string) int { return strings.Compare(s.Node, n) })
	if !ok {
		return nil
	}
	return snap.Speakers[i]
}

// A settler believes what it sees of a node once that has lasted. A node that comes and
// goes is taken for what it was before it began to: addresses do not follow it. What
// changes about several nodes at a time is believed together, or the first of them would
// get all addresses.
type settler struct {
	after time.Duration
	taken map[string]election.Node // nil before anything was seen, which is then believed
	news  map[string]news
}

// News are of one node.
type news struct {
	node  election.Node
	gone  bool
	since time.Time
}

// take takes over what has lasted, and returns what is believed, by name. Wait is after
// how long there may be more, zero if nothing is new.
func (s *settler) take(now time.Time, seen []election.Node) (nodes []election.Node, wait time.Duration) {
	if s.taken == nil {
		s.taken, s.news = map[string]election.Node{}, map[string]news{}
		for _, n := range seen {
			s.taken[n.Name] = n
		}
	}
	there := map[string]bool{}
	for _, n := range seen {
		there[n.Name] = true
		s.see(now, news{node: n})
	}
	for name, n := range s.taken {
		if !there[name] {
			s.see(now, news{node: n, gone: true})
		}
	}
	maps.DeleteFunc(s.news, func(name string, _ news) bool { // It came, and went.
		_, believed := s.taken[name]
		return !believed && !there[name]
	})
	if len(s.news) != 0 && !s.due().After(now) {
		s.believe(now)
	}
	for _, n := range s.taken {
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b election.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes, s.wait(now)
}

// see takes down what is seen of a node now.
func (s *settler) see(now time.Time, n news) {
	name := n.node.Name
	if believed, known := s.taken[name]; known && !n.gone && reflect.DeepEqual(believed, n.node) {
		delete(s.news, name)
		return
	}
	if before, ok := s.news[name]; ok && before.gone == n.gone && reflect.DeepEqual(before.node, n.node) {
		return
	}
	n.since = now
	s.news[name] = n
}

func (s *settler) believe(now time.Time) {
	for name, n := range s.news {
		switch {
		case now.Sub(n.since) < s.after:
			continue
		case n.gone:
			delete(s.taken, name)
		default:
			s.taken[name] = n.node
		}
		delete(s.news, name)
	}
}

// due is when news are believed: when all of them have lasted, or the first one twice as
// long, since a node that never comes to rest must not hold up others for ever.
func (s *settler) due() (due time.Time) {
	var last, first time.Time
	for _, n := range s.news {
		if n.since.After(last) {
			last = n.since
		}
		if first.IsZero() || n.since.Before(first) {
			first = n.since
		}
	}
	if due = last.Add(s.after); first.Add(2 * s.after).Before(due) {
		due = first.Add(2 * s.after)
	}
	return due
}

// wait is after how long something new may be believed: a nanosecond if it may now, zero
// if nothing is new.
func (s *settler) wait(now time.Time) time.Duration {
	if len(s.news) == 0 {
		return 0
	}
	return max(s.due().Sub(now), time.Nanosecond)
}
