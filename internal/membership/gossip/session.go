package gossip

import (
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/time/rate"
)

// A sealedTransport seals what memberlist sends over another Transport, and opens what it
// receives. Memberlist has encryption, too, but accepts a copy of any packet at any time: an
// old ack keeps a dead node alive, and an old report makes a living one leave.
//
// A packet has the boot numbers of the processes that send and receive it, and a sequence
// number. The receiver opens it only if it has the boot number of the receiver itself, the
// sender's last one, and a new sequence number. So a packet is accepted once, and by the process
// for which it was sealed. A process learns the boot number of another one by a hello with a
// random number, which the answer repeats.
//
// Both also have the highest boot number that the other process knows of this node. If that is
// higher than the own one, as after a clock was set back, or after another member has used this
// node's address, this process takes a higher one.
//
// Junk is cheap. A hello and its answer have a code (HMAC) under the shared key; other packets are
// opened with a key that was derived when a hello or an answer brought the sender's boot number. So
// a packet that is not authentic derives no key, whatever its boot number.
type sealedTransport struct {
	memberlist.Transport // of sealed packets and connections
	gossip               *Gossip
	addr                 netip.AddrPort // of this node
	packets              chan *memberlist.Packet
	streams              chan net.Conn
	end                  chan struct{}
	ending               sync.Once
	done                 sync.WaitGroup

	unproven unproven // connections

	mu       sync.Mutex
	boot     uint64
	seq      uint64              // of the last packet
	sealers  map[key]cipher.AEAD // of own packets, by the shared key
	asks     *rate.Limiter
	answers  *rate.Limiter
	sessions map[netip.AddrPort]*session
}

// A session is with the process at one address.
type session struct {
	receiver uint64              // the boot number to which packets are sealed; 0: not known
	sender   uint64              // the highest boot number that hellos, answers or metadata had; 0: none
	nonce    uint64              // of the last hello, until it is answered; 0: none
	asked    time.Time           // when the last hello was sent
	waiting  [][]byte            // packets that wait for receiver
	received window              // of packets of sender
	openers  map[key]cipher.AEAD // of packets of sender, by the shared key
}

const (
	// helloInterval is the shortest time between two hellos to a process.
	helloInterval = probeTimeout / 2
	// asksPerSecond is how often a packet that was not opened, and so may be junk, is followed by a
	// hello to its source.
	asksPerSecond = 100
	// answersPerSecond bounds what copies of hellos cost: a hello may be one. It is twice what 1,000
	// nodes send that start together. A hello without an answer is repeated.
	answersPerSecond = 2000
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
	seq              uint64 // of data
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
	return header{packetKind(b[0]), binary.BigEndian.Uint64(b[1:]), binary.BigEndian.Uint64(b[9:]),
		binary.BigEndian.Uint64(b[17:])}, true
}

// sealTransport returns the Transport for memberlist. The process has this boot number.
func sealTransport(inner memberlist.Transport, g *Gossip, addr netip.AddrPort, boot uint64) *sealedTransport {
	t := &sealedTransport{
		Transport: inner, gossip: g, addr: addr, boot: boot, sessions: map[netip.AddrPort]*session{},
		asks:    rate.NewLimiter(asksPerSecond, asksPerSecond),
		answers: rate.NewLimiter(answersPerSecond, answersPerSecond),
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
		err = t.sendData(s.receiver, b, to)
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
		s.learn(boot)
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
		t.logError(to, t.sendData(receiver, b, to))
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

// keepOnly forgets the sessions with addresses that are no longer of nodes.
func (t *sealedTransport) keepOnly(nodes map[netip.Addr]string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.sessions, func(at netip.AddrPort, _ *session) bool { return nodes[at.Addr()] == "" })
}

// sendData seals and sends a packet of memberlist.
func (t *sealedTransport) sendData(receiver uint64, b []byte, to netip.AddrPort) error {
	t.seq++
	h := header{packetData, t.boot, receiver, t.seq}.bytes()
	keys := t.gossip.keysInUse.Load()
	aead := cached(&t.sealers, keys.use, keys, t.addr.Addr(), t.boot)
	_, err := t.Transport.WriteTo(aead.Seal(h, nonceOf(t.seq), b, authenticated(h, to)), to.String())
	return err
}

// sendSigned sends a hello or an answer. Nothing in it is secret.
func (t *sealedTransport) sendSigned(kind packetKind, receiver uint64, b []byte, to netip.AddrPort) error {
	packet := append(header{kind: kind, sender: t.boot, receiver: receiver}.bytes(), b...)
	code := t.gossip.keysInUse.Load().use.code(packet, t.addr, to)
	_, err := t.Transport.WriteTo(append(packet, code...), to.String())
	return err
}

// code authenticates a hello or an answer. HKDF takes a key as the text of its HMAC, and this one as
// the key, so that no derived key is a code.
func (k key) code(packet []byte, from, to netip.AddrPort) []byte {
	h := hmac.New(sha256.New, k[:])
	fmt.Fprintf(h, "fanfare hello from %s to %s ", from, to)
	h.Write(packet)
	return h.Sum(nil)[:tagBytes]
}

// hello asks for the boot number of the process at an address, unless it was asked just now. It
// has a number that remains the same until it is answered, the highest boot number that this
// process knows of the other one, and the name of this node.
func (t *sealedTransport) hello(s *session, to netip.AddrPort) error {
	now := time.Now()
	if now.Sub(s.asked) < helloInterval {
		return nil
	}
	s.asked = now
	if s.nonce == 0 {
		s.nonce = max(rand.Uint64(), 1)
	}
	b := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, s.nonce), max(s.sender, s.receiver))
	return t.sendSigned(packetHello, 0, append(b, t.gossip.Node...), to)
}

// open returns what memberlist of another node has sent, nil if there is nothing for the own
// one.
func (t *sealedTransport) open(p *memberlist.Packet) []byte {
	from := addrPortOf(p.From)
	h, ok := parseHeader(p.Buf)
	if !ok || from.Port() != t.addr.Port() {
		t.gossip.rejectSeal(from.Addr()) // Speakers send from the port at which they listen.
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.kind == packetData {
		return t.openData(from, h, p.Buf)
	}
	b, ok := t.verify(from, p.Buf)
	switch {
	case !ok || len(b) < 16:
	case isFarAhead(h.sender, t.gossip.now()):
		t.gossip.mu.Lock()
		defer t.gossip.mu.Unlock()
		t.gossip.problems.rejectBoot(from.Addr().String(), h.sender)
	default:
		t.receiveSigned(from, h, b)
	}
	return nil
}

// openData returns the contents of a packet of the sender's last process, which is for this one.
func (t *sealedTransport) openData(from netip.AddrPort, h header, packet []byte) []byte {
	s := t.session(from)
	if h.sender != s.sender {
		// The sender may have restarted, or not know a higher boot number that this process knows
		// of it. By a hello, each learns what it must.
		t.gossip.metrics.replayed.Inc()
		if t.asks.Allow() {
			t.logError(from, t.hello(s, from))
		}
		return nil
	}
	b, ok := t.unseal(s, from, h, packet)
	switch {
	case !ok:
		t.gossip.rejectSeal(from.Addr())
	case h.receiver == t.boot && s.received.accept(h.seq):
		return b
	default:
		t.gossip.metrics.replayed.Inc()
		if h.receiver != t.boot {
			// The sender may not know that this process has replaced another one.
			t.logError(from, t.hello(s, from))
		}
	}
	return nil
}

// unseal opens a packet of the sender's last process under any of the keys.
func (t *sealedTransport) unseal(s *session, from netip.AddrPort, h header, packet []byte) ([]byte, bool) {
	keys := t.gossip.keysInUse.Load()
	extra := authenticated(packet, t.addr)
	for _, k := range keys.accepted {
		aead := cached(&s.openers, k, keys, from.Addr(), s.sender)
		if b, err := aead.Open(nil, nonceOf(h.seq), packet[headerBytes:], extra); err == nil {
			return b, true
		}
	}
	return nil, false
}

// cached returns the cipher of a process's packets under a key. It is derived once.
func cached(ciphers *map[key]cipher.AEAD, k key, keys *keysInUse, addr netip.Addr, boot uint64) cipher.AEAD {
	if aead := (*ciphers)[k]; aead != nil {
		return aead
	}
	if *ciphers == nil || len(*ciphers) >= len(keys.accepted) { // One of them is no longer accepted.
		*ciphers = map[key]cipher.AEAD{}
	}
	(*ciphers)[k] = packetCipher(k, addr, boot)
	return (*ciphers)[k]
}

// learn records a boot number of the other process, which has shown that it is authentic.
func (s *session) learn(boot uint64) {
	if boot > s.sender {
		s.sender, s.received, s.openers = boot, window{}, nil
	}
}

// verify returns the contents of a hello or an answer under any of the keys.
func (t *sealedTransport) verify(from netip.AddrPort, packet []byte) ([]byte, bool) {
	signed, code := packet[:len(packet)-tagBytes], packet[len(packet)-tagBytes:]
	for _, k := range t.gossip.keysInUse.Load().accepted {
		if hmac.Equal(code, k.code(signed, from, t.addr)) {
			return signed[headerBytes:], true
		}
	}
	t.gossip.rejectSeal(from.Addr())
	return nil, false
}

// receiveSigned receives a hello or an answer.
func (t *sealedTransport) receiveSigned(from netip.AddrPort, h header, b []byte) {
	s := t.session(from)
	nonce, known := binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	if h.kind == packetHello {
		t.raiseAbove(known)
		t.receiveHello(s, from, h, nonce, string(b[16:]))
		return
	}
	if h.receiver != t.boot || s.nonce == 0 || nonce != s.nonce {
		return
	}
	s.nonce = 0
	s.learn(h.sender)
	t.raiseAbove(known)
	t.begin(s, from, h.sender)
}

// receiveHello answers with the boot numbers: the header has this process's, and the packet
// the highest one that is known of the sender's node. The sender of a hello may be new, in
// which case packets for it wait for its answer.
func (t *sealedTransport) receiveHello(s *session, from netip.AddrPort, h header, nonce uint64, node string) {
	s.learn(h.sender)
	if !t.answers.Allow() {
		return
	}
	known := max(s.sender, s.receiver, t.gossip.knownBoot(node))
	answer := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, nonce), known)
	t.logError(from, t.sendSigned(packetAnswer, h.sender, answer, from))
	if h.sender > s.receiver {
		t.logError(from, t.hello(s, from))
	}
}

// raiseAbove takes a boot number above the highest number that another process knows of this
// node, unless that is the own one or lower.
func (t *sealedTransport) raiseAbove(known uint64) {
	if known > t.boot && !isFarAhead(known, t.gossip.now()) {
		t.boot, t.seq, t.sealers = known+1, 0, nil
		t.gossip.raiseBoot(t.boot)
	}
}

// replaceBoot takes a higher boot number than the given one, which another member has used in the
// name of this node.
func (t *sealedTransport) replaceBoot(used uint64) {
	if t == nil {
		return // Memberlist is ending.
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.raiseAbove(max(used, t.boot+1))
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

// raiseBoot sets a higher boot number.
func (g *Gossip) raiseBoot(boot uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.Log.Info("took a higher boot number: other nodes know a higher one of this node, as after the clock was set back",
		"node", g.Node)
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

// packetCipher derives the cipher of a process's packets. Each process has a key of its own, derived
// from the shared one, so that its sequence numbers can be the nonces.
func packetCipher(k key, addr netip.Addr, boot uint64) cipher.AEAD {
	info := binary.BigEndian.AppendUint64([]byte("fanfare packets of "+addr.String()+" "), boot)
	return deriveCipher(k, string(info))
}
