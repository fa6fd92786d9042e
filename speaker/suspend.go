package speaker

import "time"

// suspendThreshold is a delay that no load explains.
const suspendThreshold = 2 * time.Second

// resumed announces all L2 addresses again: other nodes may have taken them over while this
// process was suspended. It waits until it knows which ones, because the connections that
// they have must be redirected to them from then on.
func (s *speaker) resumed(pause time.Duration) {
	s.Log.Warn("this process was suspended; announcing all layer 2 addresses again", "node", s.Node, "for", pause.Round(time.Millisecond))
	s.layer2.handover.resumed(time.Now())
}
