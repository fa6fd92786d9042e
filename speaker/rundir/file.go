package rundir

import "path/filepath"

// A file is a file in the run directory. The reference of files is generated from the
// comments here.
type file string

// In the run directory:
const (
	socketFile        file = "speaker.sock"       // Socket that serves `/metrics`, `/healthz`, `/readyz`, `/status` and `/routes`, for root on this node.
	lockFile          file = "speaker.lock"       // Ensures one speaker at a time.
	assignmentsFile   file = "assignments.json"   // Which Service holds which address, for the next speaker, without an API server.
	clusterFile       file = "cluster.json"       // The last state of the API server, for a speaker that starts while it is unavailable.
	inStepFile        file = "in-step.json"       // When cluster.json was last known to be what the API server has, in time since boot.
	configurationFile file = "configuration.json" // The last valid version of each object, in use while an object is invalid.
	answeredFile      file = "answered.json"      // Addresses that this node answers for over Layer 2, and lingering ones.
	ownersFile        file = "owners.json"        // Which nodes answered before for these addresses, and may have connections to them.
	failuresFile      file = "deaths.json"        // When other nodes recently took over from this one over Layer 2.
)

var files = []file{socketFile, lockFile, assignmentsFile, clusterFile, inStepFile, configurationFile, answeredFile, ownersFile, failuresFile}

func (f file) in(runDir string) string { return filepath.Join(runDir, string(f)) }

// SocketPath is the Unix socket of the speaker with a run directory.
func SocketPath(runDir string) string { return socketFile.in(runDir) }
