package proxytest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// Types of chunks, RFC 9260 §3.2.
const (
	chunkInit       = 1
	chunkInitAck    = 2
	chunkCookieEcho = 10
	chunkCookieAck  = 11
)

// paramCookie is the parameter with the state cookie, RFC 9260 §3.3.3.1.
const paramCookie = 7

// An sctpPacket has one chunk, which has no flags.
type sctpPacket struct {
	from, to uint16
	tag      uint32 // verification tag, chosen by the receiver
	chunk    byte
	value    []byte
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (p sctpPacket) marshal() []byte {
	b := binary.BigEndian.AppendUint16(nil, p.from)
	b = binary.BigEndian.AppendUint16(b, p.to)
	b = binary.BigEndian.AppendUint32(b, p.tag)
	b = append(b, 0, 0, 0, 0, p.chunk, 0)
	b = padded(binary.BigEndian.AppendUint16(b, uint16(4+len(p.value))), p.value)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
	return b
}

// SCTPData returns a packet with data of an association that does not exist.
func SCTPData(from, to uint16) []byte {
	return sctpPacket{from: from, to: to, tag: 1, chunk: 0, value: make([]byte, 16)}.marshal()
}

// padded appends a field, filled up to a multiple of four bytes.
func padded(b, field []byte) []byte {
	b = append(b, field...)
	return append(b, make([]byte, -len(field)&3)...)
}

var errChecksum = errors.New("wrong checksum")

func parseSCTP(b []byte) (p sctpPacket, err error) {
	if len(b) < 16 {
		return p, errors.New("cut short")
	}
	sum := binary.LittleEndian.Uint32(b[8:])
	clear(b[8:12])
	if crc32.Checksum(b, castagnoli) != sum {
		return p, errChecksum
	}
	length := int(binary.BigEndian.Uint16(b[14:]))
	if length < 4 || 12+length > len(b) {
		return p, errors.New("chunk cut short")
	}
	return sctpPacket{
		from: binary.BigEndian.Uint16(b), to: binary.BigEndian.Uint16(b[2:]), tag: binary.BigEndian.Uint32(b[4:]),
		chunk: b[12], value: b[16 : 12+length],
	}, nil
}

// initValue is the value of INIT and, with a cookie, INIT ACK (RFC 9260 §3.3.2):
// tag, window, streams out and in, first sequence number.
func initValue(tag uint32, cookie []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, tag)
	b = append(b, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1)
	if cookie == nil {
		return b
	}
	b = binary.BigEndian.AppendUint16(b, paramCookie)
	return padded(binary.BigEndian.AppendUint16(b, uint16(4+len(cookie))), cookie)
}

// parseInit returns what initValue was given.
func parseInit(b []byte) (tag uint32, cookie []byte, err error) {
	if len(b) < 16 {
		return 0, nil, errors.New("INIT cut short")
	}
	tag, b = binary.BigEndian.Uint32(b), b[16:]
	if len(b) < 4 {
		return tag, nil, nil
	}
	length := int(binary.BigEndian.Uint16(b[2:]))
	if binary.BigEndian.Uint16(b) != paramCookie || length < 4 || length > len(b) {
		return tag, nil, errors.New("INIT without a cookie")
	}
	return tag, b[4:length], nil
}

// sctpNetwork is what package net calls a raw socket for SCTP.
func sctpNetwork(a netip.Addr) string {
	if a.Is6() {
		return "ip6:132"
	}
	return "ip4:132"
}

// serveSCTP answers handshakes. The cookie, which the client gets to see and must
// send back, is the answer.
func (l *Lab) serveSCTP(ns *nstest.NS, on netip.AddrPort) {
	l.T.Helper()
	var c net.PacketConn
	var err error
	ns.Do(func() { c, err = net.ListenPacket(sctpNetwork(on.Addr()), on.Addr().String()) })
	if err != nil {
		l.T.Fatal(err)
	}
	l.T.Cleanup(func() { c.Close() })
	go func() {
		clients := make(map[string]uint32) // tags, by address and port
		buf := make([]byte, 512)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			p, err := parseSCTP(buf[:n])
			if err != nil || p.to != on.Port() {
				continue // another's, or never to be answered
			}
			client := net.JoinHostPort(from.String(), fmt.Sprint(p.from))
			if answer, ok := answerSCTP(p, ns.Name, client, clients); ok {
				_, _ = c.WriteTo(answer.marshal(), from)
			}
		}
	}()
}

// answerSCTP is a server's part in the handshake.
func answerSCTP(p sctpPacket, name, client string, tags map[string]uint32) (sctpPacket, bool) {
	const mine = 0x0a0b0c0d
	cookie := fmt.Appendf(nil, "%s saw %s", name, client)
	answer := sctpPacket{from: p.to, to: p.from}
	switch {
	case p.chunk == chunkInit && p.tag == 0:
		tag, _, err := parseInit(p.value)
		if err != nil {
			return answer, false
		}
		tags[client] = tag
		answer.chunk, answer.value = chunkInitAck, initValue(mine, cookie)
	case p.chunk == chunkCookieEcho && p.tag == mine && string(p.value) == string(cookie):
		answer.chunk = chunkCookieAck
	default:
		return answer, false
	}
	answer.tag = tags[client]
	return answer, true
}

// associate goes through a handshake, from a source port, and says who answered and
// what it saw; and "refused" after an ICMP error.
func (l *Lab) associate(from *nstest.NS, port uint16, to netip.AddrPort, want string) string {
	l.T.Helper()
	var c net.Conn
	var err error
	// Connected, it gets only what comes from there.
	from.Do(func() { c, err = net.Dial(sctpNetwork(to.Addr()), to.Addr().String()) })
	if err != nil {
		l.T.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(Patience(want)))
	a := association{conn: c.(*net.IPConn), port: port, to: to.Port(), tag: 0x01020304}
	if err := queueErrors(a.conn, to.Addr()); err != nil {
		l.T.Fatal(err)
	}
	value, err := a.exchange(sctpPacket{chunk: chunkInit, value: initValue(a.tag, nil)}, chunkInitAck)
	if err != nil {
		return Outcome(err)
	}
	tag, cookie, err := parseInit(value)
	if err == nil {
		_, err = a.exchange(sctpPacket{tag: tag, chunk: chunkCookieEcho, value: cookie}, chunkCookieAck)
	}
	if err != nil {
		return "after INIT ACK: " + Outcome(err)
	}
	return l.Named(string(cookie))
}

// An association is a client's end.
type association struct {
	conn     *net.IPConn
	port, to uint16
	tag      uint32
}

// exchange sends a chunk, waits for a type of answer and returns its value.
func (a association) exchange(p sctpPacket, want byte) (value []byte, err error) {
	p.from, p.to = a.port, a.to
	for {
		_, err := a.conn.Write(p.marshal())
		if err == nil {
			break
		}
		if a.concerned(err) {
			return nil, err
		}
	}
	buf := make([]byte, 512)
	for {
		// Unlike Read, it takes the header of IPv4 away.
		n, _, err := a.conn.ReadFrom(buf)
		if err != nil && !a.concerned(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		got, err := parseSCTP(buf[:n])
		if err != nil {
			return nil, err
		}
		if got.from == a.to && got.to == a.port && got.tag == a.tag && got.chunk == want {
			return got.value, nil
		}
	}
}

// concerned reports whether an error is of this association. The kernel gives an ICMP
// error to all raw sockets between the same two addresses, whatever the ports.
func (a association) concerned(err error) bool {
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return true
	}
	raw, err := a.conn.SyscallConn()
	if err != nil {
		return true
	}
	mine := false
	// The queue holds what of the packet came back, from the header of SCTP on.
	err = raw.Control(func(fd uintptr) {
		for buf := make([]byte, 512); ; {
			n, _, _, _, err := unix.Recvmsg(int(fd), buf, make([]byte, 512), unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
			if err != nil {
				return
			}
			mine = mine || n >= 4 && binary.BigEndian.Uint16(buf) == a.port && binary.BigEndian.Uint16(buf[2:]) == a.to
		}
	})
	return err != nil || mine
}

// queueErrors makes the kernel keep the packets that ICMP errors quote.
func queueErrors(c *net.IPConn, to netip.Addr) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	level, option := unix.IPPROTO_IP, unix.IP_RECVERR
	if to.Is6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	var set error
	err = raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), level, option, 1) })
	return errors.Join(err, set)
}
