// Package sortedset has set operations on sorted slices: union and difference of
// any elements, and containment of addresses in prefixes. A [Set] is for lists
// that are long, and of which each version differs little from the one before.
//
// Where it is cheap, functions return an argument, or a part of it, instead of an equal copy ([Keep]),
// so that callers can compare slices by identity ([Same]). No caller writes to them.
//
// sortedset.go has the operations on any elements, prefixes.go those on prefixes, patch.go replaces a
// few elements of a long list, merge.go compares two lists, set.go has Set, and same.go has what
// preserves the identity of lists.
package sortedset
