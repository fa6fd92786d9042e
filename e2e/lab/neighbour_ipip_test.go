package lab

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tunnelDevice is Calico's name for its device for IP in IP, on every node.
const tunnelDevice = "tunl0"

// tunnelAddr returns the address of a node's device: Calico takes it from a block for pods.
func tunnelAddr(node string) netip.Addr { return netip.MustParseAddr("10.244." + node[1:] + ".64") }

// connectTunnels gives each node a point-to-point device whose packets cross the segment as IP in
// IP (RFC 2003), and routes to the pods of the other nodes through it. The kernel may lack its own
// device for that, so this process forwards between a tun device and a raw socket.
func connectTunnels(t *testing.T, l *Lab) {
	t.Helper()
	for _, n := range NodeNames {
		tun, outer := openTunnel(t, l, n)
		t.Cleanup(func() { tun.Close(); outer.Close() })
		run(t, l, n, "ip", "link", "set", tunnelDevice, "mtu", "1480", "txqueuelen", "5000", "up")
		run(t, l, n, "ip", "addr", "add", tunnelAddr(n).String()+"/32", "dev", tunnelDevice)
		for _, other := range NodeNames {
			if other != n {
				run(t, l, n, "ip", "route", "replace", "10.244."+other[1:]+".0/24", "via",
					NodeAddr(other, ClientAddr).String(), "dev", tunnelDevice, "onlink")
			}
		}
		go encapsulate(tun, outer)
		go decapsulate(outer, tun)
	}
}

// openTunnel opens a node's tun device, and a raw socket for IP in IP.
func openTunnel(t *testing.T, l *Lab, node string) (tun *os.File, outer *net.IPConn) {
	t.Helper()
	await(t, l.Namespace(node).Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		var request struct { // struct ifreq
			name  [unix.IFNAMSIZ]byte
			flags uint16
			_     [22]byte
		}
		copy(request.name[:], tunnelDevice)
		request.flags = unix.IFF_TUN | unix.IFF_NO_PI
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TUNSETIFF,
			uintptr(unsafe.Pointer(&request))); errno != 0 {
			return errors.Join(errno, unix.Close(fd))
		}
		tun = os.NewFile(uintptr(fd), "/dev/net/tun") // Go's poller needs the device first
		conn, err := new(net.ListenConfig).ListenPacket(t.Context(), "ip4:ipencap", NodeAddr(node, ClientAddr).String())
		if err != nil {
			return err
		}
		outer = conn.(*net.IPConn)
		return enlarge(outer)
	}))
	return tun, outer
}

// enlarge gives a socket a receive buffer that holds what arrives while this process waits for a
// processor: TCP would take each overflow for congestion.
func enlarge(c *net.IPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var refused error
	err = raw.Control(func(fd uintptr) {
		refused = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bulk)
	})
	return errors.Join(err, refused)
}

// encapsulate sends what the kernel routes into a device to the nodes of its destinations.
func encapsulate(tun *os.File, outer *net.IPConn) {
	packet := make([]byte, maxDatagram)
	for {
		n, err := tun.Read(packet)
		if err != nil {
			return // closed
		}
		const dst = 16 // in the IPv4 header
		if n < dst+4 || packet[0]>>4 != 4 {
			continue
		}
		to := net.IPv4(198, 51, 100, 10+packet[dst+2])
		outer.WriteToIP(packet[:n], &net.IPAddr{IP: to}) // the kernel repeats what is lost
	}
}

// decapsulate hands what arrives for a node to its kernel, as if from the device.
func decapsulate(outer *net.IPConn, tun *os.File) {
	packet := make([]byte, maxDatagram)
	for {
		n, _, err := outer.ReadFromIP(packet)
		if err != nil {
			return // closed
		}
		tun.Write(packet[:n])
	}
}

// Pods of other nodes are behind a point-to-point device without link-layer addresses, as with
// Calico in its mode IPIP. The masquerade takes the device's address.
func TestNeighbourIPIP(t *testing.T) {
	l := laboratoryOfOwn(t, "i", func(*Options) {})
	connectTunnels(t, l)
	for _, mode := range proxyModes(t) {
		t.Run(mode.name, func(t *testing.T) {
			startInMode(t, l, mode)
			vip := serve(t, l, Service{Name: "far", Endpoints: At("p21")}, NodeNames...)
			for _, ingress := range NodeNames {
				sees := tunnelAddr(ingress)
				if ingress == "n2" {
					sees = ClientAddr
				}
				end := through(t, l, vip, ingress)
				exchange(t, l, vip, ingress, sees)
				end()
			}
		})
	}
}
