package lab

import (
	"fmt"
	"testing"
	"time"
)

// A request counts in the interval in which it began, however late it ended. Requests
// before and after the intervals do not count.
func TestTimeline(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(0, int64(ms)*1e6) }
	answer := func(begin, end int) answerTime { return answerTime{begin: at(begin), end: at(end)} }
	r := Report{
		Lost: []Loss{{Begin: at(110), End: at(3110)}, {Begin: at(99)}},
		answers: []answerTime{answer(50, 2000), answer(100, 101), answer(149, 1149), answer(150, 151),
			answer(200, 201)},
	}
	one := r.Timeline(at(100), 50*time.Millisecond, 2)
	if got, want := fmt.Sprint(one.Sent, one.Lost, one.Late), "[3 1] [1 0] [1 0]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	sum := Timeline{}.Add(one).Add(r.Timeline(at(100), 50*time.Millisecond, 2))
	if got, want := fmt.Sprint(sum.Sent, sum.Lost, sum.Late, sum.Affected(0), sum.Affected(1)),
		"[6 2] [2 0] [2 0] 0.6666666666666666 0"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
