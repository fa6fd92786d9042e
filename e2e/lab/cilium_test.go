package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// A cilium is a node's devices, routes and programs as Cilium makes them: testdata/cilium.bpf.c with
// Cilium's names, attached by tc or tcx and pinned where Cilium pins them. Cilium itself needs a
// kernel and a control plane that this laboratory lacks.
type cilium struct {
	t        *testing.T
	l        *Lab
	node     string
	dir      string // of pins; Cilium's is /sys/fs/bpf
	programs *ebpf.Collection
	nodePort *ebpf.CollectionSpec // with nodePortProgram alone
	tcx      bool
}

// ciliumMode is how Cilium is configured.
type ciliumMode struct {
	tunnel bool // VXLAN by cilium_vxlan; otherwise native routing, with a route to each pod
	tcx    bool // tcx links; otherwise filters of tc
}

// lxc returns the name of the interface of a pod on its node.
func lxc(pod string) string { return "lxc" + pod + "ab3f" }

// podsOf returns a node's pods.
func podsOf(node string) []string { return []string{"p" + node[1:] + "1", "p" + node[1:] + "2"} }

// ciliumHost is the address of cilium_host, from which masqueraded packets go into the tunnel.
func ciliumHost(node string) netip.Addr { return netip.MustParseAddr("10.244." + node[1:] + ".1") }

// startCilium puts Cilium on all nodes of a lab, without kube-proxy replacement.
func startCilium(t *testing.T, l *Lab, mode ciliumMode) map[string]*cilium {
	t.Helper()
	spec := ciliumSpec(t)
	all := map[string]*cilium{}
	dir := bpffs(t)
	for _, node := range NodeNames {
		c := &cilium{t: t, l: l, node: node, dir: filepath.Join(dir, node), tcx: mode.tcx}
		all[node] = c
		c.wire(mode)
		c.load(spec.Copy(), mode)
		c.fill(mode)
		c.attach("cil_from_netdev", "eth1", netlink.HANDLE_MIN_INGRESS, "devices/eth1")
		c.attach("cil_from_host", "cilium_host", netlink.HANDLE_MIN_EGRESS, "devices/cilium_host")
		if mode.tunnel {
			c.attach("cil_from_overlay", "cilium_vxlan", netlink.HANDLE_MIN_INGRESS, "devices/cilium_vxlan")
		}
		for i, pod := range podsOf(node) {
			c.attach("cil_from_container", lxc(pod), netlink.HANDLE_MIN_INGRESS, fmt.Sprintf("endpoints/%d", 100+i))
		}
	}
	return all
}

// ciliumSpec compiles the programs. They are not in the repository as objects, because only tests
// use them.
func ciliumSpec(t *testing.T) *ebpf.CollectionSpec {
	t.Helper()
	object := filepath.Join(t.TempDir(), "cilium.o")
	out, err := exec.CommandContext(t.Context(), "clang-14", "-target", "bpf", "-O2", "-g", "-mcpu=v3", "-Wall",
		"-Wextra", "-Werror", "-c", "testdata/cilium.bpf.c", "-o", object).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		nstest.Missing(t, err.Error())
	}
	if err != nil {
		t.Fatalf("clang-14: %v\n%s", err, out)
	}
	spec, err := ebpf.LoadCollectionSpec(object)
	await(t, err)
	return spec
}

// run runs commands on the node.
func (c *cilium) run(commands ...[]string) {
	c.t.Helper()
	for _, args := range commands {
		run(c.t, c.l, c.node, args...)
	}
}

func ip(args ...string) []string { return append([]string{"ip"}, args...) }

// wire names the pods' interfaces, adds Cilium's, and replaces the routes to pods. The kernel
// deletes the routes of an interface that goes down.
func (c *cilium) wire(mode ciliumMode) {
	host := ciliumHost(c.node).String()
	c.run(
		ip("link", "add", "cilium_host", "type", "veth", "peer", "name", "cilium_net"),
		ip("link", "set", "cilium_net", "arp", "off", "up"),
		ip("link", "set", "cilium_host", "arp", "off", "up"),
		ip("addr", "add", host+"/32", "dev", "cilium_host"),
		ip("route", "del", "unreachable", "10.244."+c.node[1:]+".0/24"),
	)
	for i, pod := range podsOf(c.node) {
		was := fmt.Sprintf("pod%d", i+1)
		c.run(
			ip("link", "set", was, "down"), ip("link", "set", was, "name", lxc(pod)),
			ip("addr", "flush", "dev", lxc(pod)), ip("link", "set", lxc(pod), "up"),
		)
		if mode.tunnel {
			run(c.t, c.l, pod, "ip", "route", "replace", "default", "via", host, "dev", "eth1", "mtu", "1450")
		} else {
			c.run(ip("route", "add", PodAddr(pod, "IPv4").String()+"/32", "dev", lxc(pod)))
		}
	}
	if mode.tunnel {
		c.wireTunnel()
	}
}

// wireTunnel makes cilium_host the way to all pods, also to those of the node.
func (c *cilium) wireTunnel() {
	host := ciliumHost(c.node).String()
	c.run(
		ip("link", "add", "cilium_vxlan", "type", "vxlan", "external", "dstport", "8472"),
		ip("link", "set", "cilium_vxlan", "up"),
		ip("route", "add", host+"/32", "dev", "cilium_host", "scope", "link"),
		ip("route", "add", "10.244."+c.node[1:]+".0/24", "via", host, "dev", "cilium_host", "src", host),
	)
	for _, other := range NodeNames {
		if other != c.node {
			c.run(ip("route", "replace", "10.244."+other[1:]+".0/24", "via", host, "dev", "cilium_host", "src", host,
				"mtu", "1450"))
		}
	}
}

// load loads the programs and pins the maps. tail_nodeport_nat_ingress_ipv4 is not loaded yet:
// Cilium compiles it only to replace kube-proxy.
func (c *cilium) load(spec *ebpf.CollectionSpec, mode ciliumMode) {
	c.t.Helper()
	await(c.t, spec.Variables["netdev_ifindex"].Set(uint32(c.iface("eth1").Attrs().Index)))
	if mode.tunnel {
		await(c.t, spec.Variables["tunnel_ifindex"].Set(uint32(c.iface("cilium_vxlan").Attrs().Index)))
	}
	nodePort := spec.Programs[nodePortProgram]
	delete(spec.Programs, nodePortProgram)
	var err error
	c.programs, err = ebpf.NewCollection(spec)
	await(c.t, err)
	c.t.Cleanup(c.programs.Close)
	spec.Programs = map[string]*ebpf.ProgramSpec{nodePortProgram: nodePort}
	c.pinMaps()
	c.nodePort = spec
}

// pinMaps pins the maps as Cilium does.
func (c *cilium) pinMaps() {
	dir := filepath.Join(c.dir, "tc/globals")
	await(c.t, os.MkdirAll(dir, 0o755))
	for _, name := range []string{"cilium_lxc", "cilium_tunnel_map", "cilium_lb4_services_v2",
		"cilium_lb4_reverse_nat"} {
		await(c.t, c.programs.Maps[name].Pin(filepath.Join(dir, name)))
	}
}

// A ciliumEndpoint is a pod of the node.
type ciliumEndpoint struct {
	Index        uint32
	MAC, NodeMAC [6]byte
}

// fill writes the node's pods, and the nodes of the others.
func (c *cilium) fill(mode ciliumMode) {
	for _, pod := range podsOf(c.node) {
		i := c.iface(lxc(pod))
		e := ciliumEndpoint{Index: uint32(i.Attrs().Index)}
		mac, err := c.l.hardwareAddress(pod, "eth1")
		await(c.t, err)
		hw, err := net.ParseMAC(mac)
		await(c.t, err)
		copy(e.MAC[:], hw)
		copy(e.NodeMAC[:], i.Attrs().HardwareAddr)
		await(c.t, c.programs.Maps["cilium_lxc"].Put(PodAddr(pod, "IPv4").As4(), e))
	}
	for _, other := range NodeNames {
		if mode.tunnel && other != c.node {
			network, to := CalicoBlock(other).Masked().Addr().As4(), NodeAddr(other, ClientAddr).As4()
			await(c.t, c.programs.Maps["cilium_tunnel_map"].Put(network, binary.BigEndian.Uint32(to[:])))
		}
	}
}

// iface returns one of the node's interfaces.
func (c *cilium) iface(name string) (found netlink.Link) {
	c.t.Helper()
	await(c.t, c.l.Namespace(c.node).Do(func() (err error) {
		found, err = netlink.LinkByName(name)
		return err
	}))
	return found
}

// attach attaches a program as Cilium's loader does: a tcx link that is pinned below links, or a
// filter with the names of program and interface.
func (c *cilium) attach(program, iface string, parent uint32, place string) {
	c.t.Helper()
	await(c.t, c.l.Namespace(c.node).Do(func() error {
		l, err := netlink.LinkByName(iface)
		if err != nil {
			return err
		}
		if c.tcx {
			return attachTCX(c.programs.Programs[program], l, parent,
				filepath.Join(c.dir, "cilium", place, "links", program))
		}
		return attachTC(c.programs.Programs[program], l, parent, program+"-"+iface)
	}))
}

func attachTCX(program *ebpf.Program, l netlink.Link, parent uint32, pin string) error {
	at := ebpf.AttachTCXIngress
	if parent == netlink.HANDLE_MIN_EGRESS {
		at = ebpf.AttachTCXEgress
	}
	attached, err := link.AttachTCX(link.TCXOptions{
		Interface: l.Attrs().Index, Program: program, Attach: at, Anchor: link.Tail(),
	})
	if err != nil {
		return fmt.Errorf("tcx %s: %w", pin, err)
	}
	return errors.Join(os.MkdirAll(filepath.Dir(pin), 0o755), attached.Pin(pin), attached.Close())
}

func attachTC(program *ebpf.Program, l netlink.Link, parent uint32, name string) error {
	at := netlink.QdiscAttrs{
		LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}
	filter := netlink.FilterAttrs{
		LinkIndex: l.Attrs().Index, Parent: parent, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1,
	}
	if err := netlink.QdiscReplace(&netlink.GenericQdisc{QdiscAttrs: at, QdiscType: "clsact"}); err != nil {
		return fmt.Errorf("clsact of %s: %w", l.Attrs().Name, err)
	}
	return netlink.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: filter, Fd: program.FD(), Name: name, DirectAction: true,
	})
}

// nodePortProgram is one of the programs that Cilium has only when it replaces kube-proxy.
const nodePortProgram = "tail_nodeport_nat_ingress_ipv4"

// A ciliumService is an address and port in the maps of Services.
type ciliumService struct {
	Addr     [4]byte
	Port     [2]byte
	Protocol uint8
	_        uint8
}

func newCiliumService(a netip.Addr, port uint16, protocol uint8) ciliumService {
	return ciliumService{Addr: a.As4(), Port: [2]byte(binary.BigEndian.AppendUint16(nil, port)), Protocol: protocol}
}

// replaceKubeProxy makes Cilium translate an address to a pod of the node, until the returned
// function is called.
func (c *cilium) replaceKubeProxy(vip netip.Addr, pod string) (end func()) {
	c.t.Helper()
	for _, p := range []struct {
		port, target uint16
		protocol     uint8
	}{{80, WebPort, unix.IPPROTO_TCP}, {7, EchoPort, unix.IPPROTO_TCP}, {7, EchoPort, unix.IPPROTO_UDP}} {
		frontend, backend := newCiliumService(vip, p.port, p.protocol),
			newCiliumService(PodAddr(pod, "IPv4"), p.target, p.protocol)
		await(c.t, c.programs.Maps["cilium_lb4_services_v2"].Put(frontend, backend))
		await(c.t, c.programs.Maps["cilium_lb4_reverse_nat"].Put(backend, frontend))
	}
	more, err := ebpf.NewCollectionWithOptions(c.nodePort, ebpf.CollectionOptions{MapReplacements: c.programs.Maps})
	await(c.t, err)
	calls := c.programs.Maps["cilium_calls"]
	await(c.t, calls.Put(uint32(0), more.Programs[nodePortProgram]))
	return func() {
		await(c.t, calls.Delete(uint32(0)))
		more.Close()
	}
}
