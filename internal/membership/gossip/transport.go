package gossip

import (
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// packetRoom is the most bytes of a packet, as memberlist has it.
	packetRoom = 64 << 10
	// waitingRoom is how many bytes may wait to be read: memberlist's, too.
	waitingRoom = 2 << 20
	// acceptPause is after an error that may go away, as when there are too many files.
	acceptPause = 100 * time.Millisecond
	// connecting is how long a kernel has to accept a connection, however busy its node is.
	// A SYN that was lost, as on a link that has only just come up, is sent again after a
	// second (RFC 6298 §2): a node that is back is better off with another attempt.
	connecting = 400 * time.Millisecond
)

// A transport is memberlist's way to others: packets and connections at one address. Its
// own reads each packet into 64 KiB of its own, which is 2 MB a second while nothing happens, and
// a quarter of the processor time of a speaker at rest goes into collecting that.
type transport struct {
	at      netip.AddrPort
	udp     *net.UDPConn
	tcp     *net.TCPListener
	log     *log.Logger
	packets chan *memberlist.Packet
	streams chan net.Conn
	end     chan struct{}
	ending  sync.Once // memberlist ends it when it cannot begin, and so do we
	over    sync.WaitGroup
}

// sockets listens for packets and connections.
func sockets(at netip.AddrPort, log *log.Logger) (memberlist.Transport, error) {
	t := &transport{at: at, log: log, packets: make(chan *memberlist.Packet), streams: make(chan net.Conn), end: make(chan struct{})}
	if err := t.listen(); err != nil {
		return nil, fmt.Errorf("cannot listen at %s, UDP and TCP: %w; is the node's InternalIP an address of this machine, and the port free? MetalLB's speakers take 7946 as well", at, err)
	}
	t.over.Go(t.read)
	t.over.Go(t.accept)
	return t, nil
}

func (t *transport) listen() (err error) {
	if t.tcp, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(t.at)); err != nil {
		return err
	}
	if t.udp, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(t.at)); err == nil {
		if err = t.udp.SetReadBuffer(waitingRoom); err == nil {
			return nil
		}
		t.udp.Close()
	}
	t.tcp.Close()
	return err
}

// read takes packets until the socket is closed.
func (t *transport) read() {
	b := make([]byte, packetRoom)
	for {
		n, from, err := t.udp.ReadFromUDPAddrPort(b)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			t.log.Printf("[ERR] memberlist: packet: %v", err)
			continue
		case n == 0:
			continue
		}
		select {
		case t.packets <- &memberlist.Packet{Buf: slices.Clone(b[:n]), From: net.UDPAddrFromAddrPort(from), Timestamp: time.Now()}:
		case <-t.end:
			return
		}
	}
}

// accept takes connections until the socket is closed.
func (t *transport) accept() {
	for {
		conn, err := t.tcp.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			t.log.Printf("[ERR] memberlist: connection: %v", err)
			select {
			case <-time.After(acceptPause):
				continue
			case <-t.end:
				return
			}
		}
		select {
		case t.streams <- conn:
		case <-t.end:
			conn.Close()
			return
		}
	}
}

// FinalAdvertiseAddr is where the others find this node.
func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.at.Addr().AsSlice(), int(t.at.Port()), nil
}

// WriteTo sends a packet.
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return time.Time{}, err
	}
	_, err = t.udp.WriteToUDPAddrPort(b, to)
	return time.Now(), err
}

// DialTimeout connects from the address that it listens at, as it sends packets: whoever
// lets through nodes only can tell by the source.
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: min(timeout, connecting), LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(t.at.Addr(), 0))}
	return d.Dial("tcp", addr)
}

func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }
func (t *transport) StreamCh() <-chan net.Conn           { return t.streams }

// Shutdown ends both, and waits for that.
func (t *transport) Shutdown() (err error) {
	t.ending.Do(func() {
		close(t.end)
		err = errors.Join(t.tcp.Close(), t.udp.Close())
	})
	t.over.Wait()
	return err
}
