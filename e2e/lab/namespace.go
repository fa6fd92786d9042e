package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A Namespace is a named network namespace. A socket stays in the namespace of the thread
// that created it, so a goroutine has to be there only for that moment.
type Namespace struct {
	Name   string // under /run/netns
	handle netns.NsHandle
}

// home is the namespace that this process started in. All threads are in it except between
// enter and leave.
var home = sync.OnceValues(netns.Get)

// NewNamespace creates a namespace. Outside of a Lab, the caller removes it.
func NewNamespace(ctx context.Context, name string) (*Namespace, error) {
	if out, err := exec.CommandContext(ctx, "ip", "netns", "add", name).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("ip netns add %s: %w: %s", name, err, out)
	}
	return openNamespace(name)
}

func openNamespace(name string) (*Namespace, error) {
	h, err := netns.GetFromName(name)
	if err != nil {
		return nil, fmt.Errorf("namespace %s: %w", name, err)
	}
	return &Namespace{Name: name, handle: h}, nil
}

// Close closes the handle; it does not remove the namespace.
func (n *Namespace) Close() error { return n.handle.Close() }

// enter moves this goroutine into the namespace and returns the function that moves it
// back, which must run on the same goroutine and may run twice.
func (n *Namespace) enter() (leave func(), err error) {
	back, err := home()
	if err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	if err := netns.Set(n.handle); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("enter namespace %s: %w", n.Name, err)
	}
	return sync.OnceFunc(func() {
		if err := netns.Set(back); err != nil {
			// No other goroutine may run on a thread in the wrong namespace.
			panic(fmt.Sprintf("BUG: leave namespace %s: %v", n.Name, err))
		}
		runtime.UnlockOSThread()
	}), nil
}

func (n *Namespace) Do(fn func() error) error {
	leave, err := n.enter()
	if err != nil {
		return err
	}
	defer leave()
	return fn()
}

// Dial connects from the namespace. The kernel chooses the local address unless local is
// valid, and the port if that is 0.
func (n *Namespace) Dial(ctx context.Context, network string, local, remote netip.AddrPort) (net.Conn, error) {
	leave, err := n.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	d := net.Dialer{KeepAlive: -1}
	var socket keptSocket
	defer socket.close()
	// Control runs on this goroutine between socket() and connect(). Leaving the namespace
	// here frees the thread while the connection is established.
	d.ControlContext = func(_ context.Context, _, _ string, c syscall.RawConn) error {
		leave()
		if err := socket.keep(c); err != nil {
			return err
		}
		if !local.IsValid() {
			return nil
		}
		return reusable(c) // the port of an earlier connection may be in TIME_WAIT
	}
	if local.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(local)
		if network == "udp" {
			d.LocalAddr = net.UDPAddrFromAddrPort(local)
		}
	}
	conn, err := d.DialContext(ctx, network, remote.String())
	return conn, socket.withLocalAddr(err)
}

func reusable(c syscall.RawConn) (err error) {
	control := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
	return errors.Join(control, err)
}

// Listen listens in the namespace for both families, on a port such as ":80".
func (n *Namespace) Listen(ctx context.Context, port string) (l net.Listener, err error) {
	err = n.Do(func() error {
		var c net.ListenConfig
		c.SetMultipathTCP(false)
		l, err = c.Listen(ctx, "tcp", port)
		return err
	})
	return l, err
}

// ListenUDP receives datagrams of both families in the namespace.
func (n *Namespace) ListenUDP(ctx context.Context, port string) (c *net.UDPConn, err error) {
	err = n.Do(func() error {
		p, err := new(net.ListenConfig).ListenPacket(ctx, "udp", port)
		if err == nil {
			c = p.(*net.UDPConn)
		}
		return err
	})
	return c, err
}

// start starts a command in the namespace. A child inherits it from the thread that forks.
func (n *Namespace) start(cmd *exec.Cmd) error { return n.Do(cmd.Start) }

// Run runs a command in the namespace and returns its output. An error contains the output.
func (n *Namespace) Run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := n.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return out.String(), fmt.Errorf("%s: %s: %w: %s", n.Name, strings.Join(args, " "), err,
			strings.TrimSpace(out.String()))
	}
	return out.String(), nil
}
