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

// Problems look for what is in the way of traffic for addresses, whichever node answers for
// them: a kernel that answers itself, or that drops or misroutes what comes in. The kernel
// tells nobody when such a setting changes, so this reads them anew; it takes a few
// milliseconds. There are none before the first Set.
func (a *Announcer) Problems(ctx context.Context, addresses []netip.Addr) []Problem {
	a.setMu.Lock()
	k := a.worker
	a.setMu.Unlock()
	if k == nil {
		return nil
	}
	var found []Problem
	_ = k.do(ctx, func() { found = findProblems(k.inspect(a.want.Addresses, addresses, a.interfaces)) })
	return found
}

// facts are what a node does with packets for addresses.
type facts struct {
	addresses []netip.Addr
	links     []linkFacts // of interfaces that the addresses belong on
	// local are those of the addresses that the kernel takes for its own, with the
	// interfaces that they are on.
	local map[netip.Addr][]string
}

// linkFacts are about one interface.
type linkFacts struct {
	Interface
	named       bool // by an address of the State that is in no subnet of it
	ipv4        bool // it has an IPv4 address
	arpIgnore   int  // as the kernel sees it: the higher of that of all and its own
	arpAnnounce int
	// back is the interface by which a client behind a router is reached, where the
	// kernel drops what such a client sends because of that; else empty.
	replyBy string
}

// survey reads what there is to know.
func (k *worker) inspect(want []Address, addresses []netip.Addr, interfaces []Interface) facts {
	f := facts{addresses: slices.SortedFunc(slices.Values(addresses), netip.Addr.Compare), local: make(map[netip.Addr][]string)}
	first := make(map[int]netip.Addr) // the IPv4 address of each interface
	all, err := k.netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return f // and the next look will find more
	}
	names := k.names()
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
			l.replyBy = names[k.replyInterface(i, first[i.Index])]
		}
		f.links = append(f.links, l)
	}
	return f
}

func (k *worker) names() map[int]string {
	names := make(map[int]string)
	links, err := k.netlink.LinkList()
	if err != nil {
		return names
	}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	return names
}

// setting is a variable of net.ipv4.conf as the kernel uses it (IN_DEV_MAXCONF). What cannot
// be read is taken for harmless.
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

// elsewhere is a client that is on no link (RFC 2544's addresses are nobody's).
var offLinkClient = netip.MustParseAddr("198.18.0.1")

// wayBack asks the kernel what it would do with a packet that a client behind a router sends
// by an interface to this node. If it dropped it because the way back is by another one
// (rp_filter), that is the answer, else 0. Policy routing is thus taken into account. The
// kernel's word for it is EXDEV, since Linux 6.13 EINVAL, as for much else.
func (k *worker) replyInterface(i Interface, here netip.Addr) int {
	if setting(i.Name, "rp_filter") != 1 {
		return 0
	}
	_, err := k.netlink.RouteGetWithOptions(here.AsSlice(), &netlink.RouteGetOptions{IifIndex: i.Index, SrcAddr: offLinkClient.AsSlice()})
	if !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EINVAL) {
		return 0
	}
	routes, err := k.netlink.RouteGet(offLinkClient.AsSlice())
	if err != nil || len(routes) == 0 || routes[0].LinkIndex == i.Index {
		return 0 // no route to such clients at all: there are none
	}
	return routes[0].LinkIndex
}

// judge says what of the facts is a problem, sorted by interface.
func findProblems(f facts) []Problem {
	var found []Problem
	for _, l := range f.links {
		found = append(found, f.kernelAnswers(l)...)
		if l.replyBy != "" {
			found = append(found, f.about(l, f.on(l), fmt.Sprintf(
				"rp_filter of %s is strict, and clients behind a router are reached by %s: the kernel drops what they send to addresses on %s; want net.ipv4.conf.{all,%s}.rp_filter to be 2 or 0, or a route for answers back by %s",
				l.Name, l.replyBy, l.Name, l.Name, l.Name)))
		}
		if l.named && !l.ipv4 {
			found = append(found, Problem{Interface: l.Name, Message: fmt.Sprintf(
				"%s has no IPv4 address: it is answered on, but answers of pods go to its link by another interface, or nowhere; want an address of its subnet on it", l.Name)})
		}
	}
	return found
}

// on are the addresses that belong on a link, of IPv4.
func (f facts) on(l linkFacts) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(f.addresses), func(a netip.Addr) bool { return !a.Is4() || !l.Has(a) })
}

// kernelAnswers is about addresses that are on some interface of this node, as IPVS puts all
// of them on kube-ipvs0 of every node: unless told otherwise, the kernel then answers ARP for
// them on all interfaces, in competition with the node that should. For IPv6 it answers only
// on the interface that has the address.
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
		found = append(found, f.about(l, here, fmt.Sprintf(
			"%s is an address of %s: the kernel answers for it, whichever node should; take it from the interface, or out of the pool", here[0], l.Name)))
	}
	for _, name := range slices.Sorted(maps.Keys(others)) {
		const want = "want ipvs.strictARP: true in kube-proxy's configuration if that is IPVS's, else"
		addrs := others[name]
		if l.arpIgnore == 0 {
			found = append(found, f.about(l, addrs, fmt.Sprintf(
				"%s is an address of %s, and net.ipv4.conf.{all,%s}.arp_ignore are 0: the kernel answers for it on %s, whichever node should; %s 1 for one of them",
				addrs[0], name, l.Name, l.Name, want)))
		}
		if l.arpAnnounce < 2 {
			found = append(found, f.about(l, addrs, fmt.Sprintf(
				"%s is an address of %s, and net.ipv4.conf.{all,%s}.arp_announce are below 2: the kernel claims it in ARP requests of its own on %s, whichever node has it; %s 2 for one of them",
				addrs[0], name, l.Name, l.Name, want)))
		}
	}
	return found
}

func (f facts) about(l linkFacts, addrs []netip.Addr, message string) Problem {
	p := Problem{Interface: l.Name, Count: len(addrs), Message: message}
	if len(addrs) > 0 {
		p.Addr = addrs[0]
	}
	return p
}
