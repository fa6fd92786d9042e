package watch

import (
	"log/slog"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// A problemLog logs new Problems. It bounds the lines of each namespace, so that the mistakes of one
// tenant neither fill the log nor cost more than a change may.
type problemLog struct {
	log     *slog.Logger
	message string
	began   time.Time
	lines   map[string]int // by namespace, since began; cluster-scoped objects are administrators'
}

// Each namespace has maxProblemLines in problemInterval.
const (
	maxProblemLines = 50
	problemInterval = time.Minute
)

func newProblemLog(log *slog.Logger, message string) *problemLog {
	return &problemLog{log: log, message: message, lines: map[string]int{}}
}

// write logs Problems at a time.
func (l *problemLog) write(all []cluster.Problem, now time.Time) {
	if now.Sub(l.began) >= problemInterval {
		l.began = now
		clear(l.lines)
	}
	for _, p := range all {
		namespace := p.Object.Name.Namespace
		l.lines[namespace]++
		switch n := l.lines[namespace]; {
		case namespace == "" || n <= maxProblemLines:
			l.log.Warn(l.message, "err", p.String())
		case n == maxProblemLines+1:
			l.log.Warn("more problems with objects of a namespace are not logged now; fanfare status lists all",
				"namespace", namespace, "for", problemInterval)
		}
	}
}
