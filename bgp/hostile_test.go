package bgp

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// message is any message, whatever is in it.
func message(kind byte, body []byte) []byte {
	head := slices.Clone(marker)
	head = binary.BigEndian.AppendUint16(head, uint16(headerLen+len(body)))
	return slices.Concat(head, []byte{kind}, body)
}

// manyPrefixes are UPDATEs with n prefixes that are right in every respect.
func manyPrefixes(n int) (stream []byte, updates int) {
	attributes := []byte{0x40, 1, 1, 0 /* origin */, 0x40, 2, 6, 2, 1, 0, 0, 0xfd, 0xe9 /* AS path: 65001 */, 0x40, 3,
		4, 127, 0, 0, 5 /* next hop */}
	addr := netip.MustParseAddr("11.0.0.0")
	for n > 0 {
		body := binary.BigEndian.AppendUint16([]byte{0, 0}, uint16(len(attributes)))
		body = append(body, attributes...)
		for ; n > 0 && len(body)+5 <= maxBody; n-- {
			body = append(append(body, 32), addr.AsSlice()...)
			addr = addr.Next()
		}
		stream = append(stream, message(msgUpdate, body)...)
		updates++
	}
	return stream, updates
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // the first moves what pools hold to where the second takes it
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A router that sends its full table, malformed messages, unknown capabilities and
// requests without end costs no memory, and no session: neither its own nor
// another's.
func TestRouterFloodsUpdates(t *testing.T) {
	const prefixes, rubbish, refreshes = 100_000, 1000, 100
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	flood, updates := manyPrefixes(prefixes)
	for range rubbish {
		body := make([]byte, rng.IntN(maxBody))
		for i := range body {
			body[i] = byte(rng.Uint32())
		}
		body = append(body, 0) // never End-of-RIB, which passes
		flood = append(flood, message(msgUpdate, body)...)
	}
	for range refreshes {
		flood = append(flood, message(5, []byte{byte(rng.Uint32()), byte(rng.Uint32()), 0, byte(rng.Uint32())})...)
	}
	begin, sent := make(chan struct{}), make(chan struct{})
	fake := startFake(t, func(c *fakeConn) {
		c.send(openMessage(65001, packet.NewCapUnknown(250, make([]byte, 100)), packet.NewCapUnknown(251, nil)))
		c.read()
		c.send(packet.NewBGPKeepAliveMessage())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			select {
			case <-begin:
				_, _ = c.Write(flood)
				close(sent)
			case <-ctx.Done():
			}
		}()
		c.readAll()
	})
	r := startRouter(t, routerConf{})
	conf, other := fake.session(), r.session("other")
	conf.HoldTime, other.HoldTime = time.Hour, time.Hour
	s := newServer(t, Options{})
	sessions := []Session{other, conf}
	_, err := s.Set(t.Context(), state(sessions, routes("192.0.2.1/32")))
	must(t, err)
	up := func() bool {
		return s.sessionStatus("tor1").State == Established && s.sessionStatus("other").State == Established
	}
	eventually(t, "sessions", up)
	before := heap()
	close(begin)
	eventually(t, "all that it says", func() bool { return s.sessionStatus("tor1").IgnoredUpdates == updates+rubbish })
	<-sent
	if after := heap(); after > before+4<<20 {
		t.Errorf("%d KiB more after %d prefixes", (after-before)>>10, prefixes)
	}
	told := s.sessionStatus("tor1").Updates
	_, err = s.Set(t.Context(), state(sessions, routes("192.0.2.2/32")))
	must(t, err)
	eventually(t, "another route", func() bool {
		return r.adjIn() == "192.0.2.2/32 via 127.0.0.1 as [65010]\n" && s.sessionStatus("tor1").Updates > told
	})
	for _, st := range s.Status().Sessions {
		if st.Flaps != 0 {
			t.Errorf("session %s: %s", st.Name, st.LastError)
		}
	}
}

// What cannot be understood ends the session that it came on, with a reason, and no
// other.
func TestRouterSendsMalformedMessages(t *testing.T) {
	r := startRouter(t, routerConf{})
	s := newServer(t, Options{})
	other := r.session("other")
	other.HoldTime = time.Hour
	_, err := s.Set(t.Context(), state([]Session{other}, routes("192.0.2.1/32")))
	must(t, err)
	eventually(t, "the other session", func() bool { return s.sessionStatus("other").State == Established })
	since := s.sessionStatus("other").Since
	for _, c := range []struct {
		name string
		says []byte
		want string
	}{
		{"a message of no kind", message(77, []byte("hello")),
			"this node ended the session: Message Header Error/Bad Message Type sent"},
		{"a notification of no kind", message(msgNotification, slices.Concat([]byte{250, 3}, make([]byte, 4000))),
			"router ended the session: code 250 subcode 3 received"},
		{"an empty notification", message(msgNotification, nil), "router ended the session: code 0 subcode 0 received"},
		{"a second OPEN", message(msgOpen, []byte{4}), "router's OPEN cannot be read: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			fake := startFake(t, func(conn *fakeConn) {
				conn.establish()
				_, _ = conn.Write(c.says)
				conn.readAll()
			})
			conf := fake.session()
			conf.HoldTime = time.Hour
			_, err := s.Set(t.Context(), state([]Session{other, conf}, routes("192.0.2.1/32")))
			must(t, err)
			var got string
			eventually(t, c.want, func() bool { got = s.sessionStatus("tor1").LastError; return got != "" })
			if len(got) < len(c.want) || got[:len(c.want)] != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			if st := s.sessionStatus("other"); st.State != Established || st.Since != since || st.Flaps != 0 {
				t.Errorf("the other session: %+v", st)
			}
		})
	}
}

// opening is an OPEN with any optional parameters, which need not be as long as it says.
func opening(length int, params ...byte) []byte {
	return message(msgOpen, slices.Concat([]byte{4, 0xfd, 0xe9 /* AS 65001 */, 0, 90, 10, 255, 0, 1, byte(length)},
		params))
}

// capable is an OPEN with capabilities, in one optional parameter.
func capable(capabilities ...byte) []byte {
	return opening(len(capabilities)+2, slices.Concat([]byte{2, byte(len(capabilities))}, capabilities)...)
}

// withHeader is a message whose header says another length or another marker.
func withHeader(m []byte, length uint16, mark byte) []byte {
	m = slices.Clone(m)
	for i := range len(marker) {
		m[i] = mark
	}
	binary.BigEndian.PutUint16(m[len(marker):], length)
	return m
}

var as65001 = []byte{65, 4, 0, 0, 0xfd, 0xe9}

// oddOpenings are what a router may say before the session is up, and the node's
// reason: none, if the message is odd but valid.
var oddOpenings = []struct {
	name string
	says []byte
	want string
}{
	{"version 3", message(msgOpen, []byte{3, 0xfd, 0xe9, 0, 90, 10, 255, 0, 1, 0}),
		"this node ended the session: OPEN Message Error/Unsupported Version Number sent"},
	{"AS 0", message(msgOpen, []byte{4, 0, 0, 0, 90, 10, 255, 0, 1, 0}),
		"wrong AS number: router says AS0, BGPPeer says AS65001"},
	{"AS 23456 and none of four octets", message(msgOpen, []byte{4, 0x5b, 0xa0, 0, 90, 10, 255, 0, 1, 0}),
		"wrong AS number: router says AS23456, BGPPeer says AS65001"},
	{"hold time 0", message(msgOpen, []byte{4, 0xfd, 0xe9, 0, 0, 10, 255, 0, 1, 0}), ""},
	{"hold time 1", message(msgOpen, []byte{4, 0xfd, 0xe9, 0, 1, 10, 255, 0, 1, 0}),
		"this node ended the session: OPEN Message Error/Unacceptable Hold Time sent"},
	{"router ID 0", message(msgOpen, []byte{4, 0xfd, 0xe9, 0, 90, 0, 0, 0, 0, 0}),
		"this node ended the session: OPEN Message Error/Bad BGP Identifier sent"},
	{"router ID 255.255.255.255", message(msgOpen, []byte{4, 0xfd, 0xe9, 0, 90, 255, 255, 255, 255, 0}), ""},
	{"empty OPEN", message(msgOpen, nil), "router's OPEN cannot be read: Not all BGP Open message bytes available"},
	{"OPEN of one byte", message(msgOpen, []byte{4}),
		"router's OPEN cannot be read: Not all BGP Open message bytes available"},
	{"no parameters", opening(0), ""},
	{"parameters longer than the message", opening(200, 2, 6),
		"router's OPEN cannot be read: Not all BGP Open message bytes available"},
	{"parameters shorter than the message", opening(0, slices.Concat([]byte{2, 6}, as65001)...), ""},
	{"parameter without a length", opening(1, 2), "router's OPEN cannot be read: Malformed BGP Open message"},
	{"parameter that lies about its length", opening(4, 2, 200, 65, 4),
		"router's OPEN cannot be read: Malformed BGP Open message"},
	{"parameter of no kind", opening(4, 99, 2, 1, 2), ""},
	{"capability without a length", capable(65), ""},
	{"capability that lies about its length", capable(65, 200, 0, 0),
		"router's OPEN cannot be read: Not all DefaultParameterCapability bytes available"},
	{"capability of no kind", capable(slices.Concat([]byte{250, 3, 1, 2, 3}, as65001)...), ""},
	{"AS number of two octets of four", capable(65, 2, 0xfd, 0xe9),
		"router's OPEN cannot be read: CapFourOctetASNumber requires exactly 4 bytes"},
	{"AS number 0 of four octets", capable(65, 4, 0, 0, 0, 0),
		"wrong AS number: router says AS0, BGPPeer says AS65001"},
	{"family of three octets", capable(slices.Concat([]byte{1, 3, 0, 1, 1}, as65001)...),
		"router's OPEN cannot be read: CapMultiProtocol requires exactly 4 bytes"},
	{"family of no kind", capable(slices.Concat([]byte{1, 4, 0xff, 0xff, 0, 0xff}, as65001)...), ""},
	{"graceful restart of one octet", capable(slices.Concat([]byte{64, 1, 0x80}, as65001)...),
		"router's OPEN cannot be read: Not all CapabilityGracefulRestart bytes available"},
	{"graceful restart with half a family", capable(slices.Concat([]byte{64, 4, 0x80, 60, 0, 1}, as65001)...), ""},
	{"next hops of five octets", capable(slices.Concat([]byte{5, 5, 0, 1, 0, 1, 0}, as65001)...),
		"router's OPEN cannot be read: Not all CapabilityExtendedNexthop bytes available"},
	{"ADD-PATH of three octets", capable(slices.Concat([]byte{69, 3, 0, 1, 1}, as65001)...),
		"router's OPEN cannot be read: Not all CapabilityAddPath bytes available"},
	{"ADD-PATH of no kind", capable(slices.Concat([]byte{69, 4, 0, 1, 1, 250}, as65001)...), ""},
	{"a name that lies about its length", capable(slices.Concat([]byte{73, 3, 200, 'a', 200}, as65001)...),
		"router's OPEN cannot be read: Not all CapabilityFQDN bytes allowed"},
	{"long-lived restart of five octets", capable(slices.Concat([]byte{71, 5, 0, 1, 1, 0, 0}, as65001)...),
		"router's OPEN cannot be read: invalid length of long lived graceful restart capablity"},
	{"a version that lies about its length", capable(slices.Concat([]byte{75, 2, 200, 'a'}, as65001)...),
		"router's OPEN cannot be read: invalid length of software version capablity"},
	{"80 empty capabilities", capable(slices.Concat(bytes.Repeat([]byte{128, 0}, 80), as65001)...), ""},
	{"extended parameters (RFC 9072)", opening(255, slices.Concat([]byte{255, 0, 9, 2, 0, 6}, as65001)...),
		"router's OPEN cannot be read: Not all BGP Open message bytes available"},
	{"extended parameters that lie", opening(255, 255, 0xff, 0xff, 2, 0xff, 0xff),
		"router's OPEN cannot be read: Not all BGP Open message bytes available"},
	{"KEEPALIVE first", keepalive, "this node ended the session: Finite State Machine Error/Unexpected " +
		"Message in OpenSent sent"},
	{"KEEPALIVE with a body", message(msgKeepalive, []byte("hello")),
		"this node ended the session: Finite State Machine Error/Unexpected Message in OpenSent sent"},
	{"UPDATE first", message(msgUpdate, bytes.Repeat([]byte{0xee}, 50)),
		"this node ended the session: Finite State Machine Error/Unexpected Message in OpenSent sent"},
	{"UPDATE in between", slices.Concat(capable(as65001...), message(msgUpdate, bytes.Repeat([]byte{0xee}, 50))),
		"this node ended the session: after its OPEN the router sent something else than a KEEPALIVE"},
	{"NOTIFICATION first", message(msgNotification, []byte{2, 2}),
		"router refuses our AS65010: it expects another AS number (OPEN Message Error/Bad Peer AS received)"},
	{"empty NOTIFICATION", message(msgNotification, nil), "router ended the session: code 0 subcode 0 received"},
	{"ROUTE-REFRESH first", message(5, []byte{0, 1, 0, 1}),
		"this node ended the session: Finite State Machine Error/Unexpected Message in OpenSent sent"},
	{"ROUTE-REFRESH of one byte", slices.Concat(capable(as65001...), message(5, []byte{0})),
		"this node ended the session: ROUTE-REFRESH Message Error/Invalid Message Length sent"},
	{"message of no kind", message(0, nil), "what answers at 127.0.1."},
	{"two OPENs", slices.Concat(capable(as65001...), capable(as65001...)),
		"this node ended the session: after its OPEN the router sent something else than a KEEPALIVE"},
	{"length 0", withHeader(opening(0), 0, 0xff),
		"router's OPEN cannot be read: Not all BGP Open message bytes available"},
	{"length 18", withHeader(opening(0), 18, 0xff),
		"router's OPEN cannot be read: Not all BGP Open message bytes available"},
	{"length 4097", withHeader(message(msgOpen, make([]byte, 4097-headerLen)), 4097, 0xff), "what answers at 127.0.1."},
	{"length 65535", withHeader(message(msgOpen, make([]byte, 65535-headerLen)), 65535, 0xff),
		"what answers at 127.0.1."},
	{"no marker", withHeader(opening(0), headerLen+10, 0),
		"this node ended the session: Message Header Error/Connection Not Synchronized sent"},
}

// Whatever a router says at first, that attempt is all that it can spoil: the next one,
// at which it behaves, succeeds, and other sessions notice nothing.
func TestUnusualOpens(t *testing.T) {
	r := startRouter(t, routerConf{})
	other := r.session("other")
	other.HoldTime = time.Hour
	s := newServer(t, Options{})
	_, err := s.Set(t.Context(), state([]Session{other}, routes("192.0.2.1/32")))
	must(t, err)
	eventually(t, "the other session", func() bool { return s.sessionStatus("other").State == Established })
	since := s.sessionStatus("other").Since

	sessions := []Session{other}
	for i, o := range oddOpenings {
		var connections atomic.Int32
		conf := startFakeAt(t, fmt.Sprintf("127.0.1.%d", i+1), func(c *fakeConn) {
			if connections.Add(1) > 1 {
				c.establish()
			} else {
				_, _ = c.Write(slices.Concat(o.says, keepalive))
			}
			c.readAll()
		}).session()
		conf.Name, conf.HoldTime = o.name, time.Hour
		sessions = append(sessions, conf)
	}
	_, err = s.Set(t.Context(), state(sessions, routes("192.0.2.1/32")))
	must(t, err)
	for _, o := range oddOpenings {
		t.Run(o.name, func(t *testing.T) {
			eventually(t, "session", func() bool { return s.sessionStatus(o.name).State == Established })
			if st := s.sessionStatus(o.name); !strings.HasPrefix(st.LastError, o.want) ||
				(st.LastError == "") != (o.want == "") || st.Flaps != 0 {
				t.Errorf("%q, want %q; lost %d times", st.LastError, o.want, st.Flaps)
			}
		})
	}
	if st := s.sessionStatus("other"); st.State != Established || st.Since != since || st.Flaps != 0 {
		t.Errorf("the other session: %+v", st)
	}
}
