// Package cluster turns Kubernetes objects into values that the rest of Fanfare
// can decide on: parsed once, checked once, never written after they are built.
//
// A [Snapshot] is the cluster at one instant. Parts that did not change between
// two snapshots are the same pointers, so that a reader that keeps the previous one
// finds changes by comparing pointers. An object that does not parse is
// not an error: it becomes a [Problem], and everything else goes on working.
//
// A [Builder] makes snapshots of objects: builder.go takes objects, assemble.go makes the snapshot,
// and each kind has a file that parses it. References between objects are checked in the
// snapshot: references.go, duplicate.go, aggregate.go, occupied.go. A Builder reads no files and
// asks no API server: internal/watch does, and has the implementations of [Source].
//
// Package cluster decides nothing: internal/ipam decides which Service gets an address, and
// internal/plan which node announces it.
package cluster
