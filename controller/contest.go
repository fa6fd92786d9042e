package controller

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

const (
	// rewriteBurst is how often in a row a status is written back soon: at once, and then after
	// pauses from rewritePause on, each twice as long.
	rewriteBurst = 6
	rewritePause = time.Second
	// rewriteRarely is the time between further attempts. Two controllers that overwrite each other
	// as fast as they can would keep the API server and all its watchers busy for ever.
	rewriteRarely = 10 * time.Minute
	// rewriteMemory is how long a status must stay as written until the contest is over.
	rewriteMemory = 10 * time.Minute
)

// contests are the Services whose status was written back, because another controller had changed
// it. They are not stored: a new leader starts with a burst.
type contests map[cluster.Name]contest

// A contest is what was done for one Service.
type contest struct {
	uid      types.UID
	rewrites int       // in a row
	last     time.Time // of the last one, or when the condition was found
	why      string    // what the other controller did, empty if that was not seen
	over     bool      // only the condition does not say so yet
}

// of returns the contest about a Service, the zero value if there is none.
func (c contests) of(spec *cluster.Spec) contest {
	if one := c[spec.Name]; one.uid == spec.UID {
		return one
	}
	return contest{uid: spec.UID}
}

// adopt adds Services whose condition says StatusOverwritten: another leader has written it, which may
// still run. Two that remember different contests would otherwise write their conditions in turn.
func (c contests) adopt(open []*cluster.Spec, now time.Time) {
	for _, spec := range open {
		if spec.Reported.Code == cluster.StatusOverwritten && c.of(spec).last.IsZero() {
			c[spec.Name] = contest{uid: spec.UID, last: now}
		}
	}
}

// adopted reports whether the condition of a Service stays as another leader has written it.
func (c contest) adopted(spec *cluster.Spec) bool {
	return c.rewrites == 0 && !c.last.IsZero() && !c.over && spec.Reported.Code == cluster.StatusOverwritten
}

// due is when the status may be written back again.
func (c contest) due() time.Time {
	switch {
	case c.rewrites == 0:
		return time.Time{}
	case c.rewrites < rewriteBurst:
		return c.last.Add(rewritePause << (c.rewrites - 1))
	}
	return c.last.Add(rewriteRarely)
}

// rewritten returns c after one more rewrite.
func (c contest) rewritten(now time.Time, why string) contest {
	if c.rewrites, c.last, c.over = c.rewrites+1, now, false; why != "" {
		c.why = why
	}
	return c
}

// text is the message of StatusOverwritten, empty without a contest: a few rewrites without a
// visible cause may be a user who changes the Service's type to and fro.
func (c contest) text() string {
	if c.over {
		return ""
	}
	text := c.why
	if text == "" && c.rewrites >= rewriteBurst {
		text = "another controller changes status.loadBalancer; the AddressClaim keeps the Service's address: switch " +
			"that controller off for this Service"
	}
	if c.rewrites >= rewriteBurst {
		text += fmt.Sprintf("; the status was written back %d times, and is from now on every %.0f minutes",
			rewriteBurst, rewriteRarely.Minutes())
	}
	return text
}

// forget drops the contests that are over, and those of Services that Fanfare no longer serves. It
// returns when the plan has to be made again, zero if there is nothing to wait for.
func (c contests) forget(now time.Time, snap *cluster.Snapshot, waiting []cluster.Name) (next time.Time) {
	waits := map[cluster.Name]bool{}
	for _, name := range waiting {
		waits[name] = true
	}
	for name, one := range c {
		at, spec := one.last.Add(rewriteMemory), snap.Service(name)
		switch {
		case waits[name]:
			at = one.due()
		case spec == nil || one.over && spec.Reported.Code != cluster.StatusOverwritten:
			delete(c, name)
			continue
		case one.over:
			continue // the condition is written, or tried again
		case !at.After(now):
			one.over = true
			c[name], at = one, now
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}
