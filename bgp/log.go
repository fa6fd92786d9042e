package bgp

import (
	"context"
	"log/slog"
	"sync/atomic"
)

// gobgpLog maps GoBGP's log to our levels. GoBGP's Info, every step of every session, becomes
// Debug; its Debug, every UPDATE, becomes less than that. Its warnings are about ended sessions,
// which this package reports itself.
type gobgpLog struct {
	slog.Handler
	muted *atomic.Bool
}

func newGobgpLog(log *slog.Logger) *gobgpLog {
	return &gobgpLog{Handler: log.Handler().WithGroup("gobgp"), muted: new(atomic.Bool)}
}

func (h *gobgpLog) mute() { h.muted.Store(true) }

func lower(l slog.Level) slog.Level {
	switch {
	case l >= slog.LevelError:
		return slog.LevelWarn
	case l >= slog.LevelInfo:
		return slog.LevelDebug
	default:
		return slog.LevelDebug - 4
	}
}

func (h *gobgpLog) Enabled(ctx context.Context, l slog.Level) bool {
	return !h.muted.Load() && h.Handler.Enabled(ctx, lower(l))
}

func (h *gobgpLog) Handle(ctx context.Context, r slog.Record) error {
	r.Level = lower(r.Level)
	return h.Handler.Handle(ctx, r)
}

func (h *gobgpLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &gobgpLog{Handler: h.Handler.WithAttrs(attrs), muted: h.muted}
}

func (h *gobgpLog) WithGroup(name string) slog.Handler {
	return &gobgpLog{Handler: h.Handler.WithGroup(name), muted: h.muted}
}
