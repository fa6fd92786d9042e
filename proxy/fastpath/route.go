package fastpath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A backendRoute is the interface of the route to a backend, or the reason why there is none.
type backendRoute struct {
	index uint32 // of the interface
	why   string // empty if index is valid
	users int    // how many frontends have the backend
}

// unresolved is why a frontend is not taken until the routes to its backends are known.
const unresolved = "the routes to its backends have not been looked up yet"

// routes are the routes to the backends of frontends with Take.
type routes struct {
	of         map[netip.Addr]*backendRoute
	uses       map[kernelFrontend][]netip.Addr // the backends of frontends
	unresolved int                             // how many have not been looked up yet
	links      map[uint32]int                  // how many use each interface
}

func newRoutes() routes {
	return routes{make(map[netip.Addr]*backendRoute), make(map[kernelFrontend][]netip.Addr), 0, make(map[uint32]int)}
}

// use records the backends of changed frontends, and looks up the routes to new ones. If
// these are many, they stay unresolved, so that Grow does not wait for thousands of lookups.
func (r *routes) use(touched map[kernelFrontend]*Frontend) {
	var fresh []netip.Addr
	for key, f := range touched {
		had := r.uses[key]
		delete(r.uses, key)
		if f != nil && f.Take {
			for _, b := range f.Backends {
				a := b.Addr.Addr()
				if r.of[a] == nil {
					r.of[a], fresh = &backendRoute{why: unresolved}, append(fresh, a)
					r.unresolved++
				}
				r.of[a].users++
				r.uses[key] = append(r.uses[key], a)
			}
		}
		for _, a := range had {
			w := r.of[a]
			if w.users--; w.users == 0 {
				r.set(w, backendRoute{why: "unused"})
				delete(r.of, a)
			}
		}
	}
	if len(fresh) <= routesPerCall {
		for a, w := range findRoutes(fresh) {
			r.set(r.of[a], w)
		}
	}
}

// update changes the routes that are still in use, and returns the frontends of different ones.
func (r *routes) update(found map[netip.Addr]backendRoute) (changed []kernelFrontend) {
	different := make(map[netip.Addr]bool)
	for a, now := range found {
		if w := r.of[a]; w != nil && r.set(w, now) {
			different[a] = true
		}
	}
	if len(different) == 0 {
		return nil
	}
	for key, backends := range r.uses {
		if slices.ContainsFunc(backends, func(a netip.Addr) bool { return different[a] }) {
			changed = append(changed, key)
		}
	}
	return changed
}

// set changes a route, and reports whether it was different.
func (r *routes) set(w *backendRoute, to backendRoute) bool {
	if w.index == to.index && w.why == to.why {
		return false
	}
	switch w.why {
	case unresolved:
		r.unresolved--
	case "":
		if r.links[w.index]--; r.links[w.index] == 0 {
			delete(r.links, w.index)
		}
	}
	if to.why == "" {
		r.links[to.index]++
	}
	w.index, w.why = to.index, to.why
	return true
}

// routesPerCall is how many routes one system call requests. All responses must fit into
// the receive buffer (net.core.rmem_default, 208 KiB), which the kernel charges some
// kilobytes for each.
const routesPerCall = 32

// findRoutes looks up the routes to backends, which must be unique. It asks the kernel for
// each instead of reading the main table, which is wrong under policy routing.
func findRoutes(backends []netip.Addr) map[netip.Addr]backendRoute {
	found := make(map[netip.Addr]backendRoute, len(backends))
	if len(backends) == 0 {
		return found
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err == nil {
		defer unix.Close(fd)
	}
	links := make(map[uint32]string)
	for some := range slices.Chunk(backends, routesPerCall) {
		answers := make(map[uint32]routeAnswer)
		if err == nil {
			err = askRoutes(fd, some, answers)
		}
		for i, a := range some {
			got, ok := answers[uint32(i)]
			switch {
			case ok:
				found[a] = got.route(a, links)
			case err != nil:
				found[a] = backendRoute{why: fmt.Sprintf("look up the route to backend %s: %v", a, err)}
			default:
				found[a] = backendRoute{why: fmt.Sprintf("look up the route to backend %s: no response from the kernel",
					a)}
			}
		}
	}
	return found
}

// A routeAnswer is the kernel's response about one route.
type routeAnswer struct {
	err     error // ENETUNREACH and the like
	kind    uint8 // RTN_UNICAST and so on
	index   uint32
	gateway bool
}

// askRoutes requests routes by one datagram, and stores the responses by the index of the
// address. The kernel responds before the system call returns.
func askRoutes(fd int, to []netip.Addr, answers map[uint32]routeAnswer) error {
	var requests []byte
	for i, a := range to {
		requests = append(requests, routeRequest(uint32(i), a.Unmap())...)
	}
	if err := unix.Sendto(fd, requests, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buffer := make([]byte, 8<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOBUFS): // lost responses are missing in answers
			continue
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil:
			return err
		}
		messages, err := syscall.ParseNetlinkMessage(buffer[:n])
		if err != nil {
			return err
		}
		for _, m := range messages {
			answers[m.Header.Seq] = answerOf(m)
		}
	}
}

// routeRequest returns the message of "ip route get".
func routeRequest(seq uint32, to netip.Addr) []byte {
	m := &nl.RtMsg{RtMsg: unix.RtMsg{
		Family: unix.AF_INET6, Dst_len: uint8(to.BitLen()), Flags: unix.RTM_F_LOOKUP_TABLE,
	}}
	if to.Is4() {
		m.Family = unix.AF_INET
	}
	r := &nl.NetlinkRequest{NlMsghdr: unix.NlMsghdr{
		Len: unix.SizeofNlMsghdr, Type: unix.RTM_GETROUTE, Flags: unix.NLM_F_REQUEST, Seq: seq,
	}}
	r.AddData(m)
	r.AddData(nl.NewRtAttr(unix.RTA_DST, to.AsSlice()))
	return r.Serialize()
}

// answerOf decodes one message, RTM_NEWROUTE or an error.
func answerOf(m syscall.NetlinkMessage) routeAnswer {
	if m.Header.Type == unix.NLMSG_ERROR && len(m.Data) >= 4 {
		return routeAnswer{err: unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))}
	}
	if m.Header.Type != unix.RTM_NEWROUTE || len(m.Data) < unix.SizeofRtMsg {
		return routeAnswer{err: fmt.Errorf("a message of type %d", m.Header.Type)}
	}
	all, err := nl.ParseRouteAttr(m.Data[unix.SizeofRtMsg:])
	a := routeAnswer{err: err, kind: nl.DeserializeRtMsg(m.Data).Type}
	for _, attr := range all {
		switch attr.Attr.Type {
		case unix.RTA_OIF:
			a.index = binary.NativeEndian.Uint32(attr.Value)
		case unix.RTA_GATEWAY, unix.RTA_VIA:
			a.gateway = true
		}
	}
	return a
}

// leadsToPods returns why pods are not on an interface itself, empty if they may be. The routes to
// Cilium's pods lead to cilium_host, where a program hands packets on: replies do not return there.
// The interface resolves no addresses.
func leadsToPods(l netlink.Link, err error) (why string) {
	if _, why = ethernet(l, err); why == "" && l.Attrs().RawFlags&unix.IFF_NOARP != 0 {
		why = fmt.Sprintf("%s does not resolve addresses (NOARP), so that pods are elsewhere", l.Attrs().Name)
	}
	return why
}

// route converts the kernel's response. links caches why an interface cannot be used, empty if
// it can.
func (a routeAnswer) route(backend netip.Addr, links map[uint32]string) backendRoute {
	switch {
	case a.err != nil:
		return backendRoute{why: fmt.Sprintf("no route to backend %s: %v", backend, a.err)}
	case a.kind == unix.RTN_LOCAL:
		return backendRoute{why: fmt.Sprintf("backend %s is the node itself", backend)}
	case a.kind != unix.RTN_UNICAST:
		return backendRoute{why: fmt.Sprintf("no route to backend %s", backend)}
	case a.gateway:
		// The backend's replies may return by another gateway.
		return backendRoute{why: fmt.Sprintf("backend %s is behind a gateway, not on a link of this node", backend)}
	}
	why, known := links[a.index]
	if !known {
		why = leadsToPods(netlink.LinkByIndex(int(a.index)))
		links[a.index] = why
	}
	if why != "" {
		return backendRoute{why: fmt.Sprintf("the interface to backend %s: %s", backend, why)}
	}
	return backendRoute{index: a.index}
}
