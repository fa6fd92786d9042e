package bgp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Constants of RFC 4271 and RFC 4760.
const (
	headerLen = 19
	holdTime  = 240 // seconds

	msgOpen, msgUpdate, msgNotification, msgKeepalive = 1, 2, 3, 4

	routersASN, nodeASN = 64496, 64497
)

// A router accepts one session, from the node, and records the received routes.
type router struct {
	addr     netip.Addr
	listener net.Listener

	mu       sync.Mutex
	conn     net.Conn
	has      map[netip.Prefix]struct{}
	opened   time.Time // arrival of the current session's OPEN
	updates  int       // of the current session
	bytes    int       // of these
	want     int       // number of routes to wait for; -1: not waiting
	complete chan time.Time
	err      error // reason why the last session ended
}

func newRouter(addr netip.Addr, l net.Listener) *router {
	r := &router{addr: addr, listener: l, has: map[netip.Prefix]struct{}{}, want: -1, complete: make(chan time.Time, 1)}
	go r.serve()
	return r
}

// serve accepts one session after the other until the listener is closed.
func (r *router) serve() {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.mu.Lock()
		r.conn, r.updates, r.bytes, r.opened = conn, 0, 0, time.Time{}
		clear(r.has)
		r.mu.Unlock()
		err = errors.Join(r.session(conn), conn.Close())
		r.mu.Lock()
		r.err = err
		r.mu.Unlock()
	}
}

// reset ends the session and forgets the routes, as a restart of the router does.
func (r *router) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.has)
	if r.conn != nil {
		r.conn.Close()
	}
}

// expect starts to wait until the router has the given number of routes.
func (r *router) expect(routes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.complete: // of an abandoned wait
	default:
	}
	r.want = routes
	r.check(time.Now())
}

// check must be called with the lock held.
func (r *router) check(now time.Time) {
	if r.want == len(r.has) {
		r.want = -1
		r.complete <- now
	}
}

func (r *router) session(conn net.Conn) error {
	in := bufio.NewReaderSize(conn, 1<<16)
	for {
		kind, body, err := readMessage(in)
		if err != nil {
			return err
		}
		now := time.Now()
		switch kind {
		case msgOpen:
			r.mu.Lock()
			r.opened = now
			r.mu.Unlock()
			_, err = conn.Write(append(open(r.addr), message(msgKeepalive, nil)...))
		case msgKeepalive:
			_, err = conn.Write(message(msgKeepalive, nil)) // the node's keepalives set the rate
		case msgUpdate:
			err = r.update(now, body)
		case msgNotification:
			err = fmt.Errorf("the node sent NOTIFICATION %d", body)
		}
		if err != nil {
			return err
		}
	}
}

func (r *router) update(now time.Time, body []byte) error {
	reached, withdrawn, err := readUpdate(body)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.updates++
	r.bytes += headerLen + len(body)
	for _, p := range withdrawn {
		delete(r.has, p)
	}
	for _, p := range reached {
		r.has[p] = struct{}{}
	}
	r.check(now)
	return nil
}

// readMessage reads the type and the body of a message (RFC 4271 §4.1).
func readMessage(in io.Reader) (kind byte, body []byte, err error) {
	var header [headerLen]byte
	if _, err := io.ReadFull(in, header[:]); err != nil {
		return 0, nil, err
	}
	size := int(binary.BigEndian.Uint16(header[16:]))
	if size < headerLen {
		return 0, nil, fmt.Errorf("a message of %d bytes", size)
	}
	body = make([]byte, size-headerLen)
	_, err = io.ReadFull(in, body)
	return header[18], body, err
}

func message(kind byte, body []byte) []byte {
	m := make([]byte, 16, headerLen+len(body))
	for i := range m {
		m[i] = 0xff
	}
	m = binary.BigEndian.AppendUint16(m, uint16(headerLen+len(body)))
	return append(append(m, kind), body...)
}

// open returns an OPEN with IPv4 unicast (RFC 4760) and four-byte AS numbers (RFC 6793).
func open(id netip.Addr) []byte {
	body := binary.BigEndian.AppendUint16([]byte{4}, routersASN)
	body = binary.BigEndian.AppendUint16(body, holdTime)
	body = append(body, id.AsSlice()...)
	capabilities := binary.BigEndian.AppendUint32([]byte{1, 4, 0, 1, 0, 1, 65, 4}, routersASN)
	body = append(body, byte(len(capabilities)+2), 2, byte(len(capabilities)))
	return message(msgOpen, append(body, capabilities...))
}

var errShort = errors.New("truncated UPDATE")

// readUpdate reads the IPv4 prefixes of an UPDATE (RFC 4271 §4.3).
func readUpdate(b []byte) (reached, withdrawn []netip.Prefix, err error) {
	gone, b, ok := cutCounted(b)
	if !ok {
		return nil, nil, errShort
	}
	_, b, ok = cutCounted(b) // attributes
	if !ok {
		return nil, nil, errShort
	}
	if withdrawn, err = prefixes(gone); err == nil {
		reached, err = prefixes(b)
	}
	return reached, withdrawn, err
}

// cutCounted cuts off a field that begins with its two-byte length.
func cutCounted(b []byte) (field, rest []byte, ok bool) {
	if len(b) < 2 || 2+int(binary.BigEndian.Uint16(b)) > len(b) {
		return nil, nil, false
	}
	end := 2 + int(binary.BigEndian.Uint16(b))
	return b[2:end], b[end:], true
}

func prefixes(b []byte) (all []netip.Prefix, err error) {
	for len(b) > 0 {
		bits := int(b[0])
		end := 1 + (bits+7)/8
		if bits > 32 || end > len(b) {
			return nil, errShort
		}
		var addr [4]byte
		copy(addr[:], b[1:end])
		all = append(all, netip.PrefixFrom(netip.AddrFrom4(addr), bits))
		b = b[end:]
	}
	return all, nil
}
