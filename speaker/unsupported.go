package speaker

import "github.com/fanfare-lb/fanfare/internal/cluster"

// ignored says what of a Service's wishes is not done. Who is served without it is
// served less well, but nobody gets what was to be denied.
func ignored(s *cluster.Spec) []string {
	var out []string
	for _, f := range s.Unsupported {
		out = append(out, f+" is not honoured yet; the Service is served without it")
	}
	return out
}
