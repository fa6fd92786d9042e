package lab

import "time"

// A Timeline counts the requests of a load by the time at which they began, in intervals of
// the same length.
type Timeline struct {
	Interval         time.Duration
	Sent, Lost, Late []int // of each interval; Late ones were answered slowly
}

// Timeline counts the requests that began in the n intervals from a time on.
func (r Report) Timeline(from time.Time, interval time.Duration, n int) Timeline {
	t := Timeline{interval, make([]int, n), make([]int, n), make([]int, n)}
	count := func(to []int, begin time.Time) {
		if i := begin.Sub(from).Nanoseconds() / int64(interval); !begin.Before(from) && i < int64(n) {
			to[i]++
		}
	}
	for _, l := range r.Lost {
		count(t.Sent, l.Begin)
		count(t.Lost, l.Begin)
	}
	for _, a := range r.answers {
		count(t.Sent, a.begin)
		if a.end.Sub(a.begin) > slow {
			count(t.Late, a.begin)
		}
	}
	return t
}

// Add adds the counts of another run with the same intervals. A Timeline without intervals
// becomes the other one.
func (t Timeline) Add(other Timeline) Timeline {
	if len(t.Sent) == 0 {
		return other
	}
	for i := range other.Sent {
		t.Sent[i] += other.Sent[i]
		t.Lost[i] += other.Lost[i]
		t.Late[i] += other.Late[i]
	}
	return t
}

// Affected returns the part of an interval's requests that was lost or late.
func (t Timeline) Affected(i int) float64 {
	if t.Sent[i] == 0 {
		return 0
	}
	return float64(t.Lost[i]+t.Late[i]) / float64(t.Sent[i])
}
