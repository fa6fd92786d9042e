// Package sortedset has set operations on sorted slices: union, difference and
// intersection of any elements, and containment of addresses in prefixes.
//
// Where it is cheap, functions return an argument, or a part of it, instead of an equal copy ([Keep],
// [Draft], [Memo]), so that callers can compare slices by identity ([Same]). No caller writes to them.
//
// sortedset.go has the operations on any elements, prefixes.go those on prefixes, patch.go replaces a
// few elements of a long list, and same.go has what preserves the identity of lists.
package sortedset
