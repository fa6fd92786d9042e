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

	"github.com/fanfare-lb/fanfare/internal/notify"
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

// program returns the program for a hook.
func (p *Datapath) program(h hook) *ebpf.Program {
	if h.role == outward {
		return p.kernel.Outward
	}
	return p.kernel.Inward
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

// setOutward replaces the outward interfaces, and reports them and the problems in the Status.
func (p *Datapath) setOutward(outs map[uint32]string, problems []string) {
	p.outward = make(map[uint32]bool)
	p.status.Interfaces, p.status.Problems = nil, problems
	for index, name := range outs {
		p.outward[index] = true
		p.status.Interfaces = append(p.status.Interfaces, name)
	}
	slices.Sort(p.status.Interfaces)
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

// attachWanted attaches the programs to all interfaces that need them, and sets the roles of
// these interfaces. Programs on other interfaces stay attached for existing flows, until
// release detaches them.
func (p *Datapath) attachWanted() error {
	want := make(map[uint32]uint32)
	for index := range p.outward {
		want[index] |= outward
	}
	for index := range p.linkUsers {
		want[index] |= inward
		if _, looked := p.peers[index]; !looked {
			notify.Changed(p.peersChanged)
		}
	}
	for index, roles := range want {
		want[index] = p.withPeer(index, roles)
	}
	var errs []error
	for index, roles := range want {
		if p.roles[index] != roles || !p.hooked(index, roles) {
			errs = append(errs, p.hook(index, roles))
		}
	}
	for index := range p.roles {
		if want[index] == 0 {
			errs = append(errs, p.setRoles(index, 0))
		}
	}
	return errors.Join(errs...)
}

// hooked reports whether an interface has the programs for these roles.
func (p *Datapath) hooked(index, roles uint32) bool {
	return (roles&outward == 0 || p.hooks[hook{index, outward}] != nil) && (roles&inward == 0 || p.hooks[hook{index, inward}] != nil)
}

// hook attaches the programs for the roles of an interface, and sets these roles. A role whose
// program cannot be attached is not set: otherwise packets would go to an interface whose
// replies no program translates.
func (p *Datapath) hook(index, roles uint32) error {
	var errs []error
	for _, role := range []uint32{outward, inward} {
		if roles&role == 0 {
			continue
		}
		if err := p.attach(hook{index, role}); err != nil {
			errs = append(errs, err)
			roles = p.withPeer(index, roles&^role)
		}
	}
	return errors.Join(append(errs, p.setRoles(index, roles))...)
}

// setRoles writes the roles of an interface to the programs' map. An interface without a
// role gets no new flows.
func (p *Datapath) setRoles(index, roles uint32) error {
	if p.roles[index] == roles {
		return nil
	}
	var err error
	if roles == 0 {
		err = ignoreNotExist(p.kernel.Interfaces.Delete(index))
	} else {
		err = p.kernel.Interfaces.Put(index, roles)
	}
	if err != nil {
		return fmt.Errorf("interface %d: %w", index, err)
	}
	if p.roles[index] = roles; roles == 0 {
		delete(p.roles, index)
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
func (p *Datapath) attach(h hook) error {
	if p.hooks[h] != nil {
		return nil
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: int(h.index), Program: p.program(h), Attach: ebpf.AttachTCXIngress, Anchor: h.anchor()})
	if errors.Is(err, unix.ENODEV) {
		return nil // the interface was deleted; watchLinks signals it
	}
	if err != nil {
		return fmt.Errorf("attach %s: %w", h, err)
	}
	// An existing pin of this name belongs to a deleted interface with the same index.
	if err := os.Remove(p.pins.path(h.String())); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errors.Join(err, l.Close())
	}
	if err := l.Pin(p.pins.path(h.String())); err != nil {
		return errors.Join(fmt.Errorf("pin %s: %w", h, err), l.Close())
	}
	p.hooks[h] = l
	p.log.Info("fast path attached", "iface", nameOf(h.index), "hook", h.String())
	return nil
}

// repairHooks attaches and pins again what other programs have detached or unpinned, and
// drops the links of deleted interfaces.
func (p *Datapath) repairHooks() error {
	found, err := p.repairPins()
	errs := []error{err}
	for h, l := range p.hooks {
		if !attachedTo(l, h.index) {
			errs = append(errs, p.drop(h))
			if p.roles[h.index]&h.role == 0 || nameOf(h.index) == "" {
				continue
			}
			found = append(found, h.String())
			errs = append(errs, p.attach(h))
			continue
		}
		if _, err := os.Lstat(p.pins.path(h.String())); err != nil {
			found = append(found, h.String())
			errs = append(errs, p.restorePin(l, h.String()))
		}
	}
	if len(found) > 0 {
		slices.Sort(found)
		p.status.Repairs++
		p.status.Found = "detached or unpinned by another program: " + strings.Join(found, ", ")
		p.log.Warn("fast path repaired", "found", p.status.Found)
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
func (p *Datapath) drop(h hook) error {
	l := p.hooks[h]
	delete(p.hooks, h)
	return errors.Join(l.Unpin(), l.Close())
}

// unusedHooks returns hooks whose interface no longer has their role.
func (p *Datapath) unusedHooks() []hook {
	var all []hook
	for h := range p.hooks {
		if p.roles[h.index]&h.role == 0 {
			all = append(all, h)
		}
	}
	return all
}

// release detaches hooks that were unused before a walk that found no flow, and still are.
// Before that, packets of existing flows would meet the rules, which reset their connections.
func (p *Datapath) release(hooks []hook) error {
	var errs []error
	for _, h := range hooks {
		if p.hooks[h] != nil && p.roles[h.index]&h.role == 0 {
			errs = append(errs, p.drop(h))
			p.log.Info("fast path detached", "iface", nameOf(h.index), "hook", h.String())
		}
	}
	return errors.Join(errs...)
}

// adoptRoles reads the roles of interfaces from the map.
func (p *Datapath) adoptRoles() error {
	var index, roles uint32
	all := p.kernel.Interfaces.Iterate()
	for all.Next(&index, &roles) {
		p.roles[index] = roles
	}
	return all.Err()
}

// adoptHooks adopts the pinned links and replaces their programs by this process's, so that
// no packet passes without a program.
func (p *Datapath) adoptHooks() error {
	pinned, err := os.ReadDir(p.pins.dir())
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
		errs = append(errs, p.adoptHook(h))
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
func (p *Datapath) adoptHook(h hook) error {
	l, err := link.LoadPinnedLink(p.pins.path(h.String()), nil)
	if err != nil {
		return fmt.Errorf("%s: %w", h, err)
	}
	if !attachedTo(l, h.index) {
		return errors.Join(l.Unpin(), l.Close())
	}
	if err := l.Update(p.program(h)); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", h, err), l.Close())
	}
	p.hooks[h] = l
	return nil
}
