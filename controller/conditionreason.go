package controller

// A conditionReason is the reason of a condition Ready. It is a Service's reason where one fits.
// The reference is generated from the comments here.
type conditionReason = string

// On an AddressPool, BGPAdvertisement or L2Advertisement:
const (
	reasonReady   conditionReason = "Ready"   // The object is in use.
	reasonWarning conditionReason = "Warning" // The object is in use, and the message says what may be unintended. The condition is True.
	reasonFaulty  conditionReason = "Invalid" // A field is invalid; the message names it. The last valid version stays in use.
)

// On an AddressPool:
const (
	reasonDrain conditionReason = "Drained" // The pool gives out no addresses; the message says whether Services still have some.
)

// On a BGPAdvertisement or L2Advertisement:
const (
	reasonNoPeer      conditionReason = "NoPeer"      // None of the selected nodes has a BGPPeer of the advertisement.
	reasonNoSpeaker   conditionReason = "NoSpeaker"   // No speaker of the selected nodes has reported its interfaces yet.
	reasonNoInterface conditionReason = "NoInterface" // No selected node has an interface that the advertisement names and that has an address's subnet.
)
