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
	"github.com/fanfare-lb/fanfare/internal/sortedset"
)

// A stateDirectory keeps under the run directory which Service holds which address, so
// that a speaker without an API server gives out the same addresses after a
// restart.
type stateDirectory struct {
	dir         string
	assignments []cluster.Assignment
	written     bool // kept is in the file
	// answered is what is in the file of that name.
	answered []netip.Addr
	// failures is what is in the file of deaths.
	failures []time.Time
	// configuration is what is in the file of that name.
	configuration *cluster.Configuration
}

// A savedAddress is an address that a speaker answered for over L2: until when it is to be
// forwarded, or zero when it was answered for to the last.
type savedAddress struct {
	Addr  netip.Addr
	Until time.Time `json:",omitzero"`
	// Former is the node that answered for it before.
	Former string `json:",omitempty"`
}

func (d *stateDirectory) answeredPath() string { return answeredFile.in(d.dir) }

// saveAnswered writes what is answered for over L2, and what was until lately.
func (d *stateDirectory) saveAnswered(path *announcePath, handover *handoverState) error {
	if sortedset.Same(d.answered, path.announcedAddrs) {
		return nil
	}
	list := []savedAddress{}
	before := handover.formerOwners(path.announcedAddrs)
	for _, a := range path.announcedAddrs {
		list = append(list, savedAddress{Addr: a, Former: before[a]})
	}
	for a, left := range path.lingering {
		list = append(list, savedAddress{Addr: a, Until: left.until})
	}
	if err := d.write(d.answeredPath(), list); err != nil {
		return fmt.Errorf("remember what is answered for: %w", err)
	}
	d.answered = path.announcedAddrs
	return nil
}

// loadAnswered are what the speaker before this one answered for; none when there was none. A
// file that cannot be read is worth no more than none.
func (d *stateDirectory) loadAnswered() (list []savedAddress, err error) {
	data, err := os.ReadFile(d.answeredPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("what was answered for is not known: %w", err)
	}
	return list, nil
}

func (d *stateDirectory) failuresPath() string { return failuresFile.in(d.dir) }

// saveFailures writes when others had to take over from this node.
func (d *stateDirectory) saveFailures(deaths []time.Time) error {
	if sortedset.Same(d.failures, deaths) {
		return nil
	}
	if err := d.write(d.failuresPath(), deaths); err != nil {
		return fmt.Errorf("remember when others took over: %w", err)
	}
	d.failures = deaths
	return nil
}

// loadFailures are those that the speakers before this one remembered.
func (d *stateDirectory) loadFailures() (deaths []time.Time, err error) {
	data, err := os.ReadFile(d.failuresPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &deaths)
	}
	if err != nil {
		return nil, fmt.Errorf("when others took over is not known: %w", err)
	}
	return deaths, nil
}

// write writes a file in a way that a crash leaves either the old one or the new one.
func (d *stateDirectory) write(path string, content any) error {
	data, err := json.MarshalIndent(content, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".tmp", data, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

func (d *stateDirectory) assignmentsPath() string { return assignmentsFile.in(d.dir) }

// hasSnapshot says whether an earlier speaker has run since the node was booted, and
// has read an API server.
func (d *stateDirectory) hasSnapshot() bool {
	_, err := os.Stat(ClusterPath(d.dir))
	return err == nil
}

// saveAssignments writes the assignments if they have changed.
func (d *stateDirectory) saveAssignments(snap *cluster.Snapshot) error {
	if d.written && sortedset.Same(d.assignments, snap.Assignments) {
		return nil
	}
	list := slices.Clone(snap.Assignments)
	for i, a := range list {
		list[i].From = snap.OriginOf(a)
	}
	if err := d.write(d.assignmentsPath(), list); err != nil {
		return fmt.Errorf("remember assignments: %w", err)
	}
	d.assignments, d.written = snap.Assignments, true
	return nil
}

func configurationPath(runDir string) string { return configurationFile.in(runDir) }

// Configuration returns the last versions without a mistake of the objects that the
// last speaker with this run directory knew; nil when there was no such speaker.
func Configuration(runDir string) (*cluster.Configuration, error) {
	data, err := os.ReadFile(configurationPath(runDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	c := &cluster.Configuration{}
	if err == nil {
		err = json.Unmarshal(data, c)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", configurationPath(runDir), err)
	}
	return c, nil
}

// saveConfiguration writes the configuration if it has changed. A snapshot that an
// earlier speaker remembered has none.
func (d *stateDirectory) saveConfiguration(snap *cluster.Snapshot) error {
	if snap.Configuration == nil || d.configuration == snap.Configuration {
		return nil
	}
	if err := d.write(configurationPath(d.dir), snap.Configuration); err != nil {
		return fmt.Errorf("remember the configuration: %w", err)
	}
	d.configuration = snap.Configuration
	return nil
}

// Assignments returns the assignments that the last speaker with this run directory
// remembered; none when there was no such speaker. A file that cannot be read is
// put aside, and the error says so: a speaker that does not start would be worse
// than addresses that may move.
func Assignments(runDir string) ([]cluster.Assignment, error) {
	m := stateDirectory{dir: runDir}
	data, err := os.ReadFile(m.assignmentsPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("remembered assignments: %w", err)
	}
	var held []cluster.Assignment
	if err := json.Unmarshal(data, &held); err != nil {
		return nil, errors.Join(fmt.Errorf("remembered assignments are lost: %s: %w", m.assignmentsPath(), err), os.Rename(m.assignmentsPath(), m.assignmentsPath()+".bad"))
	}
	return held, nil
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

// Running says whether a speaker uses the run directory.
func Running(runDir string) bool {
	if _, err := os.Stat(runDir); err != nil {
		return false
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
	for _, f := range runFiles {
		if err := os.Remove(f.in(runDir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
