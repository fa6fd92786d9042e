package fastpath

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A hook is a place for one of the two programs. An interface may have both.
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

func (p *Path) program(h hook) *ebpf.Program {
	if h.role == outward {
		return p.kernel.Outward
	}
	return p.kernel.Inward
}

// survey finds the interfaces that p.want needs, and for each backend what is in its
// way, or nothing.
func (p *Path) survey() (want map[uint32]uint32, ways map[netip.Addr]string, err error) {
	want, ways = make(map[uint32]uint32), make(map[netip.Addr]string)
	for _, name := range p.want.Outward {
		l, why := ethernet(netlink.LinkByName(name))
		if why != "" {
			p.status.Problems = append(p.status.Problems, fmt.Sprintf("interface %s: %s", name, why))
			continue
		}
		want[uint32(l.Attrs().Index)] |= outward
		p.status.Interfaces = append(p.status.Interfaces, name)
	}
	for i := range p.want.Frontends {
		if !p.want.Frontends[i].Take {
			continue
		}
		for _, b := range p.want.Frontends[i].Backends {
			a := b.Addr.Addr()
			if _, asked := ways[a]; asked {
				continue
			}
			var index int
			if index, ways[a] = way(a); ways[a] == "" {
				want[uint32(index)] |= inward
			}
		}
	}
	return want, ways, nil
}

// way finds the interface by which a backend is reached, or says what is in the way.
func way(backend netip.Addr) (index int, why string) {
	routes, err := netlink.RouteGet(backend.Unmap().AsSlice())
	switch {
	case err != nil || len(routes) == 0:
		return 0, fmt.Sprintf("no route leads to backend %s (%v)", backend, err)
	case routes[0].Type == unix.RTN_LOCAL:
		return 0, fmt.Sprintf("backend %s is the node itself", backend)
	case routes[0].Type != unix.RTN_UNICAST:
		return 0, fmt.Sprintf("no route leads to backend %s", backend)
	case routes[0].Gw != nil || routes[0].Via != nil:
		// Who answers may take another way back.
		return 0, fmt.Sprintf("no interface leads to backend %s, but a gateway", backend)
	}
	if _, why := ethernet(netlink.LinkByIndex(routes[0].LinkIndex)); why != "" {
		return 0, fmt.Sprintf("the interface that leads to backend %s: %s", backend, why)
	}
	return routes[0].LinkIndex, ""
}

// ethernet says what is wrong with an interface, if there is anything: the programs
// expect Ethernet's header.
func ethernet(l netlink.Link, err error) (netlink.Link, string) {
	switch {
	case err != nil:
		return nil, strings.ToLower(err.Error())
	case l.Attrs().EncapType != "ether":
		return nil, fmt.Sprintf("it is no Ethernet, but %s", l.Attrs().EncapType)
	}
	return l, ""
}

func nameOf(index uint32) string {
	l, err := netlink.LinkByIndex(int(index))
	if err != nil {
		return ""
	}
	return l.Attrs().Name
}

// hook attaches programs where they are wanted and says so to them. Where they are not
// wanted any more they stay for the flows that there are: see release.
func (p *Path) hook(want map[uint32]uint32) error {
	var errs []error
	for index, roles := range want {
		for _, role := range []uint32{outward, inward} {
			if roles&role == 0 {
				continue
			}
			if err := p.attach(hook{index, role}); err != nil {
				errs = append(errs, err)
				roles &^= role
			}
		}
		errs = append(errs, p.setRoles(index, roles))
	}
	for index := range p.roles {
		if want[index] == 0 {
			errs = append(errs, p.setRoles(index, 0))
		}
	}
	return errors.Join(errs...)
}

// setRoles tells the programs what an interface is. Without a role it gets no new flows.
func (p *Path) setRoles(index, roles uint32) error {
	if p.roles[index] == roles {
		return nil
	}
	var err error
	if roles == 0 {
		err = gone(p.kernel.Interfaces.Delete(index))
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

// attach attaches a program behind those that are there, and pins it.
func (p *Path) attach(h hook) error {
	if p.hooks[h] != nil {
		return nil
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: int(h.index), Program: p.program(h), Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, unix.ENODEV) {
		return nil // it went; who watches interfaces will say so
	}
	if err != nil {
		return fmt.Errorf("attach %s: %w", h, err)
	}
	// A pin with that name is of an interface that has gone.
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

// mend puts right what others have detached or unpinned, and lets go of interfaces
// that are gone.
func (p *Path) mend() error {
	found, err := p.repin()
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
			errs = append(errs, p.pinAgain(l, h.String()))
		}
	}
	if len(found) > 0 {
		slices.Sort(found)
		p.status.Repairs++
		p.status.Found = "detached or unpinned by somebody else: " + strings.Join(found, ", ")
		p.log.Warn("fast path repaired", "found", p.status.Found)
	}
	return errors.Join(errs...)
}

// attachedTo says whether a link is still where it was: of an interface that went, or
// of which it was detached, it is nowhere.
func attachedTo(l link.Link, index uint32) bool {
	info, err := l.Info()
	return err == nil && info.TCX() != nil && info.TCX().Ifindex == index
}

// drop lets go of a link.
func (p *Path) drop(h hook) error {
	l := p.hooks[h]
	delete(p.hooks, h)
	return errors.Join(l.Unpin(), l.Close())
}

// unwanted are hooks whose interface has not that role any more.
func (p *Path) unwanted() []hook {
	var all []hook
	for h := range p.hooks {
		if p.roles[h.index]&h.role == 0 {
			all = append(all, h)
		}
	}
	return all
}

// release lets go of hooks that nobody needs: they were not wanted before a walk that
// found no flow, and are not now.
func (p *Path) release(hooks []hook) error {
	var errs []error
	for _, h := range hooks {
		if p.hooks[h] != nil && p.roles[h.index]&h.role == 0 {
			errs = append(errs, p.drop(h))
			p.log.Info("fast path detached", "iface", nameOf(h.index), "hook", h.String())
		}
	}
	return errors.Join(errs...)
}

func (p *Path) adoptRoles() error {
	var index, roles uint32
	all := p.kernel.Interfaces.Iterate()
	for all.Next(&index, &roles) {
		p.roles[index] = roles
	}
	return all.Err()
}

// adoptHooks takes over the links that are pinned: they get this process's programs,
// without a packet between.
func (p *Path) adoptHooks() error {
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

func scan(name, format string, index *uint32) bool {
	_, err := fmt.Sscanf(name, format, index)
	return err == nil
}

func (p *Path) adoptHook(h hook) error {
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
