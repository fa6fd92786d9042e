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
	peers  map[netip.Addr]*detector
	listen map[bool]net.PacketConn // by whether it is for IPv4
}

func newBFDReceiver() *bfdReceiver {
	return &bfdReceiver{peers: map[netip.Addr]*detector{}, listen: map[bool]net.PacketConn{}}
}

func (b *bfdReceiver) add(d *detector) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if is4 := d.peer.Is4(); b.listen[is4] == nil {
		conn, err := b.open(is4)
		if err != nil {
			return err
		}
		b.listen[is4] = conn
	}
	b.peers[d.peer] = d
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

// A ttlReader reads one packet and the TTL, or hop limit, that it arrived with.
type ttlReader func(p []byte) (n, ttl int, from net.Addr, err error)

// open listens, and delivers until the connection is closed.
func (b *bfdReceiver) open(is4 bool) (net.PacketConn, error) {
	network, reader := "udp6", hopLimitReader
	if is4 {
		network, reader = "udp4", timeToLiveReader
	}
	conn, err := net.ListenPacket(network, fmt.Sprintf(":%d", bfdPort))
	if err != nil {
		return nil, fmt.Errorf("BFD cannot listen on UDP port %d: %s; does another BFD run on this node?", bfdPort, cause(err))
	}
	read, err := reader(conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	go b.serve(read)
	return conn, nil
}

func timeToLiveReader(conn net.PacketConn) (ttlReader, error) {
	c := ipv4.NewPacketConn(conn)
	if err := c.SetControlMessage(ipv4.FlagTTL, true); err != nil {
		return nil, fmt.Errorf("BFD: TTL of received packets: %w", err)
	}
	return func(p []byte) (int, int, net.Addr, error) {
		n, cm, from, err := c.ReadFrom(p)
		if cm == nil {
			return n, 0, from, err
		}
		return n, cm.TTL, from, err
	}, nil
}

func hopLimitReader(conn net.PacketConn) (ttlReader, error) {
	c := ipv6.NewPacketConn(conn)
	if err := c.SetControlMessage(ipv6.FlagHopLimit, true); err != nil {
		return nil, fmt.Errorf("BFD: hop limit of received packets: %w", err)
	}
	return func(p []byte) (int, int, net.Addr, error) {
		n, cm, from, err := c.ReadFrom(p)
		if cm == nil {
			return n, 0, from, err
		}
		return n, cm.HopLimit, from, err
	}, nil
}

func (b *bfdReceiver) serve(read ttlReader) {
	body := make([]byte, 1500)
	for {
		n, ttl, from, err := read(body)
		if err != nil {
			return
		}
		p, err := acceptBFD(ttl, body[:n])
		if udp, ok := from.(*net.UDPAddr); ok && err == nil {
			b.deliver(udp.AddrPort().Addr().Unmap(), p)
		}
	}
}

func (b *bfdReceiver) deliver(from netip.Addr, p bfdPacket) {
	b.mu.Lock()
	d := b.peers[from]
	b.mu.Unlock()
	if d != nil {
		d.deliver(p)
	}
}
