package bgp

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
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
	attributes := []byte{0x40, 1, 1, 0 /* origin */, 0x40, 2, 6, 2, 1, 0, 0, 0xfd, 0xe9 /* AS path: 65001 */, 0x40, 3, 4, 127, 0, 0, 5 /* next hop */}
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

// A router that sends its full table, rubbish, capabilities that nobody knows and
// requests without end costs no memory, and no session: neither its own nor
// another's.
func TestRouterThatTalksTooMuch(t *testing.T) {
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
func TestRouterThatSpeaksNonsense(t *testing.T) {
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
		{"a message of no kind", message(77, []byte("hello")), "this node ended the session: Message Header Error/Bad Message Type sent"},
		{"a notification of no kind", message(msgNotification, slices.Concat([]byte{250, 3}, make([]byte, 4000))), "router ended the session: code 250 subcode 3 received"},
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
