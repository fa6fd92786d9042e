package l2

import (
	"time"

	"golang.org/x/time/rate"
)

// The rate limit for one sender on an interface. A router that has just come up resolves
// all addresses at once; no host keeps that up. Senders beyond maxSenders share one limit,
// so that memory and time do not grow with invented addresses.
const (
	answersPerSecond = 1000
	answerBurst      = 2000
	maxSenders       = 1024
	sweepInterval    = time.Second
)

// A limiter limits the replies to each sender. The zero limiter is ready to use.
type limiter struct {
	senders map[MAC]*rate.Limiter
	shared  *rate.Limiter
	swept   time.Time
}

func allowance() *rate.Limiter { return rate.NewLimiter(answersPerSecond, answerBurst) }

// allow reports whether a sender may be answered now, and counts it.
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

// sweep removes senders whose allowance is full again, when there are too many.
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
