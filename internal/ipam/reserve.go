package ipam

import (
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// admits reports whether a Service that requests a reserved address gets it. Any Service of the
// namespace does, because a Service may be replaced by one of another name.
func (f claimHolders) admits(name cluster.Name) bool {
	return len(f.kept) == 0 || slices.Contains(f.holders, name) ||
		slices.ContainsFunc(f.kept, func(k cluster.Name) bool { return k.Namespace == name.Namespace })
}

// beneficiaries names the Services that an address is reserved for.
func (f claimHolders) beneficiaries() string {
	var s []string
	for _, k := range f.kept {
		if k.Name == "" {
			s = append(s, "namespace "+k.Namespace)
		} else {
			s = append(s, k.String())
		}
	}
	return strings.Join(s, ", ")
}

// isHolder reports whether name is a holder of c.
func isHolder(c *cluster.Claim, name cluster.Name) bool {
	return slices.ContainsFunc(c.Holders, func(h cluster.Holder) bool { return h.Name == name })
}
