package lab

import "testing"

// A host sends to another node soon after the one that answered has lost its cable, and no
// request is lost that begins after that.
func TestPulledCable(t *testing.T) { runStep(t, laboratory(t), pulledCable) }
