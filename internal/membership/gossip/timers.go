package gossip

import (
	"math"
	"time"

	"github.com/hashicorp/memberlist"
)

// The timers; see the package's comment for what comes of them. What a single lost
// packet or a pause of the garbage collector takes must not suffice, and half a second
// is what clients are to notice at most.
const (
	probeInterval = 60 * time.Millisecond
	// probeTimeout leaves a third of the interval for the three who ask in our place,
	// and as much again for them to say that they heard nothing either.
	probeTimeout = 20 * time.Millisecond
	// suspicion is in probe intervals, and has one node suffice that suspects another: all
	// others ask for themselves before they believe it, see hearing.
	suspicion = 2
	// gossipInterval and gossipNodes are how fast news travel: to 6 others each 30 ms.
	// Without news nothing is sent.
	gossipInterval = 30 * time.Millisecond
	gossipNodes    = 6
	// pushPullInterval is between two exchanges of all that is known, of each node with
	// any other, up to 32 nodes; above memberlist stretches it by the logarithm.
	pushPullInterval = 15 * time.Second
	// tcpTimeout is for whoever accepts a connection and says nothing, as a frozen process.
	tcpTimeout = time.Second
	// forget is how long memberlist itself remembers the dead.
	forget = 30 * time.Second
)

// config has the timers, and what does not depend on the node.
func config() *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.ProbeInterval, c.ProbeTimeout, c.IndirectChecks = probeInterval, probeTimeout, 3
	c.SuspicionMult, c.SuspicionMaxTimeoutMult = suspicion, 1
	c.GossipInterval, c.GossipNodes, c.GossipToTheDeadTime = gossipInterval, gossipNodes, forget
	c.PushPullInterval, c.TCPTimeout = pushPullInterval, tcpTimeout
	// A machine that was given another address may use its name again at once: nobody
	// else may, since an address has to be the node's.
	c.DeadNodeReclaimTime = time.Millisecond
	// Packets are small; compressing each would cost more than it saves.
	c.EnableCompression = false
	return c
}

// Sizes on the wire in bytes, with the headers of IPv4 and UDP or TCP, for names of
// about 16 letters and no metadata. A test measures them.
const (
	pingBytes  = 165
	ackBytes   = 75
	stateBytes = 125 // of one node in an exchange of all that is known
)

// Traffic is what one node sends, and receives as much, while nothing happens.
type Traffic struct {
	Packets float64 // a second
	Bytes   float64 // a second
}

// TrafficOf is what it costs to belong to a cluster of that many nodes, at rest. It
// hardly grows: each node asks one other in an interval, however many there are.
func TrafficOf(nodes int) Traffic {
	if nodes < 2 {
		return Traffic{}
	}
	probes := float64(time.Second) / float64(probeInterval)
	exchange := float64(pushPullInterval)
	if nodes > 32 {
		exchange *= math.Ceil(math.Log2(float64(nodes))-math.Log2(32)) + 1
	}
	// Each begins one exchange and is chosen for one, and in each it says all it knows.
	exchanges := 2 * float64(time.Second) / exchange
	state := float64(nodes) * stateBytes
	return Traffic{
		Packets: 2*probes + exchanges*(4+math.Ceil(state/1400)),
		Bytes:   probes*(pingBytes+ackBytes) + exchanges*(state+4*60),
	}
}

// tries is the mean time between two attempts of one node to reach another that is
// not there, of alive nodes that try. Together they make twenty attempts a second at who
// was there a short while ago, one a second at who has been away for ten minutes, and
// one in five seconds at who never was there: most likely no speaker runs on it. Who is
// alone hurries.
func tries(known bool, away time.Duration, alive int) time.Duration {
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
