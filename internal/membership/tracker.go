package membership

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership/gossip"
)

// leaveTimeout bounds the last renewal of the Lease.
const leaveTimeout = 500 * time.Millisecond

// A Tracker derives Members from gossip and Leases. Its methods are for one goroutine, except
// Status. A nil Tracker knows no node.
type Tracker struct {
	gossip *gossip.Gossip
	leases *leases

	nodes       []*cluster.Node // as gossip has them
	view        *gossip.View    // from which members is derived
	generation  uint64          // of leases, from which members is derived
	usesL2      bool            // addresses may be announced over Layer 2; unreachable depends on it
	members     *Members
	unreachable []string     // nodes that gossip does not reach
	left        bool         // by Leave
	meta        *NodeMeta    // as other nodes receive it; nil at first
	returning   bool         // in meta
	omitted     atomic.Int32 // interfaces without room in meta

	cancel context.CancelFunc
	done   sync.WaitGroup
}

// Options are what New needs.
type Options struct {
	// Node is the name of this node's Node object.
	Node string
	// KeyFile has the keys for the communication of speakers, on Port, UDP and TCP. Without
	// it they do not communicate, and no node is known to be dead.
	KeyFile string
	Port    uint16
	// Leases renews this node's Lease each LeaseInterval. If nil or zero, there are no Leases.
	Leases        *LeaseClient
	LeaseInterval time.Duration
	Log           *slog.Logger
	Registerer    prometheus.Registerer
}

// New returns a Tracker; Start starts it. Without a key file it returns nil.
func New(o Options) *Tracker {
	if o.KeyFile == "" {
		return nil
	}
	return &Tracker{
		gossip: gossip.New(gossip.Options{
			Node: o.Node, Port: o.Port, KeyFile: o.KeyFile, Log: o.Log, Registerer: o.Registerer,
		}),
		leases: newLeases(o.Node, o.Leases, o.LeaseInterval, o.Log),
	}
}

// Start listens and renews this node's Lease until Close or the end of ctx. It passes messages
// of other speakers to receive.
func (t *Tracker) Start(ctx context.Context, receive func(node string, message []byte) error) {
	if t == nil {
		return
	}
	ctx, t.cancel = context.WithCancel(ctx)
	t.done.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case m := <-t.gossip.Received():
				if err := receive(m.Node, m.Data); err != nil {
					t.gossip.Log.Warn("message of another speaker is invalid", "node", m.Node, "err", err)
				}
			}
		}
	})
	t.done.Go(func() { t.gossip.Run(ctx) })
	t.done.Go(func() { t.leases.run(ctx) })
}

// Leave reports to other nodes that this speaker stops on purpose. Nodes that gossip does not
// reach read in the Lease that this node no longer answers for addresses.
func (t *Tracker) Leave() {
	if t == nil {
		return
	}
	t.left = true
	nothing, _ := EncodeInterfaces(nil)
	t.leases.setMeta(nothing, false)
	if len(t.unreachable) > 0 {
		// At once, and not in run: this process may end before that.
		ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		defer cancel()
		t.leases.renew(ctx)
	}
	t.gossip.Leave()
}

func (t *Tracker) Close() {
	if t != nil {
		t.cancel()
		t.done.Wait()
	}
}

// Broadcast sends a message of 512 bytes at most to all other speakers, which receive it once.
// releases: it says that this node has stopped answering for an address, which nodes that
// gossip does not reach read in the Lease.
func (t *Tracker) Broadcast(b []byte, releases bool) {
	if t == nil {
		return
	}
	if releases && len(t.unreachable) > 0 {
		t.leases.release()
	}
	if err := t.gossip.Broadcast(b); err != nil {
		t.gossip.Log.Debug("message to other speakers not sent", "err", err)
	}
}

// Send sends a message of 512 bytes at most to another speaker, by a packet that may be lost.
func (t *Tracker) Send(node string, b []byte) {
	if t == nil {
		return
	}
	if err := t.gossip.Send(node, b); err != nil {
		t.gossip.Log.Debug("message to another speaker not sent", "to", node, "err", err)
	}
}

// Changed has a value when gossip has changed and Members may.
func (t *Tracker) Changed() <-chan struct{} {
	if t == nil {
		return nil
	}
	return t.gossip.Changed()
}

// Renewed has a value when the state of a watched Lease has changed and Members may.
func (t *Tracker) Renewed() <-chan struct{} {
	if t == nil {
		return nil
	}
	return t.leases.changed
}

// Members returns the nodes of snap that have been members, and whether they are alive.
func (t *Tracker) Members(snap *cluster.Snapshot) *Members {
	if t == nil {
		return nil
	}
	changed := !slices.Equal(t.nodes, snap.Nodes)
	if changed {
		t.nodes = snap.Nodes
		var nodes []gossip.Node
		for _, n := range snap.Nodes {
			nodes = append(nodes, gossip.Node{Name: n.Name, Addrs: n.InternalIPs})
		}
		t.gossip.Set(nodes)
	}
	if self := snap.Node(t.gossip.Node); self != nil {
		t.leases.setNode(self.UID)
	}
	view, generation := t.gossip.View(), t.leases.generation()
	usesL2 := snap.UsesL2()
	if view == t.view && generation == t.generation && usesL2 == t.usesL2 && !changed {
		return t.members
	}
	t.view, t.generation, t.usesL2 = view, generation, usesL2
	t.unreachable = unreachableNodes(view, snap, t.gossip.Node)
	leases := t.leases.watchOnly(t.unreachable, len(view.Members))
	if next := membersOf(view, leases, t.leases.validity(), time.Now()); !reflect.DeepEqual(next, t.members) {
		t.members = next
	}
	return t.members
}

// Released reports, once, whether a node that gossip does not reach has stopped answering for
// an address, for which this node may answer now.
func (t *Tracker) Released() bool { return t != nil && t.leases.takeReleased() }

// SetMeta sends the metadata of this node to the others; returning: it is in its hold-down.
func (t *Tracker) SetMeta(now *NodeMeta, returning bool) {
	if t == nil || t.left || t.meta == now && t.returning == returning {
		return
	}
	t.meta, t.returning = now, returning
	meta := now.Encoded
	if returning {
		meta = returningMeta(meta)
	}
	t.leases.setMeta(meta, len(t.unreachable) > 0)
	t.omitted.Store(int32(now.Omitted))
	if err := t.gossip.SetMeta(meta); err != nil {
		panic(fmt.Sprintf("BUG: %v", err)) // EncodeInterfaces respects MaxMeta.
	}
}
