package speaker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
)

// A memory keeps under the run directory which Service holds which address, so
// that a speaker without an API server gives out the same addresses after a
// restart.
type memory struct {
	dir     string
	kept    []cluster.Assignment
	written bool // kept is in the file
	// answered is what is in the file of that name.
	answered []netip.Addr
	// dead is what is in the file of deaths.
	dead []time.Time
	// configuration is what is in the file of that name.
	configuration *cluster.Configuration
}

// A parting is an address that a speaker answered for over L2: until when it is to be
// forwarded, or zero when it was answered for to the last.
type parting struct {
	Addr  netip.Addr
	Until time.Time `json:",omitzero"`
	// Former is the node that answered for it before.
	Former string `json:",omitempty"`
}

func (m *memory) partingsPath() string { return filepath.Join(m.dir, "answered.json") }

// keepAnswered writes what is answered for over L2, and what was until lately.
func (m *memory) keepAnswered(w *way, h *holdings) error {
	if sortedset.Same(m.answered, w.have) {
		return nil
	}
	list := []parting{}
	before := h.before(w.have)
	for _, a := range w.have {
		list = append(list, parting{Addr: a, Former: before[a]})
	}
	for a, left := range w.departed {
		list = append(list, parting{Addr: a, Until: left.until})
	}
	if err := m.write(m.partingsPath(), list); err != nil {
		return fmt.Errorf("remember what is answered for: %w", err)
	}
	m.answered = w.have
	return nil
}

// partings are what the speaker before this one answered for; none when there was none. A
// file that cannot be read is worth no more than none.
func (m *memory) partings() (list []parting, err error) {
	data, err := os.ReadFile(m.partingsPath())
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

func (m *memory) deathsPath() string { return filepath.Join(m.dir, "deaths.json") }

// keepDeaths writes when others had to take over from this node.
func (m *memory) keepDeaths(deaths []time.Time) error {
	if sortedset.Same(m.dead, deaths) {
		return nil
	}
	if err := m.write(m.deathsPath(), deaths); err != nil {
		return fmt.Errorf("remember when others took over: %w", err)
	}
	m.dead = deaths
	return nil
}

// deaths are those that the speakers before this one remembered.
func (m *memory) deaths() (deaths []time.Time, err error) {
	data, err := os.ReadFile(m.deathsPath())
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
func (m *memory) write(path string, content any) error {
	data, err := json.MarshalIndent(content, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".tmp", data, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

func (m *memory) path() string { return filepath.Join(m.dir, "assignments.json") }

// cluster says whether an earlier speaker has run since the node was booted, and
// has read an API server.
func (m *memory) cluster() bool {
	_, err := os.Stat(ClusterPath(m.dir))
	return err == nil
}

// keep writes the assignments if they have changed.
func (m *memory) keep(snap *cluster.Snapshot) error {
	if m.written && sortedset.Same(m.kept, snap.Assignments) {
		return nil
	}
	list := slices.Clone(snap.Assignments)
	for i, a := range list {
		list[i].From = snap.OriginOf(a)
	}
	if err := m.write(m.path(), list); err != nil {
		return fmt.Errorf("remember assignments: %w", err)
	}
	m.kept, m.written = snap.Assignments, true
	return nil
}

func configurationPath(runDir string) string { return filepath.Join(runDir, "configuration.json") }

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

// keepConfiguration writes the configuration if it has changed. A snapshot that an
// earlier speaker remembered has none.
func (m *memory) keepConfiguration(snap *cluster.Snapshot) error {
	if snap.Configuration == nil || m.configuration == snap.Configuration {
		return nil
	}
	if err := m.write(configurationPath(m.dir), snap.Configuration); err != nil {
		return fmt.Errorf("remember the configuration: %w", err)
	}
	m.configuration = snap.Configuration
	return nil
}

// Held returns the assignments that the last speaker with this run directory
// remembered; none when there was no such speaker. A file that cannot be read is
// put aside, and the error says so: a speaker that does not start would be worse
// than addresses that may move.
func Held(runDir string) ([]cluster.Assignment, error) {
	m := memory{dir: runDir}
	data, err := os.ReadFile(m.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("remembered assignments: %w", err)
	}
	var held []cluster.Assignment
	if err := json.Unmarshal(data, &held); err != nil {
		return nil, errors.Join(fmt.Errorf("remembered assignments are lost: %s: %w", m.path(), err), os.Rename(m.path(), m.path()+".bad"))
	}
	return held, nil
}

// lock makes sure that one speaker at a time uses the run directory. The kernel
// drops the lock with the process, however that ends.
func lock(runDir string) (release func(), err error) {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	path := filepath.Join(runDir, "speaker.lock")
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
	if _, err := os.Stat(filepath.Join(runDir, "speaker.lock")); err != nil {
		return false // lock would make the file
	}
	release, err := lock(runDir)
	if err != nil {
		return true
	}
	release()
	return false
}

// Forget removes what speakers leave in the run directory.
func Forget(runDir string) error {
	var errs []error
	for _, name := range []string{"answered.json", "assignments.json", "cluster.json", "configuration.json", "deaths.json", "speaker.lock", "speaker.sock"} {
		if err := os.Remove(filepath.Join(runDir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
