package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/proxy/fastpath"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A client that only receives does not notice that its connection has ended: it accepts an RST only
// with the sequence number that it expects (RFC 5961 §3.2), which conntrack does not show. A SYN in
// the middle of a connection makes the client send a challenge ACK (§4.2), and the rules answer
// that by RST, as they answer any packet of an unknown connection.
//
// The packet has SYN and ACK set, as only a server sends it. No node's conntrack, this one's
// included, makes an entry for it (tcp_new), and nodes on the path that know the connection let it
// pass (TCP_CONNTRACK_IGNORE).

// challengeSockets are raw sockets, by family; -1 where there is none.
type challengeSockets [2]int

// openChallengeSockets opens them in the calling thread's namespace.
func openChallengeSockets() (q challengeSockets, err error) {
	for i, family := range []int{unix.AF_INET, unix.AF_INET6} {
		fd, e := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if e != nil {
			fd = -1
			if !errors.Is(e, unix.EAFNOSUPPORT) { // IPv6 may be off
				err = errors.Join(err, fmt.Errorf("raw socket: %w", e))
			}
		} else {
			// A send waits for room in the interface's queue, as it may among thousands, but not
			// for long: the interface may hang.
			// The kernel accepts any value.
			_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Usec: 100_000})
		}
		q[i] = fd
	}
	return q, err
}

func (q challengeSockets) close() {
	for _, fd := range q {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// send sends the challenge packet for a flow.
func (q challengeSockets) send(f *Flow) error {
	fd := q[state.Family(f.VIP)]
	if fd < 0 {
		return nil
	}
	var to unix.Sockaddr = &unix.SockaddrInet6{Addr: f.Client.As16()}
	if f.Client.Is4() {
		to = &unix.SockaddrInet4{Addr: f.Client.As4()}
	}
	return unix.Sendto(fd, challengePacket(f), 0, to)
}

// challengePacket returns the segment with SYN and ACK, and its IP header.
func challengePacket(f *Flow) []byte {
	const ackSYN, ttl = 0x12, 64
	tcp := binary.BigEndian.AppendUint16(nil, f.Port.Port)
	tcp = binary.BigEndian.AppendUint16(tcp, f.From)
	tcp = append(tcp, 0, 0, 0, 0, 0, 0, 0, 0, 5<<4, ackSYN, 0, 0, 0, 0, 0, 0)
	addrs := slices.Concat(f.VIP.AsSlice(), f.Client.AsSlice())
	pseudo := append(slices.Clone(addrs), 0, unix.IPPROTO_TCP, 0, byte(len(tcp)))
	binary.BigEndian.PutUint16(tcp[16:], checksum(append(pseudo, tcp...)))
	head := []byte{6 << 4, 0, 0, 0, 0, byte(len(tcp)), unix.IPPROTO_TCP, ttl}
	if f.VIP.Is4() {
		// The kernel fills in length, identification and checksum.
		head = []byte{4<<4 | 5, 0, 0, 0, 0, 0, 0, 0, ttl, unix.IPPROTO_TCP, 0, 0}
	}
	return slices.Concat(head, addrs, tcp)
}

// checksum is the Internet checksum (RFC 1071) of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// challenge sends challenge packets to the clients of deleted connections, except to clients that
// may no longer use the frontend.
func (c *Cleaner) challenge(deleted []Flow) {
	want := c.wanted()[0]
	var failed error
	for i := range deleted {
		if f := &deleted[i]; f.Port.Proto == state.TCP && f.DNAT && f.replied && !f.Ended && !forbids(&want, f) {
			if err := c.challenges.send(f); failed == nil {
				failed = err
			}
		}
	}
	if failed != nil {
		// These clients notice at their next packet or keepalive.
		c.log.Debug("send challenge packets: clients that only listen may not notice that their connections ended",
			"err", failed)
	}
}

// EndedFlows sends challenge packets to the clients of connections that the fast path ended.
func (c *Cleaner) EndedFlows(all []fastpath.Flow) {
	flows := make([]Flow, 0, len(all))
	for _, f := range all {
		flows = append(flows, Flow{
			Client: f.Client.Addr(), From: f.Client.Port(), VIP: f.VIP.Addr(),
			Port:    state.Port{Proto: state.Protocol(f.Protocol), Port: f.VIP.Port()},
			Backend: f.Backend, DNAT: true, replied: true,
		})
	}
	c.challenge(flows)
}
