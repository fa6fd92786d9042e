package bgp

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
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

	// maxBody is the longest message that is looked into; it is the limit for
	// all but UPDATEs where both sides know RFC 8654.
	maxBody = 4096 - headerLen
)

// drainTime is how long a NOTIFICATION may take to reach a router before we
// close the connection on it.
const drainTime = 250 * time.Millisecond

// A family is an address family that a session carries.
type family int

const (
	ipv4Unicast family = iota
	ipv6Unicast
	families
)

// A wire is a connection to a router on which GoBGP speaks, and which reads
// along. Of what passes it changes one thing, the router ID in our OPEN, and it
// turns away a router that GoBGP would take by mistake.
type wire struct {
	*net.TCPConn
	conf Session
	in   framer

	// gate is taken when the router's first KEEPALIVE comes in, before GoBGP
	// sees it: see Server.gate. It is given back by release.
	gate    chan struct{}
	once    sync.Once
	passing chan struct{} // closed once the gate is taken

	closed    chan struct{}
	closeOnce sync.Once

	mu     sync.Mutex
	facts  wireFacts
	onEach func() // after every change of facts that somebody may wait for
}

// wireFacts are what has been seen on a wire.
type wireFacts struct {
	open         *open // the router's
	sent         *notification
	received     *notification
	readErr      error
	writeErr     error
	updates      int                 // UPDATEs sent, End-of-RIB included
	endOfRIB     [families]time.Time // sent
	badMessage   error               // the router's OPEN could not be read
	refusal      string              // why we turned the router away, for an operator
	established  time.Time           // zero before
	gateReleased bool
}

func newWire(conn *net.TCPConn, conf Session, gate chan struct{}, onEach func()) *wire {
	return &wire{
		TCPConn: conn,
		conf:    conf,
		gate:    gate,
		onEach:  onEach,
		passing: make(chan struct{}),
		closed:  make(chan struct{}),
	}
}

// seen returns a copy of the facts.
func (w *wire) seen() wireFacts {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.facts
}

func (w *wire) note(change func(f *wireFacts)) {
	w.mu.Lock()
	change(&w.facts)
	w.mu.Unlock()
	w.onEach()
}

func (w *wire) Read(p []byte) (int, error) {
	n, err := w.TCPConn.Read(p)
	w.in.feed(p[:n], w.hear)
	if err != nil && !isTimeout(err) { // GoBGP stops its reader with a deadline
		w.note(func(f *wireFacts) { f.readErr = err })
	}
	if w.seen().refusal != "" {
		_ = w.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

func (w *wire) hear(kind byte, body []byte) {
	switch kind {
	case msgOpen:
		o, err := parseOpen(body)
		w.note(func(f *wireFacts) { f.open, f.badMessage = &o, err })
		if reason, subcode := w.unwanted(o); err == nil && reason != "" {
			w.refuse(reason, codeOpen, subcode)
		}
	case msgNotification:
		n := parseNotification(body)
		w.note(func(f *wireFacts) { f.received = n })
	case msgKeepalive:
		w.once.Do(w.pass)
	}
}

// unwanted says why we do not speak to the router that sent o, empty if we do, for
// reasons that GoBGP does not know: the AS number that is right for it is any, and
// the router ID not ours but its own.
func (w *wire) unwanted(o open) (reason string, subcode byte) {
	switch {
	case w.conf.External && o.asn == w.conf.LocalASN:
		return fmt.Sprintf("wrong AS number: router says AS%d, which is our own, and BGPPeer says external", o.asn), openBadPeerAS
	case o.asn == w.conf.LocalASN && o.routerID == w.conf.RouterID: // RFC 6286 §2.2
		return fmt.Sprintf("router has the same router ID %s as this node", o.routerID), openBadIdentifier
	}
	return "", 0
}

// refuse tells the router why the session ends, in GoBGP's place.
func (w *wire) refuse(reason string, code, subcode byte) {
	w.note(func(f *wireFacts) { f.refusal = reason })
	if b, err := packet.NewBGPNotificationMessage(code, subcode, nil).Serialize(); err == nil {
		_, _ = w.Write(b)
	}
}

// abandon ends the connection without a word, since nobody is at its other end any
// more.
func (w *wire) abandon(reason string) {
	w.note(func(f *wireFacts) { f.refusal = reason })
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
	case <-w.closed: // Close may have looked before passing was closed
		w.release()
	default:
	}
}

// release gives the gate back if this wire holds it; further calls do nothing.
func (w *wire) release() {
	select {
	case <-w.passing:
	default:
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.facts.gateReleased {
		w.facts.gateReleased = true
		<-w.gate
	}
}

// Write gets one whole message from GoBGP each time. A connection that one cannot
// be written to is of no use any more; but GoBGP forgets it without closing it when
// that one is its OPEN, as when a router that starts resets what it accepted.
func (w *wire) Write(p []byte) (int, error) {
	n, err := w.TCPConn.Write(w.identified(p))
	if err != nil {
		w.note(func(f *wireFacts) { f.writeErr = err })
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
		w.note(func(f *wireFacts) { f.sent = parseNotification(body) })
	}
	return n, nil
}

// identified is a message of GoBGP's with the session's router ID in it, if it is
// an OPEN.
func (w *wire) identified(p []byte) []byte {
	const at = headerLen + 5 // after version, AS number and hold time
	if len(p) < at+4 || p[headerLen-1] != msgOpen || !w.conf.RouterID.Is4() {
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
	w.note(func(f *wireFacts) {
		f.updates++
		if f.endOfRIB[fam].IsZero() {
			f.endOfRIB[fam] = now
		}
	})
}

// Close closes the connection, and after a NOTIFICATION lets the router read it
// first. Without that, a KEEPALIVE of the router's that crosses our close is
// answered with a reset, which can throw away the NOTIFICATION; to a router
// with graceful restart the session would then have been lost, not ended, and it
// would keep routes that were to be withdrawn.
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

// endOfRIB tells whether the body of an UPDATE is the End-of-RIB marker, and of
// which family: nothing at all for IPv4, for others an MP_UNREACH_NLRI attribute
// that withdraws nothing (RFC 4724 §2).
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
	if len(value) != 3 || value[2] != 1 { // AFI and SAFI and no prefixes
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

// A framer cuts a stream of bytes into BGP messages. It keeps the bodies of all
// but UPDATEs, which are many, long, and of no interest to us.
type framer struct {
	header [headerLen]byte
	n      int // bytes of the header so far
	body   []byte
	left   int // bytes of the body to come
}

// feed calls hear with each message that p completes. The body is only valid
// during the call.
func (f *framer) feed(p []byte, hear func(kind byte, body []byte)) {
	for len(p) > 0 {
		if f.n < headerLen {
			c := copy(f.header[f.n:], p)
			f.n, p = f.n+c, p[c:]
			if f.n < headerLen {
				return
			}
			// A length below a header's is an error that GoBGP ends the session for.
			f.left = max(int(binary.BigEndian.Uint16(f.header[16:]))-headerLen, 0)
			f.body = f.body[:0]
		}
		c := min(f.left, len(p))
		if f.keeps() {
			f.body = append(f.body, p[:c]...)
		}
		f.left, p = f.left-c, p[c:]
		if f.left == 0 {
			f.n = 0
			hear(f.header[headerLen-1], f.body)
		}
	}
}

func (f *framer) keeps() bool {
	return f.header[headerLen-1] != msgUpdate && len(f.body)+f.left <= maxBody
}
