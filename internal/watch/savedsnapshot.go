package watch

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// MaxSnapshotAge is how long a saved snapshot may be used after it was last in step with the API
// server. Kubernetes evicts the pods of a lost node after 300 s, and their addresses are given to
// other pods: an older snapshot does not show which pod has an address.
const MaxSnapshotAge = 5 * time.Minute

// A SavedSnapshot is a snapshot that one process saves for the next one on this node, and the
// Moment when it was last the API server's state.
type SavedSnapshot struct {
	Path       string // of the snapshot
	InStepPath string // of the Moment
	// Now is the clock; nil: the kernel's.
	Now func() (Moment, error)
}

// Save writes s, the newest snapshot. It is not in step before Confirm.
func (f SavedSnapshot) Save(s *cluster.Snapshot) error { return WriteSnapshot(f.Path, s) }

// Confirm records that the last saved snapshot was the API server's state at that Moment. It
// replaces a file of some 70 bytes, so it may be called every few seconds.
func (f SavedSnapshot) Confirm(at Moment) error {
	if err := replaceFile(f.InStepPath, func(w *bufio.Writer) error {
		return json.NewEncoder(w).Encode(at)
	}); err != nil {
		return fmt.Errorf("confirm snapshot: %w", err)
	}
	return nil
}

// Recall reads the snapshot, and how long ago it was last in step. The error says that there is
// none, or none that may be used.
func (f SavedSnapshot) Recall() (*cluster.Snapshot, time.Duration, error) {
	s, err := ReadSnapshot(f.Path)
	if err != nil {
		return nil, 0, err
	}
	age, err := f.age()
	if err != nil {
		return nil, 0, err
	}
	if age > MaxSnapshotAge {
		return nil, 0, fmt.Errorf("%s was last in step with the API server %s ago; after %s, addresses of pods "+
			"may belong to others", f.Path, age.Round(time.Second), MaxSnapshotAge)
	}
	return s, age, nil
}

// age returns the time since the snapshot was last in step.
func (f SavedSnapshot) age() (time.Duration, error) {
	data, err := os.ReadFile(f.InStepPath)
	if err != nil {
		return 0, fmt.Errorf("age of the snapshot: %w", err)
	}
	var at Moment
	if err := json.Unmarshal(data, &at); err != nil {
		return 0, fmt.Errorf("age of the snapshot: %s: %w", f.InStepPath, err)
	}
	now, err := f.Clock()
	if err != nil {
		return 0, fmt.Errorf("age of the snapshot: %w", err)
	}
	age, known := now.Since(at)
	if !known {
		return 0, fmt.Errorf("age of the snapshot: unknown, since %s is not of this boot", f.InStepPath)
	}
	return age, nil
}

// Clock returns the present Moment.
func (f SavedSnapshot) Clock() (Moment, error) {
	if f.Now != nil {
		return f.Now()
	}
	return Now()
}
