package gossip

import (
	"log/slog"
	"strings"
)

// A logWriter receives memberlist's log, at DEBUG. This package logs what matters of it,
// once.
type logWriter struct{ log *slog.Logger }

// Write receives one line.
func (w logWriter) Write(line []byte) (int, error) {
	w.log.Debug("memberlist", "line", strings.TrimSpace(string(line)))
	return len(line), nil
}
