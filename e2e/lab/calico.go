package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
)

// CalicoAS is Calico's default AS number.
const CalicoAS = 64512

// A CalicoBIRD is BIRD on a node as Calico runs it: it holds port 179, announces the node's block
// of pod addresses, and may have sessions with the other nodes, the router and Fanfare.
type CalicoBIRD struct {
	node   string
	socket string
}

// CalicoBlock is the part of Calico's pool that its IPAM has given to a node.
func CalicoBlock(node string) netip.Prefix {
	return netip.MustParsePrefix("10.244." + node[1:] + ".0/26")
}

// StartCalicoBIRD starts BIRD on a node. protocols are added to its configuration.
func (l *Lab) StartCalicoBIRD(node, protocols string) (*CalicoBIRD, error) {
	c := &CalicoBIRD{node: node, socket: l.path("calico-" + node + ".ctl")}
	config := l.path("calico-" + node + ".conf")
	text := fmt.Sprintf(`router id %s;
protocol device { }
protocol static { ipv4; route %s blackhole; }
template bgp peers {
	local as %d;
	hold time 3; keepalive time 1; connect retry time 1; connect delay time 1; error wait time 1, 1;
	graceful restart;
}
%s`, NodeAddr(node, ClientAddr), CalicoBlock(node), CalicoAS, protocols)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	_, err := l.Start(node, "calico-"+node, "/usr/sbin/bird", "-f", "-c", config, "-s", c.socket)
	return c, err
}

// AwaitSession waits until one of BIRD's protocols is established.
func (c *CalicoBIRD) AwaitSession(ctx context.Context, protocol string) error {
	return Await(ctx, Settle, protocol+" of BIRD on "+c.node, func() error {
		out, err := exec.CommandContext(ctx, "/usr/sbin/birdc", "-s", c.socket, "show protocols",
			protocol).CombinedOutput()
		if err == nil && !strings.Contains(string(out), "Established") {
			err = errors.New(string(out))
		}
		return err
	})
}

// calicoMesh returns the protocols of Calico's full mesh: each node's BIRD learns the blocks of the
// other nodes from them, and writes the routes to the kernel. The mesh has BIRD's default hold time,
// as Calico's: with that of the router's sessions, a link that flaps would cost pods their routes.
func calicoMesh(node string) string {
	var b strings.Builder
	b.WriteString(`protocol kernel { persist; scan time 2; ipv4 { import none; export where source != RTS_DEVICE; }; }
protocol direct { ipv4; interface -"cali*", "*"; check link no; }
template bgp mesh from peers {
	multihop; hold time 240; keepalive time 80;
	ipv4 { import all; export where source = RTS_STATIC; next hop self; gateway recursive; };
}
`)
	for _, n := range NodeNames {
		if n != node {
			fmt.Fprintf(&b, "protocol bgp %s from mesh { source address %s; neighbor %s as %d; }\n", n,
				NodeAddr(node, ClientAddr), NodeAddr(n, ClientAddr), CalicoAS)
		}
	}
	return b.String()
}

// StartCalico makes the nodes those of a cluster with Calico without an overlay: BIRD's mesh routes
// pods' traffic, and Felix writes its rules, by which all pods have a policy. The lab must have
// the overlay calico.yml.
func (l *Lab) StartCalico(ctx context.Context, program string, policy ...netip.Prefix) error {
	bird := map[string]*CalicoBIRD{}
	for _, n := range NodeNames {
		var err error
		if bird[n], err = l.StartCalicoBIRD(n, calicoMesh(n)); err != nil {
			return err
		}
		felix := l.Felix(n, program)
		for _, pod := range PodNames {
			felix.Restrict(pod, policy...)
		}
		if err := felix.Apply(ctx); err != nil {
			return err
		}
	}
	for _, n := range NodeNames {
		for _, other := range NodeNames {
			if n == other {
				continue
			}
			if err := errors.Join(bird[n].AwaitSession(ctx, other), l.awaitCalicoRoute(ctx, n, other)); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitCalicoRoute waits until a node's kernel has BIRD's route to the block of another one.
func (l *Lab) awaitCalicoRoute(ctx context.Context, node, other string) error {
	return Await(ctx, Settle, "a route of "+node+" to pods of "+other, func() error {
		out, err := l.Namespace(node).Run(ctx, "ip", "route", "show", CalicoBlock(other).String(), "proto", "bird")
		if err == nil && !strings.Contains(out, "via "+NodeAddr(other, ClientAddr).String()) {
			err = fmt.Errorf("it is %q", out)
		}
		return err
	})
}
