package speaker

// An eventReason is the reason of an Event, for programs: it does not change from release
// to release. The reference of Events is generated from the comments here.
type eventReason string

// On the Service:
const (
	// This node announces the address; the note names the routers or the interfaces.
	eventAnnounced eventReason = "Announced"
	// This node no longer announces the address; the note has the reason.
	eventWithdrawn    eventReason = "Withdrawn"
	eventAddressInUse eventReason = "AddressInUse" // Another host uses the address; the note has its MAC address.
	// This node cannot forward the address; others are not affected. On the Node if there are many.
	eventProxyRefused eventReason = "ProxyRefused"
)

// On the BGPPeer:
const (
	eventSessionEstablished eventReason = "SessionEstablished" // This node has a session with the router.
	eventSessionLost        eventReason = "SessionLost"        // The session ended; the note has BGP's reason.
	eventSessionDown        eventReason = "SessionDown"        // There is no session 30s after the first attempt.
	// An older BGPPeer names the same router: this one has no session on this node.
	eventDuplicatePeer eventReason = "DuplicatePeer"
	eventBFDUp         eventReason = "BFDUp" // BFD receives the router's packets.
	// BFD no longer receives packets, or has not for 30s; the note has the reason.
	eventBFDDown eventReason = "BFDDown"
)

// On the Node from which no messages arrive:
const (
	// Other nodes receive no message from it; the note says what happens to its endpoints.
	eventNodeSilent       eventReason = "NodeSilent"
	eventEndpointsLeftOut eventReason = "EndpointsLeftOut" // Its endpoints now get no new connections.
	// Its endpoints are used again: too many nodes are silent to tell which side is cut off.
	eventEndpointsUsed eventReason = "EndpointsUsed"
	eventNodeHeard     eventReason = "NodeHeard" // Other nodes receive its messages again.
)

// On the Node of the speaker:
const (
	// For 5s the kernel has not accepted the rules; nothing new is announced.
	eventForwardingFailed   eventReason = "ForwardingFailed"
	eventForwardingRestored eventReason = "ForwardingRestored" // The kernel has accepted the rules.
	// The node's settings or other rules block traffic; the note says what to change.
	eventTrafficObstructed   eventReason = "TrafficObstructed"
	eventTrafficUnobstructed eventReason = "TrafficUnobstructed" // They no longer do.
	// Many addresses changed at once; the note has the numbers.
	eventAnnouncementsChanged eventReason = "AnnouncementsChanged"
)
