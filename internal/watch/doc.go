// Package watch reads Kubernetes objects and keeps a [cluster.Snapshot] of them up to date.
//
// A [cluster.Source] is a folder of YAML ([Files]), an API server ([API]), or the snapshot from
// before a restart until the API server answers ([Standby]). Equal objects make equal
// snapshots, whichever of them they come from.
//
// Package watch does not interpret objects: internal/cluster parses them.
package watch
