// Package sortedset has set operations on sorted slices: union, difference and
// intersection of any elements, and which addresses which prefixes contain.
//
// A slice that equals an earlier one is returned as that one where it is cheap
// ([Keep]), so that callers can compare slices without reading them ([Same]).
package sortedset
