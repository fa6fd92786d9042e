package lab

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"
)

// The BGP implementations that a Router can run.
const (
	FRR  = "FRR"
	BIRD = "BIRD"
)

// A Router is the node that the speakers peer with: a kernel that forwards, and software
// that programs its routes.
type Router struct {
	*Namespace
	lab    *Lab
	node   Node
	kernel *netlink.Handle
	procs  []*Process
	software
	installed map[string]software // by name; each has its own files
	direct    map[int]string      // nodes with a link of their own, by the router's interface
}

// software is a BGP implementation for a Router. The Router reads the results from its
// kernel and not from the software.
type software interface {
	fmt.Stringer
	// Start starts the daemons, and returns when they have loaded the configuration.
	Start(context.Context) error
	// Ask runs commands of an operator one after the other and returns their output.
	Ask(ctx context.Context, commands ...string) (string, error)
	// Established returns the nodes with an established session, sorted.
	Established(context.Context) ([]string, error)
	// routeDelay says where the software delays routes on their way to the kernel; empty if it
	// does not.
	routeDelay() string
}

func (l *Lab) newRouter(n Node) (*Router, error) {
	r := &Router{Namespace: l.namespaces[n.Name], lab: l, node: n, installed: map[string]software{}}
	var err error
	if r.direct, err = l.directLinks(n.Name); err != nil {
		return nil, err
	}
	if r.kernel, err = netlink.NewHandleAt(r.handle, unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("%s: %w", n.Name, err)
	}
	return r, r.install(cmp.Or(l.Software, FRR))
}

// install selects the Router's software by name. It does not start it.
func (r *Router) install(name string) (err error) {
	s := r.installed[name]
	switch {
	case s != nil:
	case name == FRR:
		s, err = newFRR(r, r.node)
	case name == BIRD:
		s, err = newBIRD(r, r.node)
	default:
		err = fmt.Errorf("router %q: the lab knows %s and %s", name, FRR, BIRD)
	}
	if err != nil {
		return err
	}
	r.software, r.installed[name] = s, s
	return nil
}

// Replace stops the software and starts another in its place. All sessions and routes are
// new.
func (r *Router) Replace(ctx context.Context, name string) error {
	if err := r.Stop(); err != nil {
		return err
	}
	if err := r.install(name); err != nil {
		return err
	}
	return r.Start(ctx)
}

// run starts one of the software's daemons, and waits until it answers.
func (r *Router) run(ctx context.Context, name string, answers func() error, args ...string) error {
	p, err := r.lab.startProcess(r.Namespace, name, args...)
	if err != nil {
		return err
	}
	r.procs = append(r.procs, p)
	return Await(ctx, Settle, name+" answers", func() error {
		if !p.Alive() {
			return fmt.Errorf("it ended: %v; see %s", p.err, r.lab.path("log", name+".log"))
		}
		return answers()
	})
}

// Stop ends the software as a service manager does: it closes its sessions and removes its
// routes from the kernel.
func (r *Router) Stop() error { return r.stop(syscall.SIGTERM) }

func (r *Router) stop(sig syscall.Signal) error {
	var errs []error
	for _, p := range slices.Backward(r.procs) {
		errs = append(errs, p.Stop(sig, Settle))
	}
	r.procs = nil
	return errors.Join(errs...)
}

// NextHops returns the nodes that the router's kernel sends an address's packets to,
// sorted; none without a route.
func (r *Router) NextHops(vip netip.Addr) ([]string, error) {
	return r.Via(netip.PrefixFrom(vip, vip.BitLen()))
}

// Via returns the next hops of the route to exactly this prefix; none without a route.
func (r *Router) Via(prefix netip.Prefix) ([]string, error) {
	family := netlink.FAMILY_V4
	if prefix.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	filter := &netlink.Route{Dst: netipx.PrefixIPNet(prefix), Table: unix.RT_TABLE_MAIN}
	routes, err := r.kernel.RouteListFiltered(family, filter, netlink.RT_FILTER_DST|netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("routes of %s: %w", r.Name, err)
	}
	var nodes []string
	for _, route := range routes {
		nodes = append(nodes, r.nextHops(route)...)
	}
	slices.Sort(nodes)
	return nodes, nil
}

// AwaitNextHops waits until the router's kernel sends an address's packets to exactly these
// nodes.
func (r *Router) AwaitNextHops(ctx context.Context, limit time.Duration, vip netip.Addr, want ...string) error {
	return r.AwaitVia(ctx, limit, netip.PrefixFrom(vip, vip.BitLen()), want...)
}

// AwaitVia waits until the router's kernel has a route to exactly this prefix via exactly
// these nodes.
func (r *Router) AwaitVia(ctx context.Context, limit time.Duration, prefix netip.Prefix, want ...string) error {
	return Await(ctx, limit, fmt.Sprintf("%s via %v in the router's kernel", prefix, want), func() error {
		got, err := r.Via(prefix)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("it is via %v", got)
		}
		return err
	})
}

// AwaitWeights waits until the router's kernel balances an address over nodes with these
// weights.
func (r *Router) AwaitWeights(ctx context.Context, vip netip.Addr, want string) error {
	return Await(ctx, Settle, fmt.Sprintf("%s by %s in the router's kernel", vip, want), func() error {
		routes, err := r.kernel.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: netipx.AddrIPNet(vip)},
			netlink.RT_FILTER_DST)
		if err != nil {
			return err
		}
		var hops []string
		for _, route := range routes {
			for _, h := range route.MultiPath {
				hops = append(hops, fmt.Sprintf("%s %d", r.nextHop(h.LinkIndex, h.Gw), h.Hops+1))
			}
		}
		slices.Sort(hops)
		if got := strings.Join(hops, ", "); got != want {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
}

// nextHops returns the nodes that a route leads to.
func (r *Router) nextHops(route netlink.Route) []string {
	var nodes []string
	if len(route.MultiPath) == 0 {
		nodes = append(nodes, r.nextHop(route.LinkIndex, route.Gw))
	}
	for _, h := range route.MultiPath {
		nodes = append(nodes, r.nextHop(h.LinkIndex, h.Gw))
	}
	slices.Sort(nodes)
	return nodes
}

// nextHop returns the node that a next hop leads to. On a link of its own that is the only
// node; its address there may be any.
func (r *Router) nextHop(link int, gateway net.IP) string {
	if node, ok := r.direct[link]; ok {
		return node
	}
	a, _ := netip.AddrFromSlice(gateway)
	return nodeName(a.Unmap())
}

// directInterface begins the name of each end of a link between a node and the router alone;
// the router's end has the node's number as well.
const directInterface = "link"

// directLinks returns the nodes with such a link, by the router's interface.
func (l *Lab) directLinks(router string) (map[int]string, error) {
	by := map[int]string{}
	err := l.namespaces[router].Do(func() error {
		for _, n := range NodeNames {
			i, err := net.InterfaceByName(directInterface + n[1:])
			if err == nil {
				by[i.Index] = n
			}
		}
		return nil
	})
	return by, err
}

// nodeName returns the node with an address, or the address as text.
func nodeName(a netip.Addr) string {
	for _, n := range NodeNames {
		if NodeAddr(n, a) == a {
			return n
		}
	}
	return a.String()
}

// Ingress asks the router's kernel for the next hop of a client's IPv4 flow. The kernel
// computes the hash as for packets; for IPv6 it does not.
func (r *Router) Ingress(ctx context.Context, protocol string, from, to netip.AddrPort) (string, error) {
	out, err := r.Run(ctx, "ip", "-json", "route", "get", to.Addr().String(), "from", from.Addr().String(), "iif",
		"eth4", "ipproto", protocol, "sport", strconv.Itoa(int(from.Port())), "dport", strconv.Itoa(int(to.Port())))
	if err != nil {
		return "", err
	}
	var routes []struct{ Gateway netip.Addr }
	if err := json.Unmarshal([]byte(out), &routes); err != nil || len(routes) != 1 {
		return "", fmt.Errorf("ip route get %s: %w: %s", to, err, out)
	}
	return nodeName(routes[0].Gateway), nil
}
