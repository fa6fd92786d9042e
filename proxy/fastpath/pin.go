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

// version is that of the maps: another one's flows cannot be read. It goes up with
// every change of a key or a value in flow.bpf.c.
const version = "v1"

// pins is the directory of all versions.
type pins string

func (p pins) dir() string { return filepath.Join(string(p), version) }

func (p pins) path(name string) string { return filepath.Join(p.dir(), name) }

// prepare makes the directory, and removes those of other versions: two of them would
// not know of one another's flows.
func (p pins) prepare() error {
	if err := p.checkFS(); err != nil {
		return err
	}
	if err := os.MkdirAll(p.dir(), 0o700); err != nil {
		return fmt.Errorf("make a place for maps: %w", err)
	}
	all, err := os.ReadDir(string(p))
	for _, e := range all {
		if e.Name() != version {
			err = errors.Join(err, os.RemoveAll(filepath.Join(string(p), e.Name())))
		}
	}
	return err
}

// checkFS finds out whether the directory is, or would be, on a file system of BPF.
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
		return fmt.Errorf("%s is on no file system of BPF: mount one (mount -t bpf bpf /sys/fs/bpf)", at)
	}
	return nil
}

// list are the names of what is pinned.
func (p pins) list() ([]string, error) {
	all, err := os.ReadDir(p.dir())
	var names []string
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names, err
}

// removeExcept removes what is pinned, but for some, and what is empty then.
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

// remove removes all of it.
func (p pins) remove() error {
	if err := p.checkFS(); err != nil {
		return err
	}
	return os.RemoveAll(string(p))
}

// Cleanup removes what is pinned in a directory: the kernel lets go of programs, maps and
// flows. It is no error if nothing is there. Empty: DefaultDir.
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

// checkTCX asks the kernel for it: programs on loopback, which there may be none of.
func checkTCX() error {
	if _, err := link.QueryPrograms(link.QueryOptions{Target: 1, Attach: ebpf.AttachTCXIngress}); err != nil {
		return fmt.Errorf("programs of tcx, which Linux has since 6.6 for CAP_NET_ADMIN and CAP_BPF: %w", err)
	}
	return nil
}

// repairPins restores pins of maps that another program removed, and names them.
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

// restorePin pins what believes to be pinned.
func (p *Path) restorePin(m interface {
	Unpin() error
	Pin(string) error
}, name string) error {
	return errors.Join(os.MkdirAll(p.pins.dir(), 0o700), m.Unpin(), m.Pin(p.pins.path(name)))
}

func isFull(err error) bool { return errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) }
