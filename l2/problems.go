package l2

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Problems returns settings of this node that break traffic to addresses, whichever node
// holds them: a kernel that answers ARP itself, or that drops or misroutes packets. The
// kernel sends no event when such a setting changes, so each call reads them again, which
// takes a few milliseconds. Before the first Set the result is empty.
func (a *Announcer) Problems(ctx context.Context, addresses []netip.Addr) (found []Problem) {
	a.onWorker(ctx, func(w *worker) { found = findProblems(w.inspect(a.want.Addresses, addresses, a.interfaces)) })
	return found
}

// onWorker runs f on the worker, if there is one.
func (a *Announcer) onWorker(ctx context.Context, f func(w *worker)) {
	a.setMu.Lock()
	w := a.worker
	a.setMu.Unlock()
	if w != nil {
		_ = w.do(ctx, func() { f(w) })
	}
}

// facts describe how this node handles packets to addresses.
type facts struct {
	addresses []netip.Addr
	links     []linkFacts // interfaces whose subnets have the addresses
	// local lists addresses that are local to the kernel, with the interfaces that have
	// them.
	local map[netip.Addr][]string
}

// linkFacts describe one interface.
type linkFacts struct {
	Interface
	named       bool // an address of the State names it, outside its subnets
	ipv4        bool // it has an IPv4 address
	arpIgnore   int  // effective value: the maximum of "all" and its own
	arpAnnounce int
	// replyBy is the interface of the route to clients behind a router, if strict rp_filter
	// drops their packets because of it; else empty.
	replyBy string
}

// inspect reads the facts.
func (w *worker) inspect(want []Address, addresses []netip.Addr, interfaces []Interface) facts {
	f := facts{
		addresses: slices.SortedFunc(slices.Values(addresses), netip.Addr.Compare),
		local:     make(map[netip.Addr][]string),
	}
	first := make(map[int]netip.Addr) // the IPv4 address of each interface
	all, err := w.netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return f // the next call retries
	}
	names := w.names()
	for _, a := range all {
		ip, ok := netip.AddrFromSlice(a.IP)
		if ip = ip.Unmap(); !ok {
			continue
		}
		if _, found := slices.BinarySearchFunc(f.addresses, ip, netip.Addr.Compare); found {
			f.local[ip] = append(f.local[ip], names[a.LinkIndex])
		}
		if _, ok := first[a.LinkIndex]; ip.Is4() && !ok {
			first[a.LinkIndex] = ip
		}
	}
	for _, i := range interfaces {
		l := linkFacts{Interface: i, named: slices.ContainsFunc(want, func(x Address) bool {
			return x.Addr.Is4() && slices.Contains(x.Interfaces, i.Name) && !i.Has(x.Addr)
		})}
		if !l.named && !slices.ContainsFunc(f.addresses, i.Has) {
			continue
		}
		l.ipv4 = first[i.Index].IsValid()
		l.arpIgnore, l.arpAnnounce = setting(i.Name, "arp_ignore"), setting(i.Name, "arp_announce")
		if l.ipv4 {
			l.replyBy = names[w.replyInterface(i, first[i.Index])]
		}
		f.links = append(f.links, l)
	}
	return f
}

func (w *worker) names() map[int]string {
	names := make(map[int]string)
	links, err := w.netlink.LinkList()
	if err != nil {
		return names
	}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	return names
}

// setting returns the effective value of a variable of net.ipv4.conf (IN_DEV_MAXCONF). An
// unreadable one is treated as harmless.
func setting(iface, name string) int {
	highest := 0
	for _, conf := range []string{"all", iface} {
		b, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + conf + "/" + name)
		if err != nil {
			return 1 << 10
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			return 1 << 10
		}
		highest = max(highest, n)
	}
	return highest
}

// offLinkClient is a client behind a router: an address for benchmarks (RFC 2544).
var offLinkClient = netip.MustParseAddr("198.18.0.1")

// replyInterface asks the kernel to route a packet from a client behind a router that
// arrives by interface i. If strict rp_filter drops it, the result is the interface of the
// route back, else 0. The kernel applies policy routing. It reports the drop as EXDEV, and
// since Linux 6.13 as EINVAL, like other errors.
func (w *worker) replyInterface(i Interface, here netip.Addr) int {
	if setting(i.Name, "rp_filter") != 1 {
		return 0
	}
	_, err := w.netlink.RouteGetWithOptions(here.AsSlice(),
		&netlink.RouteGetOptions{IifIndex: i.Index, SrcAddr: offLinkClient.AsSlice()})
	if !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EINVAL) {
		return 0
	}
	if by := w.egress(offLinkClient, 0); by != i.Index {
		return by // 0: no route, so no such clients
	}
	return 0
}

// findProblems returns the problems, sorted by interface.
func findProblems(f facts) []Problem {
	var found []Problem
	for _, l := range f.links {
		found = append(found, f.kernelAnswers(l)...)
		if l.replyBy != "" {
			found = append(found, about(l, f.on(l), fmt.Sprintf(
				"net.ipv4.conf.%s.rp_filter is strict, and replies to clients behind a router leave by %s: the "+
					"kernel drops packets from them to addresses on %s. Set net.ipv4.conf.{all,%s}.rp_filter to 2 or "+
					"0, or add a route for replies by %s",
				l.Name, l.replyBy, l.Name, l.Name, l.Name)))
		}
		if l.named && !l.ipv4 {
			found = append(found, Problem{Interface: l.Name, Message: fmt.Sprintf(
				"%s has no IPv4 address: Fanfare answers ARP on it, but replies of pods to its link leave by another "+
					"interface or have no route. Add an address of its subnet", l.Name)})
		}
	}
	return found
}

// on returns the IPv4 addresses in the subnets of a link.
func (f facts) on(l linkFacts) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(f.addresses), func(a netip.Addr) bool { return !a.Is4() || !l.Has(a) })
}

// kernelAnswers finds addresses that an interface of this node has. IPVS assigns all of
// them to kube-ipvs0 on every node. By default the kernel then answers ARP for them on all
// interfaces, in competition with the node that holds them. For IPv6 it answers only on the
// interface that has the address.
func (f facts) kernelAnswers(l linkFacts) []Problem {
	var here []netip.Addr
	others := make(map[string][]netip.Addr)
	for _, a := range f.addresses {
		for _, name := range f.local[a] {
			switch {
			case !l.Has(a):
			case name == l.Name:
				here = append(here, a)
			case a.Is4():
				others[name] = append(others[name], a)
			}
		}
	}
	var found []Problem
	if len(here) > 0 {
		found = append(found, about(l, here, fmt.Sprintf(
			"%s is assigned to interface %s: the kernel answers for it, whichever node holds it. Remove it from the "+
				"interface or from the pool", here[0], l.Name)))
	}
	for _, name := range slices.Sorted(maps.Keys(others)) {
		const want = "set ipvs.strictARP: true in kube-proxy's configuration, or without IPVS set one of them to"
		addrs := others[name]
		if l.arpIgnore == 0 {
			found = append(found, about(l, addrs, fmt.Sprintf(
				"%s is assigned to interface %s, and net.ipv4.conf.{all,%s}.arp_ignore are 0: the kernel answers for "+
					"it on %s, whichever node holds it; %s 1",
				addrs[0], name, l.Name, l.Name, want)))
		}
		if l.arpAnnounce < 2 {
			found = append(found, about(l, addrs, fmt.Sprintf(
				"%s is assigned to interface %s, and net.ipv4.conf.{all,%s}.arp_announce are below 2: the kernel "+
					"claims it in its own ARP requests on %s, whichever node holds it; %s 2",
				addrs[0], name, l.Name, l.Name, want)))
		}
	}
	return found
}

func about(l linkFacts, addrs []netip.Addr, message string) Problem {
	p := Problem{Interface: l.Name, Count: len(addrs), Message: message}
	if len(addrs) > 0 {
		p.Addr = addrs[0]
	}
	return p
}
