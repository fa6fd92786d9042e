package gossip

import (
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// A sealedTransport seals what memberlist sends over another Transport, and opens what it
// receives. Memberlist has encryption, too, but accepts a copy of any packet at any time: an
// old ack keeps a dead node alive, and an old report makes a living one leave.
//
// A packet has the boot numbers of the processes that send and receive it, and a sequence
// number. The receiver opens it only if it has the boot number of the receiver itself, none
// lower than the sender's last one, and a new sequence number. So a packet is accepted once,
// and by the process for which it was sealed. A process learns the boot number of another one
// by a hello with a random number, which the answer repeats.
//
// The answer also has the highest boot number that the other process knows of this node. If
// that is higher than the own one, as after a clock was set back, this process takes a higher
// one.
type sealedTransport struct {
	memberlist.Transport // of sealed packets and connections
	gossip               *Gossip
	addr                 netip.AddrPort // of this node
	packets              chan *memberlist.Packet
	streams              chan net.Conn
	end                  chan struct{}
	ending               sync.Once
	done                 sync.WaitGroup

	mu       sync.Mutex
	boot     uint64
	seq      uint64 // of the last packet
	sealer   sealer // of own packets
	sessions map[netip.AddrPort]*session
}

// A session is with the process at one address.
type session struct {
	receiver uint64    // its boot number; 0: not known
	nonce    uint64    // of the last hello, until it is answered; 0: none
	asked    time.Time // when the last hello was sent
	waiting  [][]byte  // packets that wait for receiver
	received bootWindow
	opener   sealer // of its packets
}

const (
	// helloInterval is the shortest time between two hellos to a process.
	helloInterval = probeTimeout / 2
	// maxWaiting is how many packets wait for an answer: more are lost, as on the network.
	maxWaiting = 16
)

// A packetKind is the first byte of a packet. No kind is one with which packets of memberlist
// begin.
type packetKind byte

const (
	packetHello packetKind = 0xf1 + iota
	packetAnswer
	packetData
)

const (
	headerBytes = 1 + 3*8
	// sealedBytes is how much longer a packet is than what memberlist sends.
	sealedBytes = headerBytes + tagBytes
)

// A header is sent in clear text, and authenticated.
type header struct {
	kind             packetKind
	sender, receiver uint64 // boot numbers; a hello has no receiver
	seq              uint64
}

func (h header) bytes() []byte {
	b := binary.BigEndian.AppendUint64([]byte{byte(h.kind)}, h.sender)
	b = binary.BigEndian.AppendUint64(b, h.receiver)
	return binary.BigEndian.AppendUint64(b, h.seq)
}

// authenticated is what a seal covers in addition to the packet's contents. It has the address
// of the receiver, since two nodes may have equal boot numbers.
func authenticated(header []byte, to netip.AddrPort) []byte {
	return append(header[:headerBytes:headerBytes], to.String()...)
}

func parseHeader(b []byte) (h header, ok bool) {
	if len(b) < sealedBytes || packetKind(b[0]) < packetHello || packetKind(b[0]) > packetData {
		return h, false
	}
	return header{packetKind(b[0]), binary.BigEndian.Uint64(b[1:]), binary.BigEndian.Uint64(b[9:]), binary.BigEndian.Uint64(b[17:])}, true
}

// sealTransport returns the Transport for memberlist. The process has this boot number.
func sealTransport(inner memberlist.Transport, g *Gossip, addr netip.AddrPort, boot uint64) *sealedTransport {
	t := &sealedTransport{
		Transport: inner, gossip: g, addr: addr, boot: boot, sessions: map[netip.AddrPort]*session{},
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn), end: make(chan struct{}),
	}
	t.done.Go(t.run)
	return t
}

// run opens packets and connections until the end.
func (t *sealedTransport) run() {
	for {
		select {
		case p := <-t.Transport.PacketCh():
			if p.Buf = t.open(p); p.Buf == nil {
				continue
			}
			select {
			case t.packets <- p:
			case <-t.end:
				return
			}
		case c := <-t.Transport.StreamCh():
			select {
			case t.streams <- t.accepted(c):
			case <-t.end:
				c.Close()
				return
			}
		case <-t.end:
			return
		}
	}
}

func (t *sealedTransport) PacketCh() <-chan *memberlist.Packet { return t.packets }
func (t *sealedTransport) StreamCh() <-chan net.Conn           { return t.streams }

// Shutdown closes the Transport below and waits for the goroutine.
func (t *sealedTransport) Shutdown() error {
	t.ending.Do(func() { close(t.end) })
	t.done.Wait()
	return t.Transport.Shutdown()
}

// WriteTo sends a packet, as soon as the boot number of its receiver is known.
func (t *sealedTransport) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return time.Time{}, err
	}
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.session(to)
	switch {
	case s.receiver != 0:
		err = t.send(packetData, s.receiver, b, to)
	case len(s.waiting) < maxWaiting:
		s.waiting = append(s.waiting, slices.Clone(b))
	}
	if s.receiver == 0 || s.nonce != 0 {
		err = errors.Join(err, t.hello(s, to))
	}
	return time.Now(), err
}

// restarted is called when the metadata of the process at an address has another boot number
// than before. A hello must still show whether that process knows a higher one of this node.
func (t *sealedTransport) restarted(at netip.AddrPort, boot uint64) {
	if t == nil {
		return // Memberlist is ending.
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.session(at)
	switch {
	case boot == s.receiver:
		return
	case boot > s.receiver:
		t.begin(s, at, boot)
	default:
		s.receiver = 0
	}
	t.logError(at, t.hello(s, at))
}

// begin sends the packets that have waited for a boot number.
func (t *sealedTransport) begin(s *session, to netip.AddrPort, receiver uint64) {
	s.receiver = receiver
	for _, b := range s.waiting {
		t.logError(to, t.send(packetData, receiver, b, to))
	}
	s.waiting = nil
}

func (t *sealedTransport) session(at netip.AddrPort) *session {
	s := t.sessions[at]
	if s == nil {
		s = &session{}
		t.sessions[at] = s
	}
	return s
}

// send seals and sends a packet.
func (t *sealedTransport) send(kind packetKind, receiver uint64, b []byte, to netip.AddrPort) error {
	t.seq++
	h := header{kind, t.boot, receiver, t.seq}.bytes()
	aead := t.sealer.of(t.gossip.keysInUse.Load().use, t.addr.Addr(), t.boot)
	_, err := t.Transport.WriteTo(aead.Seal(h, nonceOf(t.seq), b, authenticated(h, to)), to.String())
	return err
}

// hello asks for the boot number of the process at an address, unless it was asked just now.
// It has the name of this node, and a number that remains the same until it is answered.
func (t *sealedTransport) hello(s *session, to netip.AddrPort) error {
	now := time.Now()
	if now.Sub(s.asked) < helloInterval {
		return nil
	}
	s.asked = now
	if s.nonce == 0 {
		s.nonce = max(rand.Uint64(), 1)
	}
	return t.send(packetHello, 0, append(binary.BigEndian.AppendUint64(nil, s.nonce), t.gossip.Node...), to)
}

// open returns what memberlist of another node has sent, nil if there is nothing for the own
// one.
func (t *sealedTransport) open(p *memberlist.Packet) []byte {
	from := addrPortOf(p.From)
	h, b, err := t.unseal(from, p.Buf)
	if err != nil {
		t.gossip.recordUnknownSender(from.Addr())
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.session(from)
	switch {
	case h.kind == packetHello && len(b) >= 8:
		t.receiveHello(s, from, h, b)
	case h.kind == packetAnswer && len(b) == 16:
		t.receiveAnswer(s, from, h, b)
	case h.kind == packetData && h.receiver == t.boot && s.received.accept(h.sender, h.seq):
		return b
	case h.kind == packetData:
		t.gossip.metrics.replayed.Inc()
		if h.receiver != t.boot && h.sender >= s.receiver {
			// The sender may not know that this process has replaced another one. By a hello it
			// learns that, and this process learns whether it is in step.
			t.logError(from, t.hello(s, from))
		}
	}
	return nil
}

// unseal verifies a packet under any of the keys.
func (t *sealedTransport) unseal(from netip.AddrPort, packet []byte) (h header, b []byte, err error) {
	h, ok := parseHeader(packet)
	if !ok {
		return h, nil, errUnknownKey
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var opener sealer
	if s := t.sessions[from]; s != nil {
		opener = s.opener
	}
	open := func(k key) (err error) {
		aead := opener.of(k, from.Addr(), h.sender)
		b, err = aead.Open(nil, nonceOf(h.seq), packet[headerBytes:], authenticated(packet[:headerBytes], t.addr))
		return err
	}
	keys := t.gossip.keysInUse.Load()
	if err = open(keys.use); err == nil {
		t.session(from).opener = opener
		return h, b, nil
	}
	for _, k := range keys.accepted {
		if k != keys.use && open(k) == nil {
			return h, b, nil
		}
	}
	return h, nil, errUnknownKey
}

// receiveHello answers with the boot numbers: the header has this process's, and the packet
// the highest one that is known of the sender's node. The sender of a hello may be new, in
// which case packets for it wait for its answer.
func (t *sealedTransport) receiveHello(s *session, from netip.AddrPort, h header, b []byte) {
	known := max(s.received.boot, s.receiver, t.gossip.knownBoot(string(b[8:])))
	answer := binary.BigEndian.AppendUint64(b[:8:8], known)
	t.logError(from, t.send(packetAnswer, h.sender, answer, from))
	if h.sender > s.receiver {
		t.logError(from, t.hello(s, from))
	}
}

// receiveAnswer begins the session that a hello asked for.
func (t *sealedTransport) receiveAnswer(s *session, from netip.AddrPort, h header, b []byte) {
	if h.receiver != t.boot || s.nonce == 0 || binary.BigEndian.Uint64(b) != s.nonce {
		return
	}
	s.nonce = 0
	if known := binary.BigEndian.Uint64(b[8:]); known > t.boot {
		t.boot, t.seq = known+1, 0
		t.gossip.raiseBoot(t.boot)
	}
	t.begin(s, from, h.sender)
}

func (t *sealedTransport) logError(to netip.AddrPort, err error) {
	if err != nil && !errors.Is(err, net.ErrClosed) {
		t.gossip.Log.Debug("packet", "to", to, "err", err)
	}
}

// knownBoot is the highest boot number in messages of a node, 0 if there was none.
func (g *Gossip) knownBoot(node string) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w := g.windows[node]; w != nil {
		return w.boot
	}
	return 0
}

// raiseBoot sets a higher boot number. Other nodes knew a higher one of this node's earlier
// process than this process had.
func (g *Gossip) raiseBoot(boot uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.Log.Info("took a higher boot number: that of an earlier process was higher, so the clock was set back", "node", g.Node)
	g.boot = boot
	g.raised = true
	g.wakeUp()
}

// sendRaisedBoot sends the metadata again, which have the boot number.
func (g *Gossip) sendRaisedBoot() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.raised && g.list != nil {
		g.raised = false
		go g.list.UpdateNode(leaveTimeout)
	}
}

// addrPortOf is the address of a sender.
func addrPortOf(a net.Addr) netip.AddrPort {
	at, _ := netip.ParseAddrPort(a.String())
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// A sealer is the cipher of one process's packets under one key. The zero value has none yet.
type sealer struct {
	key  key
	addr netip.Addr
	boot uint64
	aead cipher.AEAD
}

// of returns the cipher of a process. Each process has a key of its own, derived from the
// shared one, so that its sequence numbers can be the nonces.
func (s *sealer) of(k key, addr netip.Addr, boot uint64) cipher.AEAD {
	if s.aead == nil || s.key != k || s.addr != addr || s.boot != boot {
		info := binary.BigEndian.AppendUint64([]byte("fanfare packets of "+addr.String()+" "), boot)
		*s = sealer{k, addr, boot, deriveCipher(k, string(info))}
	}
	return s.aead
}
