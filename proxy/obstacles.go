package proxy

import "github.com/fanfare-lb/fanfare/proxy/obstacle"

// An Obstacle is something on this node, outside of our rules, that drops traffic to VIPs,
// or takes it away before our rules see it. Package obstacle finds them.
type (
	Obstacle     = obstacle.Obstacle
	ObstacleCode = obstacle.Code
	// A Blockade is the set of flows that obstacles certainly block, and an address is Obstructed
	// if it has such flows.
	Blockade    = obstacle.Blockade
	Destination = obstacle.Destination
)

// For simulations in tests.
var (
	NewBlockade = obstacle.NewBlockade
	FlowsTo     = obstacle.FlowsTo
)

const (
	ToPods       = obstacle.ToPods
	ToThisNode   = obstacle.ToThisNode
	ToOtherNodes = obstacle.ToOtherNodes
)

const (
	ForwardingOff    = obstacle.ForwardingOff
	ReversePath      = obstacle.ReversePath
	ConntrackFull    = obstacle.ConntrackFull
	BridgeBypass     = obstacle.BridgeBypass
	Firewall         = obstacle.Firewall
	Untracked        = obstacle.Untracked
	TranslatedBefore = obstacle.TranslatedBefore
	ForeignDataPath  = obstacle.ForeignDataPath
)
