package gossip

import (
	"slices"
	"time"
)

const (
	// problemTTL is how long a problem is reported after it last occurred.
	problemTTL = 2 * time.Minute
	// maxProblems bounds the memory that unknown senders can use.
	maxProblems = 16
)

// problems are what a user must correct, by their subject.
type problems map[string]problem

type problem struct {
	text string
	at   time.Time // of the last occurrence; zero: it remains until it is corrected
}

// set records a problem, or with a nil error that the subject has none. Problems of the key
// file and of listening are set regularly and remain until they are corrected.
func (p problems) set(subject string, now time.Time, err error) {
	if err == nil {
		delete(p, subject)
		return
	}
	lasting := subject == "key" || subject == "listen"
	if _, known := p[subject]; !known && !lasting && len(p) >= maxProblems {
		return
	}
	if lasting {
		now = time.Time{}
	}
	p[subject] = problem{err.Error(), now}
}

// list returns the current problems, sorted, and drops expired ones.
func (p problems) list(now time.Time) (all []string) {
	for subject, one := range p {
		if !one.at.IsZero() && now.Sub(one.at) > problemTTL {
			delete(p, subject)
			continue
		}
		all = append(all, one.text)
	}
	slices.Sort(all)
	return all
}
