package fastpath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
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

// objects are the programs and maps in the kernel, with their pins.
type objects struct {
	kernelObjects
	pins pins
	log  *slog.Logger
	room int // capacity of the map flows, in flows
}

// maps returns the pinned maps, by the names of their pins.
func (o *objects) maps() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		"flows": o.Flows, "frontends": o.Frontends, "slots": o.Slots, "clients": o.Clients,
		"interfaces": o.Interfaces, "datagrams": o.Datagrams, "overtaken": o.Overtaken,
		"usages": o.Usages, "room": o.Room, "statistics": o.Statistics, "lease": o.Lease,
	}
}

// removeStale removes those of the pinned objects that this program does not have: maps that
// another one, with the same flows, had beside them.
func (o *objects) removeStale(had []string) error {
	var errs []error
	for _, name := range had {
		var index uint32
		isLink := scan(name, "outward-%d", &index) || scan(name, "inward-%d", &index)
		if !isLink && o.maps()[name] == nil {
			errs = append(errs, os.Remove(o.pins.path(name)))
		}
	}
	return errors.Join(errs...)
}

// repairPins pins maps again whose pins another program removed, and returns their names.
func (o *objects) repairPins() (found []string, err error) {
	var errs []error
	for name, m := range o.maps() {
		if _, err := os.Lstat(o.pins.path(name)); err == nil {
			continue
		}
		found = append(found, name)
		errs = append(errs, o.restorePin(m, name))
	}
	slices.Sort(found)
	return found, errors.Join(errs...)
}

// restorePin pins an object again. Unpin comes first, because the library remembers the
// removed pin.
func (o *objects) restorePin(m interface {
	Unpin() error
	Pin(string) error
}, name string) error {
	return errors.Join(os.MkdirAll(o.pins.dir(), 0o700), m.Unpin(), m.Pin(o.pins.path(name)))
}

// isFull reports whether a map has no room: a hash map returns E2BIG, an LPM trie ENOSPC.
func isFull(err error) bool { return errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) }

// load creates or adopts the maps, and loads the programs.
func (o *objects) load(flows uint32) error {
	if err := o.pins.prepare(); err != nil {
		return err
	}
	had, err := o.pins.list()
	if err != nil {
		return err
	}
	if err := checkTCX(); err != nil {
		return errors.Join(err, o.pins.removeExcept(had))
	}
	err = o.loadInto(flows)
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		// Released maps of one version are equal: only development builds get here.
		o.log.Warn("fast path: pinned maps have another layout; they are deleted with their flows", "err", err)
		if err := o.pins.remove(); err != nil {
			return err
		}
		if err := o.pins.prepare(); err != nil {
			return err
		}
		had, err = nil, o.loadInto(flows)
	}
	if err != nil {
		// Remove the new maps, which are incomplete. Earlier ones have flows: keep them.
		return errors.Join(err, o.pins.removeExcept(had))
	}
	return o.removeStale(had)
}

// loadInto loads the programs and maps with room for flows, or for as many as the pinned map has:
// the library rejects a pinned map of another size, and a new one would lose the flows.
func (o *objects) loadInto(flows uint32) error {
	spec, err := loadKernel()
	if err != nil {
		return fmt.Errorf("read the program: %w", err)
	}
	spec.Maps["flows"].MaxEntries = 2 * flows
	fresh := true
	if had, err := ebpf.LoadPinnedMap(o.pins.path("flows"), nil); err == nil {
		if n := had.MaxEntries(); n != 2*flows {
			o.log.Info("fast path: the existing flow table keeps its size", "flows", n/2, "wanted", flows)
			spec.Maps["flows"].MaxEntries = n
		}
		fresh = false
		had.Close()
	}
	o.room = int(spec.Maps["flows"].MaxEntries / 2)
	err = spec.LoadAndAssign(&o.kernelObjects, &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: o.pins.dir()}})
	if err != nil || !fresh {
		return err // without a count of flows, the first walk makes one
	}
	return o.Room.Put(uint32(0), int32(o.room))
}
