package controller

// A conditionReason is the reason of a condition Ready. It is a Service's reason where one fits.
// The reference is generated from the comments here.
type conditionReason = string

// On an AddressPool, BGPAdvertisement or L2Advertisement:
const (
	reasonReady conditionReason = "Ready" // The object is in use.
	// The object is in use, and the message says what may be unintended. The condition is True.
	reasonWarning conditionReason = "Warning"
	// A field is invalid; the message names it. The last valid version stays in use.
	reasonFaulty conditionReason = "Invalid"
)

// On an AddressPool:
const (
	// The pool gives out no addresses; the message says whether Services still have some.
	reasonDrain conditionReason = "Drained"
)

// On a BGPAdvertisement or L2Advertisement:
const (
	reasonNoPeer conditionReason = "NoPeer" // None of the selected nodes has a BGPPeer of the advertisement.
	// No speaker of the selected nodes has reported its interfaces yet.
	reasonNoSpeaker conditionReason = "NoSpeaker"
	// No selected node has an interface that the advertisement names and that has an address's subnet.
	reasonNoInterface conditionReason = "NoInterface"
)
