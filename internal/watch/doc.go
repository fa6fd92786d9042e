// Package watch reads Kubernetes objects and keeps a [cluster.Snapshot] of them up to date.
//
// A [cluster.Source] is a folder of YAML ([Files]), an API server ([API]), or the snapshot from
// before a restart until the API server answers ([Standby]). Equal objects make equal snapshots,
// regardless of the source.
//
// An API server: api.go decides what is watched, and when; reflector.go lists and watches one
// resource by client-go's Reflector; resume.go decides whether a watch that has ended may continue;
// secrets.go watches the Secrets of BGPPeers; health.go makes Problems of what cannot be read.
// problemlog.go logs those of all objects.
//
// A folder: files.go decides which file must be read again, and which file's object counts;
// inotify.go reports events of the folder; readfile.go reads a file; decode.go makes objects of YAML
// and JSON; mismatch.go names the fields that do not fit.
//
// Both pass their objects to a [cluster.Builder]. Package watch does not interpret objects:
// internal/cluster parses them.
//
// Before the API server answers: standby.go, with savedsnapshot.go and snapshotformat.go; moment.go
// measures the age of a snapshot. metrics.go counts failures and reconnections.
package watch
