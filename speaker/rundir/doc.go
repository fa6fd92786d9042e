// Package rundir has the files that a speaker keeps in its run directory (--run-dir, below /run):
// what the next speaker on this node must know, the lock, and the socket's path. The directory ends
// with the boot, as everything does that these files are about.
//
// file.go lists the files, state.go writes and reads what the speaker knows, and snapshotwriter.go
// writes the API server's objects, beside the speaker's loop. lock.go ensures one speaker at a time.
package rundir
