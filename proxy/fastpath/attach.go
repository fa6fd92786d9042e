package fastpath

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A hook is an interface's attach point for one of the two programs. An interface may have
// both.
type hook struct {
	index uint32 // of the interface
	role  uint32 // outward or inward
}

// String is the name of its pin.
func (h hook) String() string {
	if h.role == outward {
		return fmt.Sprintf("outward-%d", h.index)
	}
	return fmt.Sprintf("inward-%d", h.index)
}

// attachments are the programs on interfaces.
type attachments struct {
	kernel *objects
	links  map[hook]link.Link
	roles  map[uint32]uint32 // of interfaces, by their indexes
	// peers are the interfaces to backends that have been checked, and whether packets may be handed to
	// their other ends; see findPeers.
	peers   map[uint32]bool
	repairs uint64 // Status.Repairs
	found   string // Status.Found
}

// program returns the program for a hook.
func (a *attachments) program(h hook) *ebpf.Program {
	if h.role == outward {
		return a.kernel.Outward
	}
	return a.kernel.Inward
}

// findOutward returns the interfaces with these names, by index. Problems are sentences
// about interfaces that cannot be used.
func findOutward(names []string) (outs map[uint32]string, problems []string) {
	outs = make(map[uint32]string)
	for _, name := range names {
		l, why := ethernet(netlink.LinkByName(name))
		if why != "" {
			problems = append(problems, fmt.Sprintf("interface %s: %s", name, why))
			continue
		}
		outs[uint32(l.Attrs().Index)] = name
	}
	return outs, problems
}

// ethernet returns the interface, or why the programs cannot run on it: they expect an
// Ethernet header.
func ethernet(l netlink.Link, err error) (netlink.Link, string) {
	switch {
	case err != nil:
		return nil, strings.ToLower(err.Error())
	case l.Attrs().EncapType != "ether":
		return nil, fmt.Sprintf("its link type is %s, not Ethernet", l.Attrs().EncapType)
	}
	return l, ""
}

// nameOf returns an interface's name; empty if it does not exist.
func nameOf(index uint32) string {
	l, err := netlink.LinkByIndex(int(index))
	if err != nil {
		return ""
	}
	return l.Attrs().Name
}

// set attaches the programs to all interfaces that have wanted roles, and sets the roles of these
// interfaces. Programs on other interfaces stay attached for existing flows, until release detaches them.
func (a *attachments) set(want map[uint32]uint32) error {
	var errs []error
	for index, roles := range want {
		roles = a.withPeer(index, roles)
		if a.roles[index] != roles || !a.attached(index, roles) {
			errs = append(errs, a.attachRoles(index, roles))
		}
	}
	for index := range a.roles {
		if want[index] == 0 {
			errs = append(errs, a.setRoles(index, 0))
		}
	}
	return errors.Join(errs...)
}

// attached reports whether an interface has the programs for these roles.
func (a *attachments) attached(index, roles uint32) bool {
	return (roles&outward == 0 || a.links[hook{index, outward}] != nil) &&
		(roles&inward == 0 || a.links[hook{index, inward}] != nil)
}

// attachRoles attaches the programs for the roles of an interface, and sets these roles. A role whose
// program cannot be attached is not set: otherwise packets would go to an interface whose
// replies no program translates.
func (a *attachments) attachRoles(index, roles uint32) error {
	var errs []error
	for _, role := range []uint32{outward, inward} {
		if roles&role == 0 {
			continue
		}
		if err := a.attach(hook{index, role}); err != nil {
			errs = append(errs, err)
			roles = a.withPeer(index, roles&^role)
		}
	}
	return errors.Join(append(errs, a.setRoles(index, roles))...)
}

// setRoles writes the roles of an interface to the programs' map. An interface without a
// role gets no new flows.
func (a *attachments) setRoles(index, roles uint32) error {
	if a.roles[index] == roles {
		return nil
	}
	var err error
	if roles == 0 {
		err = ignoreNotExist(a.kernel.Interfaces.Delete(index))
	} else {
		err = a.kernel.Interfaces.Put(index, roles)
	}
	if err != nil {
		return fmt.Errorf("interface %d: %w", index, err)
	}
	if a.roles[index] = roles; roles == 0 {
		delete(a.roles, index)
	}
	return nil
}

// anchor returns the place of a program among those of others, of which any may end the chain, as
// Cilium's do. What another one decides about clients' packets counts, since it may be a firewall.
// Replies must be translated if the packets to the pod were, whatever others do.
func (h hook) anchor() link.Anchor {
	if h.role == outward {
		return link.Tail()
	}
	return link.Head()
}

// attach attaches a program and pins the link. The kernel detaches a program when the last
// reference to its link is gone, so that without the pin it would end with the process.
func (a *attachments) attach(h hook) error {
	if a.links[h] != nil {
		return nil
	}
	l, err := link.AttachTCX(link.TCXOptions{
		Interface: int(h.index), Program: a.program(h), Attach: ebpf.AttachTCXIngress, Anchor: h.anchor(),
	})
	if errors.Is(err, unix.ENODEV) {
		return nil // the interface was deleted; watchLinks signals it
	}
	if err != nil {
		return fmt.Errorf("attach %s: %w", h, err)
	}
	// An existing pin of this name belongs to a deleted interface with the same index.
	if err := os.Remove(a.kernel.pins.path(h.String())); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errors.Join(err, l.Close())
	}
	if err := l.Pin(a.kernel.pins.path(h.String())); err != nil {
		return errors.Join(fmt.Errorf("pin %s: %w", h, err), l.Close())
	}
	a.links[h] = l
	a.kernel.log.Info("fast path attached", "iface", nameOf(h.index), "hook", h.String())
	return nil
}

// repair attaches and pins again what other programs have detached or unpinned, and
// drops the links of deleted interfaces.
func (a *attachments) repair() error {
	found, err := a.kernel.repairPins()
	errs := []error{err}
	for h, l := range a.links {
		if !attachedTo(l, h.index) {
			errs = append(errs, a.drop(h))
			if a.roles[h.index]&h.role == 0 || nameOf(h.index) == "" {
				continue
			}
			found = append(found, h.String())
			errs = append(errs, a.attach(h))
			continue
		}
		if _, err := os.Lstat(a.kernel.pins.path(h.String())); err != nil {
			found = append(found, h.String())
			errs = append(errs, a.kernel.restorePin(l, h.String()))
		}
	}
	if len(found) > 0 {
		slices.Sort(found)
		a.repairs++
		a.found = "detached or unpinned by another program: " + strings.Join(found, ", ")
		a.kernel.log.Warn("fast path repaired", "found", a.found)
	}
	return errors.Join(errs...)
}

// attachedTo reports whether a link is attached to the interface. The kernel reports ifindex
// 0 after the link was detached or its interface deleted.
func attachedTo(l link.Link, index uint32) bool {
	info, err := l.Info()
	return err == nil && info.TCX() != nil && info.TCX().Ifindex == index
}

// drop unpins and closes a link, which detaches the program.
func (a *attachments) drop(h hook) error {
	l := a.links[h]
	delete(a.links, h)
	return errors.Join(l.Unpin(), l.Close())
}

// unused returns hooks whose interface no longer has their role.
func (a *attachments) unused() []hook {
	var all []hook
	for h := range a.links {
		if a.roles[h.index]&h.role == 0 {
			all = append(all, h)
		}
	}
	return all
}

// release detaches hooks that were unused before a walk that found no flow, and still are.
// Before that, packets of existing flows would meet the rules, which reset their connections.
func (a *attachments) release(hooks []hook) error {
	var errs []error
	for _, h := range hooks {
		if a.links[h] != nil && a.roles[h.index]&h.role == 0 {
			errs = append(errs, a.drop(h))
			a.kernel.log.Info("fast path detached", "iface", nameOf(h.index), "hook", h.String())
		}
	}
	return errors.Join(errs...)
}

// adoptRoles reads the roles of interfaces from the map.
func (a *attachments) adoptRoles() error {
	var index, roles uint32
	all := a.kernel.Interfaces.Iterate()
	for all.Next(&index, &roles) {
		a.roles[index] = roles
	}
	return all.Err()
}

// adoptHooks adopts the pinned links and replaces their programs by this process's, so that
// no packet passes without a program.
func (a *attachments) adoptHooks() error {
	pinned, err := os.ReadDir(a.kernel.pins.dir())
	errs := []error{err}
	for _, e := range pinned {
		var h hook
		switch {
		case scan(e.Name(), "outward-%d", &h.index):
			h.role = outward
		case scan(e.Name(), "inward-%d", &h.index):
			h.role = inward
		default:
			continue
		}
		errs = append(errs, a.adoptHook(h))
	}
	return errors.Join(errs...)
}

// scan reads the interface's index from the name of a pin.
func scan(name, format string, index *uint32) bool {
	_, err := fmt.Sscanf(name, format, index)
	return err == nil
}

// adoptHook adopts one pinned link. It removes a link that is detached, or whose interface was
// deleted: the index may belong to another interface now.
func (a *attachments) adoptHook(h hook) error {
	l, err := link.LoadPinnedLink(a.kernel.pins.path(h.String()), nil)
	if err != nil {
		return fmt.Errorf("%s: %w", h, err)
	}
	if !attachedTo(l, h.index) {
		return errors.Join(l.Unpin(), l.Close())
	}
	if err := l.Update(a.program(h)); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", h, err), l.Close())
	}
	a.links[h] = l
	return nil
}
