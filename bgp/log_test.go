package bgp

import (
	"log/slog"
	"testing"
)

func TestGobgpLog(t *testing.T) {
	for _, c := range []struct {
		level slog.Level
		want  string
	}{
		{slog.LevelDebug, "level=WARN msg=broken gobgp.Topic=Peer gobgp.Key=x\nlevel=DEBUG msg=warning " +
			"gobgp.Topic=Peer gobgp.Key=x\nlevel=DEBUG msg=step gobgp.Topic=Peer gobgp.Key=x\n"},
		{slog.LevelInfo, "level=WARN msg=broken gobgp.Topic=Peer gobgp.Key=x\n"},
	} {
		var out syncBuffer
		noTime := func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
		h := newGobgpLog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: c.level, ReplaceAttr: noTime})))
		log := slog.New(h).With("Topic", "Peer")
		log.Error("broken", "Key", "x")
		log.Warn("warning", "Key", "x")
		log.Info("step", "Key", "x")
		log.Debug("update", "Key", "x")
		h.mute()
		log.Error("muted", "Key", "x")
		if got := out.String(); got != c.want {
			t.Errorf("level %s:\n%s", c.level, got)
		}
	}
}
