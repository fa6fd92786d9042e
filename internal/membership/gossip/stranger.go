package gossip

import (
	"log/slog"
	"net/netip"
	"strings"
)

// A chronicle is where memberlist's log goes. What it says while nodes die and come
// back would be a warning in a program whose nodes seldom do; what matters of it is
// logged elsewhere, once. Only strangers it alone tells of.
type chronicle struct {
	log      *slog.Logger
	stranger func(netip.Addr)
}

// Write takes one line.
func (c chronicle) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	if addr, ok := strangerIn(text); ok {
		c.stranger(addr)
	}
	c.log.Debug("memberlist", "says", text)
	return len(line), nil
}

// strangerIn finds out of whom a line of memberlist's log says that he has no key of
// ours. Memberlist tells it in no other way; a test holds these words against it.
func strangerIn(line string) (netip.Addr, bool) {
	packet := strings.Contains(line, "Decrypt packet failed")
	stream := strings.Contains(line, "failed to receive") && strings.Contains(line, "crypt")
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
