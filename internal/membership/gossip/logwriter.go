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
// once. Only messages under an unknown key appear nowhere else.
type logWriter struct {
	log           *slog.Logger
	unknownSender func(netip.Addr)
}

// Write receives one line.
func (w logWriter) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	if addr, ok := unknownSender(text); ok {
		w.unknownSender(addr)
	}
	w.log.Debug("memberlist", "line", text)
	return len(line), nil
}

// unknownSender finds the sender that has no key of this node in a line of memberlist's
// log, which is the only place that has it. A test compares these words with memberlist's.
func unknownSender(line string) (netip.Addr, bool) {
	packet := strings.Contains(line, "Decrypt packet failed")
	stream := strings.Contains(line, "to receive:") && strings.Contains(line, "crypt")
	_, from, named := strings.Cut(line, "from=")
	if !named || !packet && !stream {
		return netip.Addr{}, false
	}
	at, err := netip.ParseAddrPort(from)
	if err != nil {
		return netip.Addr{}, false
	}
	return at.Addr().Unmap().WithZone(""), true
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
	g.problems.set("sender "+from.String(), time.Now(), fmt.Errorf("%s sends messages with another key, or without one, which are rejected; is its key file the same, and is port %d open to nodes only?", sender, g.Port))
}
