package bgp

import "time"

// A BFD says how fast a silent router is detected (RFC 5880, and RFC 5881 for a router that
// is directly connected). The zero value turns BFD off: the hold timer detects silence.
type BFD struct {
	// Transmit is the shortest interval at which this node sends, Receive the shortest at
	// which the router may send: 10 ms to 60 s each. In each direction the longer of both
	// ends' intervals applies.
	Transmit, Receive time.Duration
	// Multiplier is the number of missing packets after which the router declares this node
	// silent, 2 to 255. For the other direction the router's own multiplier applies.
	Multiplier uint8
	// Passive waits for the router's first packet before this node sends any.
	Passive bool
}

func (b BFD) enabled() bool { return b != BFD{} }

// A BFDStatus is the state of BFD with one router.
type BFDStatus struct {
	State string    `json:"state"` // Up, Init or Down
	Since time.Time `json:"since"`
	Flaps int       `json:"flaps"` // how often the router was lost
	// Detection is the silence after which the router counts as lost, 0 until both ends have
	// agreed on intervals.
	Detection time.Duration `json:"detectionNanoseconds,omitempty"`
	// Reason is why BFD is not up, empty while it is up.
	Reason string `json:"reason,omitempty"`
	// Error is why BFD cannot run on this node.
	Error string `json:"error,omitempty"`
}

// Summary is Up or Down. Init counts as Down, because only the two ends can use it.
func (b BFDStatus) Summary() string {
	if b.Up() {
		return "Up"
	}
	return "Down"
}

// Up reports whether each end receives the other's packets.
func (b BFDStatus) Up() bool { return b.State == bfdUp.String() }

// explain adds what may prevent BFD that was never up.
func (b *BFDStatus) explain(conf Session) {
	switch {
	case b.Up() || b.Error != "" || b.Reason != "":
	case conf.TTLSecurityHops != 0:
		b.Reason = "the router says nothing; some, as FRR 8.4, take a neighbour with ttl-security for one that " +
			"is several hops away, " +
			"and speak another BFD to it: have either bfd or ttlSecurityHops"
	default:
		b.Reason = "the router says nothing; does it have BFD for this node?"
	}
}
