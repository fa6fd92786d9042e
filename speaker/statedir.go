package speaker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/redirect"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
	"github.com/fanfare-lb/fanfare/proxy"
)

// A stateDirectory saves under the run directory what the next speaker on this node must
// know. Each value is written only if it has changed.
type stateDirectory struct {
	dir         string
	assignments []cluster.Assignment
	written     bool // assignments are in the file
	// answered, failures and configuration are what the files of these names contain.
	answered      []netip.Addr
	failures      []time.Time
	owners        uint64 // the revision in the file
	redirects     []proxy.Redirect
	configuration *cluster.Configuration
}

// A savedAddress is an address that a speaker answered for over L2. Until is the end of
// its linger time, and zero if the speaker answered for it until it stopped.
type savedAddress struct {
	Addr  netip.Addr
	Until time.Time `json:",omitzero"`
}

// saveAnswered saves the addresses that this node answers for over L2, and the lingering
// ones.
func (d *stateDirectory) saveAnswered(path *announcePath) error {
	if sortedset.Same(d.answered, path.announcedAddrs) {
		return nil
	}
	list := []savedAddress{}
	for _, a := range path.announcedAddrs {
		list = append(list, savedAddress{Addr: a})
	}
	for a, left := range path.lingering {
		list = append(list, savedAddress{Addr: a, Until: left.until})
	}
	if err := d.save(answeredFile, list); err != nil {
		return err
	}
	d.answered = path.announcedAddrs
	return nil
}

// loadAnswered returns what the previous speaker saved, none if there was no speaker.
func (d *stateDirectory) loadAnswered() ([]savedAddress, error) {
	return load[[]savedAddress](answeredFile.in(d.dir))
}

// saveOwners saves the owners of the addresses that this node is or was an owner of, and the
// redirects to them.
func (d *stateDirectory) saveOwners(h *redirect.History, programmed []proxy.Redirect) error {
	revision := h.Revision()
	if d.owners == revision && sortedset.Same(d.redirects, programmed) {
		return nil
	}
	if err := d.save(ownersFile, h.Saved(programmed)); err != nil {
		return err
	}
	d.owners, d.redirects = revision, programmed
	return nil
}

// loadOwners returns what the previous speaker saved, none if there was no speaker.
func (d *stateDirectory) loadOwners() (redirect.Saved, error) {
	return load[redirect.Saved](ownersFile.in(d.dir))
}

// saveFailures saves when other nodes had to take over from this node.
func (d *stateDirectory) saveFailures(failures []time.Time) error {
	if sortedset.Same(d.failures, failures) {
		return nil
	}
	if err := d.save(failuresFile, failures); err != nil {
		return err
	}
	d.failures = failures
	return nil
}

func (d *stateDirectory) loadFailures() ([]time.Time, error) {
	return load[[]time.Time](failuresFile.in(d.dir))
}

// saveAssignments saves which Service has which address: without an API server, the next
// speaker allocates the same ones.
func (d *stateDirectory) saveAssignments(snap *cluster.Snapshot) error {
	if d.written && sortedset.Same(d.assignments, snap.Assignments) {
		return nil
	}
	list := slices.Clone(snap.Assignments)
	for i, a := range list {
		list[i].From = snap.OriginOf(a)
	}
	if err := d.save(assignmentsFile, list); err != nil {
		return err
	}
	d.assignments, d.written = snap.Assignments, true
	return nil
}

// saveConfiguration saves the last valid versions of the objects. A snapshot that an
// earlier speaker saved has none.
func (d *stateDirectory) saveConfiguration(snap *cluster.Snapshot) error {
	if snap.Configuration == nil || d.configuration == snap.Configuration {
		return nil
	}
	if err := d.save(configurationFile, snap.Configuration); err != nil {
		return err
	}
	d.configuration = snap.Configuration
	return nil
}

// hasSnapshot reports whether an earlier speaker has run since the node was booted, and
// has read an API server.
func (d *stateDirectory) hasSnapshot() bool {
	_, err := os.Stat(ClusterPath(d.dir))
	return err == nil
}

// save replaces a file at once: after a crash it has either the old content or the new.
func (d *stateDirectory) save(file runFile, content any) error {
	path := file.in(d.dir)
	data, err := json.MarshalIndent(content, "", " ")
	if err == nil {
		err = os.WriteFile(path+".tmp", data, 0o644)
	}
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		return fmt.Errorf("save state for the next speaker: %w", err)
	}
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

// lock makes sure that one speaker at a time uses the run directory. The kernel
// drops the lock with the process, however that ends.
func lock(runDir string) (release func(), err error) {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	path := lockFile.in(runDir)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another speaker runs with the run directory %s; give this one its own by --run-dir", runDir)
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// Running reports whether a speaker uses the run directory.
func Running(runDir string) bool {
	if _, err := os.Stat(lockFile.in(runDir)); err != nil {
		return false // lock would create the file
	}
	release, err := lock(runDir)
	if err != nil {
		return true
	}
	release()
	return false
}

// Cleanup removes what speakers leave in the run directory.
func Cleanup(runDir string) error {
	var errs []error
	for _, file := range runFiles {
		if err := os.Remove(file.in(runDir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
