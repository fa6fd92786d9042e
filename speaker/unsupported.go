package speaker

import "github.com/fanfare-lb/fanfare/internal/cluster"

// refused says why a Service is not served at all, empty when it is. To ignore
// a list of permitted sources would open what its owner closed.
func refused(s *cluster.Spec) string {
	return ""
}

// ignored says what of a Service's wishes is not done.
func ignored(s *cluster.Spec) []string {
	return nil
}
