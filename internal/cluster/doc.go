// Package cluster turns Kubernetes objects into values that the rest of Fanfare
// can decide on: parsed once, checked once, never written after they are built.
//
// A [Snapshot] is the cluster at one instant. Parts that did not change between
// two snapshots are the same pointers, so that whoever keeps the previous one
// finds what changed by comparing pointers. An object that does not parse is
// not an error: it becomes a [Problem], and everything else goes on working.
//
// Snapshots come from a [Source]: a folder of YAML ([Files]) or an API server
// ([API]). Equal objects make equal snapshots, whichever they come from.
//
// Package cluster decides nothing: who gets an address is internal/ipam's
// business, who announces it the speaker's.
package cluster
