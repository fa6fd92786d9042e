package nstest

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
)

// Two namespaces with a router between them: traffic flows, and the outer
// machine has none of it.
func TestRoutedTraffic(t *testing.T) {
	Run(t, func(t *testing.T) {
		node, left, right := Node(t), New(t, "left"), New(t, "right")
		Link(t, node, "tol", left, "eth0")
		Link(t, node, "tor", right, "eth0")
		node.Addr("tol", "10.1.0.1/24", "fd01::1/64")
		node.Addr("tor", "10.2.0.1/24", "fd02::1/64")
		node.Forward()
		left.Addr("eth0", "10.1.0.2/24", "fd01::2/64")
		left.Route("0.0.0.0/0", "10.1.0.1", "")
		left.Route("::/0", "fd01::1", "")
		right.Addr("eth0", "10.2.0.2/24", "fd02::2/64")
		right.Route("0.0.0.0/0", "10.2.0.1", "")
		right.Route("::/0", "fd02::1", "")

		for _, server := range []string{"10.2.0.2:80", "[fd02::2]:80"} {
			if got, want := exchange(t, left, right, server), server; got != want {
				t.Errorf("%s answered %q", want, got)
			}
		}
	})
	if _, err := net.InterfaceByName("tol"); err == nil && os.Getenv(inside) == "" {
		t.Error("an interface of the test is on the machine itself")
	}
}

// exchange connects from one namespace to another and returns what the server
// says, which is its own address.
func exchange(t *testing.T, from, to *NS, server string) string {
	t.Helper()
	var l net.Listener
	var c net.Conn
	var err error
	to.Do(func() { l, err = net.Listen("tcp", server) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			io.WriteString(c, c.LocalAddr().String())
			c.Close()
		}
	}()
	from.Do(func() { c, err = net.Dial("tcp", server) })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestRunInSubtest(t *testing.T) {
	t.Run("a name (with) [signs]", func(t *testing.T) {
		Run(t, func(t *testing.T) {
			links, err := net.Interfaces()
			if err != nil || len(links) != 1 {
				t.Errorf("interfaces %v, %v; want only loopback", links, err)
			}
		})
	})
}

// The result of VRF is right: the VRF exists, or no trace of it does.
func TestVRF(t *testing.T) {
	Run(t, func(t *testing.T) {
		a, b := Node(t), New(t, "b")
		Link(t, a, "inside", b, "eth0")
		a.Addr("inside", "10.0.0.1/24")
		made := a.VRF("red", 100, "inside")
		link, err := a.link.LinkByName("red")
		if !made {
			if !errors.As(err, new(netlink.LinkNotFoundError)) {
				t.Errorf("this kernel is said to have no VRFs, and there is %v (%v)", link, err)
			}
			return
		}
		if err != nil || link.Type() != "vrf" || a.iface("inside").Attrs().MasterIndex != link.Attrs().Index {
			t.Errorf("red is %v (%v), and inside is not in it", link, err)
		}
	})
}
