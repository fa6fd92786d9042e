package bgp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// BGP on the wire: RFC 4271 §4.1, RFC 4724 §2.
const (
	headerLen = 19

	msgOpen         = 1
	msgUpdate       = 2
	msgNotification = 3
	msgKeepalive    = 4

	// maxBody is the longest message whose body is read. It is the limit for all messages but
	// UPDATEs between two sides that support RFC 8654.
	maxBody = 4096 - headerLen
)

// drainTime is how long a NOTIFICATION may take to reach a router before the connection is closed.
const drainTime = 250 * time.Millisecond

// A family is an address family that a session carries.
type family int

const (
	ipv4Unicast family = iota
	ipv6Unicast
	families
)

// A wire is a connection between GoBGP and a router that parses the messages of both. It changes
// the router ID in the local OPEN and the next hops in local UPDATEs (nexthop.go), and replaces the
// router's UPDATEs, which GoBGP must not see (framer). It rejects a router that GoBGP would accept
// by mistake.
type wire struct {
	*net.TCPConn
	conf         Session
	neighborAddr netip.Addr // the router's address in GoBGP

	// The reader alone uses the following fields.
	in     framer
	buffer [4096]byte
	passed []byte // read, but not yet passed to GoBGP
	at     int    // the position in passed

	// gate is taken when the router's first KEEPALIVE arrives, before GoBGP sees it: see
	// Server.gate. release gives it back.
	gate    chan struct{}
	once    sync.Once
	passing chan struct{} // closed once the gate is taken

	closed    chan struct{}
	closeOnce sync.Once

	mu     sync.Mutex
	facts  wireFacts
	onEach func() // called after each change of facts that a session may wait for
}

// wireFacts are what a wire has seen.
type wireFacts struct {
	open         *open // the router's
	sent         *notification
	received     *notification
	readErr      error
	writeErr     error
	updates      int                 // UPDATEs sent, End-of-RIB included
	ignored      int                 // UPDATEs of the router that GoBGP did not see
	endOfRIB     [families]time.Time // sent
	badMessage   error               // the router's OPEN could not be read
	refusal      string              // why the router was rejected, for an operator
	confirmed    bool                // KEEPALIVE sent, or about to be: the router's OPEN is accepted
	established  time.Time           // zero before
	gateReleased bool
}

// endedByRouter reports that the session was up, if only briefly, and that the router ended it.
// After the router's KEEPALIVE, both ends have sent theirs.
func (f wireFacts) endedByRouter() bool {
	return f.confirmed && (f.received != nil || f.readErr != nil && !errors.Is(f.readErr, net.ErrClosed))
}

func newWire(conn *net.TCPConn, conf Session, neighborAddr netip.Addr, gate chan struct{}, onEach func()) *wire {
	return &wire{
		TCPConn:      conn,
		conf:         conf,
		neighborAddr: neighborAddr,
		gate:         gate,
		onEach:       onEach,
		passing:      make(chan struct{}),
		closed:       make(chan struct{}),
	}
}

// seen returns a copy of the facts.
func (w *wire) seen() wireFacts {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.facts
}

func (w *wire) record(change func(f *wireFacts)) {
	w.mu.Lock()
	change(&w.facts)
	w.mu.Unlock()
	w.onEach()
}

func (w *wire) Read(p []byte) (int, error) {
	for w.at == len(w.passed) {
		n, err := w.TCPConn.Read(w.buffer[:])
		w.passed, w.at = w.in.feed(w.buffer[:n], w.passed[:0], w.inspect), 0
		if err != nil && !isTimeout(err) { // GoBGP stops its reader by a deadline
			w.record(func(f *wireFacts) { f.readErr = err })
		}
		if w.seen().refusal != "" {
			_ = w.Close()
			return 0, net.ErrClosed
		}
		if err != nil {
			return 0, err
		}
	}
	n := copy(p, w.passed[w.at:])
	w.at += n
	return n, nil
}

func (w *wire) inspect(kind byte, body []byte) {
	switch kind {
	case msgOpen:
		o, err := parseOpen(body)
		w.record(func(f *wireFacts) { f.open, f.badMessage = &o, err })
		if reason, subcode := o.rejection(w.conf); err == nil && reason != "" {
			w.refuse(reason, codeOpen, subcode)
		}
	case msgNotification:
		n := parseNotification(body)
		w.record(func(f *wireFacts) { f.received = n })
	case msgUpdate:
		if _, end := endOfRIB(body); !end {
			w.mu.Lock()
			w.facts.ignored++
			w.mu.Unlock()
		}
	case msgKeepalive:
		w.once.Do(w.pass)
	}
}

// refuse sends the router a NOTIFICATION, instead of GoBGP.
func (w *wire) refuse(reason string, code, subcode byte) {
	w.record(func(f *wireFacts) { f.refusal = reason })
	if b, err := packet.NewBGPNotificationMessage(code, subcode, nil).Serialize(); err == nil {
		_, _ = w.Write(b)
	}
}

// abandon closes the connection without a NOTIFICATION, because no router is at its other end.
func (w *wire) abandon(reason string) {
	w.record(func(f *wireFacts) { f.refusal = reason })
	_ = w.Close()
}

// pass waits for the gate before the session becomes established.
func (w *wire) pass() {
	select {
	case w.gate <- struct{}{}:
		close(w.passing)
	case <-w.closed:
		return
	}
	select {
	case <-w.closed: // Close may have been called before passing was closed
		w.release()
	default:
	}
}

// heardKeepalive reports whether the router's first KEEPALIVE has arrived, and the gate was taken.
func (w *wire) heardKeepalive() bool {
	select {
	case <-w.passing:
		return true
	default:
		return false
	}
}

// release gives the gate back if this wire holds it. Further calls do nothing.
func (w *wire) release() {
	if !w.heardKeepalive() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.facts.gateReleased {
		w.facts.gateReleased = true
		<-w.gate
	}
}

// Write gets one whole message from GoBGP each time. A failure closes the connection: if the
// message is an OPEN, GoBGP forgets the connection without closing it, as when a router that starts
// resets what it accepted.
func (w *wire) Write(p []byte) (int, error) {
	if len(p) >= headerLen && p[headerLen-1] == msgKeepalive {
		// Record the message before writing it: the router can answer at once.
		w.mu.Lock()
		w.facts.confirmed = true
		w.mu.Unlock()
	}
	n, err := w.TCPConn.Write(w.ours(p))
	if err != nil {
		w.record(func(f *wireFacts) { f.writeErr = err })
		_ = w.Close()
		return n, err
	}
	if len(p) < headerLen {
		return n, nil
	}
	switch body := p[headerLen:]; p[headerLen-1] {
	case msgUpdate:
		w.sentUpdate(body)
	case msgNotification:
		w.record(func(f *wireFacts) { f.sent = parseNotification(body) })
	}
	return n, nil
}

// ours returns GoBGP's message with the session's own values.
func (w *wire) ours(p []byte) []byte {
	switch {
	case len(p) < headerLen:
	case p[headerLen-1] == msgOpen:
		return w.identified(p)
	case p[headerLen-1] == msgUpdate:
		p = slices.Clone(p)
		w.hops().write(p[headerLen:])
	}
	return p
}

// identified returns the OPEN with the session's router ID.
func (w *wire) identified(p []byte) []byte {
	const at = headerLen + 5 // after version, AS number and hold time
	if len(p) < at+4 || !w.conf.RouterID.Is4() {
		return p
	}
	id := w.conf.RouterID.As4()
	return slices.Concat(p[:at], id[:], p[at+4:])
}

func (w *wire) sentUpdate(body []byte) {
	fam, end := endOfRIB(body)
	if !end {
		w.mu.Lock()
		w.facts.updates++
		w.mu.Unlock()
		return
	}
	now := time.Now()
	w.record(func(f *wireFacts) {
		f.updates++
		if f.endOfRIB[fam].IsZero() {
			f.endOfRIB[fam] = now
		}
	})
}

// Close closes the connection. After a NOTIFICATION it waits until the router can have read it:
// otherwise a KEEPALIVE that arrives meanwhile is answered by a reset, which can destroy the
// NOTIFICATION. A router with graceful restart would then take the session for lost, not ended, and
// keep routes that should be withdrawn.
func (w *wire) Close() error {
	err := net.ErrClosed
	w.closeOnce.Do(func() {
		if w.seen().sent != nil {
			w.drain()
		}
		err = w.TCPConn.Close()
		close(w.closed)
		w.release()
		w.onEach()
	})
	return err
}

func (w *wire) drain() {
	if w.CloseWrite() != nil || w.SetReadDeadline(time.Now().Add(drainTime)) != nil {
		return
	}
	_, _ = io.Copy(io.Discard, w.TCPConn)
}

// endOfRIB reports whether the body of an UPDATE is the End-of-RIB marker, and of which family: an
// empty body for IPv4, and for others an MP_UNREACH_NLRI attribute that withdraws nothing (RFC 4724
// §2).
func endOfRIB(body []byte) (family, bool) {
	if len(body) < 4 || binary.BigEndian.Uint16(body) != 0 {
		return 0, false
	}
	attrs := body[4:]
	if int(binary.BigEndian.Uint16(body[2:])) != len(attrs) {
		return 0, false // routes follow
	}
	if len(attrs) == 0 {
		return ipv4Unicast, true
	}
	return emptyUnreach(attrs)
}

func emptyUnreach(attrs []byte) (family, bool) {
	const extendedLength, mpUnreach = 0x10, 15
	if len(attrs) < 3 || attrs[1] != mpUnreach {
		return 0, false
	}
	value := attrs[3:]
	if attrs[0]&extendedLength != 0 {
		value = attrs[min(4, len(attrs)):]
	}
	if len(value) != 3 || value[2] != 1 { // AFI and SAFI without prefixes
		return 0, false
	}
	switch binary.BigEndian.Uint16(value) {
	case 1:
		return ipv4Unicast, true
	case 2:
		return ipv6Unicast, true
	}
	return 0, false
}

// A framer splits a stream of bytes into BGP messages, and filters them. GoBGP would store all
// routes of a router, although this node uses none, and end the session over one that it cannot
// parse. So each UPDATE after the first KEEPALIVE, which establishes the session, is replaced by a
// KEEPALIVE: both restart the hold timer (RFC 4271 §4.4). An earlier UPDATE is an error for which
// GoBGP ends the session; GoBGP gets an empty one. End-of-RIB passes, because GoBGP waits for it
// after a restart.
type framer struct {
	header [headerLen]byte
	n      int // bytes of the header so far
	body   []byte
	left   int  // bytes of the body to come
	keeps  bool // the body is kept
	strict bool // the session is about to be established, or is
}

// marker is the beginning of every message (RFC 4271 §4.1). The others are whole messages.
var (
	marker      = bytes.Repeat([]byte{0xff}, 16)
	keepalive   = append(slices.Clone(marker), 0, headerLen, msgKeepalive)
	emptyUpdate = append(slices.Clone(marker), 0, headerLen+4, msgUpdate, 0, 0, 0, 0)
)

// maxEndOfRIB is the length of the longest End-of-RIB body.
const maxEndOfRIB = 11

// feed calls hear for each message that p completes, and appends to out what may pass. The body is
// valid only during the call, and missing for a long UPDATE.
func (f *framer) feed(p, out []byte, hear func(kind byte, body []byte)) []byte {
	for len(p) > 0 {
		if f.n < headerLen {
			c := copy(f.header[f.n:], p)
			f.n, p = f.n+c, p[c:]
			if f.n < headerLen {
				return out
			}
			// GoBGP ends the session if the length is smaller than a header.
			f.left = max(int(binary.BigEndian.Uint16(f.header[16:]))-headerLen, 0)
			f.body, f.keeps = f.body[:0], f.left <= f.limit()
			if f.passes() {
				out = append(out, f.header[:]...)
			}
		}
		c := min(f.left, len(p))
		if f.keeps {
			f.body = append(f.body, p[:c]...)
		}
		if f.passes() {
			out = append(out, p[:c]...)
		}
		f.left, p = f.left-c, p[c:]
		if f.left == 0 {
			out = f.complete(out, hear)
		}
	}
	return out
}

func (f *framer) complete(out []byte, hear func(kind byte, body []byte)) []byte {
	f.n = 0
	kind := f.header[headerLen-1]
	hear(kind, f.body)
	if !f.passes() {
		_, end := endOfRIB(f.body)
		switch {
		case end:
			return append(append(out, f.header[:]...), f.body...)
		case f.strict:
			return append(out, keepalive...)
		default:
			return append(out, emptyUpdate...)
		}
	}
	f.strict = f.strict || kind == msgKeepalive
	return out
}

// passes reports whether GoBGP sees the message. A message with a wrong marker passes, and GoBGP
// rejects it: the position of the next message is unknown.
func (f *framer) passes() bool {
	return f.header[headerLen-1] != msgUpdate || !bytes.Equal(f.header[:len(marker)], marker)
}

// limit is the longest body that is read.
func (f *framer) limit() int {
	if f.header[headerLen-1] == msgUpdate {
		return maxEndOfRIB
	}
	return maxBody
}

func (w *wire) hops() hops { return hopsOf(w.conf, w.local(), w.seen().open) }

// local is this node's end of the connection.
func (w *wire) local() netip.Addr { return addrOf(w.TCPConn.LocalAddr()) }

// LocalAddr is for GoBGP, which calls it when the session becomes established: by then the router's
// OPEN has arrived.
func (w *wire) LocalAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(w.hops().placeholder(), 0))
}

// router is the other end of the connection.
func (w *wire) router() netip.Addr { return addrOf(w.TCPConn.RemoteAddr()) }

// RemoteAddr is for GoBGP, which identifies the router by its neighborAddr.
func (w *wire) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(w.neighborAddr, w.conf.port()))
}
