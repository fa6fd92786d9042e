package bgp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// frr is FRR's bgpd with zebra. It announces `network` statements, which it reads at the
// start.
type frr struct {
	routers int
	dir     string
	vty     net.Conn
	in      *bufio.Reader
}

const (
	zebra = "/usr/lib/frr/zebra"
	bgpd  = "/usr/lib/frr/bgpd"
)

func (f *frr) prepare(ctx context.Context, w *world, routes int) error {
	f.dir = w.path("frr")
	if err := errors.Join(makeFRRDir(f.dir), os.Chmod(w.dir, 0o755)); err != nil {
		return err
	}
	if err := os.WriteFile(f.config(), []byte(f.text(routes)), 0o644); err != nil {
		return err
	}
	if _, err := w.start(f.args(zebra, "/dev/null")...); err != nil {
		return err
	}
	return lab.Await(ctx, patience, "zebra", func() error {
		_, err := os.Stat(filepath.Join(f.dir, "zserv.api"))
		return err
	})
}

// makeFRRDir creates the directory for sockets and gives it to the user that the daemons
// run as.
func makeFRRDir(dir string) error {
	owner, err := user.Lookup("frr")
	if err != nil {
		return fmt.Errorf("%w: is FRR installed? hack/setup.sh does it", err)
	}
	uid, errU := strconv.Atoi(owner.Uid)
	gid, errG := strconv.Atoi(owner.Gid)
	return errors.Join(errU, errG, os.Mkdir(dir, 0o755), os.Chown(dir, uid, gid))
}

func (f *frr) config() string { return filepath.Join(f.dir, "bgpd.conf") }

// text returns the configuration. It makes FRR announce its routes at once, to routers that
// send nothing; all else is FRR's default.
func (f *frr) text(routes int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "router bgp %d\n bgp router-id %s\n no bgp ebgp-requires-policy\n no bgp network import-check\n",
		nodeASN, nodeAddr)
	for i := range f.routers {
		fmt.Fprintf(&b, " neighbor %[1]s remote-as %[2]d\n neighbor %[1]s timers connect 1\n", routerAddr(i),
			routersASN)
	}
	b.WriteString(" address-family ipv4 unicast\n")
	for i := range routes {
		fmt.Fprintf(&b, "  network %s/32\n", vip(i))
	}
	return b.String()
}

func (f *frr) args(daemon, config string) []string {
	name := filepath.Base(daemon)
	return []string{daemon, "--vty_socket", f.dir, "-z", filepath.Join(f.dir, "zserv.api"), "-u", "frr", "-g", "frr",
		"-f", config, "-A", "127.0.0.1", "-i", filepath.Join(f.dir, name+".pid")}
}

func (f *frr) start(w *world) (*exec.Cmd, error) { return w.start(f.args(bgpd, f.config())...) }

// announce sends commands to bgpd as vtysh does, without the start of vtysh: a command ends
// with a zero byte, its answer with three and the result.
func (f *frr) announce(ctx context.Context, i int, on bool) error {
	if f.vty == nil {
		if err := f.open(ctx); err != nil {
			return err
		}
	}
	no := "no "
	if on {
		no = ""
	}
	return f.command(fmt.Sprintf("%snetwork %s/32", no, vip(i)))
}

func (f *frr) open(ctx context.Context) (err error) {
	f.vty, err = new(net.Dialer).DialContext(ctx, "unix", filepath.Join(f.dir, "bgpd.vty"))
	if err != nil {
		return err
	}
	f.in = bufio.NewReader(f.vty)
	for _, c := range []string{"enable", "configure terminal", fmt.Sprintf("router bgp %d", nodeASN),
		"address-family ipv4 unicast"} {
		if err := f.command(c); err != nil {
			return err
		}
	}
	return nil
}

func (f *frr) command(line string) error {
	if err := f.vty.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := f.vty.Write(append([]byte(line), 0)); err != nil {
		return fmt.Errorf("bgpd %q: %w", line, err)
	}
	var answer []byte
	for {
		c, err := f.in.ReadByte()
		if err != nil {
			return fmt.Errorf("bgpd %q: %w", line, err)
		}
		if answer = append(answer, c); bytes.HasSuffix(answer[:len(answer)-1], []byte{0, 0, 0}) {
			break
		}
	}
	if result := answer[len(answer)-1]; result != 0 {
		return fmt.Errorf("bgpd %q: result %d: %s", line, result, answer)
	}
	return nil
}
