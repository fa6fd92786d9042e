package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"

	"github.com/vishvananda/netlink"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A world is a client, a server that has all pods' addresses, and nodes between them that
// differ only in their rules. The control plane is in a namespace beside them.
//
//	           +-- node 1 --+
//	client ----+-- node 2 --+---- server
//	           +-- …      --+
type world struct {
	dir                     string // for logs and configurations; removed at the end
	client, server, control *lab.Namespace
	nodes                   []*node
}

// A node is a router between client and server.
type node struct {
	*lab.Namespace
	index byte // in addresses
}

// apiAddr is the API server's address, on the control plane's loopback.
var apiAddr = netip.MustParseAddr("172.31.0.1")

// The names of a node's interfaces.
const (
	clientLink  = "client"
	serverLink  = "server"
	controlLink = "control"
)

// The networks of the links, with a node's index as the third byte. The node has .1 and the
// other end .2.
const (
	clientNet  = "10.9"
	serverNet  = "10.8"
	controlNet = "10.7"
	podNet     = "10.128.0.0/9"
)

// worldPrefix starts the names of all namespaces of this benchmark.
const worldPrefix measure.Prefix = "ffb-"

func newWorld(ctx context.Context) (*world, error) {
	if err := worldPrefix.Sweep(ctx); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", string(worldPrefix))
	if err != nil {
		return nil, err
	}
	w := &world{dir: dir}
	for name, to := range map[string]**lab.Namespace{"client": &w.client, "server": &w.server, "control": &w.control} {
		if *to, err = w.add(ctx, name); err != nil {
			return w, err
		}
	}
	if _, err := w.control.Run(ctx, "ip", "addr", "add", apiAddr.String()+"/32", "dev", "lo"); err != nil {
		return w, err
	}
	// All pods' addresses are local to the server, without being on an interface.
	_, err = w.server.Run(ctx, "ip", "route", "add", "local", podNet, "dev", "lo")
	return w, err
}

func (w *world) add(ctx context.Context, name string) (*lab.Namespace, error) {
	n, err := lab.NewNamespace(ctx, worldPrefix.Name(name))
	if err != nil {
		return nil, err
	}
	if _, err := n.Run(ctx, "ip", "link", "set", "lo", "up"); err != nil {
		return nil, err
	}
	return n, n.Do(func() error {
		var errs []error
		for key, value := range map[string]string{
			"ipv4/ip_forward": "1", "ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0",
			// Entries of reset connections are not needed.
			"netfilter/nf_conntrack_tcp_timeout_close": "1",
		} {
			errs = append(errs, os.WriteFile("/proc/sys/net/"+key, []byte(value), 0))
		}
		return errors.Join(errs...)
	})
}

// node adds a node with its links and routes.
func (w *world) node(ctx context.Context, name string) (*node, error) {
	ns, err := w.add(ctx, name)
	if err != nil {
		return nil, err
	}
	n := &node{Namespace: ns, index: byte(len(w.nodes) + 1)}
	w.nodes = append(w.nodes, n)
	for _, l := range []struct {
		to   *lab.Namespace
		net  string
		name string
	}{{w.client, clientNet, clientLink}, {w.server, serverNet, serverLink}, {w.control, controlNet, controlLink}} {
		if err := n.link(ctx, l.to, l.net, l.name); err != nil {
			return nil, err
		}
	}
	err = n.route(ctx)
	if err == nil {
		_, err = w.server.Run(ctx, "ip", "route", "add", n.prefix(clientNet), "via", n.addr(serverNet, 1))
	}
	return n, err
}

// route makes pods seem to be neighbours, as those of a node are, because a fast path takes
// no flows to a pod behind a gateway. But no node has a hundred thousand neighbours, so
// packets from clients are routed via a gateway. That costs one more routing rule for each
// packet, on all nodes alike.
func (n *node) route(ctx context.Context) error {
	const table = "100"
	for _, command := range [][]string{
		{"ip", "route", "add", podNet, "dev", serverLink},
		{"ip", "route", "add", podNet, "via", n.addr(serverNet, 2), "table", table},
		{"ip", "rule", "add", "iif", clientLink, "lookup", table},
		{"ip", "route", "add", apiAddr.String(), "via", n.addr(controlNet, 2)},
	} {
		if _, err := n.Run(ctx, command...); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) addr(network string, host int) string {
	return fmt.Sprintf("%s.%d.%d", network, n.index, host)
}

func (n *node) prefix(network string) string { return n.addr(network, 0) + "/24" }

func (n *node) link(ctx context.Context, to *lab.Namespace, network, name string) error {
	there := "node" + strconv.Itoa(int(n.index))
	if _, err := n.Run(ctx, "ip", "link", "add", name, "type", "veth", "peer", "name", there, "netns",
		to.Name); err != nil {
		return err
	}
	for _, end := range []struct {
		in    *lab.Namespace
		iface string
		host  int
	}{{n.Namespace, name, 1}, {to, there, 2}} {
		_, err := end.in.Run(ctx, "ip", "addr", "add", n.addr(network, end.host)+"/24", "dev", end.iface)
		if err == nil {
			_, err = end.in.Run(ctx, "ip", "link", "set", end.iface, "up")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// routeVia routes all that the client sends via a node.
func (w *world) routeVia(n *node) error {
	return w.client.Do(func() error {
		gateway := netip.MustParseAddr(n.addr(clientNet, 1))
		return netlink.RouteReplace(&netlink.Route{Gw: gateway.AsSlice()})
	})
}

// flushConntrack empties the node's conntrack table between two measurements.
func (n *node) flushConntrack() error {
	return n.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
}

// nft loads rules.
func (n *node) nft(ctx context.Context, text string) error {
	_, err := n.Run(ctx, "nft", text)
	return err
}

// down removes everything.
func (w *world) down() error {
	var errs []error
	for _, n := range []*lab.Namespace{w.client, w.server, w.control} {
		if n != nil {
			errs = append(errs, measure.Remove(context.Background(), n))
		}
	}
	for _, n := range w.nodes {
		errs = append(errs, measure.Remove(context.Background(), n.Namespace))
	}
	return errors.Join(append(errs, os.RemoveAll(w.dir))...)
}
