package bgp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// The destination port of RFC 5881 section 4, and the first source port.
const (
	bfdPort       = 3784
	bfdSourcePort = 49152
)

// dialBFD binds to an address of this node and a source port that RFC 5881 section 4 allows. The
// TTL proves that no router has forwarded the packet (section 5).
func dialBFD(ctx context.Context, local, peer netip.Addr, device string) (net.Conn, error) {
	dialer := net.Dialer{Control: prepare(func(fd int) error {
		return errors.Join(bindDevice(fd, device), setTTL(fd, peer.Is4(), maxTTL))
	})}
	var conn net.Conn
	var err error
	for range 10 { // another program may have the port
		port := bfdSourcePort + rand.IntN(1<<16-bfdSourcePort)
		dialer.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(numbered(local), uint16(port)))
		conn, err = dialer.DialContext(ctx, "udp", netip.AddrPortFrom(numbered(peer), bfdPort).String())
		if err == nil {
			return conn, nil
		}
	}
	return nil, fmt.Errorf("BFD cannot send to %s: %w", peer, err)
}

// send ignores errors: only packets that the router receives count.
func send(conn net.Conn, p bfdPacket) { _, _ = conn.Write(p.bytes()) }

// acceptBFD reads a received packet. A packet with a TTL below the sender's 255 does not come from a
// neighbour (RFC 5881 section 5).
func acceptBFD(ttl int, b []byte) (bfdPacket, error) {
	if ttl != maxTTL {
		return bfdPacket{}, fmt.Errorf("BFD packet: TTL %d, want %d: it was forwarded", ttl, maxTTL)
	}
	return parseBFD(b)
}

// A bfdReceiver receives for all detectors of a Server, because they share one port. It listens
// only while there is a detector.
type bfdReceiver struct {
	mu     sync.Mutex
	peers  map[netip.Addr]func(p bfdPacket, link int)
	listen map[bool]net.PacketConn // by whether it is for IPv4
}

func newBFDReceiver() *bfdReceiver {
	return &bfdReceiver{peers: map[netip.Addr]func(bfdPacket, int){}, listen: map[bool]net.PacketConn{}}
}

// add lets receive have the packets of a router, and the interfaces on which they arrive.
func (b *bfdReceiver) add(peer netip.Addr, receive func(p bfdPacket, link int)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if is4 := peer.Is4(); b.listen[is4] == nil {
		conn, err := b.open(is4)
		if err != nil {
			return err
		}
		b.listen[is4] = conn
	}
	b.peers[peer] = receive
	return nil
}

func (b *bfdReceiver) remove(peer netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.peers, peer)
	for other := range b.peers {
		if other.Is4() == peer.Is4() {
			return
		}
	}
	if conn := b.listen[peer.Is4()]; conn != nil {
		conn.Close()
		delete(b.listen, peer.Is4())
	}
}

// An arrival is how a packet has arrived.
type arrival struct {
	from netip.Addr
	ttl  int // or hop limit
	link int // the interface's index
}

// An arrivalReader reads one packet.
type arrivalReader func(p []byte) (n int, a arrival, err error)

// open listens, and delivers until the connection is closed.
func (b *bfdReceiver) open(is4 bool) (net.PacketConn, error) {
	network, reader := "udp6", readerIPv6
	if is4 {
		network, reader = "udp4", readerIPv4
	}
	conn, err := net.ListenPacket(network, fmt.Sprintf(":%d", bfdPort))
	if err != nil {
		return nil, fmt.Errorf("BFD cannot listen on UDP port %d: %s; does another BFD run on this node?", bfdPort,
			cause(err))
	}
	read, err := reader(conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	go b.serve(read)
	return conn, nil
}

func readerIPv4(conn net.PacketConn) (arrivalReader, error) {
	c := ipv4.NewPacketConn(conn)
	if err := c.SetControlMessage(ipv4.FlagTTL|ipv4.FlagInterface, true); err != nil {
		return nil, fmt.Errorf("BFD: TTL and interface of received packets: %w", err)
	}
	return func(p []byte) (n int, a arrival, err error) {
		n, cm, from, err := c.ReadFrom(p)
		if cm != nil {
			a.ttl, a.link = cm.TTL, cm.IfIndex
		}
		a.from = sender(from)
		return n, a, err
	}, nil
}

func readerIPv6(conn net.PacketConn) (arrivalReader, error) {
	c := ipv6.NewPacketConn(conn)
	if err := c.SetControlMessage(ipv6.FlagHopLimit|ipv6.FlagInterface, true); err != nil {
		return nil, fmt.Errorf("BFD: hop limit and interface of received packets: %w", err)
	}
	return func(p []byte) (n int, a arrival, err error) {
		n, cm, from, err := c.ReadFrom(p)
		if cm != nil {
			a.ttl, a.link = cm.HopLimit, cm.IfIndex
		}
		a.from = sender(from)
		return n, a, err
	}, nil
}

// sender returns the address of a UDP packet's sender.
func sender(a net.Addr) netip.Addr {
	if udp, ok := a.(*net.UDPAddr); ok {
		return udp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

func (b *bfdReceiver) serve(read arrivalReader) {
	body := make([]byte, 1500)
	for {
		n, a, err := read(body)
		if err != nil {
			return
		}
		if p, err := acceptBFD(a.ttl, body[:n]); err == nil {
			b.deliver(a, p)
		}
	}
}

func (b *bfdReceiver) deliver(a arrival, p bfdPacket) {
	b.mu.Lock()
	receive := b.peers[a.from]
	b.mu.Unlock()
	if receive != nil {
		receive(p, a.link)
	}
}
