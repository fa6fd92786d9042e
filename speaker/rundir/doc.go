// Package rundir has the files that a speaker keeps in its run directory (--run-dir, below /run):
// state for the next speaker on this node, the lock, and the socket's path. The directory does not
// survive a reboot, and neither does anything that these files describe.
//
// file.go lists the files, state.go writes and reads the speaker's state, and snapshotwriter.go
// writes the API server's objects in the background. lock.go ensures that only one speaker runs at
// a time.
package rundir
