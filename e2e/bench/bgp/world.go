package bgp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// worldPrefix starts the names of all namespaces of this benchmark.
const worldPrefix measure.Prefix = "ffg-"

var (
	nodeAddr = netip.MustParseAddr("198.51.100.1")
	// firstVIP is the first announced address.
	firstVIP = netip.MustParseAddr("10.200.0.1")
)

func vip(i int) netip.Addr {
	b := firstVIP.As4()
	n := int(b[2])<<8 + int(b[3]) + i
	b[2], b[3] = byte(n>>8), byte(n)
	return netip.AddrFrom4(b)
}

func routerAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 100, byte(10 + i)}) }

// A world is a node and its routers. Each start of an announcer has its own, so that it
// starts without remains of the previous one.
type world struct {
	dir           string
	node, routing *lab.Namespace
	routers       []*router
	processes     []*exec.Cmd
}

func newWorld(ctx context.Context, routers int) (w *world, err error) {
	w = &world{}
	if err := worldPrefix.Sweep(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if w.dir, err = os.MkdirTemp("", string(worldPrefix)); err != nil {
		return w, err
	}
	for name, to := range map[string]**lab.Namespace{"node": &w.node, "routers": &w.routing} {
		n, err := lab.NewNamespace(ctx, worldPrefix.Name(name))
		if err != nil {
			return w, err
		}
		*to = n
		if _, err := n.Run(ctx, "ip", "link", "set", "lo", "up"); err != nil {
			return w, err
		}
	}
	if err := w.wire(ctx, routers); err != nil {
		return w, err
	}
	return w, w.listen(ctx, routers)
}

func (w *world) wire(ctx context.Context, routers int) error {
	const forward = "/proc/sys/net/ipv4/ip_forward"
	if err := w.node.Do(func() error { return os.WriteFile(forward, []byte("1"), 0) }); err != nil {
		return err
	}
	commands := []struct {
		in   *lab.Namespace
		line string
	}{
		{w.node, "ip link add eth0 type veth peer name eth0 netns " + w.routing.Name},
		{w.node, "ip addr add " + nodeAddr.String() + "/24 dev eth0"},
		{w.node, "ip link set eth0 up"},
		{w.routing, "ip link set eth0 up"},
	}
	for i := range routers {
		commands = append(commands, struct {
			in   *lab.Namespace
			line string
		}{w.routing, "ip addr add " + routerAddr(i).String() + "/24 dev eth0"})
	}
	for _, c := range commands {
		if _, err := c.in.Run(ctx, strings.Fields(c.line)...); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) listen(ctx context.Context, routers int) error {
	return w.routing.Do(func() error {
		for i := range routers {
			addr := routerAddr(i)
			l, err := new(net.ListenConfig).Listen(ctx, "tcp", netip.AddrPortFrom(addr, 179).String())
			if err != nil {
				return err
			}
			w.routers = append(w.routers, newRouter(addr, l))
		}
		return nil
	})
}

// start starts a program on the node with its output in a file.
func (w *world) start(args ...string) (*exec.Cmd, error) {
	log, err := os.OpenFile(w.path(filepath.Base(args[0])+".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := w.node.Do(cmd.Start); err != nil {
		return nil, err
	}
	w.processes = append(w.processes, cmd)
	return cmd, nil
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

// expect starts to wait until all routers have the given number of routes.
func (w *world) expect(routes int) {
	for _, r := range w.routers {
		r.expect(routes)
	}
}

// patience bounds waits of seconds at most.
const patience = 2 * time.Minute

// await returns when the last of the given routers had the expected routes.
func (w *world) await(ctx context.Context, routers ...*router) (last time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, r := range routers {
		select {
		case at := <-r.complete:
			if at.After(last) {
				last = at
			}
		case <-ctx.Done():
			return last, fmt.Errorf("router %s has %s: %w", r.addr, r, ctx.Err())
		}
	}
	return last, nil
}

func (r *router) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprintf("%d routes, waits for %d; its last session ended with: %v", len(r.has), r.want, r.err)
}

func (w *world) close() error {
	var errs []error
	for _, r := range w.routers {
		errs = append(errs, r.listener.Close())
		r.reset()
	}
	for i := len(w.processes) - 1; i >= 0; i-- {
		p := w.processes[i]
		errs = append(errs, p.Process.Kill())
		_ = p.Wait() // killed is how it ends
	}
	for _, n := range []*lab.Namespace{w.node, w.routing} {
		if n != nil {
			errs = append(errs, measure.Remove(context.Background(), n))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(w.dir))...)
}
