package lab

import "testing"

// A host sends to another node soon after the node that answered has lost its link, and no
// request is lost that begins after that.
func TestLostLinkFailover(t *testing.T) { runStep(t, laboratory(t), lostLink) }
