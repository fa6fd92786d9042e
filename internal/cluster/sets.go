package cluster

import (
	"iter"
	"net/netip"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// A keyed set is sorted by the keys of its elements. Versions share what they have in common.
type keyed[K any, T interface {
	comparable
	Compare(o T) int
	CompareKey(k K) int
}] struct{ sortedset.Set[T] }

// Services are sorted by name.
type Services = keyed[Name, Service]

// ServiceSet returns the Services of a list.
func ServiceSet(list ...Service) Services { return Services{sortedset.SetOf(list, Service.Compare)} }

// Claims are sorted by address.
type Claims = keyed[netip.Addr, *Claim]

// ClaimSet returns the Claims of a list.
func ClaimSet(list ...*Claim) Claims { return Claims{sortedset.SetOf(list, (*Claim).Compare)} }

// Get returns an element, and false if it does not exist.
func (s keyed[K, T]) Get(key K) (T, bool) { return sortedset.Get(s.Set, key, T.CompareKey) }

// Same reports whether two are the same version, without comparing elements.
func (s keyed[K, T]) Same(o keyed[K, T]) bool { return s.Set.Same(o.Set) }

// Differences returns, in order, the elements that differ, and whether each is in now. The old version of an
// element comes before the new one.
func (s keyed[K, T]) Differences(now keyed[K, T]) iter.Seq2[T, bool] {
	return sortedset.Differences(s.Set, now.Set, T.Compare)
}

// Changes returns the [keyed.Differences] as two lists: the elements that only s has, and the elements that
// only now has.
func (s keyed[K, T]) Changes(now keyed[K, T]) (gone, came []T) {
	return sortedset.Changes(s.Set, now.Set, T.Compare)
}

// From returns the elements from a key on.
func (s keyed[K, T]) From(key K) iter.Seq[T] { return sortedset.From(s.Set, key, T.CompareKey) }

// Patch replaces the elements of these keys, which must be sorted, by the results of now. now returns
// false if there is none.
func (s keyed[K, T]) Patch(keys []K, now func(K) (T, bool)) keyed[K, T] {
	return keyed[K, T]{sortedset.PatchSet(s.Set, keys, T.CompareKey, sortedset.Equal,
		func(i int) (T, bool) { return now(keys[i]) })}
}

// With adds elements, or replaces those with the same keys. The list must be sorted.
func (s keyed[K, T]) With(list ...T) keyed[K, T] {
	return keyed[K, T]{sortedset.With(s.Set, list, T.Compare)}
}

// Without removes the elements of these keys, which must be sorted.
func (s keyed[K, T]) Without(keys ...K) keyed[K, T] {
	return s.Patch(keys, func(K) (none T, there bool) { return none, false })
}

// Compare orders by name.
func (s Service) Compare(o Service) int { return s.Name.Compare(o.Name) }

// CompareKey orders by name.
func (s Service) CompareKey(n Name) int { return s.Name.Compare(n) }

// Compare orders by address.
func (c *Claim) Compare(o *Claim) int { return c.Addr.Compare(o.Addr) }

// CompareKey orders by address.
func (c *Claim) CompareKey(a netip.Addr) int { return c.Addr.Compare(a) }
