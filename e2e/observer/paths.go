package observer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	cbpf "golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Paths records to which nodes the router, or the host on the nodes' segment, sends each of a
// client's flows. A flow that was sent to two nodes was moved: the second node did not see its
// beginning.
type Paths struct {
	taps []*Listener
	node map[string]string // hardware address -> node

	mu    sync.Mutex
	by    map[pathKey][]string
	order []string // each node that got a packet when another one had got the packet before
	err   error
}

// A pathKey identifies a flow to the watched address.
type pathKey struct {
	protocol       uint8
	client, server uint16 // ports
}

// A Tap is an interface from which packets go to nodes.
type Tap struct {
	Namespace Namespace
	Interface string
}

// WatchPaths records the paths of packets to an address until Close. The nodes are by hardware
// address.
func WatchPaths(taps []Tap, nodes map[string]string, vip netip.Addr) (p *Paths, err error) {
	p = &Paths{node: nodes, by: map[pathKey][]string{}}
	for _, t := range taps {
		open := func(func(int) error) (int, error) { return openFrames(t.Interface, vip) }
		record := func(_ time.Time, frame []byte) error { p.record(frame); return nil }
		l, err := Listen(t.Namespace, "frames of "+t.Interface, open, record, p.fail)
		if err != nil {
			return nil, errors.Join(err, p.Close())
		}
		p.taps = append(p.taps, l)
	}
	return p, nil
}

// frameLength is how much of each frame is read: all headers.
const frameLength = 128

// openFrames opens a socket that receives the beginning of each frame to an address. Only a
// socket of all protocols receives what this machine itself sends.
func openFrames(iface string, vip netip.Addr) (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	index, err := net.InterfaceByName(iface)
	if err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	filter, err := destinationFilter(vip)
	if err == nil {
		err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, filter)
	}
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	return fd, errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index.Index}))
}

// destinationFilter returns destinationProgram for the kernel.
func destinationFilter(vip netip.Addr) (*unix.SockFprog, error) {
	raw, err := cbpf.Assemble(destinationProgram(vip))
	if err != nil {
		return nil, fmt.Errorf("filter: %w", err)
	}
	filters := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filters[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return &unix.SockFprog{Len: uint16(len(filters)), Filter: &filters[0]}, nil
}

// destinationProgram accepts frames to an address.
func destinationProgram(vip netip.Addr) []cbpf.Instruction {
	ethertype, offset := uint32(unix.ETH_P_IP), uint32(14+16)
	if vip.Is6() {
		ethertype, offset = unix.ETH_P_IPV6, 14+24
	}
	words := vip.AsSlice()
	checks := uint8(len(words) / 4 * 2)
	program := []cbpf.Instruction{cbpf.LoadAbsolute{Off: 12, Size: 2},
		cbpf.JumpIf{Cond: cbpf.JumpNotEqual, Val: ethertype, SkipTrue: checks + 1}}
	for i := uint8(0); int(i) < len(words); i += 4 {
		program = append(program, cbpf.LoadAbsolute{Off: offset + uint32(i), Size: 4},
			cbpf.JumpIf{Cond: cbpf.JumpNotEqual, Val: binary.BigEndian.Uint32(words[i:]), SkipTrue: checks - i/2 - 1})
	}
	return append(program, cbpf.RetConstant{Val: frameLength}, cbpf.RetConstant{})
}

// record stores the path of one frame.
func (p *Paths) record(frame []byte) {
	if len(frame) < 14+20+4 {
		return
	}
	if p.node[net.HardwareAddr(frame[6:12]).String()] != "" {
		// A node redirects a packet to another one whose port the bridge does not know, so that
		// the bridge floods it.
		return
	}
	node := p.node[net.HardwareAddr(frame[:6]).String()]
	packet := frame[14:]
	protocol, header := packet[9], int(packet[0]&15)*4
	if packet[0]>>4 == 6 {
		protocol, header = packet[6], 40
	}
	if node == "" || protocol != unix.IPPROTO_TCP && protocol != unix.IPPROTO_UDP || len(packet) < header+4 {
		return
	}
	key := pathKey{protocol, binary.BigEndian.Uint16(packet[header:]), binary.BigEndian.Uint16(packet[header+2:])}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.order); n == 0 || p.order[n-1] != node {
		p.order = append(p.order, node)
	}
	if !slices.Contains(p.by[key], node) {
		p.by[key] = append(p.by[key], node)
	}
}

func (p *Paths) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = errors.Join(p.err, err)
}

// Of returns the nodes that a flow's packets went to, in the order of the first packet to each.
func (p *Paths) Of(network string, client, server uint16) []string {
	protocol := uint8(unix.IPPROTO_TCP)
	if network == "udp" {
		protocol = unix.IPPROTO_UDP
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.by[pathKey{protocol, client, server}]
}

// Order returns the nodes that the address's packets went to one after the other. It is of use
// where all go to one node at a time.
func (p *Paths) Order() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.order)
}

// Close ends the recording. It returns an error if a packet may have been missed.
func (p *Paths) Close() error {
	for _, t := range p.taps {
		t.Close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}
