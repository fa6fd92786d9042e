package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// bird is BIRD 2 on a Router: one daemon with its control socket in the lab's directory.
type bird struct {
	router *Router
	socket string
	config string // path of bird.conf
}

func newBIRD(r *Router, n Node) (*bird, error) {
	dir := r.lab.path("bird")
	b := &bird{router: r, socket: filepath.Join(dir, "bird.ctl"), config: n.Binds["/etc/bird/bird.conf"]}
	if b.config == "" {
		return nil, fmt.Errorf("topology.nodes.%s.binds: BIRD needs /etc/bird/bird.conf", n.Name)
	}
	return b, os.Mkdir(dir, 0o755)
}

func (b *bird) String() string { return BIRD }

// routeDelay is empty: BIRD programs the routes of an UPDATE before it reads the next message.
func (b *bird) routeDelay() string { return "" }

func (b *bird) Start(ctx context.Context) error {
	return b.router.run(ctx, "bird", func() error {
		_, err := b.Ask(ctx, "show status")
		return err
	}, "/usr/sbin/bird", "-f", "-c", b.config, "-s", b.socket)
}

func (b *bird) Ask(ctx context.Context, commands ...string) (string, error) {
	var all strings.Builder
	for _, c := range commands {
		out, err := exec.CommandContext(ctx, "/usr/sbin/birdc", "-s", b.socket, c).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("birdc %s: %w: %s", c, err, out)
		}
		all.Write(out)
	}
	return all.String(), nil
}

// Established parses lines such as these. The name of a session is the name of its node.
//
//	Name       Proto      Table      State  Since         Info
//	n1         BGP        ---        up     12:20:33.123  Established
func (b *bird) Established(ctx context.Context) ([]string, error) {
	out, err := b.Ask(ctx, "show protocols")
	if err != nil {
		return nil, err
	}
	var nodes []string
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) == 6 && f[1] == "BGP" && f[5] == "Established" {
			nodes = append(nodes, f[0])
		}
	}
	slices.Sort(nodes)
	return nodes, nil
}
