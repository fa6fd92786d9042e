package speaker

import (
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// harmless are the fields of Services that may go unheeded: who is served
// without them is served less well, but nobody gets what was to be denied.
var harmless = []string{"spec.sessionAffinity", "metadata.annotations[fanfare.io/scheduler]"}

// refused says why a Service is not served at all, empty when it is. To ignore
// a list of permitted sources would open what its owner closed.
func refused(s *cluster.Spec) string {
	fields := slices.DeleteFunc(slices.Clone(s.Unsupported), func(f string) bool { return slices.Contains(harmless, f) })
	if len(fields) == 0 {
		return ""
	}
	return strings.Join(fields, " and ") + " cannot be honoured yet, and to serve without it would be wrong; remove it to have the Service served"
}

// ignored says what of a Service's wishes is not done.
func ignored(s *cluster.Spec) []string {
	var out []string
	for _, f := range s.Unsupported {
		if slices.Contains(harmless, f) {
			out = append(out, f+" is not honoured yet; the Service is served without it")
		}
	}
	return out
}
