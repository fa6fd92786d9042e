package lab

import "testing"

// After the announcing node has lost its link, the host soon sends to another node, and no
// later request is lost.
func TestLostLinkFailover(t *testing.T) { runStep(t, laboratory(t), lostLink) }
