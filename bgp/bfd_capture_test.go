package bgp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A bfdSighting is a BFD packet on the wire.
type bfdSighting struct {
	at   time.Time
	from netip.Addr
	bfdPacket
}

// String is one line of a transcript.
func (s bfdSighting) String() string {
	var flags string
	if s.poll {
		flags += "P"
	}
	if s.final {
		flags += "F"
	}
	return fmt.Sprintf("%-9s %-2s diag=%d mult=%d tx=%s rx=%s my=%x your=%x",
		s.state, flags, s.diagnostic, s.multiplier, s.transmit, s.receive, s.local, s.remote)
}

// A bfdCapture has all BFD packets on the links of this node, with the kernel's timestamps: a
// test that gets no processor sees them all the same.
type bfdCapture struct {
	mu      sync.Mutex
	packets []bfdSighting
}

func captureBFD(t *testing.T) *bfdCapture {
	t.Helper()
	all := int(binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})) // in network order: sent packets are there, too
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, all)
	must(t, err)
	must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1))
	must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 8<<20)) // the kernel may give less
	must(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}))
	c := &bfdCapture{}
	stop, stopped := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-stopped; unix.Close(fd) })
	go func() {
		defer close(stopped)
		body, control := make([]byte, 2048), make([]byte, 512)
		for {
			select {
			case <-stop:
				return
			default:
			}
			n, controls, _, _, err := unix.Recvmsg(fd, body, control, 0)
			if err != nil {
				continue // mostly the time-out
			}
			if s, ok := sighting(body[:n], control[:controls]); ok {
				c.mu.Lock()
				c.packets = append(c.packets, s)
				c.mu.Unlock()
			}
		}
	}()
	return c
}

// sighting reads an IP packet, and its time.
func sighting(b, control []byte) (s bfdSighting, ok bool) {
	var udp []byte
	switch {
	case len(b) > 28 && b[0]>>4 == 4 && b[9] == unix.IPPROTO_UDP:
		s.from, udp = netip.AddrFrom4([4]byte(b[12:16])), b[int(b[0]&15)*4:]
	case len(b) > 48 && b[0]>>4 == 6 && b[6] == unix.IPPROTO_UDP:
		s.from, udp = netip.AddrFrom16([16]byte(b[8:24])), b[40:]
	}
	if len(udp) < 8 || binary.BigEndian.Uint16(udp[2:]) != bfdPort {
		return s, false
	}
	var err error
	if s.bfdPacket, err = parseBFD(udp[8:]); err != nil {
		return s, false
	}
	messages, _ := unix.ParseSocketControlMessage(control)
	for _, m := range messages {
		if m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= int(unsafe.Sizeof(unix.Timespec{})) {
			s.at = time.Unix((*unix.Timespec)(unsafe.Pointer(&m.Data[0])).Unix())
		}
	}
	return s, !s.at.IsZero()
}

// since are the packets from then on, in the order of their time.
func (c *bfdCapture) since(begin time.Time) []bfdSighting {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(c.packets), func(s bfdSighting) bool { return s.at.Before(begin) })
	slices.SortStableFunc(all, func(a, b bfdSighting) int { return a.at.Compare(b.at) })
	return all
}

// transcript is what an operator reads of packets between two ends.
func transcript(packets []bfdSighting, names map[netip.Addr]string) string {
	var text strings.Builder
	for _, s := range packets {
		if name := names[s.from]; name != "" {
			fmt.Fprintf(&text, "%7.3f %-6s %s\n", s.at.Sub(packets[0].at).Seconds(), name, s)
		}
	}
	return text.String()
}

// leaves counts how often a session of the end with this address left the state Up. That an end
// has replaced its session since, which its discriminator shows, is a cause for both ends.
func leaves(packets []bfdSighting, end netip.Addr) (n int) {
	var last bfdSighting
	left := 0 // since the last Up
	for _, s := range packets {
		if s.from != end {
			continue
		}
		replaced := s.local != last.local || s.remote != 0 && last.remote != 0 && s.remote != last.remote
		switch {
		case replaced:
			left = 0
		case last.state == bfdUp && s.state != bfdUp:
			left = 1
		case s.state == bfdUp:
			n, left = n+left, 0
		}
		if s.remote == 0 {
			s.remote = last.remote
		}
		last = s
	}
	return n + left
}

// upSince is when the end with this address entered the state Up; false if it is not up.
func upSince(packets []bfdSighting, end netip.Addr) (since time.Time, up bool) {
	for _, s := range packets {
		switch {
		case s.from != end:
		case s.state != bfdUp:
			up = false
		case !up:
			since, up = s.at, true
		}
	}
	return since, up
}
