package l2

import (
	"time"

	"golang.org/x/time/rate"
)

// How often one sender is answered on an interface. A router that has just come up asks
// for everything at once; nobody asks that often for long. Those beyond the senders that
// are remembered share one allowance, so that neither memory nor time grows with the
// number of addresses that somebody invents.
const (
	answersPerSecond = 1000
	answerBurst    = 2000
	maxSenders       = 1024
	sweepInterval       = time.Second
)

// A limiter counts the answers to each sender. The zero limiter is ready.
type limiter struct {
	senders map[MAC]*rate.Limiter
	shared    *rate.Limiter
	swept   time.Time
}

func allowance() *rate.Limiter { return rate.NewLimiter(answersPerSecond, answerBurst) }

// allow says whether a sender may be answered now, and counts that.
func (l *limiter) allow(sender MAC, now time.Time) bool {
	if l.senders == nil {
		l.senders, l.shared = make(map[MAC]*rate.Limiter), allowance()
	}
	s, ok := l.senders[sender]
	if !ok {
		l.sweep(now)
		if len(l.senders) >= maxSenders {
			return l.shared.AllowN(now, 1)
		}
		s = allowance()
		l.senders[sender] = s
	}
	return s.AllowN(now, 1)
}

// sweep forgets, when there are too many, senders whose allowance is whole: they would
// get the same anew.
func (l *limiter) sweep(now time.Time) {
	if len(l.senders) < maxSenders || now.Sub(l.swept) < sweepInterval {
		return
	}
	l.swept = now
	for m, s := range l.senders {
		if s.TokensAt(now) >= answerBurst {
			delete(l.senders, m)
		}
	}
}
