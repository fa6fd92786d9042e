package controller

import "github.com/fanfare-lb/fanfare/internal/cluster"

// A diagnosis is the Problems of one object.
type diagnosis struct {
	reason          string // of a condition, when something is wrong
	wrong, warnings []string
}

// diagnose collects the Problems of an object. A mistake in the object itself is the
// reason before anything that has a reason of its own.
func diagnose(problems []cluster.Problem, object cluster.Key) (d diagnosis) {
	for _, p := range problems {
		switch {
		case p.Object != object:
			continue
		case p.Warning:
			d.warnings = append(d.warnings, p.String())
			continue
		case p.Code == "":
			d.reason = reasonFaulty
		case d.reason == "":
			d.reason = string(p.Code)
		}
		d.wrong = append(d.wrong, p.String())
	}
	return d
}
