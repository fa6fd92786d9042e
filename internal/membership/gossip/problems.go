package gossip

import (
	"slices"
	"time"
)

const (
	// stale is how long a problem is told of after it was met last.
	stale = 2 * time.Minute
	// maxProblems bounds what strangers can have us remember.
	maxProblems = 16
)

// problems are what somebody has to mend, by what they concern.
type problems map[string]problem

type problem struct {
	text string
	at   time.Time // when it was met last; zero: it is there until it is mended
}

// set takes down a problem, or with a nil error that there is none of that kind. The
// key file and the place to listen at are looked at again and again: what is wrong with
// them stays until it is not.
func (p problems) set(what string, now time.Time, err error) {
	if err == nil {
		delete(p, what)
		return
	}
	lasting := what == "key" || what == "listen"
	if _, known := p[what]; !known && !lasting && len(p) >= maxProblems {
		return
	}
	if lasting {
		now = time.Time{}
	}
	p[what] = problem{err.Error(), now}
}

// list has those that still hold, sorted, and forgets the others.
func (p problems) list(now time.Time) (all []string) {
	for what, is := range p {
		if !is.at.IsZero() && now.Sub(is.at) > stale {
			delete(p, what)
			continue
		}
		all = append(all, is.text)
	}
	slices.Sort(all)
	return all
}
