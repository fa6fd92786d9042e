package gossip

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// A logWriter receives memberlist's log, at DEBUG. This package logs what matters of it,
// once.
type logWriter struct{ log *slog.Logger }

// Write receives one line.
func (w logWriter) Write(line []byte) (int, error) {
	w.log.Debug("memberlist", "line", strings.TrimSpace(string(line)))
	return len(line), nil
}

// recordUnknownSender records a message under an unknown key.
func (g *Gossip) recordUnknownSender(from netip.Addr) {
	g.metrics.rejected.Inc()
	g.mu.Lock()
	defer g.mu.Unlock()
	sender := from.String()
	for name, n := range g.nodes {
		if slices.Contains(n.Addrs, from) {
			sender = "node " + name + " (" + sender + ")"
		}
	}
	g.problems.set("sender "+from.String(), time.Now(), fmt.Errorf("%s sends messages with another key, or without one, which are rejected; is its key file the same, is its release compatible, and is port %d open to nodes only?", sender, g.Port))
}
