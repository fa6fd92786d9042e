package cluster

// A Source says what the cluster is now, and when that has changed. Its
// snapshots come from an API server or from a folder of files.
type Source interface {
	// Snapshot is the newest snapshot. It is never nil.
	Snapshot() *Snapshot
	// Changed gets a value after Snapshot has begun to return another one. It is
	// a dirty bit, not a queue: it has room for one value, so that changes that
	// were not read yet become one.
	Changed() <-chan struct{}
}
