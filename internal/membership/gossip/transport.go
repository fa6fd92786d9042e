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
	// maxPacket is memberlist's maximum length of a packet.
	maxPacket = 64 << 10
	// readBuffer is memberlist's size of the socket's buffer.
	readBuffer = 2 << 20
	// acceptPause follows a temporary error, such as too many open files.
	acceptPause = 100 * time.Millisecond
	// connectTimeout bounds a connection attempt. TCP repeats a lost SYN only after a second
	// (RFC 6298 §2), and packets are lost on a link that has just come up: another attempt
	// is faster.
	connectTimeout = 400 * time.Millisecond
)

// A socketTransport sends and receives memberlist's packets and connections at one address.
// Memberlist's own transport allocates 64 KiB for each packet: 2 MB a second in a cluster at
// rest, whose collection takes a quarter of an idle speaker's processor time.
type socketTransport struct {
	addr    netip.AddrPort
	admits  admission
	udp     *net.UDPConn
	tcp     *net.TCPListener
	log     *log.Logger
	packets chan *memberlist.Packet
	streams chan net.Conn
	end     chan struct{}
	ending  sync.Once // if Create returns an error, memberlist may have called Shutdown
	done    sync.WaitGroup
}

// An admission reports whether a packet or a connection may be of another speaker, by its source
// alone. It is called for each one, before anything is allocated for it.
type admission func(from netip.Addr) bool

// listenSockets opens a socketTransport, which discards what is not admitted.
func listenSockets(at netip.AddrPort, admits admission, log *log.Logger) (memberlist.Transport, error) {
	t := &socketTransport{
		addr: at, admits: admits, log: log, packets: make(chan *memberlist.Packet), streams: make(chan net.Conn),
		end: make(chan struct{}),
	}
	if err := t.listen(); err != nil {
		return nil, fmt.Errorf("cannot listen at %s, UDP and TCP: %w; is the node's InternalIP an address of this "+
			"machine, and the port free?", at, err)
	}
	t.done.Go(t.read)
	t.done.Go(t.accept)
	return t, nil
}

func (t *socketTransport) listen() (err error) {
	if t.tcp, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(t.addr)); err != nil {
		return err
	}
	if t.udp, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(t.addr)); err == nil {
		if err = t.udp.SetReadBuffer(readBuffer); err == nil {
			return nil
		}
		t.udp.Close()
	}
	t.tcp.Close()
	return err
}

// read receives packets until the socket is closed.
func (t *socketTransport) read() {
	b := make([]byte, maxPacket)
	for {
		n, from, err := t.udp.ReadFromUDPAddrPort(b)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			t.log.Printf("[ERR] memberlist: packet: %v", err)
			continue
		case n == 0 || !t.admits(from.Addr().Unmap()):
			continue
		}
		select {
		case t.packets <- &memberlist.Packet{Buf: slices.Clone(b[:n]), From: net.UDPAddrFromAddrPort(from),
			Timestamp: time.Now()}:
		case <-t.end:
			return
		}
	}
}

// accept accepts connections until the socket is closed.
func (t *socketTransport) accept() {
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
		if !t.admits(addrPortOf(conn.RemoteAddr()).Addr()) {
			conn.Close()
			continue
		}
		select {
		case t.streams <- conn:
		case <-t.end:
			conn.Close()
			return
		}
	}
}

// FinalAdvertiseAddr returns this node's address for other nodes.
func (t *socketTransport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.addr.Addr().AsSlice(), int(t.addr.Port()), nil
}

// WriteTo sends a packet.
func (t *socketTransport) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return time.Time{}, err
	}
	_, err = t.udp.WriteToUDPAddrPort(b, to)
	return time.Now(), err
}

// DialTimeout connects from the listening address, so that a firewall can admit nodes by
// their addresses.
func (t *socketTransport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{
		Timeout: min(timeout, connectTimeout), LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(t.addr.Addr(), 0)),
	}
	return d.Dial("tcp", addr)
}

func (t *socketTransport) PacketCh() <-chan *memberlist.Packet { return t.packets }
func (t *socketTransport) StreamCh() <-chan net.Conn           { return t.streams }

// Shutdown closes both sockets and waits for the goroutines.
func (t *socketTransport) Shutdown() (err error) {
	t.ending.Do(func() {
		close(t.end)
		err = errors.Join(t.tcp.Close(), t.udp.Close())
	})
	t.done.Wait()
	return err
}
