package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// daemons of FRR, in the order of starting: zebra owns the kernel's table and
// the others connect to it.
var daemons = []string{"zebra", "staticd", "bfdd", "bgpd"}

// A Router is a node with FRR. All of FRR's files are in one directory.
type Router struct {
	*Namespace
	lab    *Lab
	dir    string
	config string // path of frr.conf
	kernel *netlink.Handle
	procs  []*Process
}

func (l *Lab) newRouter(n Node) (*Router, error) {
	r := &Router{Namespace: l.namespaces[n.Name], lab: l, dir: l.path("frr"), config: n.Binds["/etc/frr/frr.conf"]}
	if r.config == "" {
		return nil, fmt.Errorf("topology.nodes.%s.binds: FRR needs /etc/frr/frr.conf", n.Name)
	}
	var err error
	if r.kernel, err = netlink.NewHandleAt(r.handle, unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("%s: %w", n.Name, err)
	}
	return r, r.makeDir()
}

// makeDir makes the directory for sockets and gives it to the user that the
// daemons change to.
func (r *Router) makeDir() error {
	frr, err := user.Lookup("frr")
	if err != nil {
		return fmt.Errorf("%w: is FRR installed? hack/setup.sh does it", err)
	}
	uid, errU := strconv.Atoi(frr.Uid)
	gid, errG := strconv.Atoi(frr.Gid)
	return errors.Join(errU, errG, os.Mkdir(r.dir, 0o755), os.Chown(r.dir, uid, gid),
		os.WriteFile(filepath.Join(r.dir, "vtysh.conf"), nil, 0o644))
}

// Start starts the daemons and loads the configuration.
func (r *Router) Start(ctx context.Context) error {
	for _, d := range daemons {
		if err := r.startDaemon(ctx, d); err != nil {
			return err
		}
	}
	_, err := r.vtysh(ctx, "-f", r.config)
	return err
}

func (r *Router) startDaemon(ctx context.Context, name string) error {
	args := []string{"/usr/lib/frr/" + name, "--vty_socket", r.dir, "-z", filepath.Join(r.dir, "zserv.api"),
		"-u", "frr", "-g", "frr", "-f", "/dev/null", "-A", "127.0.0.1", "-i", filepath.Join(r.dir, name+".pid"),
		"--log", "file:" + filepath.Join(r.dir, "frr.log")}
	switch name {
	case "zebra":
		// The default receive buffer loses notifications in bursts.
		args = append(args, "-s", "1048576")
	case "bfdd":
		args = append(args, "--bfdctl", filepath.Join(r.dir, "bfdd.sock"))
	}
	p, err := r.lab.startProcess(r.Namespace, name, args...)
	if err != nil {
		return err
	}
	r.procs = append(r.procs, p)
	return Await(ctx, 10*time.Second, name+" answers", func() error {
		if !p.Alive() {
			return fmt.Errorf("it ended: %v; see %s", p.err, r.lab.path("log", name+".log"))
		}
		_, err := r.vtysh(ctx, "-d", name, "-c", "show version")
		return err
	})
}

// Stop ends FRR as its service manager would: bgpd says goodbye and zebra takes
// its routes out of the kernel.
func (r *Router) Stop() error { return r.stop(syscall.SIGTERM) }

func (r *Router) stop(sig syscall.Signal) error {
	var errs []error
	for _, p := range slices.Backward(r.procs) {
		errs = append(errs, p.Stop(sig, 10*time.Second))
	}
	r.procs = nil
	return errors.Join(errs...)
}

// Ask asks FRR as an operator would: r.Ask(ctx, "show bgp summary").
func (r *Router) Ask(ctx context.Context, commands ...string) (string, error) {
	var args []string
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	return r.vtysh(ctx, args...)
}

func (r *Router) vtysh(ctx context.Context, args ...string) (string, error) {
	args = append([]string{"--vty_socket", r.dir, "--config_dir", r.dir}, args...)
	out, err := exec.CommandContext(ctx, "vtysh", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("vtysh %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// Established returns the nodes with which the router has a session.
func (r *Router) Established(ctx context.Context) ([]string, error) {
	out, err := r.Ask(ctx, "show bgp summary established json")
	if err != nil {
		return nil, err
	}
	var families map[string]json.RawMessage
	if err := json.Unmarshal([]byte(out), &families); err != nil {
		return nil, fmt.Errorf("show bgp summary: %w: %s", err, out)
	}
	var summary struct {
		Peers map[netip.Addr]struct{ State string }
	}
	if len(families["ipv4Unicast"]) > 0 {
		if err := json.Unmarshal(families["ipv4Unicast"], &summary); err != nil {
			return nil, fmt.Errorf("show bgp summary: %w", err)
		}
	}
	var nodes []string
	for addr, p := range summary.Peers {
		if p.State == "Established" {
			nodes = append(nodes, nodeName(addr))
		}
	}
	slices.Sort(nodes)
	return nodes, nil
}

// NextHops returns the nodes that the router's kernel sends an address's packets
// to, sorted; none if it has no route.
func (r *Router) NextHops(vip netip.Addr) ([]string, error) {
	family := netlink.FAMILY_V4
	if vip.Is6() {
		family = netlink.FAMILY_V6
	}
	filter := &netlink.Route{Dst: netlink.NewIPNet(vip.AsSlice()), Table: unix.RT_TABLE_MAIN}
	routes, err := r.kernel.RouteListFiltered(family, filter, netlink.RT_FILTER_DST|netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("routes of %s: %w", r.Name, err)
	}
	var nodes []string
	for _, route := range routes {
		nodes = append(nodes, nextHops(route)...)
	}
	slices.Sort(nodes)
	return nodes, nil
}

// AwaitNextHops waits until the router's kernel sends an address's packets to
// exactly these nodes.
func (r *Router) AwaitNextHops(ctx context.Context, limit time.Duration, vip netip.Addr, want ...string) error {
	return Await(ctx, limit, fmt.Sprintf("%s via %v in the router's kernel", vip, want), func() error {
		got, err := r.NextHops(vip)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("it is via %v", got)
		}
		return err
	})
}

// nextHops are the nodes that a route leads to.
func nextHops(route netlink.Route) []string {
	var nodes []string
	if a, ok := netip.AddrFromSlice(route.Gw); ok {
		nodes = append(nodes, nodeName(a.Unmap()))
	}
	for _, h := range route.MultiPath {
		if a, ok := netip.AddrFromSlice(h.Gw); ok {
			nodes = append(nodes, nodeName(a.Unmap()))
		}
	}
	slices.Sort(nodes)
	return nodes
}

// nodeName is the node with an address, or the address.
func nodeName(a netip.Addr) string {
	for _, n := range NodeNames {
		if NodeAddr(n, a) == a {
			return n
		}
	}
	return a.String()
}

// Ingress asks the router's kernel which node a client's IPv4 flow goes to. The
// kernel computes the same hash as for the packets themselves; for IPv6 it does
// not.
func (r *Router) Ingress(ctx context.Context, protocol string, from, to netip.AddrPort) (string, error) {
	out, err := r.Run(ctx, "ip", "-json", "route", "get", to.Addr().String(), "from", from.Addr().String(), "iif", "eth4",
		"ipproto", protocol, "sport", strconv.Itoa(int(from.Port())), "dport", strconv.Itoa(int(to.Port())))
	if err != nil {
		return "", err
	}
	var routes []struct{ Gateway netip.Addr }
	if err := json.Unmarshal([]byte(out), &routes); err != nil || len(routes) != 1 {
		return "", fmt.Errorf("ip route get %s: %w: %s", to, err, out)
	}
	return nodeName(routes[0].Gateway), nil
}
