// Package sortedset has set operations on sorted slices: union, difference and
// intersection of any elements, and containment of addresses in prefixes.
//
// Where it is cheap, functions return an argument instead of an equal copy ([Keep]), so
// that callers can compare slices by identity ([Same]).
//
// sortedset.go has the operations on any elements, prefixes.go those on prefixes, and patch.go
// replaces a few elements of a long list.
package sortedset
