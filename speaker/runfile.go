package speaker

import "path/filepath"

// A runFile is a file in the run directory. The reference of files is generated from the
// comments here.
type runFile string

// In the run directory:
const (
	socketFile        runFile = "speaker.sock"       // Socket that serves `/metrics`, `/healthz`, `/readyz`, `/status` and `/routes`, for root on this node.
	lockFile          runFile = "speaker.lock"       // Ensures one speaker at a time.
	assignmentsFile   runFile = "assignments.json"   // Which Service holds which address, for the next speaker, without an API server.
	clusterFile       runFile = "cluster.json"       // The last state of the API server, for a speaker that starts while it is unavailable.
	inStepFile        runFile = "in-step.json"       // When cluster.json was last known to be what the API server has, in time since boot.
	configurationFile runFile = "configuration.json" // The last valid version of each object, in use while an object is invalid.
	answeredFile      runFile = "answered.json"      // Addresses that this node answers for over Layer 2, and lingering ones.
	ownersFile        runFile = "owners.json"        // Which nodes answered before for these addresses, and may have connections to them.
	failuresFile      runFile = "deaths.json"        // When other nodes recently took over from this one over Layer 2.
)

var runFiles = []runFile{socketFile, lockFile, assignmentsFile, clusterFile, inStepFile, configurationFile, answeredFile, ownersFile, failuresFile}

func (f runFile) in(runDir string) string { return filepath.Join(runDir, string(f)) }
