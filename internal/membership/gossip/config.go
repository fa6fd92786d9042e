package gossip

import (
	"time"

	"github.com/hashicorp/memberlist"
)

// The timers; doc.go has the results. A single lost packet or a pause of the garbage
// collector must not suffice for a death, and clients should wait half a second at most.
const (
	probeInterval = 60 * time.Millisecond
	// probeTimeout leaves a third of the interval for the three nodes that ping the target
	// too, and a third for their answers.
	probeTimeout = 20 * time.Millisecond
	// suspicionMult is in probe intervals. One node suffices to suspect another: all
	// others probe it themselves, see probe. Memberlist multiplies it by log₁₀ of the nodes,
	// at least 1.
	suspicionMult = 2
	// manyNodes have half the suspicionMult: memberlist's logarithm alone gives them the time
	// in which a suspicion and its refutation reach all: 0.18 s with 1,000 nodes, whose median
	// death all others detected after 0.58 s with 0.36 s, and after 0.47 s with 0.18 s
	// (TestSimulation). A refutation that comes too late costs a probe by each node,
	// and no death.
	manyNodes = 50
	// gossipInterval and gossipNodes: broadcasts go to 6 other nodes each 30 ms. Without
	// broadcasts nothing is sent.
	gossipInterval = 30 * time.Millisecond
	gossipNodes    = 6
	// pushPullInterval is between two exchanges of the full state, of each node with any
	// other, in clusters of up to 32 nodes; memberlist stretches it by the logarithm above.
	pushPullInterval = 15 * time.Second
	// tcpTimeout is for a process that accepts a connection and sends nothing.
	tcpTimeout = time.Second
	// gossipToTheDead is how long memberlist itself remembers dead nodes.
	gossipToTheDead = 30 * time.Second
)

// config returns memberlist's configuration for a cluster of that many nodes, without what
// depends on the node. Memberlist takes it once, at its start. Nodes may differ in it: those
// with the shorter suspicion report first.
func config(nodes int) *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.ProbeInterval, c.ProbeTimeout, c.IndirectChecks = probeInterval, probeTimeout, 3
	c.SuspicionMult, c.SuspicionMaxTimeoutMult = suspicionMult, 1
	if nodes >= manyNodes {
		c.SuspicionMult /= 2
	}
	c.GossipInterval, c.GossipNodes, c.GossipToTheDeadTime = gossipInterval, gossipNodes, gossipToTheDead
	c.PushPullInterval, c.TCPTimeout = pushPullInterval, tcpTimeout
	// A node whose address changed may use its name again at once. No other node can use
	// it, since members must be at their node's addresses.
	c.DeadNodeReclaimTime = time.Millisecond
	// Packets are small; compressing each would cost more than it saves.
	c.EnableCompression = false
	c.UDPBufferSize -= sealedBytes
	return c
}

// joinInterval is the mean time between two attempts of one node to reach a node that is not
// alive; alive is the number of nodes that try. Together they make twenty attempts a second
// at a node that was alive in the last ten minutes, one a second at one that was alive
// before, and one in five seconds at others: most likely these run no speaker. A node
// without other members tries more often.
func joinInterval(known bool, away time.Duration, alive int) time.Duration {
	each := 5 * time.Second
	switch {
	case known && away < 10*time.Minute:
		each = tick / 2
	case known:
		each = time.Second
	case alive <= 1:
		each = 500 * time.Millisecond
	}
	return each * time.Duration(max(alive, 1))
}
