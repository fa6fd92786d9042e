package l2

import (
	"cmp"
	"errors"
	"fmt"
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

	"github.com/fanfare-lb/fanfare/internal/base/notify"
)

// A socketKey identifies a packetSocket by protocol and interface index. The index outlives the name.
type socketKey struct {
	index    int
	protocol *protocol
}

func (k socketKey) compare(l socketKey) int {
	name := func(k socketKey) string {
		if k.protocol == nil {
			return ""
		}
		return k.protocol.name
	}
	return cmp.Or(cmp.Compare(k.index, l.index), strings.Compare(name(k), name(l)))
}

// A packetSocket handles one protocol on one interface. It has one goroutine.
type packetSocket struct {
	key    socketKey
	conn   *afpacket.Conn
	raw    syscall.RawConn
	failed atomic.Bool // the socket must be reopened

	// Used by the worker only.
	applied *socketPlan // that spans and groups were made for; nil: none
	spans   []span
	groups  groups

	// Protected by the Announcer's mu.
	iface   Interface
	claims  claims
	limiter limiter
	pools   []netip.Prefix
	heard   []request // the latest ones for addresses that this node does not have
}

// openSocket opens a socket without addresses and starts reading.
func openSocket(a *Announcer, key socketKey, i Interface) (*packetSocket, error) {
	filter, err := bpf.Assemble(key.protocol.filter(i.Index, nil))
	if err != nil {
		return nil, err
	}
	conn, err := afpacket.Listen(&net.Interface{Index: i.Index, Name: i.Name}, afpacket.Raw, key.protocol.etherType,
		&afpacket.Config{Filter: filter})
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		err = errors.Join(setOption(raw, unix.SO_RCVBUFFORCE, receiveBuffer), setOption(raw, unix.SO_TIMESTAMPNS, 1))
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	p := &packetSocket{
		key: key, conn: conn, raw: raw, iface: i, groups: groups{index: i.Index},
		claims: claims{mac: i.MAC, addresses: make(map[netip.Addr]*address)},
	}
	a.running.Go(func() { a.readPackets(p) })
	return p, nil
}

// receiveBuffer is the size of the socket's queue. The kernel accounts some hundred bytes a
// packet, and a router that has just come up resolves all addresses at once. It may exceed
// net.core.rmem_max.
const receiveBuffer = 4 << 20

func setOption(raw syscall.RawConn, option, value int) (err error) {
	failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, option, value) })
	return errors.Join(err, failed)
}

// close also ends the socket's goroutine.
func (p *packetSocket) close() {
	p.failed.Store(true)
	p.groups.close()
	p.conn.Close()
}

// apply makes the socket receive packets for the planned addresses and pools, and few others.
func (p *packetSocket) apply(plan *socketPlan) error {
	if p.applied == plan || p.applied != nil && slices.Equal(p.applied.addresses, plan.addresses) &&
		slices.Equal(p.applied.pools, plan.pools) {
		return nil
	}
	p.applied = nil
	if err := p.program(plan); err != nil {
		return err
	}
	p.applied = plan
	return nil
}

func (p *packetSocket) program(plan *socketPlan) error {
	if spans := slices.Concat(spansOf(plan.pools), covering(plan.addresses)); !slices.Equal(spans, p.spans) {
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
	return p.groups.set(groupsOf(plan.addresses))
}

// readPackets reads until the socket is closed or fails. The kernel reports here when the
// interface goes down.
func (a *Announcer) readPackets(p *packetSocket) {
	frame, control := make([]byte, frameLength), make([]byte, controlLength)
	for {
		n, controls, err := p.readFrame(frame, control)
		switch {
		case err == nil:
			now := time.Now()
			a.phases.receive(p, frame[:n], now.Add(-age(control[:controls], now)), now)
		case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EINTR):
		default:
			if !p.failed.Swap(true) {
				notify.Changed(a.worker.changes)
			}
			return
		}
	}
}

// receive decides about a frame, which arrived at the time when, and answers it. Only requests
// become stale: a claim by another host still shows a conflict.
func (s *phases) receive(p *packetSocket, frame []byte, when, now time.Time) {
	in, err := p.key.protocol.parse(frame)
	if err != nil {
		s.metrics.count(p, malformed)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out, v := reply(in, p.claims)
	switch {
	case (v == answered || v == deferred) && s.isStale(when, now):
		v = stale
	case v == answered && !p.limiter.allow(in.from, now):
		v = rateLimited
	case v == answered:
		s.send(p, out)
	case v == deferred && !p.claims.addresses[in.target].wait(request{p, in, when}):
		v = notHeld
	case v == otherAddress:
		p.remember(in, when)
	case v == conflicting:
		s.handleConflict(p, in, now)
	}
	s.metrics.count(p, v)
}

// send never blocks: a frame that finds the interface's queue full is lost, as it could be
// in the network.
func (s *phases) send(p *packetSocket, out packet) bool {
	frame, err := p.key.protocol.marshal(out)
	if err == nil {
		written := p.raw.Write(func(fd uintptr) bool {
			_, err = unix.Write(int(fd), frame)
			return true
		})
		err = errors.Join(err, written)
	}
	if err != nil {
		s.metrics.sendErrors.WithLabelValues(p.key.protocol.name).Inc()
	}
	return err == nil
}
