package rundir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/redirect"
	"github.com/fanfare-lb/fanfare/proxy"
)

// A Dir saves under the run directory what the next speaker on this node must
// know. Each value is written only if it has changed.
type Dir struct {
	path        string
	assignments cluster.Assignments
	written     bool // assignments are in the file
	// answered, failures and configuration are the content of the files of these names.
	answered      sortedset.Set[netip.Addr]
	failures      []time.Time
	owners        uint64 // the revision in the file
	redirects     []proxy.Redirect
	configuration *cluster.Configuration
}

// New returns the run directory at a path, in which nothing has been saved yet.
func New(path string) *Dir { return &Dir{path: path} }

// A SavedAddress is an address that a speaker answered for over L2. Until is the end of
// its linger time, and zero if the speaker answered for it until it stopped.
type SavedAddress struct {
	Addr  netip.Addr
	Until time.Time `json:",omitzero"`
}

// SaveAnswered saves the addresses that this node answers for over L2, and the lingering
// ones, as list returns them. It does not call list if addrs are those of the last call.
func (d *Dir) SaveAnswered(addrs sortedset.Set[netip.Addr], list func() []SavedAddress) error {
	return d.update(answeredFile, d.answered.Same(addrs), func() any { return list() }, func() { d.answered = addrs })
}

// LoadAnswered returns what the previous speaker saved, none if there was no speaker.
func (d *Dir) LoadAnswered() ([]SavedAddress, error) {
	return load[[]SavedAddress](answeredFile.in(d.path))
}

// SaveOwners saves the owners of the addresses that this node is or was an owner of, and the
// redirects to them.
func (d *Dir) SaveOwners(h *redirect.History, programmed []proxy.Redirect) error {
	revision := h.Revision()
	same := d.owners == revision && sortedset.Same(d.redirects, programmed)
	saved := func() any { return h.Saved(programmed) }
	return d.update(ownersFile, same, saved, func() { d.owners, d.redirects = revision, programmed })
}

// LoadOwners returns what the previous speaker saved, none if there was no speaker.
func (d *Dir) LoadOwners() (redirect.Saved, error) {
	return load[redirect.Saved](ownersFile.in(d.path))
}

// SaveFailures saves when other nodes had to take over from this node.
func (d *Dir) SaveFailures(failures []time.Time) error {
	same := sortedset.Same(d.failures, failures)
	return d.update(failuresFile, same, func() any { return failures }, func() { d.failures = failures })
}

// LoadFailures returns what the previous speaker saved, none if there was no speaker.
func (d *Dir) LoadFailures() (failures []time.Time, err error) {
	failures, err = load[[]time.Time](failuresFile.in(d.path))
	d.failures = failures
	return failures, err
}

// SaveAssignments saves which Service has which address: without an API server, the next
// speaker allocates the same ones.
func (d *Dir) SaveAssignments(snap *cluster.Snapshot) error {
	list := func() any {
		list := snap.Assignments.Slice()
		for i, a := range list {
			list[i].From = snap.OriginOf(a)
		}
		return list
	}
	same := d.written && d.assignments.Same(snap.Assignments)
	return d.update(assignmentsFile, same, list, func() { d.assignments, d.written = snap.Assignments, true })
}

// SaveConfiguration saves the last valid versions of the objects. A snapshot that an
// earlier speaker saved has none.
func (d *Dir) SaveConfiguration(snap *cluster.Snapshot) error {
	same := snap.Configuration == nil || d.configuration == snap.Configuration
	valid := func() any { return snap.Configuration }
	return d.update(configurationFile, same, valid, func() { d.configuration = snap.Configuration })
}

// HasSnapshot reports whether an earlier speaker has run since the node was booted, and
// has read an API server.
func (d *Dir) HasSnapshot() bool {
	_, err := os.Stat(ClusterPath(d.path))
	return err == nil
}

// update writes the content of a file unless it is still the same, and calls written when the file has it.
// It replaces the file at once: after a crash it has either the old content or the new.
func (d *Dir) update(file file, same bool, content func() any, written func()) error {
	if same {
		return nil
	}
	path := file.in(d.path)
	data, err := json.MarshalIndent(content(), "", " ")
	if err == nil {
		err = os.WriteFile(path+".tmp", data, 0o644)
	}
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		return fmt.Errorf("save state for the next speaker: %w", err)
	}
	written()
	return nil
}

// load reads a value that save wrote, and returns zero without the file.
func load[T any](path string) (value T, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return value, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &value)
	}
	if err != nil {
		return *new(T), fmt.Errorf("state of the previous speaker: %s: %w", path, err)
	}
	return value, nil
}

// Configuration returns the last valid versions of the objects that the previous speaker
// with this run directory read; nil if there was none.
func Configuration(runDir string) (*cluster.Configuration, error) {
	return load[*cluster.Configuration](configurationFile.in(runDir))
}

// Assignments returns what the previous speaker with this run directory saved, none if
// there was none. It renames a file that is not valid, and the error says so: addresses
// that may move are better than a speaker that does not start.
func Assignments(runDir string) ([]cluster.Assignment, error) {
	path := assignmentsFile.in(runDir)
	list, err := load[[]cluster.Assignment](path)
	if err == nil || errors.As(err, new(*fs.PathError)) {
		return list, err
	}
	return nil, errors.Join(err, os.Rename(path, path+".bad"))
}
