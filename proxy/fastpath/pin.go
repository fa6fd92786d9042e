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

// version is the version of the maps' layout. Increase it with every change of a key or
// value in flow.bpf.c: flows of another version cannot be read.
const version = "v1"

// pins is the directory that has a subdirectory for each version.
type pins string

func (p pins) dir() string { return filepath.Join(string(p), version) }

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

// Cleanup removes all pinned objects in dir, so that the kernel deletes programs, maps and
// flows. An empty dir is DefaultDir; a missing one is not an error.
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

// repairPins pins maps again whose pins another program removed, and returns their names.
func (p *Path) repairPins() (found []string, err error) {
	all := map[string]*ebpf.Map{
		"flows": p.kernel.Flows, "frontends": p.kernel.Frontends, "slots": p.kernel.Slots, "clients": p.kernel.Clients,
		"interfaces": p.kernel.Interfaces, "fragments": p.kernel.Fragments, "counters": p.kernel.Counters, "lease": p.kernel.Lease,
	}
	var errs []error
	for name, m := range all {
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
func (p *Path) restorePin(m interface {
	Unpin() error
	Pin(string) error
}, name string) error {
	return errors.Join(os.MkdirAll(p.pins.dir(), 0o700), m.Unpin(), m.Pin(p.pins.path(name)))
}

func isFull(err error) bool { return errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) }
