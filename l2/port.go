package l2

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	afpacket "github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// A portKey names a port: an interface by its index, which outlives its name, and a
// protocol.
type portKey struct {
	index    int
	protocol *protocol
}

func (k portKey) compare(l portKey) int {
	name := func(k portKey) string {
		if k.protocol == nil {
			return ""
		}
		return k.protocol.name
	}
	return cmp.Or(cmp.Compare(k.index, l.index), strings.Compare(name(k), name(l)))
}

// A port speaks one protocol on one interface. It has one socket and one goroutine.
type port struct {
	key    portKey
	conn   *afpacket.Conn
	raw    syscall.RawConn
	failed atomic.Bool // the socket is of no use any more

	// The keeper's alone.
	applied map[netip.Addr]bool // for which spans and groups are right
	spans  []span
	groups groups

	// Protected by the Announcer's mu.
	iface   Interface
	claims  claims
	limiter limiter
}

// openPort opens a port that answers for nothing yet, and reads what comes in.
func openPort(a *Announcer, key portKey, i Interface) (*port, error) {
	filter, err := bpf.Assemble(key.protocol.filter(i.Index, nil))
	if err != nil {
		return nil, err
	}
	conn, err := afpacket.Listen(&net.Interface{Index: i.Index, Name: i.Name}, afpacket.Raw, key.protocol.etherType, &afpacket.Config{Filter: filter})
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		err = setReceiveBuffer(raw, receiveBuffer)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	p := &port{
		key: key, conn: conn, raw: raw, iface: i, groups: groups{index: i.Index},
		claims: claims{mac: i.MAC, addresses: make(map[netip.Addr]*address)},
	}
	a.running.Go(func() { a.readPackets(p) })
	return p, nil
}

// receiveRoom is how much may wait to be read, in the kernel's accounts of some hundred bytes
// a packet: a router that has just come up asks for everything at once.
const receiveBuffer = 4 << 20

// makeRoom gives a socket a larger queue than anybody may have.
func setReceiveBuffer(raw syscall.RawConn, bytes int) (err error) {
	failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bytes) })
	return errors.Join(err, failed)
}

// close ends the port's goroutine too.
func (p *port) close() {
	p.failed.Store(true)
	p.groups.close()
	p.conn.Close()
}

// fit makes the port get what is sent for the addresses, and as little else as possible.
func (p *port) setAddresses(addresses map[netip.Addr]bool) error {
	if p.applied != nil && maps.Equal(p.applied, addresses) {
		return nil
	}
	p.applied = nil
	if err := p.program(addresses); err != nil {
		return err
	}
	p.applied = addresses
	return nil
}

func (p *port) program(addresses map[netip.Addr]bool) error {
	all := slices.Collect(maps.Keys(addresses))
	if spans := covering(all); !slices.Equal(spans, p.spans) {
		filter, err := bpf.Assemble(p.key.protocol.filter(p.key.index, spans))
		if err == nil {
			err = p.conn.SetBPF(filter)
		}
		if err != nil {
			return fmt.Errorf("filter: %w", err)
		}
		p.spans = spans
	}
	if p.key.protocol != ndpProtocol {
		return nil
	}
	want := make(map[netip.Addr]bool, len(all))
	for _, addr := range all {
		want[solicitedNode(addr)] = true
	}
	return p.groups.set(want)
}

// hear reads until the socket is closed, or of no use any more: when its interface goes
// down, the kernel says so here.
func (a *Announcer) readPackets(p *port) {
	frame := make([]byte, frameLength)
	for {
		n, _, err := p.conn.ReadFrom(frame)
		switch {
		case err == nil:
			a.receive(p, frame[:n], time.Now())
		case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EINTR):
		default:
			if !p.failed.Swap(true) {
				notify(a.worker.changes)
			}
			return
		}
	}
}

// receive does with a frame what is to be done.
func (a *Announcer) receive(p *port, frame []byte, now time.Time) {
	in, err := p.key.protocol.parse(frame)
	if err != nil {
		a.metrics.count(p, malformed)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	out, v := reply(in, p.claims)
	switch {
	case v == answered && !p.limiter.allow(in.from, now):
		v = rateLimited
	case v == answered:
		a.send(p, out)
	case v == conflicting:
		a.handleConflict(p, in, now)
	}
	a.metrics.count(p, v)
}

// send waits for nothing: what finds no room in the interface's queue is lost, as it would
// be in the network.
func (a *Announcer) send(p *port, out packet) bool {
	frame, err := p.key.protocol.marshal(out)
	if err == nil {
		written := p.raw.Write(func(fd uintptr) bool {
			_, err = unix.Write(int(fd), frame)
			return true
		})
		err = errors.Join(err, written)
	}
	if err != nil {
		a.metrics.unsent.WithLabelValues(p.key.protocol.name).Inc()
	}
	return err == nil
}
