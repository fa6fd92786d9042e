package fastpath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// version is the version of the layout of flows. Increase it with every change of a key or
// value of the map flows in flow.bpf.c, and of the maps that the process reads at its start:
// flows of another version cannot be read, and end. Give another map that changes a new name instead,
// so that flows survive the upgrade.
const version = "v1"

// pins is the directory that has a subdirectory for each version.
type pins string

// dir returns the subdirectory of this version.
func (p pins) dir() string { return filepath.Join(string(p), version) }

// path returns the path of a pinned map or link.
func (p pins) path(name string) string { return filepath.Join(p.dir(), name) }

// prepare creates the directory, and removes those of other versions: programs of two
// versions would not share flows.
func (p pins) prepare() error {
	if err := p.checkFS(); err != nil {
		return err
	}
	if err := os.MkdirAll(p.dir(), 0o700); err != nil {
		return fmt.Errorf("create the directory for maps: %w", err)
	}
	all, err := os.ReadDir(string(p))
	for _, e := range all {
		if e.Name() != version {
			err = errors.Join(err, os.RemoveAll(filepath.Join(string(p), e.Name())))
		}
	}
	return err
}

// checkFS returns an error unless the directory is, or would be, on a BPF file system.
func (p pins) checkFS() error {
	at := string(p)
	var s unix.Statfs_t
	err := unix.Statfs(at, &s)
	for errors.Is(err, unix.ENOENT) && at != filepath.Dir(at) {
		at = filepath.Dir(at)
		err = unix.Statfs(at, &s)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	if s.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("%s is not on a BPF file system: mount one (mount -t bpf bpf /sys/fs/bpf)", at)
	}
	return nil
}

// list returns the names of pinned objects.
func (p pins) list() ([]string, error) {
	all, err := os.ReadDir(p.dir())
	var names []string
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names, err
}

// removeExcept removes pinned objects except keep, and empty directories.
func (p pins) removeExcept(keep []string) error {
	all, err := p.list()
	errs := []error{err}
	for _, name := range all {
		if !slices.Contains(keep, name) {
			errs = append(errs, os.Remove(p.path(name)))
		}
	}
	if len(keep) == 0 {
		errs = append(errs, os.Remove(p.dir()), os.Remove(string(p)))
	}
	return errors.Join(errs...)
}

// remove removes the directory of all versions.
func (p pins) remove() error {
	if err := p.checkFS(); err != nil {
		return err
	}
	return os.RemoveAll(string(p))
}

// Cleanup removes all pinned objects in dir, so that the kernel detaches the programs and deletes
// maps and flows. Connections of the fast path end: the rules do not know them. No process may
// have a Datapath on dir, since it would pin them again. An empty dir is DefaultDir; a missing one
// is not an error, but one outside of a BPF file system is.
func Cleanup(_ context.Context, dir string) error {
	if dir == "" {
		dir = DefaultDir
	}
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := pins(dir).remove(); err != nil {
		return fmt.Errorf("remove the fast path: %w", err)
	}
	return nil
}

// checkTCX returns an error if the kernel has no tcx: it queries loopback's programs.
func checkTCX() error {
	if _, err := link.QueryPrograms(link.QueryOptions{Target: 1, Attach: ebpf.AttachTCXIngress}); err != nil {
		return fmt.Errorf("query tcx programs, which need Linux 6.6 or later, CAP_NET_ADMIN and CAP_BPF: %w", err)
	}
	return nil
}

// maps returns the pinned maps, by the names of their pins.
func (p *Datapath) maps() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		"flows": p.kernel.Flows, "frontends": p.kernel.Frontends, "slots": p.kernel.Slots, "clients": p.kernel.Clients,
		"interfaces": p.kernel.Interfaces, "datagrams": p.kernel.Datagrams, "overtaken": p.kernel.Overtaken,
		"usages": p.kernel.Usages, "room": p.kernel.Room, "statistics": p.kernel.Statistics, "lease": p.kernel.Lease,
	}
}

// removeStale removes those of the pinned objects that this program does not have: maps that
// another one, with the same flows, had beside them.
func (p *Datapath) removeStale(had []string) error {
	var errs []error
	for _, name := range had {
		var index uint32
		isLink := scan(name, "outward-%d", &index) || scan(name, "inward-%d", &index)
		if !isLink && p.maps()[name] == nil {
			errs = append(errs, os.Remove(p.pins.path(name)))
		}
	}
	return errors.Join(errs...)
}

// repairPins pins maps again whose pins another program removed, and returns their names.
func (p *Datapath) repairPins() (found []string, err error) {
	var errs []error
	for name, m := range p.maps() {
		if _, err := os.Lstat(p.pins.path(name)); err == nil {
			continue
		}
		found = append(found, name)
		errs = append(errs, p.restorePin(m, name))
	}
	slices.Sort(found)
	return found, errors.Join(errs...)
}

// restorePin pins an object again. Unpin comes first, because the library remembers the
// removed pin.
func (p *Datapath) restorePin(m interface {
	Unpin() error
	Pin(string) error
}, name string) error {
	return errors.Join(os.MkdirAll(p.pins.dir(), 0o700), m.Unpin(), m.Pin(p.pins.path(name)))
}

// isFull reports whether a map has no room: a hash map returns E2BIG, an LPM trie ENOSPC.
func isFull(err error) bool { return errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) }

// load creates or adopts the maps, and loads the programs.
func (p *Datapath) load(flows uint32) error {
	if err := p.pins.prepare(); err != nil {
		return err
	}
	had, err := p.pins.list()
	if err != nil {
		return err
	}
	if err := checkTCX(); err != nil {
		return errors.Join(err, p.pins.removeExcept(had))
	}
	err = p.loadInto(flows)
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		// Released maps of one version are equal: only development builds get here.
		p.log.Warn("fast path: pinned maps have another layout; they are deleted with their flows", "err", err)
		if err := p.pins.remove(); err != nil {
			return err
		}
		if err := p.pins.prepare(); err != nil {
			return err
		}
		had, err = nil, p.loadInto(flows)
	}
	if err != nil {
		// Remove the new maps, which are incomplete. Earlier ones have flows: keep them.
		return errors.Join(err, p.pins.removeExcept(had))
	}
	return p.removeStale(had)
}

// loadInto loads the programs and maps with room for flows, or for as many as the pinned map has:
// the library rejects a pinned map of another size, and a new one would lose the flows.
func (p *Datapath) loadInto(flows uint32) error {
	spec, err := loadKernel()
	if err != nil {
		return fmt.Errorf("read the program: %w", err)
	}
	spec.Maps["flows"].MaxEntries = 2 * flows
	fresh := true
	if had, err := ebpf.LoadPinnedMap(p.pins.path("flows"), nil); err == nil {
		if n := had.MaxEntries(); n != 2*flows {
			p.log.Info("fast path: the existing flow table keeps its size", "flows", n/2, "wanted", flows)
			spec.Maps["flows"].MaxEntries = n
		}
		fresh = false
		had.Close()
	}
	p.room = int(spec.Maps["flows"].MaxEntries / 2)
	err = spec.LoadAndAssign(&p.kernel, &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: p.pins.dir()}})
	if err != nil || !fresh {
		return err // without a count of flows, the first walk makes one
	}
	return p.kernel.Room.Put(uint32(0), int32(p.room))
}
