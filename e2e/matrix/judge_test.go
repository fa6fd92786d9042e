package matrix

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// A cause is a reason for which a request or a connection may be lost.
type cause uint8

const (
	// moved: the router, or a host on the link, sent its packets to another node, which did not
	// see its beginning.
	moved cause = 1 << iota
	// away: something that packets need was not there: the router, the link, the table.
	away
)

func (c cause) String() string {
	var words []string
	if c&moved != 0 {
		words = append(words, "moved to another node")
	}
	if c&away != 0 {
		words = append(words, "while it was away")
	}
	if words == nil {
		return "none"
	}
	return strings.Join(words, ", or ")
}

// anyNumber of changes of a route is allowed.
const anyNumber = -1

// A promise is what the documentation says for a cell.
type promise struct {
	requests, connections cause // the only reasons for which they may be lost
	flaps                 int   // at most so many changes of the address's route, or of its owner
	// away is how long something may be missing, on an idle machine, if the disturbance leaves
	// that to Fanfare. back is how long it takes, after the disturbance, until everything is as
	// before. Zero: not promised.
	away, back time.Duration
	page       string // page and heading, below docs
}

// A loss is a lost request or connection.
type loss struct {
	text   string
	causes cause
}

// A result is what happened in a cell.
type result struct {
	Requests    count
	Connections count
	Slowest     time.Duration // of the requests that were answered
	Flaps       int
	Away, Back  time.Duration
	// LostAt has, for each lost request, the milliseconds from the disturbance to its begin.
	LostAt []int `json:",omitempty"`
}

// A count says how many there were, and how many were lost and why.
type count struct{ All, Lost, Moved, Away int }

// tally counts losses and returns the losses that a promise does not cover.
func tally(all int, lost []loss, allowed cause) (n count, broken []string) {
	n.All, n.Lost = all, len(lost)
	for _, l := range lost {
		switch {
		case l.causes&moved != 0:
			n.Moved++
		case l.causes&away != 0:
			n.Away++
		}
		if l.causes&allowed == 0 {
			broken = append(broken, l.text)
		}
	}
	return n, broken
}

// busy is the most by which slack multiplies bounds of many seconds.
const busy = 2

// judge compares a result with the promise; slack multiplies bounds on time.
func (p promise) judge(r result, slack int) (broken []string) {
	bound := func(what string, got, want time.Duration, slack int) {
		if limit := want * time.Duration(max(1, slack)); want > 0 && got > limit {
			broken = append(broken, fmt.Sprintf("%s after %s: want %s", what, got.Round(time.Millisecond), limit))
		}
	}
	if p.flaps != anyNumber && r.Flaps > p.flaps {
		broken = append(broken, fmt.Sprintf("the route or the owner changed %d times: want %d at most", r.Flaps,
			p.flaps))
	}
	bound("it was no longer away", r.Away, p.away, slack)
	bound("everything was as before", r.Back, p.back, min(slack, busy))
	return broken
}

func TestTally(t *testing.T) {
	lost := []loss{{"a", moved}, {"b", away}, {"c", 0}, {"d", moved | away}}
	for _, c := range []struct {
		allowed cause
		want    []string
	}{
		{0, []string{"a", "b", "c", "d"}},
		{moved, []string{"b", "c"}},
		{away, []string{"a", "c"}},
		{moved | away, []string{"c"}},
	} {
		n, broken := tally(10, lost, c.allowed)
		if want := (count{All: 10, Lost: 4, Moved: 2, Away: 1}); n != want || !slices.Equal(broken, c.want) {
			t.Errorf("%s: %+v, %v: want %+v, %v", c.allowed, n, broken, want, c.want)
		}
	}
}

func TestJudge(t *testing.T) {
	p := promise{flaps: 2, away: time.Second, back: 10 * time.Second}
	for _, c := range []struct {
		r     result
		slack int
		want  int
	}{
		{result{Flaps: 2, Away: time.Second, Back: 10 * time.Second}, 0, 0},
		{result{Flaps: 3}, 1, 1},
		{result{Away: 2 * time.Second}, 1, 1},
		{result{Away: 2 * time.Second}, 2, 0},
		{result{Back: 11 * time.Second}, 1, 1},
		{result{Flaps: 3, Away: 3 * time.Second, Back: 21 * time.Second}, 2, 3},
		{result{Away: 5 * time.Second, Back: 21 * time.Second}, 5, 1},
	} {
		if broken := p.judge(c.r, c.slack); len(broken) != c.want {
			t.Errorf("%+v: %v: want %d", c.r, broken, c.want)
		}
	}
	if broken := (promise{flaps: anyNumber}).judge(result{Flaps: 9, Away: time.Hour, Back: time.Hour},
		1); broken != nil {
		t.Errorf("nothing is promised: %v", broken)
	}
}
