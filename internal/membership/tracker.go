package membership

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership/gossip"
)

// farewell is how long the last renewal of the Lease may take.
const farewell = 500 * time.Millisecond

// A Tracker makes Members of what other speakers say and of the Leases that they renew.
// All but unfit belongs to the goroutine that calls Members. A nil Tracker knows no node.
type Tracker struct {
	gossip *gossip.Gossip
	leases *leases

	nodes      []*cluster.Node // that gossip knows of
	view       *gossip.View    // that members is of
	generation uint64          // of leases, that members is of
	members    *Members
	missing    []string     // those who are not heard of
	linked     bool         // whether addresses may go over L2, that missing is by
	left       bool         // farewell was said
	told       *Offer       // what the others are told; nil before
	returning  bool         // likewise
	unfit      atomic.Int32 // how many interfaces they are not told of

	end  context.CancelFunc
	over sync.WaitGroup
}

// Options are what New needs.
type Options struct {
	// Node is the name of this node's Node object.
	Node string
	// KeyFile holds the keys that speakers use with each other, on Port, UDP and TCP; empty:
	// they don't talk, and no node is known to be dead.
	KeyFile string
	Port    uint16
	// Leaser renews this node's Lease each LeaseInterval; nil or zero: it is not renewed.
	Leaser        *Leaser
	LeaseInterval time.Duration
	Log           *slog.Logger
	Registerer    prometheus.Registerer
}

// New opens nothing yet. Without a key file it returns nil.
func New(o Options) *Tracker {
	if o.KeyFile == "" {
		return nil
	}
	return &Tracker{
		gossip: gossip.New(gossip.Options{Node: o.Node, Port: o.Port, KeyFile: o.KeyFile, Log: o.Log, Registerer: o.Registerer}),
		leases: newLeases(o.Node, o.Leaser, o.LeaseInterval, o.Log),
	}
}

// Start listens, and renews the Lease of this node, until Close or ctx ends it. Hear
// takes the messages of other speakers.
func (r *Tracker) Start(ctx context.Context, hear func(node string, message []byte) error) {
	if r == nil {
		return
	}
	ctx, r.end = context.WithCancel(ctx)
	r.over.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case m := <-r.gossip.Received():
				if err := hear(m.Node, m.Data); err != nil {
					r.gossip.Log.Warn("not understood", "err", err)
				}
			}
		}
	})
	r.over.Go(func() { r.gossip.Run(ctx) })
	r.over.Go(func() { r.leases.run(ctx) })
}

// Leave says farewell to the others: nothing has happened to this node. Those who do not
// hear it read that it answers for nothing any more.
func (r *Tracker) Leave() {
	if r == nil {
		return
	}
	r.left = true
	nothing, _ := EncodeInterfaces(nil)
	r.leases.tell(nothing, false)
	if len(r.missing) > 0 {
		// Not by hurry: this process may end before that.
		ctx, cancel := context.WithTimeout(context.Background(), farewell)
		defer cancel()
		r.leases.renew(ctx)
	}
	r.gossip.Leave()
}

func (r *Tracker) Close() {
	if r != nil {
		r.end()
		r.over.Wait()
	}
}

// Broadcast tells all other speakers something of 512 bytes at most: once, and as soon as a
// packet arrives, or a little later. Releases says that it tells of an address that this node
// has stopped to answer for: nodes that are not heard read that in the Lease.
func (r *Tracker) Broadcast(b []byte, releases bool) {
	if r == nil {
		return
	}
	if releases && len(r.missing) > 0 {
		r.leases.release()
	}
	if err := r.gossip.Broadcast(b); err != nil {
		r.gossip.Log.Debug("not said to other speakers", "err", err)
	}
}

// Send tells one other speaker something of 512 bytes at most, by a packet that may get
// lost.
func (r *Tracker) Send(node string, b []byte) {
	if r == nil {
		return
	}
	if err := r.gossip.Send(node, b); err != nil {
		r.gossip.Log.Debug("not said to another speaker", "to", node, "err", err)
	}
}

// Changed has a value when Members has another result.
func (r *Tracker) Changed() <-chan struct{} {
	if r == nil {
		return nil
	}
	return r.gossip.Changed()
}

// Renewed has a value when a Lease was renewed that is watched, or is so no longer.
func (r *Tracker) Renewed() <-chan struct{} {
	if r == nil {
		return nil
	}
	return r.leases.changed
}

// Members are the nodes of snap that are known, and whether they are alive.
func (r *Tracker) Members(snap *cluster.Snapshot) *Members {
	if r == nil {
		return nil
	}
	others := !slices.Equal(r.nodes, snap.Nodes)
	if others {
		r.nodes = snap.Nodes
		var nodes []gossip.Node
		for _, n := range snap.Nodes {
			nodes = append(nodes, gossip.Node{Name: n.Name, Addrs: n.InternalIPs})
		}
		r.gossip.Set(nodes)
	}
	if self := snap.Node(r.gossip.Node); self != nil {
		r.leases.own(self.UID)
	}
	view, generation := r.gossip.View(), r.leases.generation()
	linked := snap.UsesL2()
	if view == r.view && generation == r.generation && linked == r.linked && !others {
		return r.members
	}
	r.view, r.generation, r.linked = view, generation, linked
	r.missing = missingIn(view, snap, r.gossip.Node)
	sights := r.leases.follow(r.missing)
	if next := membersOf(view, sights, r.leases.patience(), time.Now()); !reflect.DeepEqual(next, r.members) {
		r.members = next
	}
	return r.members
}

// missingIn are the names of those who are not heard of any more; after them, where
// somebody has to answer for addresses over L2, of those who never were, and could.
func missingIn(v *gossip.View, snap *cluster.Snapshot, self string) (names []string) {
	heard := map[string]bool{self: true}
	for _, m := range v.Members {
		heard[m.Node] = true
		if m.State == gossip.Dead {
			names = append(names, m.Node)
		}
	}
	if len(v.Members) == 0 || !snap.UsesL2() {
		return names
	}
	for _, n := range snap.Nodes {
		if !heard[n.Name] && !n.Excluded {
			names = append(names, n.Name)
		}
	}
	return names
}

// membersOf combines what gossip and the Leases show. A node that gossip takes for dead is
// alive if it has renewed its Lease since, less than patience ago; what that Lease says is
// newer than what gossip had received. It is nil while gossip knows no node.
func membersOf(v *gossip.View, sights map[string]sight, patience time.Duration, now time.Time) *Members {
	if len(v.Members) == 0 {
		return nil
	}
	lives := func(s sight, since time.Time) bool {
		return s.renewed.After(since) && now.Sub(s.renewed) < patience
	}
	all, strangers := &Members{}, maps.Clone(sights)
	for _, m := range v.Members {
		delete(strangers, m.Node)
		seen := sights[m.Node]
		one := Member{Node: m.Node, Alive: m.State == gossip.Alive, Left: m.State == gossip.Left, Since: m.Since}
		meta := m.Meta
		switch {
		case m.State != gossip.Dead:
		case !lives(seen, m.Since):
			one.Absent = seen.absent
		default:
			one.Alive, one.ByLease = true, true
			if seen.says.interfaces != nil {
				meta = seen.says.interfaces
			}
		}
		// Another release's are unknown: that node answers for no address then.
		one.Interfaces, _ = DecodeInterfaces(meta)
		one.Returning = isReturning(meta)
		all.Nodes = append(all.Nodes, one)
	}
	for name, seen := range strangers {
		if !lives(seen, time.Time{}) {
			continue // most likely no speaker runs there
		}
		one := Member{Node: name, Alive: true, ByLease: true, Since: seen.since}
		one.Interfaces, _ = DecodeInterfaces(seen.says.interfaces)
		one.Returning = isReturning(seen.says.interfaces)
		all.Nodes = append(all.Nodes, one)
	}
	slices.SortFunc(all.Nodes, func(a, b Member) int { return strings.Compare(a.Node, b.Node) })
	return all
}

// Released says, once, whether a speaker that is not heard has stopped to answer for
// something, for which this one may answer.
func (r *Tracker) Released() bool { return r != nil && r.leases.resignations() }

// Offer has the other speakers know by which interfaces this node can answer for
// addresses, and whether it is back only now.
func (r *Tracker) Offer(now *Offer, returning bool) {
	if r == nil || r.left || r.told == now && r.returning == returning {
		return
	}
	r.told, r.returning = now, returning
	meta := now.Meta
	if returning {
		meta = returningMeta(meta)
	}
	r.leases.tell(meta, len(r.missing) > 0)
	r.unfit.Store(int32(now.Unfit))
	if err := r.gossip.SetMeta(meta); err != nil {
		panic(fmt.Sprintf("BUG: %v", err)) // encodeInterfaces knows how long it may be.
	}
}

// A MemberStatus is what is known of a node whose speaker was heard of.
type MemberStatus struct {
	Node string `json:"node"`
	// State is alive, left (its speaker was stopped or restarts), dead, or lease: not
	// heard of, and seen to renew its Lease.
	State string    `json:"state"`
	Since time.Time `json:"since"`
}

// A Status is what is known of the speakers of other nodes.
type Status struct {
	Nodes []MemberStatus `json:"nodes,omitempty"`
	// LeftOut are the nodes whose endpoints get no new connections.
	LeftOut []string `json:"leftOut,omitempty"`
	// Problems are what somebody has to mend.
	Problems []string `json:"problems,omitempty"`
}

// Summary counts the nodes that are there, of all that were heard of: "2/3"; empty
// where nobody listens.
func (s *Status) Summary() string {
	if s == nil || len(s.Nodes) == 0 {
		return ""
	}
	here := 0
	for _, m := range s.Nodes {
		if m.State == "alive" || m.State == "lease" {
			here++
		}
	}
	return fmt.Sprintf("%d/%d", here, len(s.Nodes))
}

// Status says what is known by m, which may be nil; nil where no members are wanted.
func (r *Tracker) Status(m *Members) *Status {
	if r == nil {
		return nil
	}
	s := &Status{Problems: r.gossip.Problems()}
	if n := r.unfit.Load(); n > 0 {
		s.Problems = append(s.Problems, fmt.Sprintf("%d interfaces of this node are unknown to the others, since there are too many with addresses of pools: this node answers for no address by them; name fewer in L2Advertisements", n))
	}
	if problem := r.leases.problem(); problem != "" {
		s.Problems = append(s.Problems, problem)
	}
	if m == nil {
		return s
	}
	silent := m.Silent(r.gossip.Node)
	for _, n := range m.Nodes {
		s.Nodes = append(s.Nodes, MemberStatus{Node: n.Node, State: n.State(), Since: n.Since})
		if _, out := silent[n.Node]; out {
			s.LeftOut = append(s.LeftOut, n.Node)
		}
	}
	if names := m.Unheard(time.Now()); len(names) > 0 {
		s.Problems = append(s.Problems, fmt.Sprintf("nodes are not heard of, and live by their Leases: %s; is port %d open between nodes, UDP and TCP?", cluster.Enumerate(names), r.gossip.Port))
	}
	if dead := m.Dead(r.gossip.Node); len(dead) > 0 && len(s.LeftOut) == 0 {
		var names []string
		for _, n := range dead {
			names = append(names, n.Node)
		}
		s.Problems = append(s.Problems, fmt.Sprintf("%s of %d nodes are not heard of: half or more, so it may be this one that is cut off; their endpoints are used as before", cluster.Enumerate(names), len(m.Nodes)))
	}
	return s
}
