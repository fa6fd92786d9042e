package bgp

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

func serialize(t testing.TB, m *packet.BGPMessage) []byte {
	t.Helper()
	b, err := m.Serialize()
	must(t, err)
	return b
}

func update(t testing.TB, r Route) *packet.BGPMessage {
	t.Helper()
	p, err := path(r)
	must(t, err)
	if p.Family == packet.RF_IPv4_UC {
		return packet.NewBGPUpdateMessage(nil, p.Attrs, []packet.PathNLRI{{NLRI: p.Nlri}})
	}
	return packet.NewBGPUpdateMessage(nil, p.Attrs, nil)
}

// However the stream is cut, the same messages come out.
func TestFramer(t *testing.T) {
	open := serialize(t, openMessage(65001))
	var stream []byte
	for _, m := range [][]byte{
		open,
		serialize(t, packet.NewBGPKeepAliveMessage()),
		serialize(t, update(t, routes("192.0.2.1/32")[0])),
		serialize(t, packet.NewBGPNotificationMessage(6, 2, []byte("\x02hi"))),
		serialize(t, packet.NewBGPKeepAliveMessage()),
	} {
		stream = append(stream, m...)
	}
	for range 100 {
		var f framer
		var kinds []byte
		for rest := stream; len(rest) > 0; {
			n := 1 + rand.IntN(len(rest))
			f.feed(rest[:n], nil, func(kind byte, body []byte) {
				kinds = append(kinds, kind)
				switch {
				case kind == msgOpen && !bytes.Equal(body, open[headerLen:]),
					kind == msgNotification && string(body) != "\x06\x02\x02hi",
					kind == msgUpdate && len(body) != 0:
					t.Fatalf("message %d: body %q", kind, body)
				}
			})
			rest = rest[n:]
		}
		if want := []byte{1, 4, 2, 3, 4}; !bytes.Equal(kinds, want) {
			t.Fatalf("messages %v, want %v", kinds, want)
		}
	}
}

// What GoBGP sees of a stream: everything, but, for each UPDATE that is not End-of-RIB,
// an empty one before the first KEEPALIVE, and a KEEPALIVE from then on.
func TestFramerReplacesUpdates(t *testing.T) {
	open, alive := serialize(t, openMessage(65001)), serialize(t, packet.NewBGPKeepAliveMessage())
	route4, route6 := serialize(t, update(t, routes("192.0.2.1/32")[0])),
		serialize(t, update(t, routes("2001:db8::1/128")[0]))
	end4, end6 := serialize(t, packet.NewEndOfRib(packet.RF_IPv4_UC)),
		serialize(t, packet.NewEndOfRib(packet.RF_IPv6_UC))
	rubbish := slices.Concat(route4[:headerLen], bytes.Repeat([]byte{0xee}, len(route4)-headerLen))
	short := slices.Concat(marker, []byte{0, headerLen, msgUpdate})
	long := slices.Concat(marker, []byte{0xff, 0xff, msgUpdate}, make([]byte, 0xffff-headerLen))
	lost := slices.Concat([]byte("no marker at all"), route4[len(marker):])
	for _, c := range []struct {
		name     string
		in, want [][]byte
	}{
		{"routes", [][]byte{open, alive, route4, route6, route4}, [][]byte{open, alive, alive, alive, alive}},
		{"End-of-RIB", [][]byte{open, alive, route4, end4, end6, route6},
			[][]byte{open, alive, alive, end4, end6, alive}},
		{"rubbish", [][]byte{alive, rubbish, short, long, alive}, [][]byte{alive, alive, alive, alive, alive}},
		{"too early", [][]byte{route6, open, route4, alive, route4},
			[][]byte{emptyUpdate, open, emptyUpdate, alive, alive}},
		{"no message", [][]byte{alive, lost}, [][]byte{alive, lost}},
	} {
		stream, want := slices.Concat(c.in...), slices.Concat(c.want...)
		for range 20 {
			var f framer
			var got []byte
			for rest := stream; len(rest) > 0; {
				n := 1 + rand.IntN(len(rest))
				got, rest = f.feed(rest[:n], got, func(byte, []byte) {}), rest[n:]
			}
			if !bytes.Equal(got, want) {
				t.Fatalf("%s: %x, want %x", c.name, got, want)
			}
		}
	}
}

// gobgpReads does with a stream what GoBGP does, and must not panic either.
func gobgpReads(stream []byte) {
	for len(stream) >= headerLen {
		h := &packet.BGPHeader{}
		if h.DecodeFromBytes(stream[:headerLen]) != nil || int(h.Len) < headerLen || int(h.Len) > len(stream) {
			return
		}
		_, _ = packet.ParseBGPBody(h, stream[headerLen:h.Len])
		stream = stream[h.Len:]
	}
}

func FuzzFramer(f *testing.F) {
	for _, o := range oddOpenings {
		f.Add(o.says, 5)
	}
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), 3)
	f.Add(bytes.Repeat([]byte{0xff}, 64), 1)
	f.Add(slices.Concat(keepalive, marker, []byte{0, headerLen + 5, msgUpdate, 0, 0, 0, 1, 0}, keepalive), 7)
	f.Fuzz(func(t *testing.T, stream []byte, cut int) {
		strain := func(stream []byte, size int) (out []byte) {
			var fr framer
			for part := range slices.Chunk(stream, size) {
				out = fr.feed(part, out, func(kind byte, body []byte) {
					switch kind {
					case msgOpen:
						_, _ = parseOpen(body)
					case msgNotification:
						_ = parseNotification(body).String()
					case msgUpdate:
						endOfRIB(body)
					}
				})
				if cap(fr.body) > 4*maxBody {
					t.Fatalf("keeps %d bytes", cap(fr.body))
				}
			}
			return out
		}
		out := strain(stream, max(1, cut%64))
		if whole := strain(stream, max(1, len(stream))); !bytes.Equal(out, whole) {
			t.Fatalf("in parts %x, whole %x", out, whole)
		}
		gobgpReads(out)
		if again := strain(out, max(1, len(out))); !bytes.Equal(out, again) {
			t.Fatalf("strained again: %x, before %x", again, out)
		}
	})
}

func TestEndOfRIB(t *testing.T) {
	for _, c := range []struct {
		name string
		msg  *packet.BGPMessage
		want family
		ok   bool
	}{
		{"IPv4", packet.NewEndOfRib(packet.RF_IPv4_UC), ipv4Unicast, true},
		{"IPv6", packet.NewEndOfRib(packet.RF_IPv6_UC), ipv6Unicast, true},
		{"VPNv4", packet.NewEndOfRib(packet.RF_IPv4_VPN), 0, false},
		{"IPv4 route", update(t, routes("192.0.2.1/32")[0]), 0, false},
		{"IPv6 route", update(t, routes("2001:db8::1/128")[0]), 0, false},
	} {
		got, ok := endOfRIB(serialize(t, c.msg)[headerLen:])
		if got != c.want || ok != c.ok {
			t.Errorf("%s: %v %v", c.name, got, ok)
		}
	}
	for _, body := range []string{"", "\x00", "\x00\x00\x00", "\x00\x01\x00\x00", "\x00\x00\x00\x02\x90\x0f"} {
		if _, ok := endOfRIB([]byte(body)); ok {
			t.Errorf("%q is End-of-RIB", body)
		}
	}
}

func TestParseOpen(t *testing.T) {
	mp := func(f packet.Family) packet.ParameterCapabilityInterface { return packet.NewCapMultiProtocol(f) }
	gr := packet.NewCapGracefulRestart(false, false, 120, nil)
	for _, c := range []struct {
		caps []packet.ParameterCapabilityInterface
		want open
	}{
		{nil, open{asn: 4200000001, ipv4: true}},
		{[]packet.ParameterCapabilityInterface{mp(packet.RF_IPv6_UC), gr},
			open{asn: 4200000001, ipv6: true, gracefulRestart: true}},
		{[]packet.ParameterCapabilityInterface{mp(packet.RF_IPv6_UC), mp(packet.RF_IPv4_UC)},
			open{asn: 4200000001, ipv4: true, ipv6: true}},
	} {
		c.want.routerID, c.want.holdTime = netip.MustParseAddr("10.255.0.1"), 90*time.Second
		got, err := parseOpen(serialize(t, openMessage(4200000001, c.caps...))[headerLen:])
		if err != nil || got != c.want {
			t.Errorf("%+v %v, want %+v", got, err, c.want)
		}
	}
}

// pipe is two ends of a real connection.
func pipe(t *testing.T) (ours, theirs *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	b, err := l.Accept()
	must(t, err)
	t.Cleanup(func() { a.Close(); b.Close() })
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

// While routes change, no session becomes established, and the other way round.
func TestGate(t *testing.T) {
	ours, theirs := pipe(t)
	gate := make(chan struct{}, 1)
	w := newWire(ours, Session{}, netip.MustParseAddr("192.0.2.254"), gate, func() {})
	keepalive := serialize(t, packet.NewBGPKeepAliveMessage())
	read := make(chan error, 10)
	go func() {
		for range 2 {
			_, err := io.ReadFull(w, make([]byte, headerLen))
			read <- err
		}
	}()
	gate <- struct{}{} // routes change
	_, err := theirs.Write(keepalive)
	must(t, err)
	select {
	case <-read:
		t.Fatal("the KEEPALIVE passed the gate")
	case <-time.After(50 * time.Millisecond):
	}
	<-gate // routes have changed
	must(t, <-read)
	select {
	case gate <- struct{}{}:
		t.Fatal("routes can change before the session is established")
	default:
	}
	w.release()
	w.release()
	gate <- struct{}{} // routes change again, and later KEEPALIVEs do not wait
	_, err = theirs.Write(keepalive)
	must(t, err)
	must(t, <-read)
	<-gate
}

// A connection that ends gives the gate back, or gives up waiting for it.
func TestGateOfClosedWire(t *testing.T) {
	for _, busy := range []bool{false, true} {
		ours, theirs := pipe(t)
		gate := make(chan struct{}, 1)
		if busy {
			gate <- struct{}{}
		}
		w := newWire(ours, Session{}, netip.MustParseAddr("192.0.2.254"), gate, func() {})
		read := make(chan struct{})
		go func() {
			_, _ = io.ReadFull(w, make([]byte, headerLen))
			close(read)
		}()
		_, err := theirs.Write(serialize(t, packet.NewBGPKeepAliveMessage()))
		must(t, err)
		if !busy {
			<-w.passing
		}
		w.Close()
		<-read
		if busy {
			<-gate
		}
		gate <- struct{}{} // free
	}
}

// The router reads our NOTIFICATION although it was sending when we closed.
func TestNotificationArrives(t *testing.T) {
	ours, theirs := pipe(t)
	w := newWire(ours, Session{}, netip.MustParseAddr("192.0.2.254"), make(chan struct{}, 1), func() {})
	_, err := theirs.Write(serialize(t, packet.NewBGPKeepAliveMessage())) // never read by us
	must(t, err)
	msg := serialize(t, packet.NewBGPNotificationMessage(6, 3, nil))
	_, err = w.Write(msg)
	must(t, err)
	closed := make(chan struct{})
	go func() { w.Close(); close(closed) }()
	_, err = theirs.Write(serialize(t, packet.NewBGPKeepAliveMessage()))
	must(t, err)
	got, err := io.ReadAll(theirs)
	if err != nil || !bytes.Equal(got, msg) {
		t.Errorf("%q %v", got, err)
	}
	theirs.Close()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Error("does not close")
	}
}

// GoBGP does not close a connection that it could not send its OPEN on; the next
// attempt must not wait for that.
func TestWireClosesWhenItCannotBeWrittenTo(t *testing.T) {
	ours, theirs := pipe(t)
	w := newWire(ours, Session{}, netip.MustParseAddr("192.0.2.254"), make(chan struct{}, 1), func() {})
	must(t, theirs.SetLinger(0)) // reset, as a router does that has no neighbour yet
	must(t, theirs.Close())
	eventually(t, "a failure", func() bool { _, err := w.Write(serialize(t, openMessage(65001))); return err != nil })
	select {
	case <-w.closed:
	default:
		t.Error("the connection is open still")
	}
}

// The router's answer to our KEEPALIVE does not come before we know that we have sent
// that: it tells a session that ended at once from one that never came up.
func TestConfirmedBeforeAnswer(t *testing.T) {
	keepalive := serialize(t, packet.NewBGPKeepAliveMessage())
	for range 200 {
		ours, theirs := pipe(t)
		w := newWire(ours, Session{}, netip.MustParseAddr("192.0.2.254"), make(chan struct{}, 1), func() {})
		answered := make(chan bool)
		go func() {
			_, _ = io.ReadFull(theirs, make([]byte, headerLen))
			answered <- w.seen().confirmed
		}()
		runtime.Gosched()
		_, err := w.Write(keepalive)
		must(t, err)
		if !<-answered {
			t.Fatal("the router has read our KEEPALIVE, and the wire does not know of it")
		}
	}
}
