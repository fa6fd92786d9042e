package cluster

import (
	"iter"
	"net/netip"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// Services are sorted by name. Versions share what they have in common.
type Services struct{ sortedset.Set[Service] }

// ServiceSet returns the Services of a list.
func ServiceSet(list ...Service) Services { return Services{sortedset.SetOf(list, Service.Compare)} }

// Get returns a Service, and false if it does not exist.
func (s Services) Get(name Name) (Service, bool) {
	return sortedset.Get(s.Set, name, Service.compareName)
}

// Same reports whether two are the same version, without comparing Services.
func (s Services) Same(o Services) bool { return s.Set.Same(o.Set) }

// Differences returns, in order, the Services that differ, and whether each is in now. The old version of a
// Service comes before the new one.
func (s Services) Differences(now Services) iter.Seq2[Service, bool] {
	return sortedset.Differences(s.Set, now.Set, Service.Compare)
}

// From returns the Services from a name on.
func (s Services) From(name Name) iter.Seq[Service] {
	return sortedset.From(s.Set, name, Service.compareName)
}

// Patch replaces the Services of these names, which must be sorted, by the results of now. now returns
// false if there is none.
func (s Services) Patch(names []Name, now func(Name) (Service, bool)) Services {
	return Services{sortedset.PatchSet(s.Set, names, Service.compareName, sortedset.Equal, func(i int) (Service, bool) { return now(names[i]) })}
}

// With adds Services, or replaces those with the same names. The list must be sorted.
func (s Services) With(list ...Service) Services {
	return Services{sortedset.With(s.Set, list, Service.Compare)}
}

// Without removes the Services of these names, which must be sorted.
func (s Services) Without(names ...Name) Services {
	return s.Patch(names, func(Name) (svc Service, there bool) { return svc, false })
}

// Compare orders by name.
func (s Service) Compare(o Service) int { return s.Name.Compare(o.Name) }

func (s Service) compareName(n Name) int { return s.Name.Compare(n) }

// Claims are sorted by address. Versions share what they have in common.
type Claims struct{ sortedset.Set[*Claim] }

// ClaimSet returns the Claims of a list.
func ClaimSet(list ...*Claim) Claims { return Claims{sortedset.SetOf(list, (*Claim).Compare)} }

// Get returns the Claim of an address, nil if there is none.
func (s Claims) Get(addr netip.Addr) *Claim {
	c, _ := sortedset.Get(s.Set, addr, (*Claim).compareAddr)
	return c
}

// Differences returns, in order, the Claims that differ, and whether each is in now. The old version of a
// Claim comes before the new one.
func (s Claims) Differences(now Claims) iter.Seq2[*Claim, bool] {
	return sortedset.Differences(s.Set, now.Set, (*Claim).Compare)
}

// Changes returns the [Claims.Differences] as two lists: the Claims that only s has, and the Claims
// that only now has.
func (s Claims) Changes(now Claims) (gone, came []*Claim) {
	return sortedset.Changes(s.Set, now.Set, (*Claim).Compare)
}

// With adds Claims, or replaces those of the same addresses. The list must be sorted.
func (s Claims) With(list ...*Claim) Claims {
	return Claims{sortedset.With(s.Set, list, (*Claim).Compare)}
}

// Patch replaces the Claims of these addresses, which must be sorted, by the results of now. now returns
// false if there is none.
func (s Claims) Patch(addrs []netip.Addr, now func(netip.Addr) (*Claim, bool)) Claims {
	return Claims{sortedset.PatchSet(s.Set, addrs, (*Claim).compareAddr, sortedset.Equal, func(i int) (*Claim, bool) { return now(addrs[i]) })}
}

// Without removes the Claims of these addresses, which must be sorted.
func (s Claims) Without(addrs ...netip.Addr) Claims {
	return s.Patch(addrs, func(netip.Addr) (*Claim, bool) { return nil, false })
}

// Compare orders by address.
func (c *Claim) Compare(o *Claim) int { return c.Addr.Compare(o.Addr) }

func (c *Claim) compareAddr(a netip.Addr) int { return c.Addr.Compare(a) }
