package rundir

import "path/filepath"

// A file is a file in the run directory. The reference of files is generated from the
// comments here.
type file string

// In the run directory:
const (
	// Socket that serves `/metrics`, `/healthz`, `/readyz`, `/status` and `/routes`, for root on this node.
	socketFile file = "speaker.sock"
	lockFile   file = "speaker.lock" // Ensures one speaker at a time.
	// Which Service holds which address, for the next speaker, without an API server.
	assignmentsFile file = "assignments.json"
	// The last state of the API server, for a speaker that starts while it is unavailable.
	clusterFile file = "cluster.json"
	// When cluster.json was last known to be what the API server has, in time since boot.
	inStepFile file = "in-step.json"
	// The last valid version of each object, in use while an object is invalid.
	configurationFile file = "configuration.json"
	// Addresses that this node answers for over Layer 2, and lingering ones.
	answeredFile file = "answered.json"
	// Which nodes answered before for these addresses, and may have connections to them.
	ownersFile   file = "owners.json"
	failuresFile file = "deaths.json" // When other nodes recently took over from this one over Layer 2.
)

var files = []file{socketFile, lockFile, assignmentsFile, clusterFile, inStepFile, configurationFile, answeredFile,
	ownersFile, failuresFile}

func (f file) in(runDir string) string { return filepath.Join(runDir, string(f)) }

// SocketPath is the Unix socket of the speaker with a run directory.
func SocketPath(runDir string) string { return socketFile.in(runDir) }
