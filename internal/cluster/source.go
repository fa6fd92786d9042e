package cluster

// A Source has the current state of the cluster, and signals changes. Its snapshots come from an
// API server or from a folder of files.
type Source interface {
	// Snapshot returns the newest snapshot, never nil.
	Snapshot() *Snapshot
	// Changed receives a value after the result of Snapshot has changed. It is a dirty bit, not a
	// queue: the channel holds one value, so that several unread changes become one.
	Changed() <-chan struct{}
}
