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
)

// daemons are FRR's daemons in the order of starting: zebra owns the kernel's table and the
// others connect to it.
var daemons = []string{"zebra", "staticd", "bfdd", "bgpd"}

// frr is FRR on a Router. All of its files are in one directory.
type frr struct {
	router *Router
	dir    string
	config string // path of frr.conf
	more   string // path of Options.RouterConfig
}

func newFRR(r *Router, n Node) (*frr, error) {
	f := &frr{router: r, dir: r.lab.path("frr"), config: n.Binds["/etc/frr/frr.conf"]}
	f.more = filepath.Join(f.dir, "more.conf")
	if f.config == "" {
		return nil, fmt.Errorf("topology.nodes.%s.binds: FRR needs /etc/frr/frr.conf", n.Name)
	}
	return f, f.makeDir()
}

func (f *frr) String() string { return FRR }

func (f *frr) routeDelay() string {
	return "every update for 50 ms in bgpd and 10 ms in zebra (`show work-queues`)"
}

// makeDir creates the directory for sockets and gives it to the user that the daemons run
// as.
func (f *frr) makeDir() error {
	owner, err := user.Lookup("frr")
	if err != nil {
		return fmt.Errorf("%w: is FRR installed? hack/setup.sh does it", err)
	}
	uid, errU := strconv.Atoi(owner.Uid)
	gid, errG := strconv.Atoi(owner.Gid)
	return errors.Join(errU, errG, os.Mkdir(f.dir, 0o755), os.Chown(f.dir, uid, gid),
		os.WriteFile(filepath.Join(f.dir, "vtysh.conf"), nil, 0o644),
		os.WriteFile(f.more, []byte(f.router.lab.RouterConfig), 0o644))
}

func (f *frr) Start(ctx context.Context) error {
	for _, d := range daemons {
		if err := f.startDaemon(ctx, d); err != nil {
			return err
		}
	}
	for _, config := range []string{f.config, f.more} {
		if _, err := f.vtysh(ctx, "-f", config); err != nil {
			return err
		}
	}
	return nil
}

func (f *frr) startDaemon(ctx context.Context, name string) error {
	args := []string{"/usr/lib/frr/" + name, "--vty_socket", f.dir, "-z", filepath.Join(f.dir, "zserv.api"),
		"-u", "frr", "-g", "frr", "-f", "/dev/null", "-A", "127.0.0.1", "-i", filepath.Join(f.dir, name+".pid"),
		"--log", "file:" + filepath.Join(f.dir, "frr.log")}
	switch name {
	case "zebra":
		// The default receive buffer loses notifications in bursts.
		args = append(args, "-s", "1048576")
	case "bfdd":
		args = append(args, "--bfdctl", filepath.Join(f.dir, "bfdd.sock"))
	}
	return f.router.run(ctx, name, func() error {
		_, err := f.vtysh(ctx, "-d", name, "-c", "show version")
		return err
	}, args...)
}

func (f *frr) Ask(ctx context.Context, commands ...string) (string, error) {
	var args []string
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	return f.vtysh(ctx, args...)
}

func (f *frr) vtysh(ctx context.Context, args ...string) (string, error) {
	args = append([]string{"--vty_socket", f.dir, "--config_dir", f.dir}, args...)
	out, err := exec.CommandContext(ctx, "vtysh", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("vtysh %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

func (f *frr) Established(ctx context.Context) ([]string, error) {
	out, err := f.Ask(ctx, "show bgp summary established json")
	if err != nil {
		return nil, err
	}
	var families map[string]json.RawMessage
	if err := json.Unmarshal([]byte(out), &families); err != nil {
		return nil, fmt.Errorf("show bgp summary: %w: %s", err, out)
	}
	var summary struct {
		Peers map[string]struct{ State string } // by address, or by interface
	}
	if len(families["ipv4Unicast"]) > 0 {
		if err := json.Unmarshal(families["ipv4Unicast"], &summary); err != nil {
			return nil, fmt.Errorf("show bgp summary: %w", err)
		}
	}
	var nodes []string
	for peer, p := range summary.Peers {
		if p.State == "Established" {
			nodes = append(nodes, peerName(peer))
		}
	}
	slices.Sort(nodes)
	return nodes, nil
}

// peerName returns the node with an address, or at the other end of an interface.
func peerName(peer string) string {
	if number, ok := strings.CutPrefix(peer, directInterface); ok {
		return "n" + number
	}
	if addr, err := netip.ParseAddr(peer); err == nil {
		return nodeName(addr)
	}
	return peer
}
